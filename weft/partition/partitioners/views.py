"""Views: the operand ranges of ops with shifted factors, and the bytes that they send."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from weft.ir.module import Node
from weft.ir.rule import Rule
from weft.ir.types import TensorType
from weft.mesh import Mesh
from weft.mesh.algebra import DimAxes
from weft.partition.partitioners.dilation import DeviceView, sent_for
from weft.partition.piece import local_type
from weft.partition.site import NodeSite
from weft.partition.strategy.factors import FactorAxes, split_by_factors

Views: TypeAlias = list[tuple[int, DeviceView]]  # of operands, by number
Seeing: TypeAlias = Callable[[Node, tuple[DimAxes, ...], tuple[DimAxes, ...], Mesh], Views]
BytesSent: TypeAlias = Callable[[Node, Rule, FactorAxes, Mesh], float]


def sent_by(seeing: Seeing) -> BytesSent:
    """A function for the bytes that an op with these views sends."""

    def sent(node: Node, rule: Rule, chosen: FactorAxes, mesh: Mesh) -> float:
        operands = [split_by_factors(chosen, dims, rule, mesh) for dims in rule.operands]
        results = [split_by_factors(chosen, dims, rule, mesh) for dims in rule.results]
        total = 0.0
        for n, view in seeing(node, tuple(operands), tuple(results), mesh):  # type: ignore[arg-type]
            type, split = node.operand_types[n], operands[n]
            assert isinstance(type, TensorType) and split is not None
            total += sent_for(view, local_type(type, split, mesh))
        return total

    return sent


def shifted_factors(node: Node, rule: Rule) -> frozenset[int]:
    """All factors but whole ones."""
    return frozenset(n for n, f in enumerate(rule.factors) if f.role != "whole")


def empty(site: NodeSite) -> bool:
    """Whether the results have no elements."""
    return all(isinstance(t, TensorType) and not t.size for t in site.local_types())
