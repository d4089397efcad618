"""Splitting of collectives into asynchronous starts and dones."""

from __future__ import annotations

from weft.ir.attrs import Attrs
from weft.ir.gc_pause import without_gc
from weft.ir.module import Module, Node, Region, Value
from weft.ir.names import STREAM
from weft.ir.rebuild import Rebuild
from weft.ir.types import FutureType, TupleType
from weft.ops.control import AsyncDone, AsyncStart
from weft.ops.distributed.async_pairs import VariadicAsyncDone, VariadicAsyncStart
from weft.ops.distributed.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectiveBroadcast,
    CollectivePermute,
    ReduceScatter,
)

# The ops that stablehlo.async_start may hold, if they have one result.
_HELD = (AllGather, AllReduce, AllToAll, CollectiveBroadcast, CollectivePermute, ReduceScatter)


def split_async(module: Module) -> Module:
    """Replace every collective by an async_start and an async_done.

    They are adjacent here; `schedule` moves them apart.
    """
    if not any(node.op.collective for node in module.nodes()):
        return module
    with without_gc():
        return _Splitting(module, ()).module()


class _Splitting(Rebuild):
    """A rebuild that replaces a collective by two nodes."""

    def node(self, node: Node, out: list[Node]) -> None:
        if not node.op.collective:
            super().node(node, out)
            return
        start, done = pair(self.renewed(node))
        out += (start, done)
        self.becomes(node, done.results)

    def renewed(self, node: Node) -> Node:
        if not isinstance(node.op, AsyncStart):
            return super().renewed(node)
        operands = tuple([self.became.get(v, v) for v in node.operands])
        if operands == node.operands:
            return node
        return node.rebuilt(operands, node.regions)  # its collective is split already


def pair(node: Node) -> tuple[Node, Node]:
    """collective(x..) -> async_done(async_start(x..) of the collective)."""
    args = tuple([Value(v.type, None, n) for n, v in enumerate(node.operands)])
    # The stream is the start's: it says where the transfer runs, not what is computed.
    inner = Node(node.op, args, node.types, node.regions, _without_stream(node.attrs), node.loc)
    body = Region(args, [inner], inner.results, node.loc, (node.loc,) * len(args))
    # StableHLO's own ops where they can hold it, so that other tools read the text; Weft's pair
    # otherwise.
    plain = isinstance(node.op, _HELD) and len(node.results) == 1
    future = (FutureType if plain else TupleType)(node.types)
    begin = (AsyncStart if plain else VariadicAsyncStart)((future,))
    start = Node(begin, node.operands, (future,), (body,), _stream(node.attrs), node.loc)
    end = AsyncDone() if plain else VariadicAsyncDone()
    return start, Node(end, start.results, node.types, (), (), node.loc)


def _stream(attrs: Attrs) -> Attrs:
    return tuple(a for a in attrs if a[0] == STREAM)


def _without_stream(attrs: Attrs) -> Attrs:
    return tuple(a for a in attrs if a[0] != STREAM)
