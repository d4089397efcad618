"""Copies of regions: the same ops on new values, since a node may occur only once."""

from __future__ import annotations

from weft.ir.module import Node, Region, Value


def copied_region(region: Region) -> Region:
    """A copy of a region."""
    args = tuple(Value(a.type, None, a.index) for a in region.args)
    nodes, results = copied(region, args)
    return Region(args, nodes, results, region.loc, region.arg_locs)


def copied(region: Region, operands: tuple[Value, ...]) -> tuple[list[Node], tuple[Value, ...]]:
    """Copies of a region's nodes on other values."""
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
