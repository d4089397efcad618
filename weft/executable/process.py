"""A process that has some of the devices, and what takes its values to those of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from weft.array.stream import DEFAULT, HostStream
from weft.ir.module import Node
from weft.ir.types import Array

Group: TypeAlias = tuple[int, ...]  # of devices that meet, by number
Member: TypeAlias = tuple[Group, int]  # a device in one of its groups
Values: TypeAlias = tuple[Array, ...]  # what a device brings: the operands of the collective


class Transport(Protocol):
    """What processes meet by.

    The members of a group come to the same collectives in the same order, so the nth exchange of
    a group is the nth of every member. What is sent may be written over afterwards.
    """

    def exchange(
        self, node: Node, sent: Sequence[tuple[Member, Values]], awaited: Sequence[Member]
    ) -> list[Values]:
        """Send what devices of this process bring to groups, and wait for what others do."""
        ...


@dataclass(frozen=True, slots=True)
class Process:
    """Which process of a program this is: the one that has this device."""

    device: int
    transport: Transport
    stream: HostStream = DEFAULT  # of its programs' runs, so that they meet others in order
