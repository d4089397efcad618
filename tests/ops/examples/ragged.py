"""Examples of the ragged dot, in each of its modes."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import array, dims, dtypes, seeds
from tests.ops.example import Example
from weft.ir.op import Op
from weft.ir.types import DTYPES, Array, TensorType
from weft.ops.ragged import RaggedDims, RaggedDot

GROUPS = 3


def group_sizes(prefix: tuple[int, ...], total: int, seed: int) -> Array:
    """Sizes of groups that are together as long as the dim, or a little shorter."""
    random = np.random.default_rng(seed)
    used = total - random.integers(0, 2, prefix) if total else np.zeros(prefix, int)
    cuts = np.sort(random.integers(0, used[..., None] + 1, (*prefix, GROUPS - 1)), -1)
    ends = np.concatenate([cuts, used[..., None]], -1)
    return np.diff(ends, prepend=0, axis=-1).astype(np.int32)


@composite
def ragged_dot(draw: DrawFn) -> Example:
    b, m, k, n = (draw(dims) for _ in range(4))
    mode = draw(st.sampled_from("mkb"))
    shape: tuple[int, ...] = (b, m, n)
    if mode == "m":
        numbers = RaggedDims((0,), (1,), (2,), (2,), (1,), (0,))
        rhs: tuple[int, ...] = (GROUPS, b, k, n)
        prefix, total = (b,), m
    elif mode == "k":
        numbers = RaggedDims((0,), (0,), (2,), (1,), (2,))
        rhs, shape, prefix, total = (b, k, n), (GROUPS, b, m, n), (b,), k
    else:
        numbers = RaggedDims((0,), (0,), (2,), (1,), (0,))
        rhs, prefix, total = (b, k, n), (), b
    if draw(st.booleans()):
        prefix = ()
    dtype = draw(dtypes(("f32", "f64", "bf16", "i32")))
    result = DTYPES["f32"] if dtype.name == "bf16" and draw(st.booleans()) else dtype
    op = RaggedDot(
        numbers, TensorType(shape, result), draw(st.sampled_from([None, ("HIGHEST",) * 2]))
    )
    arrays = (
        array((b, m, k), dtype, draw(seeds)),
        array(rhs, dtype, draw(seeds)),
        group_sizes(prefix, total, draw(seeds)),
    )
    return Example(op, arrays)


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {RaggedDot: ragged_dot()}
