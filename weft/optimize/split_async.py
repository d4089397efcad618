"""Split collectives into a start and a done, so that other work can stand between them."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.attrs import Attrs
from weft.ir.memory import without_gc
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.rebuild import carry_tables
from weft.ir.types import FutureType, TupleType
from weft.ops.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectiveBroadcast,
    CollectivePermute,
    ReduceScatter,
)
from weft.ops.control import AsyncDone, AsyncStart
from weft.ops.together import DoneTogether, StartTogether
from weft.optimize.assign_streams import STREAM

# What the text of stablehlo.async_start may hold, if it has one result.
_HELD = (AllGather, AllReduce, AllToAll, CollectiveBroadcast, CollectivePermute, ReduceScatter)


def split_async(module: Module) -> Module:
    """Make of every collective an async_start that begins it and an async_done that waits for it.

    Both stand where the collective stood; `schedule` moves them apart.
    """
    if not any(node.op.collective for node in module.nodes()):
        return module
    splitting = _Splitting()
    with without_gc():
        functions = {name: splitting.function(f) for name, f in module.functions.items()}
        return carry_tables(module.with_functions(functions), splitting.became)


class _Splitting:
    """One run: what every old value has become."""

    def __init__(self) -> None:
        self.became: dict[Value, Value] = {}

    def function(self, function: Function) -> Function:
        """The function with its collectives split; the same one if there are none."""
        body = self.region(function.body)
        return function if body is function.body else replace(function, body=body)

    def region(self, region: Region) -> Region:
        """The region with its collectives split; what an async_start holds is split already."""
        out: list[Node] = []
        became = self.became
        for node in region.nodes:
            operands = tuple([became.get(v, v) for v in node.operands])
            regions = node.regions
            if regions and not isinstance(node.op, AsyncStart):
                regions = tuple([self.region(r) for r in regions])
            if node.op.collective:
                start, done = pair(node, operands)
                out += (start, done)
                became.update(zip(node.results, done.results, strict=True))
            elif operands != node.operands or regions != node.regions:
                made = node.rebuilt(operands, regions)
                became.update(zip(node.results, made.results, strict=True))
                out.append(made)
            else:
                out.append(node)
        results = tuple([became.get(v, v) for v in region.results])
        if results == region.results and out == region.nodes:
            return region
        return Region(region.args, out, results, region.loc, region.arg_locs)


def pair(node: Node, operands: tuple[Value, ...]) -> tuple[Node, Node]:
    """collective(x..) -> async_done(async_start(x..) of the collective)."""
    args = tuple([Value(v.type, None, n) for n, v in enumerate(operands)])
    inner = Node(node.op, args, node.types, node.regions, _without_stream(node.attrs), node.loc)
    body = Region(args, [inner], inner.results, node.loc, (node.loc,) * len(args))
    plain = isinstance(node.op, _HELD) and len(node.results) == 1
    future = (FutureType if plain else TupleType)(node.types)
    begin = (AsyncStart if plain else StartTogether)((future,))
    start = Node(begin, operands, (future,), (body,), _stream(node.attrs), node.loc)
    end = AsyncDone() if plain else DoneTogether()
    return start, Node(end, start.results, node.types, (), (), node.loc)


def _stream(attrs: Attrs) -> Attrs:
    return tuple(a for a in attrs if a[0] == STREAM)


def _without_stream(attrs: Attrs) -> Attrs:
    return tuple(a for a in attrs if a[0] != STREAM)
