"""Examples of the ops that put elements into an order."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import array, dtypes, seeds, shapes
from tests.ops.example import Example
from weft.ir.module import Region, Value, apply
from weft.ir.op import Op
from weft.ir.types import DType, TensorType
from weft.ops.elementwise.pointwise import Compare
from weft.ops.sort import Sort, TopK

SORTED = ("f32", "f64", "bf16", "f16", "i1", "i8", "i32", "ui8", "ui64")


def comparator(dtypes: list[DType], direction: str = "LT", kind: str | None = None) -> Region:
    """A region that compares the first inputs only."""
    scalars = [TensorType((), dtype) for dtype in dtypes for _ in range(2)]
    args = tuple(Value(t, None, n) for n, t in enumerate(scalars))
    node = apply(Compare(direction, kind), *args[:2])
    return Region(args, [node], node.results)


@composite
def sort(draw: DrawFn) -> Example:
    shape = draw(shapes(1))
    chosen = draw(st.lists(dtypes(SORTED), min_size=1, max_size=3))
    inputs = tuple(array(shape, dtype, draw(seeds)) for dtype in chosen)
    dimension = draw(st.integers(0, len(shape) - 1))
    # An unstable sort of one input is determined; of several it is not, where keys are equal.
    op = Sort(dimension, len(chosen) > 1 or draw(st.booleans()))
    return Example(op, inputs, (comparator(chosen, draw(st.sampled_from(("LT", "GT")))),))


@composite
def top_k(draw: DrawFn) -> Example:
    shape = draw(shapes(1))
    operand = array(shape, draw(dtypes(SORTED)), draw(seeds))
    return Example(TopK(draw(st.integers(0, shape[-1]))), (operand,))


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {Sort: sort(), TopK: top_k()}
