"""Where the digits of the devices are in a stack: each in a dim of its own, or some in one row dim.

Devices that go different ways through a program no longer fill a grid. Inside such a part their
digits share the first dim, a row for each device that is active. A process may have only some of
the devices: the digits along which the others lie are absent, and their dims have size 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from weft.ops.distributed.collective import CollectivePermute
from weft.ops.distributed.local import PermuteAlongAxes
from weft.varying.masks import Mask, bits

if TYPE_CHECKING:
    from weft.ir.op import Op
    from weft.ir.types import Array
    from weft.mesh.parts import Atoms
    from weft.varying.world import World


@dataclass(frozen=True)
class Layout:
    """The leading dims of the stacks of one part of a program."""

    atoms: Atoms
    rows: tuple[int, ...] = ()  # digits that share the first dim
    active: int | None = None  # the slot that holds the numbers that the rows' digits make
    absent: tuple[int, ...] = ()  # digits along which devices are in other processes

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """The digits with a dim of their own."""
        return tuple(n for n in range(len(self.atoms.sizes)) if n not in self.rows)

    @property
    def has_rows(self) -> bool:
        """Whether the first dim is one of rows."""
        return bool(self.rows)

    @cached_property
    def lead(self) -> int:
        """The number of leading dims."""
        return self.has_rows + len(self.kept)

    @cached_property
    def everything(self) -> int:
        """The mask of a value that differs on all devices; nothing differs where there is one."""
        sizes = (2, *self._sizes) if self.has_rows else self._sizes
        return self.mask(dim for dim, size in enumerate(sizes) if size > 1)

    def dims(self, atoms: Iterable[int] | None) -> tuple[int, ...] | None:
        """The leading dims of digits; None if one of them is in the rows, or absent."""
        if atoms is None:
            return None
        found = tuple(atoms)
        if any(a in self.rows or a in self.absent for a in found):
            return None
        return tuple(self.kept.index(a) + self.has_rows for a in found)

    def size(self, dim: int) -> int:
        """The size of a leading dim, which is not that of the rows."""
        return self._sizes[dim - self.has_rows]

    def mask(self, dims: Iterable[int]) -> int:
        """A set of leading dims as a mask."""
        found = 0
        for dim in dims:
            found |= 1 << dim
        return found

    def mask_of(self, atoms: Iterable[int]) -> int:
        """The leading dims that hold these digits."""
        found = 0
        for atom in atoms:
            if atom in self.absent:
                continue
            found |= 1 if atom in self.rows else 1 << (self.kept.index(atom) + self.has_rows)
        return found

    def shown(self, mask: Mask) -> Mask:
        """The leading dims that a value varies along, from the digits that it does."""
        if isinstance(mask, tuple):
            return tuple([self.shown(part) for part in mask])
        if self.rows:
            count = len(self.atoms.sizes)
            return self.mask_of(bits(mask & (1 << count) - 1))
        return mask & self.everything

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        """The sizes of the leading dims that are not one of rows."""
        return tuple([1 if a in self.absent else self.atoms.sizes[a] for a in self.kept])

    @cached_property
    def _shapes(self) -> dict[tuple[int, int], tuple[int, ...]]:
        return {}

    def shape(self, mask: int, rows: int = 1) -> tuple[int, ...]:
        """The leading dims of a value that varies along a mask."""
        found = self._shapes.get((mask, rows))
        if found is None:
            sizes = (rows, *self._sizes) if self.has_rows else self._sizes
            found = tuple([size if mask >> dim & 1 else 1 for dim, size in enumerate(sizes)])
            self._shapes[mask, rows] = found
        return found


def group_dims(op: Op, layout: Layout, world: World) -> tuple[int, ...] | None:
    """The leading dims along which devices meet; None if they meet one group at a time."""
    return layout.dims(world.meets_along(op))


def meeting_dims(op: Op, layout: Layout, world: World) -> tuple[int, ...] | None:
    """The leading dims along which values meet or move; None if they do one group at a time."""
    if isinstance(op, CollectivePermute | PermuteAlongAxes):
        return layout.dims(world.moves(op)[0])
    return group_dims(op, layout, world)


def moves(op: Op, layout: Layout, world: World) -> tuple[tuple[int, ...], Array] | None:
    """The leading dims along which values move, and for each index along them its source.

    None if the devices meet one group at a time.
    """
    assert isinstance(op, CollectivePermute | PermuteAlongAxes)
    digits, sources = world.moves(op)
    dims = layout.dims(digits)
    return None if dims is None else (dims, sources)
