"""Bytes sent per device by every collective of a program, loops multiplied by their trip count.

The convention is independent of the algorithm: with n devices in a group, a gather sends
(n-1)/n of its result, a reduction twice (n-1)/n of its operand, a reduce-scatter and an all-to-all
(n-1)/n of theirs, a permutation its operand times the share of devices that send to another.
A loop without a static trip count counts once, and of branches the one that sends most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from weft.cost.collective_time import TrafficKind
from weft.cost.costs import KINDS, groups_of, sent_values
from weft.cost.totals import Totals
from weft.ir.location import Location
from weft.ir.module import Module, Node, Value
from weft.ir.op import Op
from weft.ir.work import moved
from weft.mesh import Mesh, MeshAxes
from weft.mesh.algebra import total_size
from weft.mesh.axes import named
from weft.ops.distributed.collective import AllGather, CollectiveBroadcast, CollectivePermute
from weft.ops.distributed.local import PermuteAlongAxes
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Sent:
    """One collective: the bytes that a device sends in it, and how often it runs."""

    name: str
    over: str  # the axes, or the group size where there are no axes
    devices: int  # the group size
    bytes: float  # per device and execution, on average
    count: int
    loc: Location

    @property
    def total(self) -> float:
        """The bytes of all executions."""
        return self.bytes * self.count


def share_sent(kind: TrafficKind, devices: int) -> float:
    """The share of a collective's size that each device of a group sends."""
    if devices <= 1:
        return 0.0
    return {"reduce": 2.0}.get(kind, 1.0) * (devices - 1) / devices


def bytes_sent(module: Module, func: str = "main") -> tuple[Sent, ...]:
    """The collectives that one run of a function executes, in program order."""
    return tuple(SentCounter(module).totals.function(func))


def total_sent(rows: Iterable[Sent]) -> float:
    """The bytes that a device sends in all these collectives."""
    return math.fsum(row.total for row in rows)


class SentCounter:
    """Counts the collectives of one module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.everyone = max((mesh.size for mesh in module.meshes.values()), default=1)
        self.totals = Totals(module, self.node, _concatenate, _repeated, total_sent)

    def node(self, node: Node) -> list[Sent]:
        """The collectives of a node other than control flow."""
        if type(node.op) in KINDS:
            return [self.collective(node)]
        return _concatenate([self.totals.region(region) for region in node.regions])

    def collective(self, node: Node) -> Sent:
        """The row of one collective."""
        op, kind = node.op, KINDS[type(node.op)]
        over, devices = group(op, self.module.meshes, self.everyone)
        operands = sent_values(op, node.operand_types)
        size = moved(*node.types) if kind == "gather" else moved(*operands)
        sent = size * _share(op, kind, devices, self.everyone)
        return Sent(op.name, over, devices, sent, 1, node.loc)


def _concatenate(parts: list[list[Sent]]) -> list[Sent]:
    return [row for part in parts for row in part]


def _repeated(rows: list[Sent], trips: int) -> list[Sent]:
    return [replace(row, count=row.count * trips) for row in rows]


def group(op: Op, meshes: Mapping[str, Mesh], everyone: int) -> tuple[str, int]:
    """The axes of a collective's groups as text, and the group size."""
    groups = groups_of(op)
    if isinstance(groups, MeshAxes):
        mesh = named(groups.mesh, meshes)
        return " ".join(map(str, groups.axes)).replace('"', ""), total_size(groups.axes, mesh)
    count = max((len(g) for g in groups), default=everyone)
    return str(count), count


def _share(op: Op, kind: TrafficKind, devices: int, everyone: int) -> float:
    match op:
        case PermuteAlongAxes():
            moves = sum(s not in (-1, t) for t, s in enumerate(op.sources))
            return moves / len(op.sources) if op.sources else 0.0
        case CollectivePermute():
            return sum(s != t for s, t in op.source_target_pairs) / everyone
        case CollectiveBroadcast():
            return 1.0 / devices if devices > 1 else 0.0
    return share_sent(kind, devices)


def full_gathers(module: Module) -> int:
    """The number of all_gathers (or chains of them) that end in a fully replicated value."""
    everyone = max((mesh.size for mesh in module.meshes.values()), default=1)
    reach: dict[Value, int] = {}
    count = 0
    for node in module.nodes():
        before = max((reach.get(v, 1) for v in node.operands), default=1)
        if isinstance(node.op, AllGather) and moved(*node.types):
            _, devices = group(node.op, module.meshes, everyone)
            reach |= dict.fromkeys(node.results, before * devices)
            count += before < everyone <= before * devices
        elif before > 1 and len(node.operands) == 1 and not node.regions:
            reach |= dict.fromkeys(node.results, before)  # a unary op at most rearranges elements
    return count
