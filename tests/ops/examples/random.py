"""Examples of random numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import dtypes, seeds, shapes
from tests.ops.example import Example
from weft.ir.op import Op
from weft.ir.types import TensorType, type_of
from weft.ops.random import Rng, RngBitGenerator


@composite
def rng(draw: DrawFn) -> Example:
    kind = draw(st.sampled_from(("UNIFORM", "NORMAL")))
    names = ("f32", "f64", "bf16") if kind == "NORMAL" else ("f32", "bf16", "i32", "ui8", "i1")
    shape, dtype = draw(shapes()), draw(dtypes(names))
    low, high = (np.array(value, dtype.numpy) for value in (0, 1 if dtype.kind == "bool" else 3))
    sizes = np.array(shape, draw(st.sampled_from((np.int64, np.int32))))
    return Example(Rng(kind, TensorType(shape, dtype)), (low, high, sizes))


@composite
def rng_bit_generator(draw: DrawFn) -> Example:
    algorithm = draw(st.sampled_from(("DEFAULT", "THREE_FRY", "PHILOX")))
    size = 2 if algorithm == "THREE_FRY" else draw(st.sampled_from((2, 3)))
    state = np.random.default_rng(draw(seeds)).integers(0, 2**64, size, np.uint64)
    names = ("ui8", "ui16", "ui32", "ui64", "i8", "i32", "i64", "ui4", "f32", "f64", "bf16")
    bits = TensorType(draw(shapes()), draw(dtypes(names)))
    return Example(RngBitGenerator(algorithm, (type_of(state), bits)), (state,))


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    Rng: rng(),
    RngBitGenerator: rng_bit_generator(),
}
