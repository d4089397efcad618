"""Inlining of calls in the bodies of reductions, where nothing is split."""

from __future__ import annotations

from weft.ir.module import Module, Node, Region, Value, walk
from weft.ir.rebuild import rewrite
from weft.ops.control import Call
from weft.ops.function_summaries import FunctionSummaries


def inline_bodies(module: Module, summaries: FunctionSummaries) -> Module:
    """The module without calls in the bodies of reductions, sorts, scatters and the like."""
    bodies = {
        type(node.op)
        for function in module.functions.values()
        if any(type(node.op) is Call for node in summaries[function.body].notable)
        for node in walk(function.body)
        if _calls_inside(node)
    }
    if not bodies:
        return module

    def inlined(node: Node) -> Node | None:
        if not _calls_inside(node):
            return None
        regions = tuple([_copied(region, {}, module) for region in node.regions])
        return node.rebuilt(node.operands, regions)

    return rewrite(module, inlined, kinds=bodies)


def _calls_inside(node: Node) -> bool:
    if not node.regions or node.op.control:
        return False
    return any(type(n.op) is Call for region in node.regions for n in walk(region))


def _copied(region: Region, became: dict[Value, Value], module: Module) -> Region:
    """A copy of a region with its calls inlined."""
    args = tuple([Value(v.type, None, v.index) for v in region.args])
    became.update(zip(region.args, args, strict=True))
    nodes: list[Node] = []
    _copy_nodes(region, became, nodes, module)
    results = tuple([became.get(v, v) for v in region.results])
    return Region(args, nodes, results, region.loc, region.arg_locs)


def _copy_nodes(
    region: Region, became: dict[Value, Value], out: list[Node], module: Module
) -> None:
    for node in region.nodes:
        operands = tuple([became.get(v, v) for v in node.operands])
        if isinstance(node.op, Call):
            body = module.function(node.op.callee).body
            inner = dict(zip(body.args, operands, strict=True))
            _copy_nodes(body, inner, out, module)
            results = tuple([inner.get(v, v) for v in body.results])
        else:
            regions = tuple([_copied(r, became, module) for r in node.regions])
            out.append(node.rebuilt(operands, regions))
            results = out[-1].results
        became.update(zip(node.results, results, strict=True))
