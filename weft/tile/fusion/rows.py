"""Whether a reduction can run in the loops of its readers."""

from __future__ import annotations

import math

from weft.ir.module import tensor_of
from weft.kernels.stacked_node import StackedNode
from weft.ops.reduce import Reduce
from weft.target import Limits
from weft.tile.drafts.draft import Draft
from weft.tile.drafts.index import factors_of


def rows_fit(stacked: StackedNode, number: int, draft: Draft, limits: Limits) -> bool:
    """Whether a reduction's rows match those of a group, or can define them."""
    if draft.contract is not None or draft.bounds(number):
        return False
    at = draft.at(number)
    used = factors_of(at)
    if not isinstance(stacked.node.op, Reduce):  # a sum over devices has rows of its own
        return not draft.rows and used == set(draft.root)
    if used & set(draft.rows):
        return False
    shape = tensor_of(stacked.node.operands[0]).sizes
    dims = stacked.node.op.folded
    free = [f for f in (draft.rows or draft.root) if f not in used]
    if not free:
        return not draft.rows
    if not _same_sizes([shape[d] for d in dims], [draft.sizes[f] for f in free]):
        return False
    # A device dim may have the size of a reduced one by coincidence; this reduction does not sum
    # over it.
    if draft.devices & set(free):
        return False
    minor = max((d for d, n in enumerate(shape) if n > 1), default=0)
    rows = math.prod(draft.sizes[f] for f in used)
    length = math.prod(draft.sizes[f] for f in free)
    # Rows are the unit of parallelism: few long ones would leave threads idle. Short ones stay in
    # cache for their second read. Without the minor dim, lanes would stride through memory.
    return minor in dims and (rows >= limits.rows or length <= limits.row)


def _same_sizes(lengths: list[int], factors: list[int]) -> bool:
    """Whether factors, in order, multiply to dims of these lengths."""
    left = list(factors)
    for length in lengths:
        size = 1
        while size < length and left:
            size *= left.pop(0)
        if size != length:
            return False
    return not left
