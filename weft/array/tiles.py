"""Shardings in HLO's tile notation: `{devices=[2,4]<=[8]}`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.array.array import sub_axes_for
from weft.mesh import Axis, Mesh, Sharding
from weft.mesh.pieces import counts
from weft.mesh.sub_axes import span_of
from weft.records import dataclass

REPLICATED, OTHER, UNREDUCED = 0, 3, 6  # HLO's OpSharding types
_NAMES = {REPLICATED: "replicated", UNREDUCED: "unreduced"}


@dataclass(frozen=True, slots=True)
class Tiles:
    """A tile assignment: `{devices=[2,1,4]<=[8] last_tile_dim_replicate}`."""

    shape: tuple[int, ...]  # tiles along each dim, then the sizes of subgroups
    devices: tuple[int, ...]
    last: tuple[int, ...]  # types of the trailing subgroup dims

    @property
    def kind(self) -> int:
        """The type of the sharding as a whole."""
        if math.prod(self.shape[: len(self.shape) - len(self.last)]) > 1 or len(self.last) > 1:
            return OTHER
        return self.last[0] if self.last else REPLICATED

    @property
    def in_order(self) -> bool:
        """Whether the devices are 0, 1, 2, ..."""
        return self.devices == tuple(range(len(self.devices)))

    def text(self) -> str:
        """HLO's text."""
        if self.kind != OTHER:
            return f"{{{_NAMES[self.kind]}}}"
        last = ""
        if self.last:
            named = ", ".join([_NAMES[kind] for kind in self.last])
            plain = self.last == (REPLICATED,)
            last = " last_tile_dim_replicate" if plain else f" last_tile_dims={{{named}}}"
        shape, listed = (",".join(map(str, numbers)) for numbers in (self.shape, self.devices))
        devices = f"<=[{len(self.devices)}]" if self.in_order else listed
        return f"{{devices=[{shape}]{devices}{last}}}"


def tiles(sharding: Sharding | None, mesh: Mesh, order: tuple[int, ...] | None) -> Tiles:
    """The tile assignment of a sharding, on a mesh if the sharding has none."""
    if sharding is None:
        return Tiles((), (), ())
    mesh = mesh if isinstance(sharding.mesh, str) else sharding.mesh
    split = counts(sharding, mesh)
    sums = math.prod(size for _, size in _spans(sharding.unreduced, mesh))
    copies = mesh.size // (math.prod(split) * sums)
    last = [(UNREDUCED, sums), (REPLICATED, copies)]
    more = [(kind, size) for kind, size in last if size > 1]
    places = np.arange(mesh.size) if order is None else np.array(order)
    shape = (*split, *[size for _, size in more])
    return Tiles(shape, _in_order(sharding, mesh, places), tuple([kind for kind, _ in more]))


def _spans(axes: Sequence[Axis], mesh: Mesh) -> list[tuple[int, int]]:
    return [span_of(axis, mesh) for axis in axes]


def _in_order(sharding: Sharding, mesh: Mesh, places: np.ndarray) -> tuple[int, ...]:
    """The partitions, sorted by the tile that they hold."""
    sub_axes = sub_axes_for(sharding, mesh)
    tile = np.zeros(mesh.size, np.int64)
    for axes in (*[dim.axes for dim in sharding.dims], sharding.unreduced):
        spans = _spans(axes, mesh)
        along = sub_axes.dims_of(spans)
        assert along is not None, "the sub-axes are those of the sharding"
        # Row-major over the dims, then the unreduced subgroup; copies keep the order of devices.
        tile = tile * math.prod(size for _, size in spans) + sub_axes.index(along, places)
    return tuple([int(n) for n in np.argsort(tile, kind="stable")])
