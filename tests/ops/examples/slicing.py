"""Examples of every op that takes, joins or pads pieces."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import INTEGERS, array, dims, dtypes, indices, seeds, shapes
from tests.ops.example import Example
from weft.ir.op import Op
from weft.ir.types import Array
from weft.ops.slicing import Concatenate, DynamicSlice, DynamicUpdateSlice, Pad, Slice

Range = tuple[int, int, int]


@composite
def a_slice(draw: DrawFn, size: int) -> Range:
    """Start, limit and stride inside a dim; often the whole dim."""
    if draw(st.booleans()):
        return 0, size, 1
    start = draw(st.integers(0, size))
    return start, draw(st.integers(start, size)), draw(st.integers(1, 3))


@composite
def slice_(draw: DrawFn) -> Example:
    shape = draw(shapes())
    ranges = [draw(a_slice(n)) for n in shape]
    parts = [tuple(r[k] for r in ranges) for k in range(3)]
    return Example(Slice(*parts), (array(shape, draw(dtypes()), draw(seeds)),))


@composite
def a_pad(draw: DrawFn, size: int) -> Range:
    """Low, high and interior padding of a dim; often none."""
    if draw(st.booleans()):
        return 0, 0, 0
    interior = draw(st.integers(0, 2))
    full = size + max(size - 1, 0) * interior
    low = draw(st.integers(-full, 3))
    return low, draw(st.integers(-(full + low), 3)), interior


@composite
def pad(draw: DrawFn) -> Example:
    shape, dtype = draw(shapes()), draw(dtypes())
    amounts = [draw(a_pad(n)) for n in shape]
    parts = [tuple(r[k] for r in amounts) for k in range(3)]
    return Example(Pad(*parts), (array(shape, dtype, draw(seeds)), array((), dtype, draw(seeds))))


@composite
def concatenate(draw: DrawFn) -> Example:
    shape, dtype = list(draw(shapes(1))), draw(dtypes())
    dim = draw(st.integers(0, len(shape) - 1))
    operands = []
    for size in draw(st.lists(dims, min_size=1, max_size=3)):
        shape[dim] = size
        operands.append(array(tuple(shape), dtype, draw(seeds)))
    return Example(Concatenate(dim), tuple(operands))


@composite
def starts(draw: DrawFn, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """A start index for each dim, inside or not."""
    dtype = draw(dtypes(INTEGERS))
    return tuple(np.asarray(indices((), dtype, min(n, 5), draw(seeds))) for n in shape)


@composite
def window(draw: DrawFn, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes that fit into a shape; often the whole dim."""
    return tuple(draw(st.sampled_from((n, draw(st.integers(0, n))))) for n in shape)


@composite
def dynamic_slice(draw: DrawFn) -> Example:
    shape = draw(shapes())
    operand = array(shape, draw(dtypes()), draw(seeds))
    return Example(DynamicSlice(draw(window(shape))), (operand, *draw(starts(shape))))


@composite
def dynamic_update_slice(draw: DrawFn) -> Example:
    shape, dtype = draw(shapes()), draw(dtypes())
    operand = array(shape, dtype, draw(seeds))
    update = array(draw(window(shape)), dtype, draw(seeds))
    return Example(DynamicUpdateSlice(), (operand, update, *draw(starts(shape))))


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    Slice: slice_(),
    Pad: pad(),
    Concatenate: concatenate(),
    DynamicSlice: dynamic_slice(),
    DynamicUpdateSlice: dynamic_update_slice(),
}
