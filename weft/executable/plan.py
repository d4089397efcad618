"""The memory of a tiled program: which results share the arena, and what may be written over."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from weft.executable.items import Slot, Slots


@dataclass(frozen=True, slots=True)
class MemoryBytes:
    """The bytes that one run holds."""

    arguments: int
    results: int
    arena: int  # of values that are computed into memory which is planned
    others: int  # the most that other values take at once
    reused: int = 0  # of results that are written over donated arguments

    @property
    def peak(self) -> int:
        """The most bytes at once."""
        return self.arguments + self.results + self.arena + self.others - self.reused


@dataclass(frozen=True, slots=True)
class RotatingBuffer:
    """A value that a kernel of a loop makes anew in every round, in one of several buffers.

    It is carried as such, and perhaps for more rounds: a loop may hand on what it has handed on.
    """

    indices: tuple[int, ...]  # among the carried values, the newest first
    slots: Slots  # where each of these is when the body begins
    result: Slot  # where the next one is
    buffers: int
    places: tuple[int, ...] = ()  # in the arena; none if the memory is new in every run


@dataclass(frozen=True, slots=True)
class Plan:
    """Where values live; a value that nothing is said of gets memory when it is computed."""

    arena: int  # bytes
    places: Mapping[Slot, int] = field(default_factory=dict)  # in the arena
    # By result of a host node: the operand that it may be written over, and whether it always may.
    over: Mapping[Slot, tuple[int, bool]] = field(default_factory=dict)
    donors: Mapping[Slot, Slot] = field(default_factory=dict)  # arguments whose memory results take
    # By the first slot that a loop carries: its rotating buffers, and the numbers of values that it
    # owns and overwrites in every iteration.
    rotations: Mapping[Slot, tuple[RotatingBuffer, ...]] = field(default_factory=dict)
    own: Mapping[Slot, frozenset[int]] = field(default_factory=dict)
    owned: frozenset[Slot] = frozenset()  # results whose memory is nobody else's
    lent: Mapping[int, int] = field(default_factory=dict)  # results in the memory of an argument
    reused: tuple[int, ...] = ()  # donated arguments that are written over
    memory: MemoryBytes = MemoryBytes(0, 0, 0, 0)  # of all devices, equal parts counted once
