"""Examples of scatter, with many update computations."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import array, dtypes, seeds
from tests.ops.example import Example
from tests.ops.examples.index import layouts
from weft.ir.module import Region, Value, apply
from weft.ir.op import Op
from weft.ir.types import DType, TensorType
from weft.ops.elementwise.pointwise import Add, And, Maximum, Minimum, Multiply, Or
from weft.ops.scatter import Scatter, ScatterDims

NUMBERS = (Add, Multiply, Maximum, Minimum, None)
DTYPES_BY_OP = {
    And: ("i1", "i8", "ui32"),
    Or: ("i1", "i8", "ui32"),
    **dict.fromkeys(NUMBERS, ("f32", "f64", "i32", "ui8", "i16")),
}


def update_region(op: type[Op] | None, dtypes: list[DType]) -> Region:
    """A region that combines each input's element with its update; None puts the update there."""
    scalars = [TensorType((), dtype) for dtype in dtypes]
    args = tuple(Value(t, None, n) for n, t in enumerate(scalars * 2))
    if op is None:
        return Region(args, [], args[len(dtypes) :])
    nodes = [apply(op(), args[n], args[n + len(dtypes)]) for n in range(len(dtypes))]
    return Region(args, nodes, tuple(node.results[0] for node in nodes))


@composite
def scatter(draw: DrawFn) -> Example:
    layout = draw(layouts())
    combine = draw(st.sampled_from([*NUMBERS, And, Or]))
    count = draw(st.integers(1, 2))
    chosen = [draw(dtypes(DTYPES_BY_OP[combine])) for _ in range(count)]
    windows = layout.windows
    numbers = ScatterDims(
        windows.window,
        windows.inserted,
        windows.operand_batching,
        windows.indices_batching,
        windows.start_map,
        windows.vector,
    )
    inputs = [array(layout.operand, dtype, draw(seeds)) for dtype in chosen]
    updates = [array(layout.slices, dtype, draw(seeds)) for dtype in chosen]
    outs = tuple(TensorType(layout.operand, dtype) for dtype in chosen)
    return Example(
        Scatter(numbers, outs),
        (*inputs, layout.indices, *updates),
        (update_region(combine, chosen),),
    )


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {Scatter: scatter()}
