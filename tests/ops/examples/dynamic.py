"""Examples of the ops whose sizes are operands, made from those of the ops with fixed sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import array, dtypes, seeds
from tests.ops.example import Example
from tests.ops.examples.index import EXAMPLES as INDEX
from tests.ops.examples.shape import EXAMPLES as SHAPE
from tests.ops.examples.slicing import EXAMPLES as SLICING
from weft.ir.op import Op
from weft.ir.types import Array, TensorType
from weft.ops.convolution import ConvDims
from weft.ops.dynamic import (
    DynamicBroadcastInDim,
    DynamicConv,
    DynamicGather,
    DynamicIota,
    DynamicPad,
    DynamicReshape,
    RealDynamicSlice,
)
from weft.ops.index import Gather
from weft.ops.shape import BroadcastInDim, Iota, Reshape
from weft.ops.slicing import Pad, Slice

Pack = Callable[[tuple[int, ...]], Array]


def result(example: Example) -> TensorType:
    """The type that the example's op gives."""
    (type,) = example.node().types
    assert isinstance(type, TensorType)
    return type


def dynamic_reshape(example: Example, pack: Pack) -> Example:
    out = result(example)
    return Example(DynamicReshape(out), (*example.arrays, pack(out.sizes)))


def dynamic_broadcast_in_dim(example: Example, pack: Pack) -> Example:
    assert isinstance(example.op, BroadcastInDim)
    out = result(example)
    op = DynamicBroadcastInDim(example.op.broadcast_dimensions, out)
    return Example(op, (*example.arrays, pack(out.sizes)))


def dynamic_iota(example: Example, pack: Pack) -> Example:
    assert isinstance(example.op, Iota)
    out = result(example)
    return Example(DynamicIota(example.op.iota_dimension, out), (pack(out.sizes),))


def dynamic_pad(example: Example, pack: Pack) -> Example:
    assert isinstance(example.op, Pad)
    op = example.op
    amounts = (op.edge_padding_low, op.edge_padding_high, op.interior_padding)
    return Example(DynamicPad(result(example)), (*example.arrays, *map(pack, amounts)))


def real_dynamic_slice(example: Example, pack: Pack) -> Example:
    assert isinstance(example.op, Slice)
    places = (example.op.start_indices, example.op.limit_indices, example.op.strides)
    return Example(RealDynamicSlice(result(example)), (*example.arrays, *map(pack, places)))


def dynamic_gather(example: Example, pack: Pack) -> Example:
    assert isinstance(example.op, Gather)
    op = DynamicGather(example.op.dimension_numbers, result(example))
    return Example(op, (*example.arrays, pack(example.op.slice_sizes)))


@composite
def dynamic_conv(draw: DrawFn) -> Example:
    batch, height, width, depth, made = (draw(st.integers(1, 4)) for _ in range(5))
    dtype = draw(dtypes(("f32", "f64", "i32")))
    kernel = (draw(st.integers(1, height)), draw(st.integers(1, width)))
    padding = [[draw(st.integers(0, 2)), draw(st.integers(0, 2))] for _ in range(2)]
    places = [
        n + sum(pair) - k + 1 for n, pair, k in zip((height, width), padding, kernel, strict=True)
    ]
    dims = ConvDims(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
    op = DynamicConv(dims, 1, 1, TensorType((batch, *places, made), dtype))
    lhs = array((batch, height, width, depth), dtype, draw(seeds))
    rhs = array((*kernel, depth, made), dtype, draw(seeds))
    return Example(op, (lhs, rhs, np.array(padding, draw(st.sampled_from((np.int32, np.int64))))))


@composite
def made_from(
    draw: DrawFn, source: SearchStrategy[Example], make: Callable[[Example, Pack], Example]
) -> Example:
    held = draw(st.sampled_from((np.int32, np.int64)))
    return make(draw(source), lambda sizes: np.array(sizes, held))


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    DynamicReshape: made_from(SHAPE[Reshape], dynamic_reshape),
    DynamicBroadcastInDim: made_from(SHAPE[BroadcastInDim], dynamic_broadcast_in_dim),
    DynamicIota: made_from(SHAPE[Iota], dynamic_iota),
    DynamicPad: made_from(SLICING[Pad], dynamic_pad),
    RealDynamicSlice: made_from(SLICING[Slice], real_dynamic_slice),
    DynamicGather: made_from(INDEX[Gather], dynamic_gather),
    DynamicConv: dynamic_conv(),
}
