"""Examples of CHLO's ops that broadcast."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import dtypes, seeds, shapes
from tests.ops.example import Example
from tests.ops.examples.pointwise import numbers
from weft.ir.op import Op
from weft.ir.types import BOOL, DTYPES, Array, DType
from weft.ops.elementwise import broadcasting, pointwise, special, transcendental
from weft.ops.elementwise.broadcasting import BroadcastCompare, Broadcasting, BroadcastSelect
from weft.ops.elementwise.convert import Complex
from weft.ops.elementwise.pointwise import Pointwise

Shape = tuple[int, ...]


@composite
def stretched(draw: DrawFn, shape: Shape, dims: Shape) -> Shape:
    """The sizes of these dims, some of them 1."""
    return tuple(draw(st.sampled_from((shape[d], shape[d], 1))) for d in dims)


@composite
def aligned(draw: DrawFn, count: int) -> tuple[Shape, ...]:
    """Shapes that numpy broadcasts together."""
    shape = draw(shapes(1))
    found = [draw(stretched(shape, tuple(range(len(shape)))))]
    for _ in range(count - 1):
        start = draw(st.integers(0, len(shape)))
        found.append(draw(stretched(shape, tuple(range(start, len(shape))))))
    return tuple(draw(st.permutations(found)))


@composite
def placed(draw: DrawFn) -> tuple[Shape, Shape, Shape]:
    """A shape, dims of it, and a smaller shape that runs along these dims."""
    shape = draw(shapes(1))
    size = draw(st.integers(0, len(shape) - 1))
    chosen = draw(st.permutations(range(len(shape))))
    dims = tuple(sorted(chosen[:size]))
    return shape, dims, draw(stretched(shape, dims))


_COMMON = ("f32", "f64", "bf16", "i8", "i32", "ui16", "complex<f64>")
_ORDERED = (pointwise.Maximum, pointwise.Minimum, transcendental.Atan2)  # XLA: of real numbers
_ROUGH = (special.Polygamma, special.Zeta, special.NextAfter, pointwise.Power)


def _dtypes(op: type[Broadcasting]) -> SearchStrategy[DType]:
    element = op.element
    if isinstance(element, Complex):
        return dtypes(("f32", "f64"))
    if isinstance(element, _ROUGH):
        return dtypes(("bf16", "f16"))
    assert isinstance(element, Pointwise)
    kinds = set(element.kinds.split()) - ({"complex"} if isinstance(element, _ORDERED) else set())
    return dtypes(tuple(n for n in _COMMON if DTYPES[n].kind in kinds))


def nonzero(shape: Shape, dtype: DType, seed: int) -> Array:
    """Positive numbers, of which every op has a result that all agree on."""
    found = numbers(shape, dtype, seed)
    if dtype.is_float:
        return np.asarray(np.abs(found) + dtype.numpy.type(1.25))
    return np.where(found == 0, np.ones_like(found), found)


@composite
def operands(draw: DrawFn, dtype: DType) -> tuple[Shape | None, tuple[Array, Array]]:
    """Two arrays that broadcast, and broadcast_dimensions if they are needed."""
    if draw(st.booleans()):
        larger, dims, smaller = draw(placed())
        return dims, (nonzero(larger, dtype, draw(seeds)), nonzero(smaller, dtype, draw(seeds)))
    left, right = draw(aligned(2))
    return None, (nonzero(left, dtype, draw(seeds)), nonzero(right, dtype, draw(seeds)))


@composite
def row(draw: DrawFn, op: type[Broadcasting]) -> Example:
    dims, arrays = draw(operands(draw(_dtypes(op))))
    return Example(op(broadcast_dimensions=dims), arrays)  # type: ignore[call-arg]


@composite
def compare(draw: DrawFn) -> Example:
    direction = draw(st.sampled_from(("EQ", "NE", "GE", "GT", "LE", "LT")))
    dims, arrays = draw(operands(draw(dtypes())))
    return Example(BroadcastCompare(direction, dims), arrays)


@composite
def select(draw: DrawFn) -> Example:
    chooser, *choices = draw(aligned(3))
    dtype = draw(dtypes())
    arrays = [numbers(shape, dtype, draw(seeds)) for shape in choices]
    return Example(BroadcastSelect(), (numbers(chooser, BOOL, draw(seeds)), *arrays))


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    op: row(op)
    for op in broadcasting.OPS
    if issubclass(op, Broadcasting) and op not in (BroadcastCompare, BroadcastSelect)
}
EXAMPLES |= {BroadcastCompare: compare(), BroadcastSelect: select()}
