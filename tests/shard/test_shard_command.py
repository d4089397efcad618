"""`weft shard`: what it prints, what it writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft import parse
from weft.cli import main
from weft.shard import drop_shardings, shard

MLP = str(Path(__file__).parents[2] / "examples" / "sharded_mlp.mlir")


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Run a command line in a folder of its own; gives its status, its output and its errors."""
    monkeypatch.chdir(tmp_path)

    def call(*line: str) -> tuple[int, str, str]:
        try:
            status = main(["shard", *line])
        except SystemExit as ended:
            status = ended.code
        out, errors = capsys.readouterr()
        return status, out, errors

    return call


def test_the_program_is_printed(run):
    assert run(MLP) == (0, shard(parse(Path(MLP)), pads="named").text(), "")


def test_a_summary_is_printed_when_a_file_is_written(run):
    status, out, _ = run(MLP, "-o", "out.mlir", "--mesh", "data=4,model=2")
    assert status == 0
    assert out == (
        "mesh       @mesh: data=4, model=2 (8 devices)\n"
        "functions  1\n"
        "arguments  4 with dims, 4 of them split in 3 ways\n"
        "values     6 with dims, 6 of them split in 2 ways\n"
        "reshards   0\n"
        "written    out.mlir\n"
    )
    assert Path("out.mlir").read_text() == shard(parse(Path(MLP)), "data=4,model=2").text()


@pytest.mark.parametrize("level", ["basic", "aggressive", "op", "user"])
def test_levels(run, level):
    expected = shard(parse(Path(MLP)), level=level, pads="named")
    assert run(MLP, "--level", level) == (0, expected.text(), "")


def test_dropping(run):
    status, out, _ = run(MLP, "--drop", "-o", "out.mlir")
    assert status == 0
    assert out == "functions  1\nvalues     7\nwritten    out.mlir\n"
    text = Path("out.mlir").read_text()
    assert text == drop_shardings(parse(Path(MLP))).text()
    assert "sdy" not in text


@pytest.mark.parametrize(
    ("line", "status", "error"),
    [
        ((MLP, "--mesh", "data=2"), 1, "error: the mesh 'mesh' of the module has the axes data, "),
        ((MLP, "--mesh", "data:2"), 1, "error: 'data:2' is not a mesh\nhelp: write it as data=2,"),
        ((MLP, "--drop", "--mesh", "data=2"), 2, "error: --drop takes meshes out"),
        ((MLP, "--level", "most"), 2, "error: "),
        ((MLP, "-o", "none/out.mlir"), 1, "error: cannot write none/out.mlir: No such file"),
        (("none.mlir",), 1, "error: cannot read none.mlir: No such file"),
    ],
)
def test_what_is_refused(run, line, status, error):
    ended, _, errors = run(*line)
    assert ended == status
    assert errors.startswith(error), errors
