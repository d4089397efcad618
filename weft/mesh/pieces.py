"""The pieces that a sharding makes of a tensor: their shape, and which device holds which."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from weft.mesh.algebra import size_of, total_size
from weft.mesh.axes import Axis, Mesh
from weft.mesh.sharding import Sharding


def counts(sharding: Sharding, mesh: Mesh) -> tuple[int, ...]:
    """Into how many pieces each dim is split."""
    return tuple(total_size(dim.axes, mesh) for dim in sharding.dims)


def local_shape(shape: Sequence[int], sharding: Sharding | None, mesh: Mesh) -> tuple[int, ...]:
    """The shape of one piece; the last ones of a dim are padded where the size does not divide."""
    if sharding is None:
        return tuple(shape)
    pieces = counts(sharding, mesh)
    return tuple(-(-size // count) for size, count in zip(shape, pieces, strict=True))


@dataclass(frozen=True, slots=True)
class PieceBounds:
    """What one device holds: where it begins and ends in each dim, and its number of them all."""

    device: int
    position: tuple[int, ...]  # of the device along each axis of the mesh
    index: tuple[int, ...]  # of the piece along each dim
    bounds: tuple[tuple[int, int], ...]  # within the tensor
    padding: tuple[int, ...]  # elements beyond the tensor's end, for each dim

    def __str__(self) -> str:
        return f"[{', '.join(f'{a}:{b}' for a, b in self.bounds)}]"


def piece_at(
    position: tuple[int, ...], shape: Sequence[int], sharding: Sharding, mesh: Mesh
) -> PieceBounds:
    """The piece of the device at a position of the mesh."""
    index = tuple(index_along(dim.axes, mesh, position) for dim in sharding.dims)
    local = local_shape(shape, sharding, mesh)
    begins = [min(n * part, size) for n, part, size in zip(index, local, shape, strict=True)]
    ends = [min(b + part, size) for b, part, size in zip(begins, local, shape, strict=True)]
    padding = tuple(part - (e - b) for b, e, part in zip(begins, ends, local, strict=True))
    device = 0
    for at, (_, size) in zip(position, mesh.axes, strict=True):
        device = device * size + at
    device = device if mesh.device_ids is None else mesh.device_ids[device]
    return PieceBounds(device, position, index, tuple(zip(begins, ends, strict=True)), padding)


def pieces(shape: Sequence[int], sharding: Sharding, mesh: Mesh) -> list[PieceBounds]:
    """The piece of every device, in the order of the mesh."""
    positions = itertools.product(*(range(size) for _, size in mesh.axes))
    return [piece_at(position, shape, sharding, mesh) for position in positions]


def index_along(axes: Sequence[Axis], mesh: Mesh, position: Sequence[int]) -> int:
    """Where the device at a position of the mesh stands along axes, the first one major."""
    names = [name for name, _ in mesh.axes]
    found = 0
    for axis in axes:
        size, whole = size_of(axis, mesh), mesh.axis_sizes[axis.name]
        minor = whole // (axis.before * size)
        found = found * size + position[names.index(axis.name)] // minor % size
    return found


def copies(sharding: Sharding, mesh: Mesh) -> int:
    """How many devices hold each piece."""
    return mesh.size // max(1, math.prod(counts(sharding, mesh)))
