"""Predicted seconds of the nodes of a module on a machine."""

from __future__ import annotations

import operator
from collections.abc import Mapping

from weft.cost.collective_time import (
    GroupExtent,
    Pattern,
    TrafficKind,
    group_extent,
    pairs_extent,
    pattern_of,
    travel_estimate,
)
from weft.cost.measured import Estimate
from weft.cost.totals import CONTROL, Totals, region_work
from weft.ir.module import Module, Node
from weft.ir.op import Op
from weft.ir.types import TensorType, Types
from weft.ir.work import Work, moved
from weft.machine import Machine
from weft.mesh import Groups
from weft.ops.contract import Dot, DotGeneral
from weft.ops.control import AsyncDone, AsyncStart
from weft.ops.convolution import Convolution
from weft.ops.distributed.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectiveBroadcast,
    CollectivePermute,
    ReduceScatter,
)
from weft.ops.distributed.local import PermuteAlongAxes, VariadicReduceScatter
from weft.ops.distributed.ragged import RaggedAllToAll
from weft.ops.einsum import Einsum
from weft.ops.ragged import RaggedDot
from weft.ops.shape import BitcastConvert, Constant, Reshape

KINDS: Mapping[type[Op], TrafficKind] = {
    AllGather: "gather",
    AllReduce: "reduce",
    ReduceScatter: "scatter",
    VariadicReduceScatter: "scatter",
    AllToAll: "exchange",
    RaggedAllToAll: "exchange",
    CollectiveBroadcast: "permute",
    CollectivePermute: "permute",
    PermuteAlongAxes: "permute",
}
PRODUCTS = (DotGeneral, Dot, Einsum, Convolution, RaggedDot)
# Views, and what takes no time of its own.
_FREE = (Reshape, BitcastConvert, Constant, AsyncDone)


def work_seconds(work: Work, rate: float, machine: Machine) -> float:
    """Roofline time of counted work: the slower of computing and of moving bytes."""
    if not (work.flops or work.bytes or work.transcendentals):
        return 0.0
    # flop over flop/s, and bytes over byte/s below. Units overlap, so the slower one counts
    # (Williams et al., Roofline, 2009).
    computing = work.flops / rate + work.transcendentals / machine.transcendental
    return machine.launch + max(computing, work.bytes / machine.bandwidth_at(work.bytes))


def computed_as(op: Op) -> str:
    """The type that a dot's algorithm names for its products; empty where it names none."""
    algorithm = op.algorithm if isinstance(op, DotGeneral) else None
    return algorithm.lhs_precision_type.lower() if algorithm is not None else ""


def groups_of(op: Op) -> Groups:
    """The replica groups of a collective, from its fields; an empty list means all devices."""
    if isinstance(op, PermuteAlongAxes | VariadicReduceScatter):
        return op.axes
    if isinstance(op, CollectivePermute):
        return ()
    groups: Groups = op.replica_groups  # type: ignore[attr-defined]  # a field of all the others
    return groups


def sent_values(op: Op, operands: Types) -> Types:
    """The operands that are sent; of a ragged exchange all rows that one sends or receives."""
    return (min(operands[:2], key=moved),) if isinstance(op, RaggedAllToAll) else operands


def _pattern(op: Op) -> Pattern:
    if isinstance(op, PermuteAlongAxes):
        return pattern_of((s, t) for t, s in enumerate(op.sources) if s >= 0)
    return pattern_of(op.source_target_pairs) if isinstance(op, CollectivePermute) else "one_way"


class Costs:
    """The cost of each node of a module on a machine, memoized by op and types."""

    def __init__(self, module: Module, machine: Machine) -> None:
        self.module = module
        self.machine = machine
        self.devices = max((mesh.size for mesh in module.meshes.values()), default=1)
        self.known: dict[tuple[Op, Types, Types], float] = {}
        self.totals: Totals[float] = Totals(module, self.seconds, sum, operator.mul, float)
        self.reaches: dict[Op, GroupExtent] = {}

    def seconds(self, node: Node) -> float:
        """Seconds of a node; for an asynchronous start, only the time to issue it."""
        op = node.op
        if type(op) in CONTROL:
            return self.totals.node(node)
        if node.regions:
            return self.machine.launch if isinstance(op, AsyncStart) else self._outer(node)
        key = (op, node.operand_types, node.types)
        seconds = self.known.get(key)
        if seconds is None:
            seconds = 0.0 if isinstance(op, _FREE) else self._plain(op, key[1], key[2])
            self.known[key] = seconds
        return seconds

    def in_flight(self, start: Node) -> float:
        """Seconds from an asynchronous start until its transfer is complete."""
        return self.totals.region(start.regions[0])

    def group_extent(self, op: Op) -> GroupExtent:
        """The size of a collective's group, and the domains that it spans."""
        extent = self.reaches.get(op)
        if extent is None:
            if isinstance(op, CollectivePermute):
                extent = pairs_extent(op.source_target_pairs, self.machine)
            else:
                extent = group_extent(groups_of(op), self.module.meshes, self.devices, self.machine)
            self.reaches[op] = extent
        return extent

    def collective(self, op: Op, operands: Types, results: Types) -> Estimate:
        """The seconds of a collective, with their interval and source."""
        kind = KINDS[type(op)]
        # The larger side of each: a gather's result, the operand of all others.
        size = moved(*results) if kind == "gather" else moved(*sent_values(op, operands))
        dtype = next((t.dtype.name for t in operands if isinstance(t, TensorType)), "f32")
        return travel_estimate(kind, size, self.group_extent(op), self.machine, dtype, _pattern(op))

    def _outer(self, node: Node) -> float:
        op = node.op
        if type(op) in KINDS:
            return self.collective(op, node.operand_types, node.types).seconds
        bodies = tuple(region_work(region) for region in node.regions)
        work = op.work(node.operand_types, node.types, bodies)
        return work_seconds(work, self.machine.vector, self.machine)

    def _plain(self, op: Op, operands: Types, results: Types) -> float:
        if type(op) in KINDS:
            return self.collective(op, operands, results).seconds
        rate = self.machine.vector
        if isinstance(op, PRODUCTS) and isinstance(operands[0], TensorType):
            rate = self.machine.rate(operands[0].dtype, computed_as(op))
        return work_seconds(op.work(operands, results), rate, self.machine)


def collective_seconds(module: Module, costs: Costs, func: str = "main") -> float:
    """The seconds of a function's collectives one after another, loops times their trip count."""
    return _seconds_of(module, costs, func, tuple(KINDS))


def spmd_seconds(module: Module, costs: Costs, func: str = "main") -> float:
    """The seconds of a function's collectives and products, which a partition decides about."""
    return _seconds_of(module, costs, func, (*KINDS, *PRODUCTS))


def _seconds_of(module: Module, costs: Costs, func: str, ops: tuple[type[Op], ...]) -> float:
    """The seconds of a function's nodes of some ops, one after another."""
    counted = frozenset(ops)

    def of_node(node: Node) -> float:
        if type(node.op) in counted:
            return costs.seconds(node)
        return sum([totals.region(region) for region in node.regions])

    totals: Totals[float] = Totals(module, of_node, sum, operator.mul, float)
    return totals.function(func)
