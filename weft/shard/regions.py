"""Regions that a rebuilt module shares with the original."""

from __future__ import annotations

from weft.ir.module import Region
from weft.ir.op import Op
from weft.ops.distributed.sharding import ShardyConstant
from weft.ops.shape import Constant

_CONSTANTS = (Constant, ShardyConstant)


def is_shared(op: Op, region: Region) -> bool:
    """Whether a region is one node on its own arguments, as most combiners are."""
    if op.control or len(region.nodes) != 1:
        return False
    (node,) = region.nodes
    if node.regions or node.attrs or isinstance(node.op, _CONSTANTS):
        return False
    args = {*region.args}
    return args.issuperset(node.operands) and args.union(node.results).issuperset(region.results)


def are_shared(op: Op, regions: tuple[Region, ...]) -> bool:
    """Whether all regions of an op can be shared."""
    return all(is_shared(op, region) for region in regions)
