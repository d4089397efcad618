"""Asynchronous pairs for collectives that StableHLO's own pair refuses.

`stablehlo.async_start` holds one StableHLO op with one result. Collectives on several operands, and
Weft's own, use this pair instead: its future is a tuple, so it is written as composites that every
StableHLO reader accepts, whose decomposition does all the work at the start.
"""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.module import Function, Node, Region, Value, apply
from weft.ir.op import Op, op
from weft.ir.types import TupleType, Type, Types
from weft.mesh import Mesh
from weft.ops.control import AsyncDone, AsyncStart, GetTupleElement, Tuple


@op("weft.async_start")
class VariadicAsyncStart(AsyncStart):
    """Start the collective of the region; weft.async_done waits for it."""

    outs: Types
    regions = 1
    composite = True

    def future(self, types: Types) -> Type:
        return TupleType(types)

    def decomposition(
        self, name: str, operands: Types, meshes: Mapping[str, Mesh], regions: tuple[Region, ...]
    ) -> Function:
        """The whole collective, not only its start, and its results as a tuple."""
        (body,) = regions
        (node,) = body.nodes
        if node.op.composite:
            assert node.operands == body.args, "the region only calls the collective"
            whole: Function = node.op.decomposition(  # type: ignore[attr-defined]
                name, operands, meshes
            )
            body = whole.body
        made = apply(Tuple(), *body.results)
        return Function(name, Region(body.args, [*body.nodes, made], made.results), "private")


@op("weft.async_done")
class VariadicAsyncDone(AsyncDone):
    """Wait for a weft.async_start; its results."""

    future = TupleType
    composite = True

    def decomposition(self, name: str, operands: Types, meshes: Mapping[str, Mesh]) -> Function:
        """The elements of the tuple."""
        future = Value(operands[0])
        nodes: list[Node] = [
            apply(GetTupleElement(n), future) for n in range(len(self.infer(operands[0])))
        ]
        results = tuple(node.results[0] for node in nodes)
        return Function(name, Region((future,), nodes, results), "private")


OPS: tuple[type[Op], ...] = (VariadicAsyncStart, VariadicAsyncDone)
