"""`weft why` and `weft show`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weft.cli import main

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = str(ROOT / "examples" / "sharded_mlp.mlir")


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("COLUMNS", raising=False)

    def go(*line: str) -> tuple[int, str, str]:
        status = main(line)
        out, err = capsys.readouterr()
        return status, out, err

    return go


def test_why_tells_a_story(run):
    status, out, _ = run("why", EXAMPLE, "%4")
    assert status == 0
    assert out == (
        '%4: dot_general, tensor<16x64xf32>, <@mesh, [{"data"}, {}]>\n'
        "  --> mlp.py:5\n"
        '  dim 0 (size 16) is split by "data"\n'
        '    the annotation of the argument puts "data" on dim 0 of %arg0 (x)\n'
        "    add (mlp.py:5) carries it from dim 0 of %arg0 (x) to dim 0 of %4\n"
        "  dim 1 (size 64) is whole\n"
        "    nothing reached it\n"
    )


def test_why_tells_which_stage_made_a_value(run):
    status, out, _ = run("why", EXAMPLE, "%1", "--stage", "partitioned")
    assert status == 0
    assert "dot_general" in out and "the program's own, as partition left it, for mlp.py:4" in out
    made = [run("why", EXAMPLE, f"%{n}", "--stage", "partitioned")[1] for n in range(5, 8)]
    assert any("made by partition, for mlp.py:5" in text for text in made)
    _, out, _ = run("why", EXAMPLE, "%arg0", "--stage", "optimized")
    assert out == "%arg0: an argument\n"


def test_why_of_a_stage_wants_a_value(run):
    status, _, err = run("why", EXAMPLE, "--stage", "optimized")
    assert status == 1 and "missing value" in err


def test_why_finds_lines_and_names(run):
    _, by_line, _ = run("why", EXAMPLE, "mlp.py:6")
    _, by_name, _ = run("why", EXAMPLE, "head/dot_general")
    assert by_line == by_name
    assert by_line.startswith("%6: dot_general")


def test_why_tells_of_results(run):
    assert run("why", EXAMPLE, "result0")[1].startswith("result 0: declared result")


def test_why_without_a_value_lists_what_stood_in_the_way(run):
    status, out, _ = run("why", EXAMPLE)
    assert status == 0
    assert out.count("size does not divide: ") == 3
    assert out.endswith("\n3 notes; `weft why FILE %3` explains one value\n")


def test_why_as_json(run):
    (story,) = json.loads(run("why", EXAMPLE, "%4", "--json")[1])
    assert story["sharding"] == '<@mesh, [{"data"}, {}]>'
    assert story["dims"][1] == {"dim": 1, "size": 64, "axes": "", "why": ["nothing reached it"]}
    notes = json.loads(run("why", EXAMPLE, "--json")[1])
    assert [note["kind"] for note in notes] == ["padded", "padded", "indivisible"]


def test_a_value_that_nobody_reads(run, tmp_path):
    file = tmp_path / "p.mlir"
    file.write_text(
        'sdy.mesh @mesh = <["x"=2]>\n'
        "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {\n"
        "  %0 = stablehlo.abs %a : tensor<2xf32>\n  return %a : tensor<2xf32>\n}\n"
    )
    status, _, err = run("why", str(file), "%0")
    assert status == 1
    assert err.startswith("error: %0: nothing reads it, so it has no sharding\nhelp: ")


@pytest.mark.parametrize("command", ["why", "show"])
def test_a_program_without_a_mesh(run, command):
    status, _, err = run(command, "examples/mlp.mlir")
    assert status == 1
    assert err == (
        "error: examples/mlp.mlir has no mesh, so nothing is split\n"
        "help: give --mesh data=2,model=4; annotations of its arguments define the shardings\n"
    )


def test_show_is_a_table_by_layer(run, golden):
    status, out, _ = run("show", EXAMPLE)
    assert status == 0
    golden(ROOT / "tests/golden/explain/show.txt", out)


def test_show_as_json(run):
    arguments, *_ = json.loads(run("show", EXAMPLE, "--json")[1])
    assert arguments["layer"] == "arguments"
    assert arguments["rows"][0] == {
        "values": ["%arg0 (x)"],
        "op": "",
        "type": "tensor<16x64xf32>",
        "sharding": '<@mesh, [{"data"}, {}]>',
        "local": "tensor<8x64xf32>",
        "bytes": 2048,
        "note": "",
    }


def test_show_lists_the_pieces_of_a_value(run):
    _, out, _ = run("show", EXAMPLE, "--value", "%arg0")
    assert out == (
        "%arg0 (x)  tensor<16x64xf32>  [{data}, {}]\n"
        "  [0:8, 0:64]   devices 0, 1, 2, 3\n"
        "  [8:16, 0:64]  devices 4, 5, 6, 7\n"
    )
    found = json.loads(run("show", EXAMPLE, "--value", "%arg0", "--json")[1])
    assert found["pieces"][1] == {"slice": "[8:16, 0:64]", "devices": [4, 5, 6, 7]}


def test_show_draws(run, tmp_path):
    file = tmp_path / "out.svg"
    status, out, _ = run("show", EXAMPLE, "--value", "%6", "--svg", str(file))
    assert status == 0
    assert out.startswith("%6 ")
    assert "[0:8, 9:10]" in file.read_text()


def test_show_draws_the_largest_value_by_default(run, tmp_path):
    file = tmp_path / "out.svg"
    assert run("show", EXAMPLE, "--svg", str(file))[0] == 0
    assert "<title>%arg1 (params['w0']) tensor&lt;64x256xf32&gt;</title>" in file.read_text()


def test_show_says_where_it_cannot_write(run, tmp_path):
    status, _, err = run("show", EXAMPLE, "--svg", str(tmp_path / "no" / "out.svg"))
    assert status == 1
    assert err.startswith("error: cannot write ")
