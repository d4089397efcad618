"""Devices that go different ways: the digits that a predicate varies along share a dim of rows."""

from __future__ import annotations

from dataclasses import dataclass

from weft.executable.layout import Layout
from weft.varying.masks import Mask, bits


@dataclass(frozen=True)
class Divergence:
    """How stacks of one layout become rows of another: a row for each device that is active."""

    outer: Layout
    inner: Layout
    mask: int  # the outer leading dims that become rows

    @property
    def dims(self) -> tuple[int, ...]:
        """The outer leading dims that become rows, in order."""
        return bits(self.mask)

    def inside(self, mask: Mask) -> Mask:
        """What a value varies along inside."""
        if isinstance(mask, tuple):
            return tuple(self.inside(m) for m in mask)
        rest = [d for d in range(self.outer.lead) if d not in self.dims]
        found = sum(1 << n + 1 for n, d in enumerate(rest) if mask >> d & 1)
        return found | (1 if mask & self.mask else 0)

    def is_rows(self, dim: int) -> bool:
        """Whether an outer leading dim is one of rows already."""
        return self.outer.has_rows and dim == 0


@dataclass(frozen=True, slots=True)
class OuterValue:
    """A value from outside that a part reads: where it is, and what it varies along."""

    outer: int
    slot: int
    mask: Mask
    inner: Mask
