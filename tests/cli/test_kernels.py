"""`weft kernels`: the table of a program's kernels, and the text of one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.kernels.building import Building
from weft.cli import main
from weft.cli.commands.kernels import fused, listed, loops, named, others_text, summary, time_text
from weft.errors import WeftError
from weft.ir.module import Node, Value, apply
from weft.ir.types import tensor
from weft.kernels.group import Group
from weft.kernels.kernel import Factor
from weft.machine import HOST
from weft.ops.elementwise.pointwise import Add, Multiply
from weft.ops.elementwise.transcendental import Exponential
from weft.run.parts import Part

PROGRAM = """
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x4xf32>) -> (tensor<8x4xf32>, tensor<8xf32>) {
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
     : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  %1 = stablehlo.tanh %0 : tensor<8x4xf32>
  %zero = stablehlo.constant dense<0.0> : tensor<f32>
  %2 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [1]
     : (tensor<8x16xf32>, tensor<f32>) -> tensor<8xf32>
  return %1, %2 : tensor<8x4xf32>, tensor<8xf32>
}
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "program.mlir"
    file.write_text(PROGRAM)
    return str(file)


def rows(program: str, capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, object]]:
    assert main(["kernels", program, "--json", *more]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, list)
    return found


def test_every_kernel_is_listed_with_its_work(program, capsys):
    found = rows(program, capsys)
    product = next(row for row in found if "dot_general" in row["fused"])
    assert "tanh" in product["fused"]
    assert product["loops"] == "8x4 over 16"
    assert product["work"] == {
        "flops": 2 * 8 * 4 * 16,
        "transcendentals": 32,
        "bytes": 4 * (128 + 64 + 32),
    }
    assert product["launches"] == 1 and product["cost"] > 0 and product["time"] is None
    total = next(row for row in found if "reduce" in row["fused"])
    assert total["work"]["bytes"] == 4 * (128 + 8)


def test_times_are_measured_where_that_is_asked_for(program, capsys):
    assert all(row["time"] > 0 for row in rows(program, capsys, "--measure"))
    assert main(["kernels", program, "--measure"]) == 0
    out = capsys.readouterr().out
    assert "time" in out and "measured:" in out and "in kernels" in out


def test_the_table_tells_what_was_fused(program, capsys):
    assert main(["kernels", program]) == 0
    out = capsys.readouterr().out
    assert "dot_general, tanh" in out
    assert "2 kernels: " in out and "on host" in out
    assert "in no kernel" not in out


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_the_table_fits_the_terminal(program, capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    assert main(["kernels", program, "--measure"]) == 0
    table = capsys.readouterr().out.partition("\n\n")[0]
    assert max(map(len, table.splitlines())) <= int(columns)


def test_products_tell_how_they_are_computed(program, capsys):
    ways = [row["way"] for row in rows(program, capsys, "--tune", "measure")]
    told = {"name": "as modelled", "why": "so little work is not measured"}
    assert told in ways and None in ways
    (off,) = {row["way"]["why"] for row in rows(program, capsys, "--tune", "off") if row["way"]}
    assert off == "nothing is tuned"


def test_one_kernel_in_full(program, capsys):
    name = rows(program, capsys)[0]["name"]
    for chosen in (name, name[:-1], "0"):
        assert main(["kernels", program, chosen]) == 0
        first, second, *_ = capsys.readouterr().out.splitlines()
        assert first.startswith(f"kernel {name}(in0: ") and second.startswith("  for ")
    assert main(["kernels", program, name, "--llvm"]) == 0
    assert "define " in capsys.readouterr().out
    assert main(["kernels", program, name, "--asm"]) == 0
    assert "ret" in capsys.readouterr().out


def test_a_kernel_that_is_not_there(program, capsys):
    name = rows(program, capsys)[0]["name"]
    assert main(["kernels", program, f"{name[:-1]}_"]) == 1
    said = capsys.readouterr().err
    assert "unknown kernel" in said and f"did you mean {name}" in said


def test_a_text_is_of_one_kernel(program, capsys):
    with pytest.raises(SystemExit):
        main(["kernels", program, "--asm"])
    assert "--asm prints one kernel: give its name" in capsys.readouterr().err


def test_what_has_no_kernel_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "fft.mlir"
    file.write_text(
        """
func.func @main(%x: tensor<65537xf32>) -> tensor<32769xcomplex<f32>> {
  %0 = stablehlo.fft %x, type = RFFT, length = [65537]
     : (tensor<65537xf32>) -> tensor<32769xcomplex<f32>>
  return %0 : tensor<32769xcomplex<f32>>
}
"""
    )
    assert main(["kernels", str(file)]) == 0
    out = capsys.readouterr().out
    assert "0 kernels" in out
    why = "not in this form, of tensor<65537xf32>, tensor<32769xcomplex<f32>>"
    assert f"in no kernel, run by numpy:\n  fft: {why}\n" in out
    (row,) = rows(str(file), capsys)
    assert row["name"] is None and row["fused"] == ["fft"]


_NEWTON = """
func.func @main(%x: tensor<SIZExf32>) -> tensor<SIZExf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %n, %root = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<SIZExf32>
  cond {
    %more = stablehlo.compare LT, %i, %four, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %more : tensor<i1>
  } do {
    %next = stablehlo.add %i, %one : tensor<i32>
    %0 = stablehlo.sine %y : tensor<SIZExf32>
    stablehlo.return %next, %0 : tensor<i32>, tensor<SIZExf32>
  }
  return %root : tensor<SIZExf32>
}
"""


def test_loops_run_their_kernels_again_and_again(tmp_path, capsys, monkeypatch):
    """A loop of large kernels launches them in every round; one of small kernels is a launch."""
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    example = (Path(__file__).parents[2] / "examples" / "newton.mlir").read_text()
    for size, more in ((1, False), (1 << 18, True)):
        file = tmp_path / f"newton{size}.mlir"
        file.write_text(_NEWTON.replace("SIZE", str(size)) if more else example)
        found = rows(str(file), capsys, "--measure")
        assert (max(row["launches"] for row in found) > 1) == more


# What is listed, of groups made by hand


def group(name: str = "chain") -> Group:
    k = Building(i=4, j=8)
    x = k.read("ij")
    k.write("ij", k.apply(Multiply(), k.apply(Exponential(), k.apply(Add(), x, x)), x))
    made = k.kernel()
    value = Value(tensor(4, 8))
    first = apply(Add(), value, value)
    second = apply(Exponential(), first.results[0])
    third = apply(Multiply(), second.results[0], value)
    kernel = type(made)(name, made.factors, made.operands, made.steps, made.schedule)
    return Group((first, second, third), kernel, (value,), third.results)


def node() -> Node:
    return apply(Exponential(), Value(tensor(2)))


def part(made: Group, runs: int = 1, seconds: float | None = None) -> Part:
    return Part(made.nodes[0], made, runs, seconds)


def test_equal_kernels_are_one_row():
    listing = listed([part(group()), part(group()), part(group("other"))], HOST)
    assert [row.launches for row in listing.rows] == [2, 1]
    (line,) = summary(listing, HOST)
    assert "3 kernels (2 of them distinct)" in line


def test_measured_seconds_are_those_of_one_launch():
    listing = listed([part(group(), 3, 6e-3), part(group(), 1, 2e-3)], HOST, 9e-3)
    (row,) = listing.rows
    assert row.spent == pytest.approx(8e-3)
    assert row.time == pytest.approx(2e-3)
    assert any("9 ms a run" in line for line in summary(listing, HOST))


def test_nodes_of_numpy_are_told_slowest_first():
    alone = [Part(node(), None, 1, 1e-3), Part(node(), None, 1, 1e-3)]
    listing = listed([part(group(), 1, 1e-3), *alone], HOST, 3e-3)
    (line,) = others_text(listing.others)
    assert line == "2 x exponential, 2 ms: not in this form, of tensor<2xf32>"
    assert "1 ms in kernels, 2 ms in numpy" in summary(listing, HOST)[1]


def test_names_may_be_cut_short():
    listing = listed([part(group("softmax_1")), part(group("softmax_2"))], HOST)
    assert named(listing, "softmax_2").number == 1
    assert named(listing, "0").kernel.name == "softmax_1"
    with pytest.raises(WeftError, match="several kernels begin with 'soft'"):
        named(listing, "soft")


def test_what_was_fused_is_counted():
    made = group()
    assert fused((*made.nodes, made.nodes[0])) == "add x2, exponential, multiply"


def test_loops_tell_devices_and_reductions():
    k = Building(d=4, i=8, j=1, k=16)
    total = k.reduce("add", k.read("dik"), "k")
    k.write("di", total)
    kernel = k.kernel()
    d, i, j, _ = kernel.factors
    factors = (Factor("d", 4, device=True), i, j, Factor("k", 16, "reduction"))
    assert d.size == 4
    told = type(kernel)("sum", factors, kernel.operands, kernel.steps, kernel.schedule)
    assert loops(told) == "[4]x8 over 16"


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (1.25e-3, "1.25 ms"), (4e-6, "4 us"), (0.0, "0 us")]
)
def test_times_have_three_digits(seconds, text):
    assert time_text(seconds) == text


def test_inputs_that_are_types_get_random_values(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))
    script = tmp_path / "typed.py"
    script.write_text(TYPED)
    found = rows(f"{script}:f", capsys, "--measure", "--tune", "measure")
    assert found[0]["time"] > 0
    assert main(["run", f"{script}:f"]) == 0


TYPED = """
import jax
import jax.numpy as jnp

f_inputs = (jax.ShapeDtypeStruct((4, 8), jnp.float32), {"w": jax.ShapeDtypeStruct((8,), jnp.int8)})


def f(x, y):
    return jnp.tanh(x) * y["w"]
"""
