"""`weft doctor`: what it finds, and that it fits a screen whatever is missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import weft
from weft.cli import main
from weft.cli.commands.installation.doctor import PACKAGES, advice, knobs, lines, unwritable
from weft.cli.commands.installation.doctor_checks import run_checks

ROOT = Path(__file__).parents[2]
BARE = {
    "weft": "0.2.0",
    "folder": "/x",
    "python": "3.11.7",
    "system": "Linux",
    "packages": dict.fromkeys(PACKAGES),
    "processor": {"model": "a chip", "cores": 8, "threads": 2, "vectors": None, "llvm": None},
    "checks": {"llvm": {"works": None, "text": "llvmlite is not installed"}},
    "cache": {"folder": None, "problem": "no home folder, and WEFT_CACHE is not set"},
    "knobs": {},
    "advice": [],
}


def test_everything_works_here(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.setenv("WEFT_DEVICES", "3")
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["weft"] == weft.__version__ and found["packages"]["jax"] is not None
    assert [name for name, check in found["checks"].items() if check["works"]] == [
        "numpy",
        "llvm",
        "stablehlo",
        "jax",
        "plugin",
    ]
    assert "3 devices with JAX_PLATFORMS=weft" in found["checks"]["plugin"]["text"]
    assert found["cache"]["folder"] == str(tmp_path) and found["cache"]["problem"] is None
    assert found["knobs"]["WEFT_DEVICES"] == {"value": "3", "problem": None}


def test_a_check_that_fails_is_a_finding():
    began = time.perf_counter()
    done, other = run_checks(["nothing", "numpy"])
    milliseconds = 1e3 * (time.perf_counter() - began)
    assert not done.works and "KeyError: 'nothing'" in done.text
    found = re.fullmatch(r"a program ran, compiled and all in (\d+) ms", other.text)
    assert other.works and found and 0 < int(found[1]) <= milliseconds


def test_a_wrong_knob_is_found_by_the_checks(monkeypatch):
    monkeypatch.setenv("WEFT_THREADS", "many")
    (done,) = run_checks(["llvm"])
    assert not done.works and "WEFT_THREADS='many' is invalid" in done.text


def test_knobs_and_typos_of_them(monkeypatch):
    for name in [n for n in os.environ if n.startswith("WEFT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WEFT_TRCE", "x")
    monkeypatch.setenv("WEFT_TUNE", "fast")
    monkeypatch.setenv("WEFT_EXPLAIN", "1")
    found = {name: entry["problem"] for name, entry in knobs().items() if name[:5] == "WEFT_"}
    assert found.pop("WEFT_EXPLAIN") is None
    assert found.pop("WEFT_TRCE") == "unknown; did you mean WEFT_TRACE?"
    assert "is invalid" in found.pop("WEFT_TUNE") and not found


def test_folders(tmp_path):
    (tmp_path / "file").touch()
    assert unwritable(tmp_path / "not" / "yet") is None
    assert unwritable(tmp_path / "file") == f"{tmp_path / 'file'} is not a folder"
    assert unwritable(tmp_path / "file" / "below") == f"{tmp_path / 'file'} is not a folder"
    assert "cannot be written" in str(unwritable(Path("/proc/1/weft")))


def test_what_to_install():
    assert list(advice(dict.fromkeys(PACKAGES, "1.0"))) == []
    assert next(advice(dict.fromkeys(PACKAGES))).startswith("pip install 'weft[stablehlo]'")


def test_a_machine_without_anything_is_shown():
    shown = dict(lines(BARE))
    assert shown["llvm"].endswith("- llvmlite is not installed")
    assert "not numpy, ml_dtypes, jaxlib" in shown["packages"]
    assert shown["cache"].endswith("no home folder, and WEFT_CACHE is not set")


def test_a_narrow_screen_without_letters():
    """As it is shown where there is no home, nor anything but ASCII."""
    script = "import weft.cli.commands.installation.doctor as d; d.run_checks = lambda names: []\n"
    script += "from weft.cli import main; main(['doctor'])"
    bare = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "COLUMNS": "20"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=bare | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 40
    assert done.stdout.isascii() and len(done.stdout.splitlines()) <= 60
