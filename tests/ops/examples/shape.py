"""Examples of every op that makes, rearranges or reinterprets elements."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import COMMON, EVERY, array, dtypes, seeds, shapes
from tests.ops.example import Example
from weft.ir.dense import Dense
from weft.ir.op import Op
from weft.ir.types import DTYPES, TensorType
from weft.ops.shape import (
    BitcastConvert,
    Broadcast,
    BroadcastInDim,
    Constant,
    GetDimensionSize,
    Iota,
    Reshape,
    Reverse,
    SetDimensionSize,
    Transpose,
)


@composite
def constant(draw: DrawFn) -> Example:
    made = array(draw(shapes()), draw(dtypes()), draw(seeds))
    return Example(Constant(Dense(made)), ())


@composite
def iota(draw: DrawFn) -> Example:
    shape = draw(shapes(1))
    dtype = draw(dtypes(tuple(n for n in EVERY if n not in ("i1", "f8E8M0FNU"))))
    return Example(Iota(draw(st.integers(0, len(shape) - 1)), TensorType(shape, dtype)), ())


@composite
def refactored(draw: DrawFn, size: int) -> tuple[int, ...]:
    """Another shape of that many elements."""
    shape: list[int] = []
    while size > 1 and len(shape) < 3:
        part = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
        shape.append(part)
        size //= part
    shape += [size] if size != 1 else []
    ones = draw(st.lists(st.integers(0, len(shape)), max_size=2))
    for place in sorted(ones, reverse=True):
        shape.insert(place, 1)
    return tuple(shape)


@composite
def reshape(draw: DrawFn) -> Example:
    shape = draw(shapes())
    size = math.prod(shape)
    new = draw(refactored(size)) if size else draw(st.permutations(shape).map(tuple))
    dtype = draw(dtypes())
    return Example(Reshape(TensorType(new, dtype)), (array(shape, dtype, draw(seeds)),))


@composite
def transpose(draw: DrawFn) -> Example:
    shape = draw(shapes())
    order = draw(st.permutations(range(len(shape))))
    return Example(Transpose(tuple(order)), (array(shape, draw(dtypes()), draw(seeds)),))


@composite
def broadcast_in_dim(draw: DrawFn) -> Example:
    out = draw(shapes(0, 4))
    rank = draw(st.integers(0, len(out)))
    places = draw(st.permutations(range(len(out))))[:rank]
    shape = tuple(draw(st.sampled_from((1, out[d], out[d]))) for d in places)
    dtype = draw(dtypes())
    op = BroadcastInDim(tuple(places), TensorType(out, dtype))
    return Example(op, (array(shape, dtype, draw(seeds)),))


@composite
def broadcast(draw: DrawFn) -> Example:
    sizes = draw(shapes(0, 2))
    return Example(Broadcast(sizes), (array(draw(shapes(0, 2)), draw(dtypes()), draw(seeds)),))


@composite
def reverse(draw: DrawFn) -> Example:
    shape = draw(shapes())
    chosen = draw(st.lists(st.sampled_from(range(len(shape))), unique=True)) if shape else []
    return Example(Reverse(tuple(chosen)), (array(shape, draw(dtypes()), draw(seeds)),))


@composite
def bitcast_convert(draw: DrawFn) -> Example:
    source, target = draw(
        st.sampled_from(
            [
                (a, b)
                for a in DTYPES.values()
                for b in DTYPES.values()
                if a.is_complex == b.is_complex
                and "index" not in (a.name, b.name)
                and max(a.bits, b.bits) % min(a.bits, b.bits) == 0
            ]
        )
    )
    shape = draw(shapes(0, 2))
    wider = target.bits // source.bits
    operand = array(shape if wider < 2 else (*shape, wider), source, draw(seeds))
    out = shape if wider else (*shape, source.bits // target.bits)
    return Example(BitcastConvert(TensorType(out, target)), (operand,))


@composite
def get_dimension_size(draw: DrawFn) -> Example:
    shape = draw(shapes(1))
    dim = draw(st.integers(0, len(shape) - 1))
    return Example(GetDimensionSize(dim), (array(shape, draw(dtypes(COMMON)), draw(seeds)),))


@composite
def set_dimension_size(draw: DrawFn) -> Example:
    shape = list(draw(shapes(1)))
    dim = draw(st.integers(0, len(shape) - 1))
    dtype = draw(dtypes(COMMON))
    operand = array(tuple(shape), dtype, draw(seeds))
    shape[dim] = size = draw(st.integers(0, shape[dim]))
    op = SetDimensionSize(dim, TensorType(tuple(shape), dtype))
    return Example(op, (operand, np.array(size, np.int32)))


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    Constant: constant(),
    Iota: iota(),
    Reshape: reshape(),
    Transpose: transpose(),
    BroadcastInDim: broadcast_in_dim(),
    Broadcast: broadcast(),
    Reverse: reverse(),
    BitcastConvert: bitcast_convert(),
    GetDimensionSize: get_dimension_size(),
    SetDimensionSize: set_dimension_size(),
}
