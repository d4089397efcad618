"""A process that has some of the devices, and the transport of what it sends to the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from weft.array.stream import DEFAULT, HostStream
from weft.errors import WeftError
from weft.ir.module import Node
from weft.ir.types import Array

Group: TypeAlias = tuple[int, ...]  # of devices that meet, by number
Peer: TypeAlias = int  # a process, by the first of its devices
Values: TypeAlias = tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class Meeting:
    """A collective as one process comes to it: the node, and the groups with devices of its own."""

    here: Peer
    node: Node
    stream: str | None  # of an asynchronous start, as the schedule says
    groups: Sequence[Group]
    devices: Mapping[Peer, Group]  # of every process

    def never_came(self, absent: Sequence[Peer], seconds: float) -> WeftError:
        """The error for peers that did not come in time."""
        missing = [device for peer in absent for device in self.devices[peer]]
        group = next(group for group in self.groups if {*group} & {*missing})
        return WeftError(
            f"{self.node.op.name}: devices {[d for d in group if d in missing][:8]} of the group "
            f"{list(group)[:16]} never came, in {seconds:g} s",
            help="every device of a group must reach the same collective; see whether their "
            "processes are alive, and whether they take the same branches",
            loc=self.node.loc,
        )

    def elsewhere(self, peer: Peer, other: Node) -> WeftError:
        """The error for a peer that has come to another collective."""
        return WeftError(
            f"{self.node.op.name}: devices {list(self.devices[peer])[:8]} are in {other.op.name} "
            f"of {other.loc.describe()}",
            help="every device of a group must reach the same collectives in the same order",
            loc=self.node.loc,
        )


@dataclass(frozen=True, slots=True)
class Exchange:
    """What one process sends in a collective, and from whom it awaits arrays of which kinds."""

    meeting: Meeting
    sent: Mapping[Peer, Values]
    awaited: Mapping[Peer, Sequence[tuple[tuple[int, ...], Any]]]  # shapes and dtypes


class Transport(Protocol):
    """Messages between processes.

    Two processes start the exchanges that both of them are in in the same order. What is sent stays
    as it is until the exchange has been waited for, and may be written over afterwards.
    """

    def start(self, exchange: Exchange) -> object:
        """Begin to send and to receive; what `wait` needs."""
        ...

    def wait(self, started: Any) -> Mapping[Peer, Values]:
        """What the peers have sent, in arrays of the caller's own."""
        ...


@dataclass(frozen=True, slots=True)
class Process:
    """Which process of a program this is: the one that has this device."""

    device: int
    transport: Transport
    stream: HostStream = DEFAULT  # of its programs' runs, so that they meet others in order
