"""Examples of reduce, with one and several inputs, and of scan."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import array, dtypes, seeds, shapes
from tests.ops.example import Example
from tests.ops.program import region
from weft.ir.module import Region
from weft.ir.op import Op
from weft.ir.types import DTYPES, Array, DType, TensorType, type_of
from weft.ops.elementwise.pointwise import Add, And, Maximum, Minimum, Multiply, Or, Xor
from weft.ops.reduce import Reduce, Scan

WIDER = {"bf16": "f32", "i8": "i32", "f32": "f64"}


def bounds(dtype: DType) -> tuple[object, object]:
    """The least and the greatest value of an element type."""
    if dtype.kind == "bool":
        return False, True
    if dtype.is_float:
        return -np.inf, np.inf
    signed = dtype.kind == "int"
    return (
        (-(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1) if signed else (0, 2**dtype.bits - 1)
    )


# Ops that fold, the element types they fold, and the value that changes nothing.
FOLDS = {
    Add: (("f32", "f64", "bf16", "i32", "ui8", "i1", "complex<f32>"), lambda d: 0),
    Multiply: (("f32", "f64", "i32", "ui16", "i1", "complex<f64>"), lambda d: 1),
    Maximum: (("f32", "bf16", "f16", "i8", "ui32", "i1"), lambda d: bounds(d)[0]),
    Minimum: (("f32", "bf16", "f64", "i64", "ui8", "i1"), lambda d: bounds(d)[1]),
    And: (("i1", "i8", "ui32"), lambda d: bounds(d)[1] if d.kind == "uint" else -1),
    Or: (("i1", "i8", "ui32"), lambda d: 0),
    Xor: (("i1", "i8", "ui32"), lambda d: 0),
}


def fold_region(ops: list[type[Op]], types: list[DType]) -> Region:
    """A region that folds each pair of its arguments with an op of its own."""
    count = len(ops)
    scalars = tuple(TensorType((), dtype) for dtype in types)
    steps = [(op(), (n, n + count)) for n, op in enumerate(ops)]
    return region(scalars * 2, *steps, results=tuple(range(2 * count, 3 * count)))


@composite
def folds(
    draw: DrawFn, shape: tuple[int, ...]
) -> tuple[list[Array], list[Array], Region, list[DType]]:
    """Inputs and initial values of a fold, its region, and the element types it folds in."""
    count = draw(st.integers(1, 2))
    ops = [draw(st.sampled_from(list(FOLDS)))] * count
    if draw(st.booleans()):
        ops = [draw(st.sampled_from(list(FOLDS))) for _ in range(count)]
    chosen = [draw(dtypes(FOLDS[op][0])) for op in ops]
    wide = [DTYPES[WIDER.get(d.name, d.name)] if draw(st.booleans()) else d for d in chosen]
    inputs = [array(shape, d, draw(seeds)) for d in chosen]
    inits = [np.array(FOLDS[op][1](d), d.numpy) for op, d in zip(ops, chosen, strict=True)]
    return inputs, inits, fold_region(ops, wide), wide


@composite
def reduce(draw: DrawFn) -> Example:
    shape = draw(shapes(0, 3))
    dimensions = tuple(d for d in draw(st.permutations(range(len(shape)))) if draw(st.booleans()))
    inputs, inits, body, wide = draw(folds(shape))
    kept = tuple(s for d, s in enumerate(shape) if d not in dimensions)
    outs = tuple(TensorType(kept, dtype) for dtype in wide)
    return Example(Reduce(dimensions, outs), (*inputs, *inits), (body,))


@composite
def scan(draw: DrawFn) -> Example:
    """A running sum beside the sequence it sums, and a sequence that only counts."""
    shape = draw(shapes(1, 3))
    dim = draw(st.integers(0, len(shape) - 1))
    rest = shape[:dim] + shape[dim + 1 :]
    dtype = draw(dtypes(("f32", "i32", "bf16")))
    piece = TensorType(rest, dtype)
    body = region((piece, piece), (Add(), (0, 1)), (Multiply(), (0, 1)), results=(3, 2, 2))
    sequence, carry = array(shape, dtype, draw(seeds)), array(rest, dtype, draw(seeds))
    op = Scan(
        dim,
        (1, 1),
        (2, 1),
        (type_of(sequence), type_of(sequence), piece),
        draw(st.sampled_from((None, shape[dim]))),
        draw(st.sampled_from((None, False, True))),
        draw(st.sampled_from((None, False))),
    )
    return Example(op, (sequence, carry), (body,))


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {Reduce: reduce(), Scan: scan()}
