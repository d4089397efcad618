"""Examples of dots: any order of dims, and results of another element type."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import array, dims, seeds
from tests.ops.example import Example
from weft.ir.op import Op
from weft.ir.types import DTYPES, DType, TensorType
from weft.ops.contract import Dot, DotAlgorithm, DotDims, DotGeneral

# Element types of the operands, and those that their products may be summed in.
RESULTS = {
    "f32": ("f32", "f64"),
    "f64": ("f64",),
    "bf16": ("bf16", "f32"),
    "f16": ("f16", "f32"),
    "f8E4M3FN": ("f32",),
    "f8E5M2": ("f32",),
    "i8": ("i8", "i32"),
    "ui8": ("ui8", "i32"),
    "i32": ("i32",),
    "ui64": ("ui64",),
    "i1": ("i1",),
    "complex<f32>": ("complex<f32>",),
    "complex<f64>": ("complex<f64>",),
}
PRECISIONS = (None, ("DEFAULT", "DEFAULT"), ("HIGHEST", "HIGH"))
TF32 = DotAlgorithm("tf32", "tf32", "f32", 1, 1, 1, False)


@composite
def element_types(draw: DrawFn) -> tuple[DType, DType]:
    """The operands' element type and the result's."""
    name = draw(st.sampled_from(list(RESULTS)))
    return DTYPES[name], DTYPES[draw(st.sampled_from(RESULTS[name]))]


@composite
def placed(
    draw: DrawFn, batch: list[int], free: list[int], summed: list[int]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """A shape of all these sizes in any order, and where those of the batch and of the sum went."""
    sizes = [*batch, *free, *summed]
    order = draw(st.permutations(range(len(sizes))))
    at = {number: place for place, number in enumerate(order)}
    batched = tuple(at[n] for n in range(len(batch)))
    return (
        tuple(sizes[n] for n in order),
        batched,
        tuple(at[n] for n in range(len(batch) + len(free), len(sizes))),
    )


def few(most: int) -> SearchStrategy[list[int]]:
    """A few sizes."""
    return st.lists(dims, max_size=most)


@composite
def dot_general(draw: DrawFn) -> Example:
    operand, result = draw(element_types())
    batch, summed = draw(few(2)), draw(few(2))
    left, right = draw(few(2)), draw(few(1))
    lhs, lhs_batch, lhs_summed = draw(placed(batch, left, summed))
    rhs, rhs_batch, rhs_summed = draw(placed(batch, right, summed))
    numbers = DotDims(lhs_batch, rhs_batch, lhs_summed, rhs_summed)
    shape = (
        *batch,
        *(lhs[d] for d in numbers.lhs_free(len(lhs))),
        *(rhs[d] for d in numbers.rhs_free(len(rhs))),
    )
    algorithm = TF32 if operand.name == "f32" and draw(st.booleans()) else None
    precision = None if algorithm else draw(st.sampled_from(PRECISIONS))
    op = DotGeneral(numbers, TensorType(shape, result), precision, algorithm)
    return Example(op, (array(lhs, operand, draw(seeds)), array(rhs, operand, draw(seeds))))


@composite
def dot(draw: DrawFn) -> Example:
    operand, result = draw(element_types())
    summed = draw(dims)
    left, right = draw(few(1)), draw(few(1))
    out = TensorType((*left, *right), result)
    arrays = (
        array((*left, summed), operand, draw(seeds)),
        array((summed, *right), operand, draw(seeds)),
    )
    return Example(Dot(out, draw(st.sampled_from(PRECISIONS))), arrays)


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {DotGeneral: dot_general(), Dot: dot()}
