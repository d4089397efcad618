"""How many bytes a device sends: every collective of a program, loops counted as often as they run.

One convention, whoever carries a collective out: with n devices in a group, a gather sends
(n-1)/n of its result, a reduction twice (n-1)/n of its operand, a reduce-scatter and an all-to-all
(n-1)/n of theirs, a permutation its operand times the share of devices that send to another.
A loop whose rounds the text does not tell counts once, and of branches the one that sends most.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from weft.cost.costs import KINDS, groups_of
from weft.cost.totals import Totals
from weft.cost.travel import TrafficKind
from weft.ir.location import Location
from weft.ir.module import Module, Node, Value
from weft.ir.op import Op
from weft.ir.work import moved
from weft.mesh import Mesh, MeshAxes
from weft.mesh.algebra import total_size
from weft.mesh.axes import named
from weft.ops.distributed.collective import AllGather, CollectiveBroadcast, CollectivePermute
from weft.ops.distributed.local import PermuteAlongAxes


@dataclass(frozen=True, slots=True)
class Sent:
    """One collective: what a device sends in it, and how often it is run."""

    name: str
    over: str  # the axes, or the number of devices in a group
    devices: int  # of a group
    bytes: float  # that one device sends each time, on average
    count: int
    loc: Location

    @property
    def total(self) -> float:
        """The bytes of all times."""
        return self.bytes * self.count


def share_sent(kind: TrafficKind, devices: int) -> float:
    """The share of a collective's size that each device of a group sends."""
    if devices <= 1:
        return 0.0
    return {"reduce": 2.0}.get(kind, 1.0) * (devices - 1) / devices


def bytes_sent(module: Module, func: str = "main") -> tuple[Sent, ...]:
    """The collectives that one run of a function carries out, in program order."""
    return tuple(SentCounter(module).totals.function(func))


def total_sent(rows: Iterable[Sent]) -> float:
    """The bytes that a device sends in all of them."""
    return math.fsum(row.total for row in rows)


class SentCounter:
    """The collectives of one module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.everyone = max((mesh.size for mesh in module.meshes.values()), default=1)
        self.totals = Totals(module, self.node, _joined, _repeated, total_sent)

    def node(self, node: Node) -> list[Sent]:
        """The collectives of a node that is no control flow."""
        if type(node.op) in KINDS:
            return [self.collective(node)]
        return _joined([self.totals.region(region) for region in node.regions])

    def collective(self, node: Node) -> Sent:
        """What a device sends in one collective."""
        op, kind = node.op, KINDS[type(node.op)]
        over, devices = group(op, self.module.meshes, self.everyone)
        size = moved(*node.types) if kind == "gather" else moved(*node.operand_types)
        sent = size * _share(op, kind, devices, self.everyone)
        return Sent(op.name, over, devices, sent, 1, node.loc)


def _joined(parts: list[list[Sent]]) -> list[Sent]:
    return [row for part in parts for row in part]


def _repeated(rows: list[Sent], rounds: int) -> list[Sent]:
    return [replace(row, count=row.count * rounds) for row in rows]


def group(op: Op, meshes: Mapping[str, Mesh], everyone: int) -> tuple[str, int]:
    """The axes along which devices meet, and how many do."""
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
    """How many gathers, in one step or several, end with every device holding everything."""
    everyone = max((mesh.size for mesh in module.meshes.values()), default=1)
    reach: dict[Value, int] = {}
    found = 0
    for node in module.nodes():
        before = max((reach.get(v, 1) for v in node.operands), default=1)
        if isinstance(node.op, AllGather) and moved(*node.types):
            _, devices = group(node.op, module.meshes, everyone)
            reach |= dict.fromkeys(node.results, before * devices)
            found += before < everyone <= before * devices
        elif before > 1 and len(node.operands) == 1 and not node.regions:
            reach |= dict.fromkeys(node.results, before)  # rearranged, at most
    return found
