"""Examples of attention: windows, masks, biases, shared heads, queries that see nothing."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import array, dtypes, seeds
from tests.ops.example import Example
from weft.ir.op import Op
from weft.ir.types import BOOL
from weft.ops.attention import Attention

FLOATS = ("f32", "f64", "bf16", "f16")


@composite
def attention(draw: DrawFn) -> Example:
    dtype = draw(dtypes(FLOATS))
    batch = tuple(draw(st.lists(st.integers(1, 2), max_size=2)))
    shared, kv_heads = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    queries, keys = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    depth, value_depth = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    shape = (*batch, shared * kv_heads, queries, keys)
    masked, biased = draw(st.booleans()), draw(st.booleans())
    op = Attention(
        draw(st.sampled_from((1.0, 1 / math.sqrt(depth), -0.5))),
        draw(st.integers(-1, 3)),
        draw(st.integers(-1, 3)),
        draw(st.booleans()),
        masked,
        biased,
        draw(st.booleans()),
        draw(st.sampled_from((0.0, 0.7))),
    )
    arrays = [
        array((*batch, shared * kv_heads, queries, depth), dtype, draw(seeds)),
        array((*batch, kv_heads, keys, depth), dtype, draw(seeds)),
        array((*batch, kv_heads, keys, value_depth), dtype, draw(seeds)),
    ]
    for wanted, kind in ((masked, BOOL), (biased, dtype)):
        if wanted:
            sizes = tuple(draw(st.sampled_from((1, n))) for n in shape)
            arrays.append(array(sizes, kind, draw(seeds)))
    return Example(op, tuple(arrays))


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {Attention: attention()}
