"""`weft calibrate` and `weft machine`: measured numbers are written, and are the host."""

from __future__ import annotations

import json

import pytest

from weft.cli import calibration, main
from weft.cli.commands import calibrate
from weft.machine import machine, user_folder


@pytest.fixture
def small(monkeypatch, tmp_path):
    """Little to measure, and a configuration of its own."""
    monkeypatch.setattr(calibration, "_SIDE", 64)
    monkeypatch.setattr(calibration, "_CURVE", (16, 32))
    monkeypatch.setattr(calibration, "_SIZES", (1 << 12, 1 << 14))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("COLUMNS", raising=False)


def test_what_is_measured_is_the_host(small, capsys, monkeypatch):
    monkeypatch.setattr(calibrate, "is_busy", lambda: True)
    assert main(["calibrate", "--seconds", "0.001"]) == 0
    shown = capsys.readouterr().out
    assert "rates.bf16" in shown and "other processes use the cores" in shown
    found = machine("host")
    assert f"written to {user_folder() / 'host.toml'}" in shown
    keys = ("rates.f32", "rates.i8", "device.bandwidth", "device.launch", "efficiency.products")
    assert [found.provenance(key) for key in keys] == ["measured"] * 5
    assert found.provenance("links.0.bandwidth") == "guessed", "what was not measured says so"
    assert found.about.startswith("virtual devices on ")
    assert found.memory_curve[0][1] > 0 and found.product_curve[-1][1] == 1.0


def test_a_file_by_name_and_json(small, capsys, tmp_path):
    path = tmp_path / "new" / "mine.toml"
    assert main(["calibrate", "--seconds", "0.001", "-o", str(path), "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["written"] == str(path) and isinstance(made["busy"], bool)
    assert machine(str(path)).rates[0][1] == made["numbers"]["rates.f64"]
    assert not (user_folder() / "host.toml").exists()


def test_the_machine_that_this_is(capsys):
    assert main(["machine", "--here", "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["notes"] and made["figures"]["device.memory"]["is"] == "measured"
    assert main(["machine", "--here"]) == 0
    assert made["name"] in capsys.readouterr().out


def test_one_of_the_two(capsys):
    for line in (["machine"], ["machine", "h100", "--here"]):
        with pytest.raises(SystemExit):
            main(line)
        assert "give a machine's name, or --here" in capsys.readouterr().err
