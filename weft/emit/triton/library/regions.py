"""How the regions of scatters and reductions combine two elements."""

from __future__ import annotations

from weft.ir.module import Region
from weft.ops.combiners import BY_OP


def update_of(region: Region) -> str | None:
    """How a scatter's region combines: by one op, or by taking the update; None if otherwise."""
    if len(region.args) != 2 or len(region.results) != 1:
        return None
    (result,) = region.results
    if result is region.args[1]:
        return "replace"
    node = result.node
    if node is None or {*map(id, node.operands)} != {*map(id, region.args)}:
        return None
    how = BY_OP.get(node.op.name)
    return how if how in ("add", "max", "min", "mul") else None
