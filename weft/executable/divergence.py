"""Divergent control flow: sub-axes that a predicate varies along share one row dim."""

from __future__ import annotations

from weft.executable.stack_dims import StackDims
from weft.records import dataclass
from weft.varying.masks import Mask, bits


@dataclass(frozen=True)
class Divergence:
    """The change from outer to inner stack dims: one row for each active device."""

    outer: StackDims
    inner: StackDims
    mask: int  # outer leading dims merged into rows

    @property
    def dims(self) -> tuple[int, ...]:
        """The outer leading dims merged into rows, in order."""
        return bits(self.mask)

    def inside(self, mask: Mask) -> Mask:
        """The inner mask of a value."""
        if isinstance(mask, tuple):
            return tuple(self.inside(m) for m in mask)
        # Bit 0 is the row dim; the outer dims that are not merged follow, in their order.
        rest = [d for d in range(self.outer.lead) if d not in self.dims]
        unmerged = sum(1 << n + 1 for n, d in enumerate(rest) if mask >> d & 1)
        return unmerged | (1 if mask & self.mask else 0)

    def is_rows(self, dim: int) -> bool:
        """Whether an outer leading dim is a row dim already."""
        return self.outer.has_rows and dim == 0


@dataclass(frozen=True, slots=True)
class OuterValue:
    """An outer value read in divergent code: its slot and its masks."""

    outer: int
    slot: int
    mask: Mask
    inner: Mask
