"""The command line: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from weft.cli import COMMANDS
from weft.cli.arrays import plain
from weft.cli.commands.installation.op_examples import example, texts
from weft.cli.screen import quantity
from weft.errors import Unsupported
from weft.ir.module import Node
from weft.ops import BY_NAME

ROOT = Path(__file__).parents[2]
ADD = """
func.func @main(%a: tensor<2xf32>, %b: tensor<2xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %a, %b : tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""
CHECKED = """
func.func @main() -> tensor<2xi32> {
  %0 = stablehlo.constant dense<[1, 2]> : tensor<2xi32>
  %1 = call @twice(%0) : (tensor<2xi32>) -> tensor<2xi32>
  check.expect_eq_const %1, dense<[2, 4]> : tensor<2xi32>
  return %1 : tensor<2xi32>
}
func.func private @twice(%a: tensor<2xi32>) -> tensor<2xi32> {
  %0 = stablehlo.add %a, %a : tensor<2xi32>
  check.expect_eq %0, %0 : tensor<2xi32>
  return %0 : tensor<2xi32>
}
func.func private @unused(%a: tensor<2xi32>) {
  check.expect_eq %a, %a : tensor<2xi32>
  return
}
"""
DEVICES = """
func.func @main() -> (tensor<ui32>, tensor<i32>) {
  %0 = stablehlo.partition_id : tensor<ui32>
  %1 = stablehlo.constant dense<7> : tensor<i32>
  return %0, %1 : tensor<ui32>, tensor<i32>
}
"""


@pytest.fixture
def run(tmp_path, call, monkeypatch):
    """Run a command line in a folder of its own; gives its status, its output and its errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    return call


def write(name: str, text: str) -> str:
    Path(name).write_text(text)
    return name


# weft eval


def test_eval_shows_types_values_and_checks(run):
    status, out, err = run("eval", write("p.mlir", CHECKED))
    assert (status, err) == (0, "")
    assert [line.rstrip() for line in out.splitlines()] == [
        "result 0  tensor<2xi32>",
        "  [2 4]",
        "✓ 2 checks passed",
    ]


def test_eval_says_which_check_fails(run):
    status, out, err = run("eval", write("p.mlir", CHECKED.replace("[2, 4]", "[2, 5]")))
    assert (status, out) == (1, "")
    assert "error: check failed: element [1] is not equal: 4, expected 5 (1 of 2" in err
    assert "--> p.mlir:5:3" in err


def test_eval_takes_arguments_by_name(run):
    np.savez("a.npz", arg1=np.float32([10, 20]), arg0=np.float32([1, 2]))
    status, out, _ = run("eval", write("p.mlir", ADD), "a.npz", "-o", "out.npz")
    assert status == 0
    assert "[11. 22.]" in out
    np.testing.assert_array_equal(np.load("out.npz")["result0"], np.float32([11, 22]))


def test_eval_takes_arguments_in_order(run):
    np.savez("a.npz", np.float32([1, 2]), np.float32([10, 20]))
    assert "[11. 22.]" in run("eval", write("p.mlir", ADD), "a.npz")[1]


def test_eval_keeps_elements_that_numpy_files_forget(run):
    program = ADD.replace("f32", "bf16")
    x = np.array([1.5, 2], ml_dtypes.bfloat16)
    np.savez("a.npz", arg0=x, arg1=x)
    status, out, _ = run("eval", write("p.mlir", program), "a.npz", "--json")
    assert status == 0
    assert json.loads(out)["results"] == [{"type": "tensor<2xbf16>", "value": [3.0, 4.0]}]


def test_eval_reads_standard_input(run, monkeypatch, tmp_path):
    (tmp_path / "in").write_text(CHECKED)
    with open("in") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert "[2 4]" in run("eval", "-")[1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (None, "@main takes 2 arguments (arg0: tensor<2xf32>, arg1: tensor<2xf32>), but no file"),
        ({"arg0": np.float32([1, 2])}, "a.npz holds 1 array, but @main takes 2 arguments"),
        ({"arg0": 1, "arg2": 2}, "a.npz holds no arg1, only arg0, arg2"),
        ({"arg0": np.float32([1]), "arg1": np.float32([1, 2])}, "argument 0 has the shape (1,)"),
        ({"arg0": np.float64([1, 2]), "arg1": np.float32([1, 2])}, "argument 0 holds float64"),
    ],
)
def test_eval_refuses_wrong_arguments(run, arrays, message):
    line = ["eval", write("p.mlir", ADD)]
    if arrays is not None:
        np.savez("a.npz", **arrays)
        line.append("a.npz")
    status, out, err = run(*line)
    assert (status, out) == (1, "")
    assert message in err
    assert "\nhelp: " in err


def test_eval_refuses_files_that_hold_no_arrays(run):
    write("a.npz", "hello")
    assert (
        "cannot read a.npz: it is not a file of arrays" in run("eval", write("p", ADD), "a.npz")[2]
    )
    assert "cannot read b.npz: No such file" in run("eval", write("p", ADD), "b.npz")[2]


def test_eval_says_which_functions_there_are(run):
    err = run("eval", write("p.mlir", CHECKED), "--func", "mian")[2]
    assert "no function 'mian'\nhelp: known: main, twice, unused" in err


def test_eval_on_devices_shows_what_differs(run):
    status, out, _ = run("eval", write("p.mlir", DEVICES), "--devices", "2")
    assert status == 0
    assert [line.rstrip() for line in out.splitlines()] == [
        "result 0  tensor<ui32>",
        "  device 0",
        "    0",
        "  device 1",
        "    1",
        "result 1  tensor<i32>  the same on 2 devices",
        "  7",
    ]


def test_eval_on_replicas_and_partitions(run):
    out = run("eval", write("p.mlir", DEVICES), "--devices", "2x3")[1]
    assert "  devices 0, 3\n    0" in "\n".join(line.rstrip() for line in out.splitlines())
    report = json.loads(run("eval", "p.mlir", "--devices", "2x3", "--json")[1])
    assert report["devices"] == [2, 3]
    assert report["results"][0] == {"type": "tensor<ui32>", "value": [0, 1, 2, 0, 1, 2]}


@pytest.mark.parametrize("devices", ["0", "2x0", "-1", "two", "2x2x2"])
def test_eval_refuses_other_numbers_of_devices(run, devices):
    status, _, err = run("eval", "p.mlir", f"--devices={devices}")
    assert status == 2
    assert f"{devices!r} is not a number of devices, such as 4 or 2x4" in err


def test_json_is_plain():
    assert plain(np.array([[1, 2]], np.int8)) == [[1, 2]]
    assert plain(np.array([1, -2], ml_dtypes.int4)) == [1, -2]
    assert plain(np.array(1.0, ml_dtypes.float8_e5m2)) == 1.0
    assert plain(np.float32([np.nan, np.inf, -np.inf])) == ["nan", "inf", "-inf"]
    assert plain(np.array([1 + 2j])) == [[1.0, 2.0]]
    assert plain(np.array(True)) is True
    assert plain(np.array(2**63, np.uint64)) == 2**63


# weft check


def test_check_points_into_the_file(run):
    wrong = ADD.replace(
        "add %a, %b : tensor<2xf32>", "custom_call @Sharding(%a) : (tensor<2xf32>) -> tensor<2xi32>"
    )
    wrong = wrong.replace("return %0 : tensor<2xf32>", "return %a : tensor<2xf32>")
    status, out, err = run("check", write("good.mlir", ADD), write("bad.mlir", wrong))
    assert status == 1
    assert out == "ok  good.mlir  1 function, 1 node\n"
    assert err == (
        "error: custom call 'Sharding' changes a type\n"
        " --> bad.mlir:3:8\n"
        "  |\n"
        "3 |   %0 = stablehlo.custom_call @Sharding(%a) : (tensor<2xf32>) -> tensor<2xi32>\n"
        "  |        ^\n"
        "  = stablehlo.custom_call(tensor<2xf32>) -> tensor<2xi32>\n"
        "help: its results are its operands\n"
    )


def test_check_finds_what_does_not_parse(run):
    status, out, _ = run("check", write("p.mlir", ADD.replace("%a, %b :", "%a, %c :")), "--json")
    (finding,) = json.loads(out)
    assert status == 1
    assert finding["file"] == "p.mlir"
    assert not finding["ok"]
    assert finding["error"]["line"] == 3
    assert "undeclared" in finding["error"]["message"]


def test_check_refuses_what_is_not_there(run):
    assert run("check", "nothing.mlir")[0] == 1


# weft ops


def test_ops_lists_every_op(run):
    status, out, _ = run("ops", "--json")
    rows = json.loads(out)
    assert status == 0
    assert [row["name"] for row in rows] == list(BY_NAME)
    refused = [row["name"] for row in rows if not row["targets"]]
    assert refused == ["stablehlo.uniform_quantize", "stablehlo.uniform_dequantize"]
    assert all("refused" in row or (row["rule"] and row["example"]) for row in rows)


def test_ops_shows_a_table(run):
    status, out, _ = run("ops")
    assert status == 0
    assert f"{len(BY_NAME)} ops in" in out
    assert "([i,j],[i,j])->([i,j])" in out


def test_ops_explains_one(run):
    status, out, _ = run("ops", "compare")
    assert status == 0
    assert "stablehlo.compare" in out
    assert "comparison_direction: ComparisonDirection" in out
    assert "stablehlo.compare LT, %0, %1, FLOAT : (tensor<8x4xf32>, tensor<8x4xf32>)" in out
    assert "{i=8, j=4}" in out


def test_ops_suggests(run):
    status, _, err = run("ops", "compair")
    assert status == 1
    assert "unknown op 'compair'" in err
    assert "stablehlo.compare" in err


def test_every_op_has_an_example():
    assert set(BY_NAME) - set(texts()) == set()


def test_every_example_is_of_an_op():
    assert set(texts()) - set(BY_NAME) == set()


@pytest.mark.parametrize("name", list(texts()))
def test_an_example_is_read(name):
    node = example(name)
    assert node.op.name == name if isinstance(node, Node) else isinstance(node, Unsupported)


# The command line itself


def test_version(run):
    assert run("--version") == (0, "weft 0.2.0\n", "")


@pytest.mark.parametrize("line", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_every_help_fits_80_columns_and_has_an_example(run, line, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = run(*line)
    assert status == 0
    text, example = out.split("example:\n  ")
    assert example.startswith("weft ")
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (["evl"], "error: unknown command 'evl'\nhelp: did you mean eval?"),
        (
            ["eval", "x.mlir", "--jsno"],
            "error: unknown option '--jsno'\nhelp: did you mean --json?",
        ),
        (["--versoin", "ops"], "did you mean --version?"),
        ([], "error: the following arguments are required: COMMAND\nhelp: `weft --help`"),
    ],
)
def test_typos_are_met_with_a_guess(run, line, text):
    status, out, err = run(*line)
    assert (status, out) == (2, "")
    assert text in err


def test_a_reader_that_leaves_is_no_error():
    script = f"{sys.executable} -m weft ops | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    assert done.stderr == ""


def test_an_interrupt_is_no_traceback(run, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("weft.cli.program.parse", interrupted)
    assert run("eval", "x.mlir") == (130, "", "interrupted\n")


def test_quantities_are_short():
    assert [quantity(n, "B") for n in (0, 999, 1500, 2e6)] == ["0B", "999B", "1.5kB", "2MB"]
