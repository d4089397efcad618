"""The memory plan of a tiled program: arena offsets, aliases and in-place results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from weft.executable.items import Slot, Slots
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class MemoryBytes:
    """Memory use of a run, in bytes."""

    arguments: int
    results: int
    arena: int  # values with planned memory
    others: int  # peak of other values
    reused: int = 0  # results that overwrite donated arguments

    @property
    def peak(self) -> int:
        """Peak bytes."""
        return self.arguments + self.results + self.arena + self.others - self.reused


@dataclass(frozen=True, slots=True)
class RotatingBuffer:
    """A loop-carried value whose kernel writes alternating buffers, so that nothing is copied.

    A value carried on for further iterations needs one more buffer for each.
    """

    indices: tuple[int, ...]  # numbers of carried values, newest first
    slots: Slots  # their slots at the start of the body
    result: Slot  # the slot the body writes
    buffers: int
    places: tuple[int, ...] = ()  # arena offsets; empty if allocated for every run


@dataclass(frozen=True, slots=True)
class Plan:
    """Buffers of values; a value that is not listed is allocated when it is computed."""

    arena: int  # bytes
    places: Mapping[Slot, int] = field(default_factory=dict)  # arena offsets
    # By result of a host node: the operand that it may overwrite, and whether unconditionally.
    over: Mapping[Slot, tuple[int, bool]] = field(default_factory=dict)
    # By result: the donated argument whose buffer it takes.
    donors: Mapping[Slot, Slot] = field(default_factory=dict)
    # By the first slot that a loop carries: its rotating buffers, and the numbers of values that it
    # owns and overwrites in every iteration.
    rotations: Mapping[Slot, tuple[RotatingBuffer, ...]] = field(default_factory=dict)
    own: Mapping[Slot, frozenset[int]] = field(default_factory=dict)
    owned: frozenset[Slot] = frozenset()  # results with buffers of their own
    lent: Mapping[int, int] = field(default_factory=dict)  # results that alias an argument
    reused: tuple[int, ...] = ()  # donated arguments that are overwritten
    memory: MemoryBytes = MemoryBytes(0, 0, 0, 0)  # of all devices, replicated values counted once
