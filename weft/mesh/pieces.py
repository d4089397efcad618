"""The shards of a tensor: their shape, and the device of each."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from weft.mesh.algebra import size_of, total_size
from weft.mesh.axes import Axis, Mesh
from weft.mesh.sharding import Sharding
from weft.records import dataclass


def counts(sharding: Sharding, mesh: Mesh) -> tuple[int, ...]:
    """The number of shards of each dim."""
    return tuple(total_size(dim.axes, mesh) for dim in sharding.dims)


def local_shape(shape: Sequence[int], sharding: Sharding | None, mesh: Mesh) -> tuple[int, ...]:
    """The local shape; the last shards of a dim are padded where the size does not divide."""
    if sharding is None:
        return tuple(shape)
    pieces = counts(sharding, mesh)
    return tuple(-(-size // count) for size, count in zip(shape, pieces, strict=True))


@dataclass(frozen=True, slots=True)
class PieceBounds:
    """The shard of one device: its index and its bounds in each dim."""

    device: int
    position: tuple[int, ...]  # the device's mesh coordinates
    index: tuple[int, ...]  # of the shard along each dim
    bounds: tuple[tuple[int, int], ...]  # within the tensor
    padding: tuple[int, ...]  # padding elements of each dim

    def __str__(self) -> str:
        return f"[{', '.join(f'{a}:{b}' for a, b in self.bounds)}]"


def piece_at(
    position: tuple[int, ...], shape: Sequence[int], sharding: Sharding, mesh: Mesh
) -> PieceBounds:
    """The shard of the device at these mesh coordinates."""
    index = piece_index(sharding, mesh, position)
    local = local_shape(shape, sharding, mesh)
    # Shards are rounded up: the last ones may be short, or lie beyond the end and hold padding
    # only.
    begins = [min(n * part, size) for n, part, size in zip(index, local, shape, strict=True)]
    ends = [min(b + part, size) for b, part, size in zip(begins, local, shape, strict=True)]
    padding = tuple(part - (e - b) for b, e, part in zip(begins, ends, local, strict=True))
    device = 0
    for at, (_, size) in zip(position, mesh.axes, strict=True):
        device = device * size + at
    device = device if mesh.device_ids is None else mesh.device_ids[device]
    return PieceBounds(device, position, index, tuple(zip(begins, ends, strict=True)), padding)


def piece_index(sharding: Sharding, mesh: Mesh, position: Sequence[int]) -> tuple[int, ...]:
    """The number of a device's piece along each dim."""
    return tuple([index_along(dim.axes, mesh, position) for dim in sharding.dims])


def pieces(shape: Sequence[int], sharding: Sharding, mesh: Mesh) -> list[PieceBounds]:
    """The shard of every device, in mesh order."""
    positions = itertools.product(*(range(size) for _, size in mesh.axes))
    return [piece_at(position, shape, sharding, mesh) for position in positions]


def index_along(axes: Sequence[Axis], mesh: Mesh, position: Sequence[int]) -> int:
    """The linear index along axes, the first one major, of the device at these mesh coordinates."""
    names = [name for name, _ in mesh.axes]
    index = 0
    for axis in axes:
        size, whole = size_of(axis, mesh), mesh.axis_sizes[axis.name]
        # A sub-axis is a digit of the coordinate: `minor` is the size of what lies below it.
        minor = whole // (axis.before * size)
        index = index * size + position[names.index(axis.name)] // minor % size
    return index


def copies(sharding: Sharding, mesh: Mesh) -> int:
    """The replication factor: the number of devices that hold each shard."""
    return mesh.size // max(1, math.prod(counts(sharding, mesh)))
