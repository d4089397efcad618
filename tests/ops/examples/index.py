"""Examples of every op that reads elements at places held by other tensors."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import INTEGERS, array, dims, dtypes, indices, seeds, shapes
from tests.ops.example import Example
from weft.ir.op import Op
from weft.ir.types import Array
from weft.ops.index import Gather, GatherDims, TorchIndexSelect, Windows

Shape = tuple[int, ...]
filled = st.sampled_from((2, 4, 3, 1))  # dims to read from


@dataclass(frozen=True)
class Layout:
    """Windows, and the shapes of the tensors that they lie in."""

    windows: Windows
    operand: Shape
    indices: Array
    sizes: Shape  # of a window, for each dim of the operand
    slices: Shape


@composite
def layouts(draw: DrawFn) -> Layout:
    """A layout with window, inserted and batching dims in any place."""
    operand = tuple(draw(st.lists(filled, max_size=4)))
    roles = [draw(st.sampled_from(("window", "window", "inserted", "batching"))) for _ in operand]
    of = {r: tuple(d for d, given in enumerate(roles) if given == r) for r in set(roles)}
    window, inserted, batching = (of.get(r, ()) for r in ("window", "inserted", "batching"))
    free = draw(st.permutations([d for d in range(len(operand)) if d not in batching]))
    start_map = tuple(free[: draw(st.integers(0, len(free)))])
    # The dims of the indices: those that belong to batching dims, others, and the index vectors.
    rows = [(d, operand[d]) for d in batching] + [(None, n) for n in draw(shapes(0, 2))]
    rows = list(draw(st.permutations(rows)))
    scalar = len(start_map) == 1 and draw(st.booleans())
    vector = len(rows) if scalar else draw(st.integers(0, len(rows)))
    counts = [n for _, n in rows]
    shape = list(counts) if scalar else [*counts[:vector], len(start_map), *counts[vector:]]
    place = {d: n + (not scalar and n >= vector) for n, (d, _) in enumerate(rows)}
    rank = len(counts) + len(window)
    inside = tuple(sorted(draw(st.permutations(range(rank)))[: len(window)]))
    sizes = [
        1 if d not in window else draw(st.sampled_from((n, draw(st.integers(0, n)))))
        for d, n in enumerate(operand)
    ]
    counts_left, sizes_left = iter(counts), iter([sizes[d] for d in window])
    slices = tuple(next(sizes_left if d in inside else counts_left) for d in range(rank))
    made = indices(tuple(shape), draw(dtypes(INTEGERS)), max(operand, default=1), draw(seeds))
    windows = Windows(
        inside, inserted, batching, tuple(place[d] for d in batching), start_map, vector
    )
    return Layout(windows, operand, made, tuple(sizes), slices)


def gather_dims(windows: Windows) -> GatherDims:
    """The layout's dims as a gather names them."""
    return GatherDims(
        windows.window,
        windows.inserted,
        windows.operand_batching,
        windows.indices_batching,
        windows.start_map,
        windows.vector,
    )


@composite
def gather(draw: DrawFn) -> Example:
    layout = draw(layouts())
    operand = array(layout.operand, draw(dtypes()), draw(seeds))
    op = Gather(gather_dims(layout.windows), layout.sizes, draw(st.booleans()))
    return Example(op, (operand, layout.indices))


@composite
def torch_index_select(draw: DrawFn) -> Example:
    shape = tuple(draw(st.lists(filled, min_size=1, max_size=3)))
    dim = draw(st.integers(0, len(shape) - 1))
    batch = draw(st.integers(0, dim))
    rows = (*shape[:batch], *draw(st.lists(dims, max_size=2)))
    index = indices(rows, draw(dtypes(INTEGERS)), shape[dim], draw(seeds))
    op = TorchIndexSelect(draw(st.sampled_from((dim, dim - len(shape)))), batch)
    return Example(op, (array(shape, draw(dtypes()), draw(seeds)), index))


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    Gather: gather(),
    TorchIndexSelect: torch_index_select(),
}
