"""Give every asynchronous start the stream that it runs on."""

from __future__ import annotations

import re
from dataclasses import replace

from weft.cost import KINDS, groups_of
from weft.errors import WeftError
from weft.ir.attrs import STRING, Attrs
from weft.ir.memory import without_gc
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.rebuild import carry_tables
from weft.ops.control import AsyncStart

STREAM = "weft.stream"
# What a program says of a stream in the words of XLA, among its frontend attributes.
_ANNOTATION = re.compile(r'\b_xla_stream_annotation\s*=\s*"(\d+)"')


def assign_streams(
    module: Module, compute_streams: int = 4, communication_streams: int = 1
) -> Module:
    """Mark every async_start with `weft.stream`.

    An annotation of the program comes first; then each communication domain (the axes that meet)
    has a stream, as far as there are any; all else that is asynchronous takes the compute streams
    in turn. What carries no mark runs on the stream compute.0.
    """
    for what, count in (("compute", compute_streams), ("communication", communication_streams)):
        if count < 1:
            raise WeftError(f"{count} {what} streams", help="give at least one")
    assigning = _Assigning(compute_streams, communication_streams)
    with without_gc():
        functions = {name: assigning.function(f) for name, f in module.functions.items()}
        return carry_tables(module.with_functions(functions), assigning.became)


def stream_of(attrs: Attrs) -> str | None:
    """The stream that a node's attributes name."""
    return next((STRING.read(text) for name, text in attrs if name == STREAM), None)


class _Assigning:
    """One run: the domains seen so far, whose turn it is, and what every old value has become."""

    def __init__(self, compute: int, communication: int) -> None:
        self.compute = compute
        self.communication = communication
        self.domains: dict[object, int] = {}
        self.turn = 0
        self.became: dict[Value, Value] = {}

    def function(self, function: Function) -> Function:
        """The function with its starts marked; the same one if there are none."""
        body = self.region(function.body)
        return function if body is function.body else replace(function, body=body)

    def region(self, region: Region) -> Region:
        """The region with its starts marked."""
        out: list[Node] = []
        became = self.became
        for node in region.nodes:
            operands = tuple([became.get(v, v) for v in node.operands])
            regions, attrs = node.regions, node.attrs
            if isinstance(node.op, AsyncStart):
                attrs = self.marked(node)
            elif regions:
                regions = tuple([self.region(r) for r in regions])
            if operands == node.operands and regions == node.regions and attrs == node.attrs:
                out.append(node)
                continue
            made = Node(node.op, operands, node.types, regions, attrs, node.loc)
            became.update(zip(node.results, made.results, strict=True))
            out.append(made)
        results = tuple([became.get(v, v) for v in region.results])
        if results == region.results and out == region.nodes:
            return region
        return Region(region.args, out, results, region.loc, region.arg_locs)

    def marked(self, start: Node) -> Attrs:
        """The attributes of a start, its stream among them."""
        if stream_of(start.attrs) is not None:
            return start.attrs
        stream = _annotated(start) or self.stream(start.regions[0].nodes[0])
        return tuple(sorted((*start.attrs, (STREAM, STRING.write(stream)))))

    def stream(self, held: Node) -> str:
        """The stream of what a start holds, where the program says nothing."""
        if type(held.op) in KINDS:
            domain = self.domains.setdefault(groups_of(held.op), len(self.domains))
            return f"communication.{domain % self.communication}"
        stream = f"compute.{self.turn % self.compute}"
        self.turn += 1
        return stream


def _annotated(start: Node) -> str | None:
    """The stream that the program asks for, on the start or on what it holds."""
    held = start.regions[0].nodes
    for attrs in (start.attrs, *[node.attrs for node in held]):
        for name, text in attrs:
            if name == "mhlo.frontend_attributes" and (match := _ANNOTATION.search(text)):
                return f"compute.{match[1]}"
    return None
