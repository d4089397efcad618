"""Golden screens of the commands: in a terminal of 80 columns, and in a pipe."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest

import weft.targets as targets
from weft.cache.store import DiskStore
from weft.cli import COMMANDS, commands, main
from weft.cli.calibration import Measurement
from weft.cli.commands import calibrate, launch
from weft.cli.commands.installation import cache, ops
from weft.cli.commands.installation.doctor import lines
from weft.cli.screen import print_labelled, print_text
from weft.errors import WeftWarning
from weft.knobs import KNOBS
from weft.remote import server
from weft.workers.launch import JobExit

ROOT = Path(__file__).parent.parent.parent
GOLDEN = ROOT / "tests" / "golden" / "screens"
MLP, LLAMA, MESH = "examples/sharded_mlp.mlir", "examples/llama.py:loss", "--mesh=data=2,model=4"
SCREENS = {
    "run": ["run", LLAMA, MESH, "--check", "--check-every-op"],
    "run-large": ["run", MLP],
    "eval": ["eval", "examples/all_reduce.mlir", "--devices", "4"],
    "check": ["check", "examples/mlp.mlir", "examples/errors/sizes.mlir"],
    "shard": ["shard", MLP, "-o", "OUT"],
    "partition": ["partition", MLP, "-o", "OUT"],
    "opt": ["opt", MLP, "--mesh=data=2,model=4", "-O2", "-o", "OUT"],
    "opt-levels": ["opt", "--levels"],
    "compile": ["compile", MLP, "--to", "tiled", "-o", "OUT"],
    "show": ["show", MLP],
    "show-code": ["show", LLAMA, MESH],
    "show-value": ["show", MLP, "--value", "%6"],
    "why": ["why", MLP],
    "why-value": ["why", MLP, "%6"],
    "explain": ["explain", MLP, "--machine", "8xh100", "--tries", "8"],
    "predict": ["predict", LLAMA, MESH, "--machine", "8xh100", "--machine", "tpu-v5p"],
    "predict-sweep": ["predict", MLP, "--machine", "8xh100", "--sweep"],
    "kernels": ["kernels", MLP],
    "report": ["report", MLP, "--machine=8xh100", "--whatif=8xh100", "-o", "OUT"],
    "plan": ["plan", "examples/llama.py:train_step", "--machine=8xh100", "--tries=1"],
    "cost": ["cost", "examples/collectives.csv"],
    "machines": ["machines"],
    "machine": ["machine", "32x(8xh200)@800G"],
    "ops": ["ops"],
    "ops-one": ["ops", "reduce_window"],
    "ops-summary": ["ops", "--summary"],
    "knobs": ["knobs"],
    "cache": ["cache"],
    "compare": ["compare", "zoo:mlp", MESH],
    "zoo": ["zoo", "mlp", "--mesh", "8", "--dtype", "f32", "--pass", "forward"],
    "zoo-list": ["zoo", "--list", "mlp", "llama"],
    "conformance": ["conformance", "examples/mlp.mlir"],
}


@pytest.fixture
def shown(tmp_path, capsys, monkeypatch):
    """What a command puts on a screen of some width, or of none."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    monkeypatch.chdir(tmp_path)  # so that the paths on the screen are short, and the same anywhere
    for name in ("NO_COLOR", "FORCE_COLOR", "WEFT_THREADS", "WEFT_TRACE", "WEFT_TUNE"):
        monkeypatch.delenv(name, raising=False)

    def run(line: list[str], columns: int | None) -> str:
        if columns is None:
            monkeypatch.delenv("COLUMNS", raising=False)
        else:
            monkeypatch.setenv("COLUMNS", str(columns))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", WeftWarning)  # the same as in `weft.compile`
            main(line)
        found = capsys.readouterr()
        return found.out + found.err

    return run


def tidy(text: str) -> str:
    """A screen without what differs from machine to machine."""
    text = re.sub(r"\b\d\.\de[-+]\d\d\b", "#.#e-##", text)  # rounding errors
    return re.sub(r"ran on (\d+) devices in \S+ ms", r"ran on \1 devices in … ms", text)


@pytest.fixture
def without_triton(monkeypatch):
    """The targets of every machine: `weft ops` has no column for one that is not installed."""
    find = targets.find_spec
    monkeypatch.setattr(targets, "find_spec", lambda name: None if name == "triton" else find(name))
    ops.tables.cache_clear()
    yield
    ops.tables.cache_clear()


@pytest.mark.parametrize("name", [n for n in SCREENS if n not in ("cache", "knobs")])
def test_screens_are_as_they_were(name, shown, golden, without_triton):
    check_screen(name, SCREENS[name], shown, golden)


def check_screen(name, line, shown, golden):
    narrow, piped = tidy(shown(line, 80)), tidy(shown(line, None))
    golden(GOLDEN / f"{name}.txt", f"{narrow}\n{'=' * 26} in a pipe {'=' * 26}\n{piped}")


# Commands whose output is of this machine: from fixed data.


def test_knobs_as_they_are_set(shown, golden, monkeypatch):
    for knob in KNOBS:
        monkeypatch.delenv(knob.name, raising=False)
    monkeypatch.setenv("WEFT_CACHE", "cache")
    monkeypatch.setenv("WEFT_TUNE", "sometimes")  # no mode
    check_screen("knobs", SCREENS["knobs"], shown, golden)


def test_an_empty_cache(shown, golden, monkeypatch):
    monkeypatch.setattr(cache, "the_store", lambda: DiskStore(Path("cache"), 1 << 30))
    check_screen("cache", SCREENS["cache"], shown, golden)


def test_a_calibration(shown, golden, monkeypatch):
    numbers = [
        Measurement("device.launch", 2.1e-06, "32 in a row", "2.1 us"),
        Measurement("rates.f32", 1.23e11, "1024 x 1024 x 1024", "123 Gflop/s"),
    ]
    monkeypatch.setattr(calibrate, "measurements", lambda _: iter(numbers))
    overheads = [Measurement("overheads.call", 5.08e-06, "calls of small programs", "5.08 us")]
    monkeypatch.setattr(calibrate, "overhead_measurements", lambda *_: iter(overheads))
    monkeypatch.setattr(calibrate, "is_busy", lambda: True)
    monkeypatch.setattr(calibrate, "memory_here", lambda: 1 << 33)
    check_screen("calibrate", ["calibrate", "-o", "host.toml"], shown, golden)


def test_a_job_that_failed(shown, golden, monkeypatch):
    error = "WeftError: worker 2 has left all_reduce over 'data' (train.py:41)\nhelp: see its log"
    ended = JobExit(137, 2, "was ended by SIGKILL in step 12", error)
    monkeypatch.setattr(launch, "launch", lambda *_: ended)
    monkeypatch.setattr(launch, "job_of", lambda _: None)
    check_screen("launch", ["launch", "--workers", "4", "train.py"], shown, golden)


def test_a_profile(shown, golden, tmp_path):
    (tmp_path / "kept").symlink_to(GOLDEN / "profile")  # two workers, the second of which is late
    check_screen("profile", ["profile", "kept"], shown, golden)


def test_a_server(shown, golden, monkeypatch):
    class Server:
        def __init__(self, options):
            self.start, self.wait, self.stop = lambda: 8471, lambda: None, lambda: None

    monkeypatch.setattr(server, "DeviceServer", Server)
    check_screen("serve-devices", ["serve-devices"], shown, golden)


@pytest.mark.parametrize("columns", [80, 100])
@pytest.mark.parametrize(
    "name",
    [
        "show",
        "show-code",
        "kernels",
        "ops",
        "ops-summary",
        "knobs",
        "opt-levels",
        "machines",
        "machine",
    ],
)
def test_tables_fit_the_screen(name, columns, shown):
    lines = [line for line in shown(SCREENS[name], columns).splitlines() if "result 0" not in line]
    widest = max(lines, key=len)
    assert len(widest) <= columns, widest
    assert all(line == line.rstrip() for line in lines)


def test_a_doctors_screen_fits(capsys, monkeypatch, golden):
    found = json.loads((GOLDEN / "doctor.json").read_text())
    screens = []
    for columns in ("80", ""):
        monkeypatch.setenv("COLUMNS", columns)
        print_labelled(lines(found))
        screens.append(capsys.readouterr().out)
    golden(GOLDEN / "doctor.txt", f"\n{'=' * 26} in a pipe {'=' * 26}\n".join(screens))


def test_every_command_has_a_screen_and_json():
    # Tested above from fixed data.
    other = {"doctor", "calibrate", "launch", "serve-devices", "profile"}
    covered = {name.partition("-")[0] for name in SCREENS}
    assert {*COMMANDS} - other <= covered
    for name, home in COMMANDS.items():
        if name == "serve-devices":
            continue
        source = Path(commands.__path__[0], *home.split(".")).with_suffix(".py").read_text()
        assert '"--json"' in source or "add_out(" in source, name


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_the_screen(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 80


@pytest.mark.parametrize(
    ("settings", "coloured"),
    [
        ({}, False),
        ({"FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        ({"FORCE_COLOR": "1", "TERM": "dumb"}, False),
    ],
)
def test_colours_are_where_they_are_wanted(settings, coloured, capsys, monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    print_text("two 📐 words", "bold")
    assert ("\033[" in capsys.readouterr().out) == coloured


@pytest.mark.parametrize("line", ["run", "shard", "partition", "opt", "compile", "show", "why"])
def test_json_is_json(line, shown):
    words = [w for w in SCREENS[line] if w not in ("--check-every-op",)]
    assert json.loads(shown([*words, "--json"], 80).partition("\nwarning:")[0])
