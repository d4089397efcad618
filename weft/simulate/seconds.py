"""Predicted seconds of the items of a tiled program."""

from __future__ import annotations

import math

from weft.cost import KINDS, Costs
from weft.cost.kernels import Units, kernel_seconds
from weft.cost.sent import SentCounter
from weft.executable.items import Collective, Host, Launch, Slot, Tiled
from weft.ir.module import Node
from weft.kernels.attention import Attention
from weft.kernels.group import AnyKernel
from weft.kernels.work import product_flops
from weft.machine import Machine
from weft.records import dataclass
from weft.timeline import EventKind


@dataclass(frozen=True, slots=True)
class LaunchCost:
    """The seconds of a launch, its kind, and the flops of its products with their least seconds."""

    seconds: float
    kind: EventKind
    flops: float = 0.0
    ideal: float = 0.0


@dataclass(frozen=True, slots=True)
class CollectiveCost:
    """The seconds of a collective, its link, its group's devices, and the bytes sent."""

    seconds: float
    link: str
    devices: int
    bytes: float
    over: str
    source: str


class ItemSeconds:
    """The seconds of launches, host nodes and collectives of one program, memoized."""

    def __init__(
        self, tiled: Tiled, machine: Machine, units: Units | None = None, footprint: float = 0.0
    ) -> None:
        self.tiled, self.machine, self.units = tiled, machine, units
        self.footprint = footprint
        self.costs = Costs(tiled.module, machine)
        self.sent = SentCounter(tiled.module)
        self.kernels: dict[AnyKernel, LaunchCost] = {}

    def launch(self, item: Launch) -> LaunchCost:
        """The cost of a launch."""
        found = self.kernels.get(item.kernel)
        if found is None:
            found = self.kernels[item.kernel] = self._launch(item.kernel)
        return found

    def _launch(self, kernel: AnyKernel) -> LaunchCost:
        products = product_flops(kernel)
        kind: EventKind = "product" if products else "memory"
        if isinstance(kernel, Attention):
            kind = "attention"
        ideal = sum(flops / self.machine.rate(dtype) for dtype, flops in products.items())
        seconds = kernel_seconds(kernel, self.machine, self.units, self.footprint)
        return LaunchCost(seconds, kind, sum(products.values()), ideal)

    def host(self, item: Host) -> float:
        """The seconds of a node that runs alone."""
        if self.devices_here(item) > 1:
            return self._copied(item)
        return self.costs.seconds(item.node)

    def collective(self, item: Collective) -> CollectiveCost:
        """The cost of a collective: between devices, or in the one memory of this process."""
        node = item.node
        row = self.sent.collective(node) if type(node.op) in KINDS else None
        over, bytes_sent = (row.over, row.bytes) if row is not None else ("", 0.0)
        if self.devices_here(item) > 1:
            seconds, source = self._copied(item), "copies in one memory"
            return CollectiveCost(seconds, "memory", 1, bytes_sent, over, source)
        return self._travel(node, over, bytes_sent)

    def _travel(self, node: Node, over: str, bytes_sent: float) -> CollectiveCost:
        if type(node.op) not in KINDS:
            seconds = self.costs.seconds(node)
            return CollectiveCost(seconds, self.machine.fast.name, 1, bytes_sent, over, "")
        estimate = self.costs.collective(node.op, node.operand_types, node.types)
        extent = self.costs.group_extent(node.op)
        links = self.machine.links
        link = links[0] if extent.domains == 1 or len(links) == 1 else links[1]
        return CollectiveCost(
            estimate.seconds, link.name, extent.devices, bytes_sent, over, estimate.source
        )

    def devices_here(self, item: Host) -> int:
        """The devices whose pieces of the item's values are in this process."""
        return math.prod(item.site.stack_dims.shape(item.site.stack_dims.everything))

    def _copied(self, item: Host) -> float:
        """A pass over all pieces in one memory; nothing for a view of them."""
        if item.traits.shares:
            return 0.0
        size = sum(map(self._bytes, (*item.ins, *item.outs)))
        if KINDS.get(type(item.node.op)) in ("reduce", "scatter") and self.machine.overheads:
            return size * self.machine.overhead("summed")
        return self.machine.launch + size / self.machine.bandwidth_at(size)

    def _bytes(self, slot: Slot) -> int:
        stack = self.tiled.stacks[slot]
        return 0 if stack is None else stack.nbytes
