"""Regions: copies on new values, and regions of scalars that read values from outside."""

from __future__ import annotations

from weft.ir.module import Node, Region, Value, walk
from weft.ops.distributed.sharding import ShardyConstant
from weft.ops.shape import Constant


def copied_region(region: Region) -> Region:
    """A region like another one."""
    args = tuple(Value(a.type, None, a.index) for a in region.args)
    nodes, results = copied(region, args)
    return Region(args, nodes, results, region.loc, region.arg_locs)


def copied(region: Region, operands: tuple[Value, ...]) -> tuple[list[Node], tuple[Value, ...]]:
    """The nodes of a region on other values, all of them new."""
    became = dict(zip(region.args, operands, strict=True))
    nodes = [_copy(node, became) for node in region.nodes]
    return nodes, tuple(became.get(v, v) for v in region.results)


def _copy(node: Node, became: dict[Value, Value]) -> Node:
    regions = []
    for region in node.regions:
        args = tuple(Value(a.type, None, a.index) for a in region.args)
        became.update(zip(region.args, args, strict=True))
        nodes = [_copy(inner, became) for inner in region.nodes]
        results = tuple(became.get(v, v) for v in region.results)
        regions.append(Region(args, nodes, results, region.loc, region.arg_locs))
    operands = tuple(became.get(v, v) for v in node.operands)
    made = Node(node.op, operands, node.types, tuple(regions), node.attrs, node.loc)
    became.update(zip(node.results, made.results, strict=True))
    return made


def read_outside(region: Region) -> list[Value]:
    """The free variables of a region."""
    own = set(region.args) | {v for n in walk(region) for v in n.results}
    own |= {v for n in walk(region) for inner in n.regions for v in inner.args}
    read = [v for n in walk(region) for v in n.operands] + list(region.results)
    return [v for v in read if v not in own]


def with_values(region: Region, became: dict[Value, Value]) -> Region:
    """A region with some values replaced, and sdy constants as plain ones."""
    if not became and not any(isinstance(n.op, ShardyConstant) for n in walk(region)):
        return region
    nodes = []
    for node in region.nodes:
        operands = tuple(became.get(v, v) for v in node.operands)
        regions = tuple(with_values(r, became) for r in node.regions)
        new = (
            _plain(node) if isinstance(node.op, ShardyConstant) else node.rebuilt(operands, regions)
        )
        became.update(zip(node.results, new.results, strict=True))
        nodes.append(new)
    results = tuple(became.get(v, v) for v in region.results)
    return Region(region.args, nodes, results, region.loc, region.arg_locs)


def _plain(node: Node) -> Node:
    assert isinstance(node.op, ShardyConstant)
    return Node(Constant(node.op.value), (), node.types, (), node.attrs, node.loc)
