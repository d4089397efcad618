"""Prices of collectives along the axes of a mesh, in bytes, to choose between them.

Without a machine a collective costs the bytes that a device sends. With one it costs its predicted
seconds, as the bytes that the fast links carry in them: its latency, and its bytes by the bandwidth
of the links that its group spans.
"""

from __future__ import annotations

from functools import lru_cache

from weft.cost.collective_time import GroupExtent, TrafficKind, extent_along, travel_seconds
from weft.cost.sent import share_sent
from weft.machine import Machine
from weft.mesh import Axis, Mesh
from weft.mesh.algebra import Axes
from weft.records import dataclass

_POINT = 1e-5  # bytes of one point of a loop nest, without a machine: cheap, not free
STEP = 64.0  # bytes of one more collective, so that ties go to the shortest sequence
_SMALL = (1 << 14, 1 << 16, 1 << 18)  # bytes of messages whose seconds are latency
_LARGE = 1 << 28  # bytes of one whose seconds are bandwidth


@dataclass(frozen=True, slots=True)
class CollectivePrice:
    """The price of a kind of collective along some axes: a constant, and a factor on its bytes."""

    latency: float  # bytes
    factor: float


class CollectivePrices:
    """Prices of collectives on one mesh; without a machine, the bytes themselves."""

    def __init__(self, mesh: Mesh | None = None, machine: Machine | None = None) -> None:
        self.mesh, self.machine = mesh, machine
        self.known: dict[tuple[TrafficKind, Axes], CollectivePrice] = {}
        self.point = _POINT  # the price of a multiplication and an addition
        if machine is not None:
            # Byte/s of the fast links times seconds, at the best rate of products.
            best = max(rate for name, rate in machine.rates if name in ("bf16", "f16", "f32"))
            self.point = machine.fast.bandwidth * 2 / best

    def price(self, kind: TrafficKind, axes: Axes, sent: float) -> float:
        """The price of a collective in which each device sends so many bytes."""
        if self.machine is None:
            return sent
        found = self.known.get((kind, axes))
        if found is None:
            found = self.known[kind, axes] = self._line(kind, axes)
        return found.latency + found.factor * sent

    def _line(self, kind: TrafficKind, axes: Axes) -> CollectivePrice:
        """The price by latency and bandwidth along the axes."""
        assert self.mesh is not None and self.machine is not None
        if kind == "permute":
            every = tuple([Axis(name) for name, size in self.mesh.axes if size > 1])
            spread, share = extent_along(self.mesh, axes or every, self.machine), 1.0
            spread = GroupExtent(min(2, spread.devices), min(2, spread.domains))
        else:
            spread = extent_along(self.mesh, axes, self.machine)
            share = share_sent(kind, spread.devices)
        if spread.devices <= 1:
            return CollectivePrice(0.0, 0.0)
        seconds, each = latency_and_inverse(kind, spread, self.machine)
        # Byte/s of the fast links times seconds, and times seconds a byte that is sent.
        rate = self.machine.fast.bandwidth
        return CollectivePrice(seconds * rate, each / share * rate)


BYTES = CollectivePrices()


@lru_cache(maxsize=256)
def prices_of(mesh: Mesh, machine: Machine) -> CollectivePrices:
    """The prices on a mesh of a machine's devices; the same object for equal ones."""
    return CollectivePrices(mesh, machine)


@lru_cache(maxsize=1024)
def latency_and_inverse(
    kind: TrafficKind, spread: GroupExtent, machine: Machine
) -> tuple[float, float]:
    """The seconds of a small collective, and the seconds of each byte of a large one."""
    # Small measurements differ by a third from one size to the next: the median of three.
    small = sorted([travel_seconds(kind, size, spread, machine) for size in _SMALL])[1]
    large = travel_seconds(kind, _LARGE, spread, machine)
    return small, max(large - small, 1e-12) / _LARGE


def knee(kind: TrafficKind, spread: GroupExtent, machine: Machine) -> float:
    """The bytes whose transfer takes as long as the latency of a collective."""
    small, each = latency_and_inverse(kind, spread, machine)
    return small / each
