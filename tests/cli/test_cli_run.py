"""`weft partition` and `weft run`: what they print and write, and how they end."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from weft.capture import parse
from weft.cli import main

ROOT = Path(__file__).parents[2]
MLP = str(ROOT / "examples" / "sharded_mlp.mlir")
FUNCTIONS = """
sdy.mesh @mesh = <["x"=4]>
func.func @f(%a: tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>})
    -> tensor<4xf32> {
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0]
      : (tensor<8x4xf32>, tensor<f32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func @g(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = call @h(%a) : (tensor<8x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
func.func private @h(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.negate %a : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
func.func private @unused(%a: tensor<8x4xf32>) -> tensor<8x4xf32> {
  %0 = stablehlo.negate %a : tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
"""
SCRIPT = """
import jax.numpy as jnp
import numpy as np

from weft import P


def product(x, w):
    return jnp.tanh(x @ w)


def alone(x):
    return x


product_inputs = (np.ones((8, 16), np.float32), np.ones((16, 8), np.float32))
product_shardings = (P("data", None), P(None, "model"))
"""


@pytest.fixture
def run(tmp_path, capsys, monkeypatch):
    """Run a command line in a folder of its own; gives its status, its output and its errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "functions.mlir").write_text(FUNCTIONS)
    (tmp_path / "script.py").write_text(SCRIPT)

    def command(*line: str) -> tuple[int, str, str]:
        status = main(line)
        shown = capsys.readouterr()
        return status, shown.out, shown.err

    return command


# weft partition


def test_every_function_keeps_its_name(run):
    status, out, _ = run("partition", "functions.mlir")
    local = parse(out)
    assert status == 0 and list(local.functions) == ["f", "g", "h", "unused"]
    assert [f.visibility for f in local.functions.values()] == [None, None, "private", "private"]
    assert "tensor<2x4xf32>" in str(local.function("f").arg_types)
    assert "replica_group_mesh_axes" in out


def test_groups_as_lists(run):
    _, out, _ = run("partition", "functions.mlir", "--expand-groups")
    assert "dense<[[0, 1, 2, 3]]>" in out and "weft." not in out


def test_a_summary_beside_the_file(run, tmp_path):
    status, out, _ = run("partition", MLP, "-o", "local.mlir")
    assert status == 0 and "2 collectives" in out and "8 devices" in out
    assert parse(tmp_path / "local.mlir").text() == (tmp_path / "local.mlir").read_text()


def test_the_mesh_may_be_resized(run):
    _, out, _ = run("partition", "functions.mlir", "--mesh", "x=2")
    assert "tensor<4x4xf32>" in str(parse(out).function("f").arg_types)


def test_an_unknown_axis(run):
    status, _, err = run("partition", "functions.mlir", "--mesh", "y=4")
    assert status == 1 and "axes x, not y" in err


# weft run


def test_a_file_is_run_and_checked(run, tmp_path):
    status, out, _ = run("run", MLP, "--check", "--check-every-op", "-o", "out.npz")
    assert status == 0
    assert "ran on 8 devices" in out and "all_reduce" in out and "mlp.py:5" in out
    assert "✓ result 0" in out and "none differs" in out
    assert np.load(tmp_path / "out.npz")["result0"].shape == (16, 10)


@pytest.mark.parametrize("level", ["-O0", "-O1", "-O2"])
def test_every_level(run, level):
    status, out, _ = run("run", MLP, "--check", level, "--sync-every-op")
    assert status == 0 and "✓ result 0" in out


def test_arguments_from_a_file(run, tmp_path):
    types = parse(Path(MLP)).function("main").arg_types
    np.savez(tmp_path / "args.npz", *[np.zeros(t.sizes, np.float32) for t in types])
    status, _, _ = run("run", MLP, "args.npz", "-o", "out.npz")
    assert status == 0 and not np.load(tmp_path / "out.npz")["result0"].any()


@pytest.mark.parametrize("name", ["bf16", "f8E5M2", "f8E4M3FN", "i4"])
def test_types_that_numpy_does_not_have_go_through_files(run, tmp_path, name):
    (tmp_path / "same.mlir").write_text(
        f"""
func.func @main(%x: tensor<3x{name}>, %y: tensor<{name}>) -> (tensor<3x{name}>, tensor<{name}>) {{
  return %x, %y : tensor<3x{name}>, tensor<{name}>
}}
"""
    )
    status, _, _ = run("run", "same.mlir", "-o", "out.npz")
    assert status == 0
    first = np.load(tmp_path / "out.npz")
    np.savez(tmp_path / "again.npz", arg0=first["result0"], arg1=first["result1"])
    status, _, _ = run("run", "same.mlir", "again.npz", "-o", "out.npz")
    second = np.load(tmp_path / "out.npz")
    assert status == 0 and all(first[k].tobytes() == second[k].tobytes() for k in first)


def test_a_file_that_numpy_cannot_read_back(run, tmp_path):
    np.savez(tmp_path / "args.npz", np.ones(3, ml_dtypes.float8_e5m2))
    status, _, err = run("run", MLP, "args.npz")
    assert status == 1 and "numpy does not read elements" in err and "view('V1')" in err


def test_a_function_of_a_script(run):
    status, out, _ = run("run", "script.py:product", "--mesh", "data=2,model=4", "--check")
    assert status == 0 and "ran on 8 devices" in out and "✓ result 0" in out


def test_a_function_without_inputs(run):
    status, _, err = run("run", "script.py:alone")
    assert status == 1 and "defines no arguments for alone" in err
    assert "define alone_inputs" in err


@pytest.mark.parametrize("command", ["run", "why", "check"])
def test_a_function_that_is_not_there(run, command):
    status, _, err = run(command, "script.py:nothing")
    assert status == 1 and "has no function 'nothing'" in err and "product" in err


def test_a_script_that_is_not_there(run):
    status, _, err = run("run", "other.py:nothing")
    assert status == 1 and "cannot read other.py" in err


def test_a_program_that_does_not_fit(run):
    status, out, err = run("run", MLP, "--memory", "10KiB")
    assert status == 1 and "ran on" not in out
    assert "needs" in err and "params['w0']" in err


def test_a_result_that_is_wrong_is_told(run, monkeypatch):
    from weft.cli.commands import run as command

    honest = command.evaluate
    monkeypatch.setattr(command, "evaluate", lambda *given: tuple(2 * r for r in honest(*given)))
    status, out, _ = run("run", MLP, "--check")
    assert status == 1 and "✗ result 0" in out
