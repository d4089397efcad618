"""Pieces: a local value with the axes that split each dim of its global value."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from weft.ir.module import Value
from weft.ir.rule import Combine
from weft.ir.types import TensorType
from weft.mesh import DimSharding, Mesh, Sharding
from weft.mesh.algebra import Axes, DimAxes, total_size
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Partial:
    """A pending reduction: the values along these axes are still to be combined."""

    axes: Axes
    combine: Combine


@dataclass(frozen=True, slots=True)
class Piece:
    """A local value that is a shard of a global one.

    A dim of uneven shards is padded at its end; the padding is unspecified.
    """

    value: Value
    type: TensorType  # the global type
    split: DimAxes
    partial: Partial | None = None

    def moved(self, value: Value, split: DimAxes, partial: Partial | None = None) -> Piece:
        """The same global value as another piece."""
        return replace(self, value=value, split=split, partial=partial)


@lru_cache(maxsize=65536)
def local_type(type: TensorType, split: DimAxes, mesh: Mesh) -> TensorType:
    """The local type of a split."""
    if not any(split):
        return type
    return type.with_shape(
        tuple(
            -(-size // total_size(axes, mesh)) if axes else size
            for size, axes in zip(type.sizes, split, strict=True)
        )
    )


def split_of(sharding: Sharding | None, rank: int) -> DimAxes:
    """The split of a sharding; unsplit without a sharding.

    A maximal sharding (one device) has no dims: the value is replicated.
    """
    if sharding is None or not sharding.dims:
        return ((),) * rank
    return tuple([dim.axes for dim in sharding.dims])


def partial_sum(unreduced: Axes) -> Partial | None:
    """The pending sum of a sharding's unreduced axes."""
    return Partial(unreduced, "add") if unreduced else None


def free(axes: Axes, manual: set[str]) -> Axes:
    """Axes without the manual ones."""
    return tuple(a for a in axes if a.name not in manual)


def free_part(split: DimAxes, manual: set[str]) -> DimAxes:
    """A split without its manual axes."""
    return tuple(free(axes, manual) for axes in split)


def replicated(rank: int) -> DimAxes:
    """The fully replicated split of a tensor of a rank."""
    return ((),) * rank


def sharding_of(split: DimAxes, mesh: str, partial: Partial | None = None) -> Sharding:
    """A split as a sharding of the mesh of that name."""
    unreduced = partial.axes if partial else ()
    return Sharding(mesh, tuple(DimSharding(axes) for axes in split), (), unreduced)
