"""Processes that hold some of the devices, and the transport between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from weft.array.stream import DEFAULT, HostStream
from weft.errors import WeftError
from weft.ir.module import Node
from weft.ir.types import Array
from weft.records import dataclass

DeviceGroup: TypeAlias = tuple[int, ...]  # device numbers of a group
Peer: TypeAlias = int  # a process, identified by its first device
Values: TypeAlias = tuple[Array, ...]


@dataclass(frozen=True, slots=True)
class ProcessCollective:
    """A collective in one process: its node, and the groups with devices of this process."""

    here: Peer
    node: Node
    stream: str | None  # stream of an asynchronous start
    groups: Sequence[DeviceGroup]
    devices: Mapping[Peer, DeviceGroup]  # the devices of each process

    def timeout_error(self, absent: Sequence[Peer], seconds: float) -> WeftError:
        """The error for peers that timed out."""
        missing = [device for peer in absent for device in self.devices[peer]]
        group = next(group for group in self.groups if {*group} & {*missing})
        return WeftError(
            f"{self.node.op.name}: devices {[d for d in group if d in missing][:8]} of the group "
            f"{list(group)[:16]} never came, in {seconds:g} s",
            help="every device of a group must reach the same collective; see whether their "
            "processes are alive, and whether they take the same branches",
            loc=self.node.loc,
        )

    def mismatch_error(self, peer: Peer, other: str) -> WeftError:
        """The error for a peer that reached another collective."""
        return WeftError(
            f"{self.node.op.name}: devices {list(self.devices[peer])[:8]} are in {other}",
            help="every device of a group must reach the same collectives in the same order",
            loc=self.node.loc,
        )

    def lost(self, peer: Peer) -> WeftError:
        """The error for a peer whose connection broke."""
        return WeftError(
            f"{self.node.op.name}: the process with devices {list(self.devices[peer])[:8]} is gone",
            help="see its output: it ended, or its host or network failed",
            loc=self.node.loc,
        )

    def described(self) -> str:
        """The collective and the user's line."""
        return described(self.node)


def described(node: Node) -> str:
    """A collective and the user's line, in words."""
    return f"{node.op.name} of {node.loc.describe()}"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One process's part of a collective: arrays to send, and the arrays to receive by peer."""

    collective: ProcessCollective
    sent: Mapping[Peer, Values]
    awaited: Mapping[Peer, Sequence[tuple[tuple[int, ...], Any]]]  # shapes and dtypes
    among: Sequence[Peer] = ()  # all processes of the group, this one included
    device: Any = None  # PyTorch's device, if the arrays are in the memory of one


class Transport(Protocol):
    """Message transport between processes.

    Any two processes start their common exchanges in the same order, so messages can be
    numbered. A send buffer must not change until the exchange was waited for.
    """

    def begin_run(self, name: str, digest: str) -> None:
        """Note that a program starts to run; its digest is the same in all processes."""
        ...

    def reaches(self, device: Any) -> bool:
        """Whether exchanges take what is in the memory of a device of PyTorch's.

        All processes call it alike, when they load a program.
        """
        ...

    def start(self, exchange: Exchange) -> object:
        """Start sending and receiving; returns the handle for `wait`."""
        ...

    def wait(self, started: Any) -> Mapping[Peer, Values]:
        """The received arrays, owned by the caller."""
        ...


@dataclass(frozen=True, slots=True)
class Process:
    """The identity of this process: it holds this device."""

    device: int
    transport: Transport
    stream: HostStream = DEFAULT  # orders the runs of its programs
