"""Stack dims: which leading dim of a stack holds which sub-axis of the devices.

Devices in divergent code no longer form a full array. There the sub-axes that differ share the
first dim, one row for each active device. A process may hold only some of the devices: sub-axes
that are distributed over processes are absent, and their dims have size 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING

from weft.ops.distributed.collective import CollectivePermute
from weft.ops.distributed.local import PermuteAlongAxes
from weft.records import dataclass
from weft.varying.masks import Mask, bits

if TYPE_CHECKING:
    from weft.ir.op import Op
    from weft.ir.types import Array
    from weft.mesh.sub_axes import SubAxes
    from weft.varying.world import World


@dataclass(frozen=True)
class StackDims:
    """The leading dims of the stacks in one region of a program."""

    sub_axes: SubAxes
    rows: tuple[int, ...] = ()  # sub-axes merged into rows, the first dim
    active: int | None = None  # the slot with the linear indices of the active rows
    absent: tuple[int, ...] = ()  # sub-axes distributed over processes

    @cached_property
    def kept(self) -> tuple[int, ...]:
        """The sub-axes that have their own dim."""
        return tuple(n for n in range(len(self.sub_axes.sizes)) if n not in self.rows)

    @property
    def has_rows(self) -> bool:
        """Whether the first dim is a row dim."""
        return bool(self.rows)

    @cached_property
    def lead(self) -> int:
        """The number of leading dims."""
        return self.has_rows + len(self.kept)

    @cached_property
    def everything(self) -> int:
        """The mask of a value that varies over all devices; 0 for a single device."""
        # The number of rows is known at run time only: 2 stands for more than one.
        sizes = (2, *self._sizes) if self.has_rows else self._sizes
        return self.mask(dim for dim, size in enumerate(sizes) if size > 1)

    def dims(self, sub_axes: Iterable[int] | None) -> tuple[int, ...] | None:
        """The leading dims of these sub-axes; None if one is merged into rows, or absent."""
        if sub_axes is None:
            return None
        wanted = tuple(sub_axes)
        if any(a in self.rows or a in self.absent for a in wanted):
            return None
        return tuple(self.kept.index(a) + self.has_rows for a in wanted)

    def size(self, dim: int) -> int:
        """The size of a leading dim other than rows."""
        return self._sizes[dim - self.has_rows]

    def mask(self, dims: Iterable[int]) -> int:
        """A set of leading dims as a mask."""
        mask = 0
        for dim in dims:
            mask |= 1 << dim
        return mask

    def mask_of(self, sub_axes: Iterable[int]) -> int:
        """The leading dims that hold these sub-axes."""
        mask = 0
        for sub_axis in sub_axes:
            if sub_axis in self.absent:
                continue
            mask |= 1 if sub_axis in self.rows else 1 << (self.kept.index(sub_axis) + self.has_rows)
        return mask

    def shown(self, mask: Mask) -> Mask:
        """Mask over leading dims from a mask over sub-axes."""
        if isinstance(mask, tuple):
            return tuple([self.shown(part) for part in mask])
        # Only variation counts here: the bits above the sub-axes, the skew, are dropped.
        if self.rows:
            count = len(self.sub_axes.sizes)
            return self.mask_of(bits(mask & (1 << count) - 1))
        return mask & self.everything

    @cached_property
    def _sizes(self) -> tuple[int, ...]:
        """The sizes of the leading dims except rows."""
        return tuple([1 if a in self.absent else self.sub_axes.sizes[a] for a in self.kept])

    @cached_property
    def _shapes(self) -> dict[tuple[int, int], tuple[int, ...]]:
        return {}

    def shape(self, mask: int, rows: int = 1) -> tuple[int, ...]:
        """The leading shape of a value with this mask."""
        shape = self._shapes.get((mask, rows))
        if shape is None:
            sizes = (rows, *self._sizes) if self.has_rows else self._sizes
            shape = tuple([size if mask >> dim & 1 else 1 for dim, size in enumerate(sizes)])
            self._shapes[mask, rows] = shape
        return shape


def group_dims(op: Op, stack_dims: StackDims, world: World) -> tuple[int, ...] | None:
    """The leading dims of a collective's groups; None if groups are not whole dims."""
    return stack_dims.dims(world.group_sub_axes(op))


def collective_dims(op: Op, stack_dims: StackDims, world: World) -> tuple[int, ...] | None:
    """The leading dims that a collective or permute acts along; None if not whole dims."""
    if isinstance(op, CollectivePermute | PermuteAlongAxes):
        return stack_dims.dims(world.moves(op)[0])
    return group_dims(op, stack_dims, world)


def moves(op: Op, stack_dims: StackDims, world: World) -> tuple[tuple[int, ...], Array] | None:
    """The leading dims of a permute, and the source of each index along them.

    None if its pairs do not map to whole leading dims.
    """
    assert isinstance(op, CollectivePermute | PermuteAlongAxes)
    sub_axes, sources = world.moves(op)
    dims = stack_dims.dims(sub_axes)
    return None if dims is None else (dims, sources)
