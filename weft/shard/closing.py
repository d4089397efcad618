"""Final shardings: closed, and even at the arguments and results of functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from weft.ir.types import TensorType, Type
from weft.mesh import Axis, DimSharding, Mesh, Sharding
from weft.mesh.algebra import part, size_of, total_size

GivenShardings = Sequence[Sharding | None]


def closed(sharding: Sharding) -> Sharding:
    """The same axes, closed, without priorities and replicated axes."""
    dims = tuple([DimSharding(d.axes) for d in sharding.dims])
    # Explicitly replicated axes only steer propagation, and mean nothing in a final sharding;
    # unreduced axes are part of the value's meaning and stay.
    return Sharding(sharding.mesh, dims, (), sharding.unreduced)


def unsplit(type: Type, mesh: str | Mesh, *, is_open: bool = False) -> Sharding:
    """The sharding of an unsplit value."""
    rank = type.rank if isinstance(type, TensorType) else 0
    return Sharding(mesh, (DimSharding((), is_open),) * rank)


def filled(shardings: GivenShardings, types: Sequence[Type]) -> GivenShardings:
    """Shardings for all results if one has a sharding: the others get open ones on its mesh."""
    first = next((s for s in shardings if s is not None), None)
    if first is None or None not in shardings:
        return shardings
    pairs = zip(shardings, types, strict=True)
    return [unsplit(t, first.mesh, is_open=True) if s is None else s for s, t in pairs]


def splits_alike(sharding: Sharding | None, other: Sharding | None) -> bool:
    """Whether two shardings split a value in the same way; None does not split."""
    split = [s for s in (sharding, other) if s is not None and any(d.axes for d in s.dims)]
    if len(split) < 2:
        return not split
    first, second = split
    return first.mesh == second.mesh and all(
        a.axes == b.axes for a, b in zip(first.dims, second.dims, strict=True)
    )


def evenly(sharding: Sharding, type: Type, mesh: Mesh) -> Sharding:
    """The sharding with only the major axes of every dim that divide its size."""
    if not isinstance(type, TensorType) or not type.is_static:
        return sharding
    if not mesh.axes:  # a maximal sharding: the tensor is on one device
        return sharding
    pairs = list(zip(sharding.dims, type.sizes, strict=True))
    if all(size % total_size(dim.axes, mesh) == 0 for dim, size in pairs):
        return sharding
    dims = tuple(
        dim if size % total_size(dim.axes, mesh) == 0 else _dividing(dim, size, mesh)
        for dim, size in pairs
    )
    return replace(sharding, dims=dims)


def _dividing(dim: DimSharding, size: int, mesh: Mesh) -> DimSharding:
    axes: list[Axis] = []
    for axis in dim.axes:
        whole = size_of(axis, mesh)
        common = math.gcd(whole, size)
        # As Shardy does: of an axis that does not divide the dim, the major part that does is kept,
        # and all axes behind it are dropped, since pieces would no longer be contiguous.
        if common != 1:
            axes.append(part(axis.name, axis.before, common, mesh))
        if common != whole:
            break
        size //= common
    return DimSharding(tuple(axes), dim.is_open)


def without_sub_axes(sharding: Sharding) -> Sharding:
    """The sharding with open dims cut before their first sub-axis."""
    if all(a.size is None for d in sharding.dims for a in d.axes):
        return sharding
    return replace(sharding, dims=tuple(_whole(d) if d.is_open else d for d in sharding.dims))


def _whole(dim: DimSharding) -> DimSharding:
    # Cut before, not only without, the sub-axis: the axes behind it are minor to it.
    axes = takewhile(lambda axis: axis.size is None, dim.axes)
    return replace(dim, axes=tuple(axes))
