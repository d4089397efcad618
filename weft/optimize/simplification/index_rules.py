"""Rules on gathers and scatters."""

from __future__ import annotations

import math

import numpy as np

from weft.ir.location import Location
from weft.ir.module import Node, Value, apply, tensor_of
from weft.ir.op import Op
from weft.ir.rebuild import NodeRule, Rewritten
from weft.ir.types import TensorType
from weft.ops.elementwise.pointwise import Add, Compare, Select
from weft.ops.index import Gather, Windows
from weft.ops.scatter import Scatter
from weft.ops.shape import BroadcastInDim, Constant, Iota, Reshape
from weft.optimize.simplification.splats import splat_of


def gather_all(node: Node) -> Rewritten:
    """gather(x, [0, 1, 2, ..]) -> reshape(x), when x is a vector and every element is taken once.

    PyTorch decomposes group norms into such gathers.
    """
    assert isinstance(node.op, Gather)
    operand, indices = (tensor_of(v) for v in node.operands)
    places, out = node.operands[1].node, tensor_of(node.results[0])
    if operand.rank != 1 or not operand.is_static or not indices.is_static:
        return None
    if out.size != operand.size or places is None or not isinstance(places.op, Constant):
        return None
    if node.op.dimension_numbers.collapsed_slice_dims != (0,) or node.op.slice_sizes != (1,):
        return None
    held = places.op.value
    if held.is_splat or not np.array_equal(held.array.ravel(), np.arange(operand.size)):
        return None
    return apply(Reshape(out), node.operands[0], loc=node.loc)


def one_hot(node: Node) -> Rewritten:
    """scatter(splat, i, y) -> select(iota == i, y, splat), when each row takes one update.

    A select is fused with what reads it; the gradient of cross-entropy is one. Indices out of
    bounds equal no position, and so are dropped as a scatter drops them.
    """
    assert isinstance(node.op, Scatter)
    if len(node.operands) != 3 or splat_of(node.operands[0]) is None:
        return None
    how = _update(node)
    base, indices, updates = node.operands
    source, windows = tensor_of(base), node.op.windows
    if how is None or node.types[0] is not source or not _is_once(windows, node.operands):
        return None
    (dim,) = windows.start_map
    dtype = tensor_of(indices).dtype
    # The iota has the indices' type: positions beyond it would wrap around and be hit by mistake.
    if source.sizes[dim] - 1 > dtype.limits[1]:
        return None
    index_dims = _index_dims(windows, tensor_of(indices).rank)
    at = _spread(indices, index_dims, source.with_dtype(dtype), node.loc)
    places = _update_dims(windows, source.rank, updates, index_dims)
    written = _spread(updates, places, source, node.loc)
    if at is None or written is None:
        return None
    position = apply(Iota(dim, source.with_dtype(dtype)), loc=node.loc).results[0]
    hit = apply(Compare("EQ"), position, at, loc=node.loc).results[0]
    if how == "add":
        written = apply(Add(), base, written, loc=node.loc).results[0]
    return apply(Select(), hit, written, base, loc=node.loc)


def _update(node: Node) -> str | None:
    """How a scatter updates an element: by a sum, or by the update itself."""
    body = node.regions[0]
    if body.results[0] is body.args[1]:
        return "replace"
    maker = body.results[0].node
    is_sum = len(body.nodes) == 1 and maker is not None and isinstance(maker.op, Add)
    return "add" if is_sum and {*maker.operands} == {*body.args} else None  # type: ignore[union-attr]


def _is_once(windows: Windows, operands: tuple[Value, ...]) -> bool:
    """Whether windows are whole but for one dim, with one index for each batch."""
    source, indices, updates = map(tensor_of, operands)
    if not (source.is_static and indices.is_static and updates.is_static):
        return False
    if len(windows.start_map) != 1 or windows.inserted != windows.start_map:
        return False
    pairs = zip(windows.window, windows.operand_dims(source.rank), strict=True)
    if any(updates.sizes[inside] != source.sizes[dim] for inside, dim in pairs):
        return False
    batch = math.prod(source.sizes[d] for d in windows.operand_batching)
    return math.prod(indices.sizes) == batch


def _index_dims(windows: Windows, rank: int) -> dict[int, int]:
    """The operand's dims by those of the indices; dims of size 1 have none."""
    pairs = zip(windows.indices_batching, windows.operand_batching, strict=True)
    return {d: dim for d, dim in pairs if d < rank}


def _update_dims(
    windows: Windows, rank: int, updates: Value, index_dims: dict[int, int]
) -> dict[int, int]:
    """The operand's dims by those of the updates; dims of size 1 have none."""
    counted = windows.batch(tensor_of(updates).rank)
    dims = dict(zip(windows.window, windows.operand_dims(rank), strict=True))
    for n, d in enumerate(counted):
        # Counted dims of the updates skip the index vector's dim.
        index = n + (n >= windows.vector)
        if index in index_dims:
            dims[d] = index_dims[index]
    return dims


def _spread(value: Value, dims: dict[int, int], out: TensorType, loc: Location) -> Value | None:
    """A value broadcast to a shape along these dims; None if their order differs."""
    type = tensor_of(value)
    wide = sorted(dims)
    places = tuple([dims[d] for d in wide])
    if places != tuple(sorted(places)):
        return None
    slim = TensorType(tuple([type.sizes[d] for d in wide]), type.dtype)
    if slim is not type:
        value = apply(Reshape(slim), value, loc=loc).results[0]
    return apply(BroadcastInDim(places, out), value, loc=loc).results[0]


RULES: dict[type[Op], tuple[NodeRule, ...]] = {Gather: (gather_all,), Scatter: (one_hot,)}
