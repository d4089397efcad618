"""What normalize makes of programs: golden texts, and a second run changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

import weft
from weft.capture import normalize
from weft.capture.normalize import passes
from weft.capture.stablehlo.parser import PARSER
from weft.ir.module import Module
from weft.ir.op import Op, read_op
from weft.ir.read import read_module
from weft.ops import BY_NAME
from weft.ops.distributed.sharding import ShardyAllReduce, ShardyReduceScatter
from weft.shard import shard

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "normalize"
MARK = "\n// -----  whole values\n\n"
PIECES = "\n// -----  pieces\n\n"

GRID = '  sdy.mesh @grid = <["x"=2, "y"=4]>\n'
LINE = '  sdy.mesh @line = <["z"=8]>\n'
BACK = '  sdy.mesh @back = <["x"=2, "y"=4], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>\n'
WIDE = '  sdy.mesh @wide = <["p"=2, "q"=3]>\n'
HIGH = '  sdy.mesh @high = <["r"=3, "s"=2]>\n'


def main(body: str, *shardings: str, result: str = "", size: int = 24) -> str:
    """A function of two arguments with these shardings."""
    type = f"tensor<{size}x{size}xf32>"
    pairs = zip("ab", shardings, strict=True)
    given = [f"%{n}: {type} {{sdy.sharding = #sdy.sharding<{s}>}}" for n, s in pairs]
    out = f"({type} {{sdy.sharding = #sdy.sharding<{result}>}})" if result else type
    body = body.replace("TYPE", type)
    return (
        f"  func.func @main({', '.join(given)}) -> {out} {{\n{body}\n    return %0 : {type}\n  }}"
    )


ADD = "    %0 = stablehlo.add %a, %b : TYPE"
CASES = {
    "a number times a flag is a choice": """
  func.func @main(%x: tensor<4xf32>, %f: tensor<4xi1>, %h: tensor<4xbf16>)
      -> (tensor<4xf32>, tensor<4xbf16>) {
    %0 = stablehlo.convert %f : (tensor<4xi1>) -> tensor<4xf32>
    %1 = stablehlo.multiply %0, %x : tensor<4xf32>
    %2 = stablehlo.convert %f : (tensor<4xi1>) -> tensor<4xbf16>
    %3 = stablehlo.multiply %h, %2 : tensor<4xbf16>
    return %1, %3 : tensor<4xf32>, tensor<4xbf16>
  }""",
    "tokens are kept inside or passed as empty arrays": """
  func.func @main(%t: !stablehlo.token, %x: tensor<4xf32>)
      -> (tensor<4xf32>, !stablehlo.token) {
    %0 = stablehlo.after_all %t : !stablehlo.token
    return %x, %0 : tensor<4xf32>, !stablehlo.token
  }""",
    "layouts that are left open are chosen": """
  func.func @main(%x: tensor<4x8xf32>) -> (tensor<8x4xf32> {mhlo.layout_mode = "auto"}) {
    %0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<4x8xf32>) -> tensor<8x4xf32>
    return %0 : tensor<8x4xf32>
  }""",
    "a composite of ours is our op": """
  func.func @main(%x: tensor<8xf32>) -> (tensor<3xf32>, tensor<3xi32>) {
    %0:2 = stablehlo.composite "chlo.top_k" %x
      {composite_attributes = {k = 3 : i64}, decomposition = @sorted}
      : (tensor<8xf32>) -> (tensor<3xf32>, tensor<3xi32>)
    return %0#0, %0#1 : tensor<3xf32>, tensor<3xi32>
  }
  func.func private @sorted(%x: tensor<8xf32>) -> (tensor<3xf32>, tensor<3xi32>) {
    %0:2 = chlo.top_k(%x, k = 3) : tensor<8xf32> -> (tensor<3xf32>, tensor<3xi32>)
    return %0#0, %0#1 : tensor<3xf32>, tensor<3xi32>
  }""",
    "collectives of Shardy are reshards": GRID
    + main(
        """    %m = stablehlo.dot %a, %b : (TYPE, TYPE) -> TYPE
    %1 = sdy.reduce_scatter [{"y":(1)2}, {}] %m out_sharding=<@grid, [{"y":(1)2}, {}]> : TYPE
    %2 = sdy.all_slice [{"y":(2)2}, {}] %1 out_sharding=<@grid, [{"y"}, {}]> : TYPE
    %3 = sdy.all_to_all [{"y":(2)2}: 0->1] %2
      out_sharding=<@grid, [{"y":(1)2}, {"y":(2)2}]> : TYPE
    %4 = sdy.collective_permute %3 out_sharding=<@grid, [{"x"}, {"y":(2)2}]> : TYPE
    %0 = sdy.all_gather [{}, {"y":(2)2}] %4 out_sharding=<@grid, [{"x"}, {}]> : TYPE""",
        '@grid, [{}, {"y":(1)2}]',
        '@grid, [{"y":(1)2}, {}]',
    ),
    "two meshes are one": GRID
    + LINE
    + main(ADD, '@grid, [{"y"}, {"x"}]', '@line, [{"z"}, {}]', result='@line, [{}, {"z"}]'),
    "two orders of devices": GRID
    + BACK
    + main(ADD, '@grid, [{"y"}, {"x"}]', '@back, [{"y"}, {}]', result='@back, [{}, {"x"}]'),
    "meshes that cross each other": WIDE
    + HIGH
    + main(ADD, '@wide, [{"p"}, {"q"}]', '@high, [{"r"}, {"s"}]', result='@high, [{"s"}, {}]'),
    "a common mesh has the name of one that fits": GRID
    + LINE.replace("line", "mesh")
    + main(ADD, '@grid, [{"y"}, {"x"}]', '@mesh, [{"z"}, {}]'),
    "a common mesh has another name than one without axes": GRID
    + LINE
    + "  sdy.mesh @mesh = <[], device_ids=[3]>\n"
    + main(ADD, '@grid, [{"y"}, {"x"}]', '@line, [{"z"}, {}]'),
    "a common mesh has another name than those that cross it": WIDE.replace("wide", "mesh")
    + HIGH.replace("high", "mesh_of_all")
    + main(ADD, '@mesh, [{"p"}, {"q"}]', '@mesh_of_all, [{"r"}, {"s"}]'),
}


def as_read(text: str) -> Module:
    """The program before anything is made of it; parse absorbs composites, which texts have."""
    whole = f"module {{\n{text}\n}}"
    return read_module(PARSER.generic_text(whole.encode(), None), BY_NAME)


def normal(module: Module, *, pieces: bool) -> Module:
    return normalize(module, shard, pieces=pieces)


@pytest.mark.parametrize("name", CASES)
def test_golden(name: str, golden, request: pytest.FixtureRequest) -> None:
    module = as_read(CASES[name])
    whole, cut = normal(module, pieces=False), normal(module, pieces=True)
    text = f"{module.text()}{MARK}{whole.text()}"
    text += f"{PIECES}{cut.text()}" if cut.text() != whole.text() else ""
    golden(GOLDEN / f"{name.replace(' ', '_')}.mlir", text)


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_a_second_run_changes_nothing(name: str, pieces: bool) -> None:
    once = normal(as_read(CASES[name]), pieces=pieces)
    assert normal(once, pieces=pieces) is once


def test_what_is_normal_stays_as_it_is() -> None:
    module = weft.parse(f"module {{\n{GRID}{main(ADD, '@grid, [{}, {}]', '@grid, [{}, {}]')}\n}}")
    assert normal(module, pieces=False) is module
    without_main = weft.parse("func.func @other(%a: tensor<4xf32>) { return }")
    assert normal(without_main, pieces=True) is without_main


def test_every_pass_has_a_name_and_its_order() -> None:
    names = [getattr(run, "func", run).__name__ for run in passes(shard)]
    assert names == [
        "absorb_composites",
        "keep_tokens_inside",
        "choose_layouts",
        "reshard_by_collectives",
        "join_meshes",
        "partition_by_hand",
        "choose_by_flags",
    ]
    assert getattr(passes(shard, pieces=True)[1], "__name__", "") == "tokens_as_values"


@pytest.mark.parametrize(
    ("kind", "axes"),
    [(ShardyAllReduce, "reduction_axes"), (ShardyReduceScatter, "reduce_scatter_axes")],
)
def test_reductions_of_shardy_are_sums(kind: type[Op], axes: str) -> None:
    """JAX 0.11 and later name the kind of a reduction, which was always the sum before."""
    given = {axes: '{"x"}', "out_sharding": "#sdy.sharding<@grid, [{}]>"}
    summed, rest = read_op(kind, given | {"reduction_op": "0 : i32"}, ())
    assert (summed, rest) == (read_op(kind, given, ())[0], ())
    with pytest.raises(weft.WeftError, match="takes the max"):
        read_op(kind, given | {"reduction_op": "1 : i32"}, ())
