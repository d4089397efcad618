"""`weft opt`: levels, passes by name, memory, times, and errors that say what to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.capture import parse
from weft.cli import main
from weft.evaluate import evaluate
from weft.ops.control import AsyncStart
from weft.optimize import PASSES

EXAMPLE = str(Path(__file__).resolve().parents[2] / "examples" / "all_reduce.mlir")


def test_levels_are_shown(capsys: pytest.CaptureFixture[str]):
    assert main(["opt", "--levels"]) == 0
    shown = capsys.readouterr().out
    assert all(run.__name__ in shown for run in PASSES)
    assert all(f"-O{level}  " in shown for level in range(3))


def test_a_program_is_printed_and_runs(capsys: pytest.CaptureFixture[str]):
    assert main(["opt", EXAMPLE, "-O2", "--machine", "h100"]) == 0
    module = parse(capsys.readouterr().out)
    assert any(isinstance(n.op, AsyncStart) for n in module.nodes())
    evaluate(module, devices=4)  # it checks its own result


def test_one_pass_by_name(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    out = tmp_path / "out.mlir"
    line = ["opt", EXAMPLE, "--pass", "split_async", "--pass", "assign_streams", "-o", str(out)]
    assert main([*line, "--times"]) == 0
    shown = capsys.readouterr().out
    assert "split_async" in shown and "schedule" not in shown and "to verify" in shown
    assert "nodes        15 -> 17" in shown and "a device" in shown
    assert "weft.stream" in out.read_text()


@pytest.mark.parametrize(
    ("line", "message", "help"),
    [
        (["--pass", "scedule"], "unknown pass 'scedule'", "did you mean schedule?"),
        (["--machine", "h1000"], "unknown machine 'h1000'", "did you mean h100?"),
        (["--memory", "much"], "cannot parse 'much' as a memory size", "write 80GiB"),
        (["--memory", "20"], "'main' needs", "split the large values"),
        (["-o", "/nowhere/at/all.mlir"], "cannot write", "folder of yours"),
    ],
)
def test_refusals(line: list[str], message: str, help: str, capsys: pytest.CaptureFixture[str]):
    assert main(["opt", EXAMPLE, *line]) == 1
    shown = capsys.readouterr().err
    assert message in shown and help in shown


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "the following arguments are required: FILE"),
        ([EXAMPLE, "-O1", "--pass", "cse"], "goes without a level"),
        ([EXAMPLE, "-O1", "-O2"], "not allowed with"),
    ],
)
def test_wrong_lines(line: list[str], message: str, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["opt", *line])
    assert message in capsys.readouterr().err


def test_passes_say_what_they_did(tmp_path, capsys):
    line = ["opt", "examples/sharded_mlp.mlir", "--mesh", "data=2,model=4", "-O2", "--explain"]
    assert main([*line, "--machine", "8xh100", "-o", str(tmp_path / "out.mlir")]) == 0
    shown = capsys.readouterr().out
    first, *rows = [row for row in shown.splitlines() if row and not row.startswith(" ")]
    assert first.startswith("pass") and "collectives' time" in first
    assert rows[0].startswith("as partitioned") and any(r.startswith("split_async") for r in rows)
    assert "for 8xh100; nothing to do: " in shown and "hoist_gather" in shown
