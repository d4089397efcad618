"""Give every asynchronous start the stream that it runs on."""

from __future__ import annotations

import re

from weft.cost import KINDS, groups_of
from weft.errors import WeftError
from weft.ir.attrs import STRING, Attrs
from weft.ir.gc_pause import without_gc
from weft.ir.module import Module, Node
from weft.ir.names import STREAM
from weft.ir.rebuild import Rebuild
from weft.ops.control import AsyncStart, stream_of

# XLA's frontend attributes for streams.
_ANNOTATION = re.compile(r'\b_xla_stream_annotation\s*=\s*"(\d+)"')


def assign_streams(
    module: Module, compute_streams: int = 4, communication_streams: int = 1
) -> Module:
    """Mark every async_start with `weft.stream`.

    The program's annotations take precedence; then each communication domain (its mesh axes) has a
    stream, as far as there are any; other asynchronous work uses the compute streams round-robin.
    Nodes without a mark run on the stream compute.0.
    """
    for what, count in (("compute", compute_streams), ("communication", communication_streams)):
        if count < 1:
            raise WeftError(f"{count} {what} streams", help="give at least one")
    with without_gc():
        return _Assigning(module, compute_streams, communication_streams).module()


class _Assigning(Rebuild):
    """One rebuild: the domains seen so far, and the next compute stream."""

    def __init__(self, module: Module, compute: int, communication: int) -> None:
        super().__init__(module, ())
        self.compute = compute
        self.communication = communication
        self.domains: dict[object, int] = {}
        self.turn = 0

    def renewed(self, node: Node) -> Node:
        new = super().renewed(node)
        if not isinstance(node.op, AsyncStart):
            return new
        attrs = self.marked(node)
        if attrs == node.attrs:
            return new
        return Node(new.op, new.operands, new.types, new.regions, attrs, new.loc)

    def marked(self, start: Node) -> Attrs:
        """The attributes of a start with its stream."""
        if stream_of(start.attrs) is not None:
            return start.attrs
        stream = _annotated(start) or self.stream(start.regions[0].nodes[0])
        return tuple(sorted((*start.attrs, (STREAM, STRING.write(stream)))))

    def stream(self, held: Node) -> str:
        """The stream of a start's op without an annotation."""
        if type(held.op) in KINDS:
            domain = self.domains.setdefault(groups_of(held.op), len(self.domains))
            return f"communication.{domain % self.communication}"
        stream = f"compute.{self.turn % self.compute}"
        self.turn += 1
        return stream


def _annotated(start: Node) -> str | None:
    """The program's stream annotation, on the start or on its op."""
    held = start.regions[0].nodes
    for attrs in (start.attrs, *[node.attrs for node in held]):
        for name, text in attrs:
            if name == "mhlo.frontend_attributes" and (match := _ANNOTATION.search(text)):
                return f"compute.{match[1]}"
    return None
