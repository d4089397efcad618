"""Shardings: their text, as Shardy writes and reads it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, composite

from tests.ops.examples.sharding import shardings
from weft.capture import parse
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.mesh import (
    Axis,
    DimSharding,
    Mesh,
    Sharding,
    parse_axes,
    parse_sharding,
    parse_shardings,
)
from weft.mesh.algebra import append_merged

MESH = Mesh((("x", 2), ("y", 4)))


@composite
def any_sharding(draw: DrawFn) -> Sharding:
    return draw(shardings(draw(st.integers(0, 3))))


@given(any_sharding())
def test_shardings_are_read_back(sharding: Sharding):
    assert parse_sharding(str(sharding)) == sharding
    assert parse_sharding(sharding.body()) == sharding
    named = Sharding("mesh", sharding.dims, sharding.replicated, sharding.unreduced)
    assert parse_sharding(str(named)) == named


@given(st.lists(any_sharding(), max_size=3))
def test_lists_of_shardings_are_read_back(given: list[Sharding]):
    text = f"#sdy.sharding_per_value<[{', '.join(s.body() for s in given)}]>"
    assert parse_shardings(text) == tuple(given)


@given(any_sharding())
def test_shardy_accepts_the_text(sharding: Sharding):
    dims = "x".join(["8"] * len(sharding.dims) + ["f32"])
    text = f"""func.func @main(%x: tensor<{dims}>) -> tensor<{dims}> {{
  %0 = sdy.sharding_constraint %x {sharding.body()} : tensor<{dims}>
  return %0 : tensor<{dims}>
}}
"""
    node = next(parse(text).nodes())
    assert node.op.sharding == sharding  # type: ignore[attr-defined]


def test_known_texts():
    held = Sharding(
        "mesh",
        (
            DimSharding((Axis("x"), Axis("y", 1, 2))),
            DimSharding((), True, 1),
            DimSharding((Axis("y", 2, 2),), True),
            DimSharding(),
        ),
        (Axis("z"),),
        (Axis("w"),),
    )
    text = '<@mesh, [{"x", "y":(1)2}, {?}p1, {"y":(2)2, ?}, {}], replicated={"z"}, unreduced={"w"}>'
    assert held.body() == text and parse_sharding(text) == held
    inline = Sharding(Mesh((("x", 2),), (1, 0)), (DimSharding((Axis("x"),)),))
    assert str(inline) == '#sdy.sharding<mesh<["x"=2], device_ids=[1, 0]>, [{"x"}]>'
    assert parse_sharding(str(inline)) == inline
    assert parse_axes('#sdy<manual_axes{"x", "y"}>') == (Axis("x"), Axis("y"))
    assert parse_axes("#sdy<manual_axes{}>") == ()


def test_the_mesh_is_found_or_missed():
    sharding = Sharding("mesh", ())
    assert sharding.resolve({"mesh": MESH}) is MESH
    assert Sharding(MESH, ()).resolve({}) is MESH
    with pytest.raises(WeftError, match="no mesh 'mesh'") as caught:
        sharding.resolve({"other": MESH})
    assert caught.value.help == "known: other"


@pytest.mark.parametrize("text", ["", "nonsense", "#sdy.sharding<[{}]>", "<mesh, [{}]>"])
def test_other_texts_are_refused(text: str):
    with pytest.raises(WeftError, match="is not a sharding"):
        parse_sharding(text)


# Manual computations cut whole values into pieces and put them together again


def manual(sharding: str, local: str, axes: str) -> str:
    return f"""
sdy.mesh @mesh = <["x"=2, "y"=4]>
func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
  %0 = sdy.manual_computation(%x) in_shardings=[<@mesh, {sharding}>]
      out_shardings=[<@mesh, {sharding}>] manual_axes={{{axes}}} (%a: tensor<{local}xf32>) {{
    %1 = stablehlo.add %a, %a : tensor<{local}xf32>
    sdy.return %1 : tensor<{local}xf32>
  }} : (tensor<8x8xf32>) -> tensor<8x8xf32>
  return %0 : tensor<8x8xf32>
}}
"""


@pytest.mark.parametrize(
    "sharding, local, axes",
    [
        ('[{"x"}, {"y"}]', "4x2", '"x", "y"'),
        ('[{"x", "y"}, {}]', "1x8", '"x", "y"'),
        ('[{"y", "x"}, {}]', "1x8", '"x", "y"'),
        ('[{"x"}, {"y"}]', "4x8", '"x"'),
        ("[{}, {}]", "8x8", '"x"'),
    ],
)
def test_pieces_make_the_whole(sharding: str, local: str, axes: str):
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    (result,) = evaluate(parse(manual(sharding, local, axes)), x)
    assert np.array_equal(result, 2 * x)


@pytest.mark.parametrize(
    ("first", "second", "merged"),
    [
        (Axis("x", 1, 2), Axis("x", 2, 3), [Axis("x", 1, 6)]),
        (Axis("x", 2, 3), Axis("x", 6, 4), [Axis("x", 2, 12)]),
        (Axis("x", 1, 6), Axis("x", 6, 4), [Axis("x")]),
        (Axis("x", 1, 2), Axis("x", 3, 2), None),  # a part between them is missing
        (Axis("x", 2, 3), Axis("x", 1, 2), None),
        (Axis("x", 1, 2), Axis("y", 2, 2), None),
    ],
)
def test_parts_of_an_axis_that_follow_each_other_are_merged(first, second, merged):
    axes = [first]
    append_merged(axes, second, Mesh((("x", 24), ("y", 4))))
    assert axes == (merged or [first, second])
