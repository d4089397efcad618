"""Constructors of collectives in normal form: over mesh axes, on one operand."""

from __future__ import annotations

import numpy as np

from weft.ir.dense import Dense
from weft.ir.location import Location
from weft.ir.module import Value, tensor_of
from weft.ir.rule import Combine
from weft.ir.types import Array, TensorType
from weft.mesh import DimSharding, Mesh, MeshAxes, Sharding
from weft.mesh.algebra import Axes, merged_axes, total_size
from weft.mesh.cuts import as_set
from weft.ops.combiners import IDEMPOTENT, combiner
from weft.ops.distributed.collective import AllGather, AllReduce, AllToAll, ReduceScatter
from weft.ops.distributed.local import CHANNEL, AllSlice
from weft.ops.elementwise.pointwise import Multiply
from weft.ops.shape import BroadcastInDim, Constant, Reshape
from weft.optimize.collectives.facts import Facts, resized
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class CollectiveMaker:
    """Builds collectives over axes of one mesh; over no axes, each is the identity."""

    facts: Facts
    mesh_name: str | Mesh
    mesh: Mesh
    loc: Location

    def groups(self, axes: Axes) -> MeshAxes:
        """The groups along axes."""
        return MeshAxes(self.mesh_name, axes)

    def gather(self, value: Value, dim: int, axes: Axes) -> Value:
        """An all_gather along axes."""
        axes = merged_axes(axes, self.mesh)
        if not axes:
            return value
        given = tensor_of(value)
        out = resized(given, dim, given.sizes[dim] * total_size(axes, self.mesh))
        op = AllGather(dim, self.groups(axes), (out,), CHANNEL, use_global_device_ids=True)
        return self.facts.make(op, value, loc=self.loc)

    def reduce(self, value: Value, axes: Axes, reduction: Combine) -> Value:
        """An all_reduce along axes."""
        axes = as_set(axes, self.mesh)
        if not axes:
            return value
        op = AllReduce(self.groups(axes), CHANNEL, use_global_device_ids=True)
        region = combiner(reduction, tensor_of(value))
        return self.facts.make(op, value, regions=(region,), loc=self.loc)

    def scatter(self, value: Value, dim: int, axes: Axes, reduction: Combine) -> Value:
        """A reduce_scatter along axes."""
        axes = merged_axes(axes, self.mesh)
        if not axes:
            return value
        given = tensor_of(value)
        out = resized(given, dim, given.sizes[dim] // total_size(axes, self.mesh))
        op = ReduceScatter(dim, self.groups(axes), (out,), CHANNEL, use_global_device_ids=True)
        region = combiner(reduction, given)
        return self.facts.make(op, value, regions=(region,), loc=self.loc)

    def exchange(self, value: Value, split: int, join: int, axes: Axes) -> Value:
        """An all_to_all along axes: split along one dim, concatenated along another."""
        axes = merged_axes(axes, self.mesh)
        count = total_size(axes, self.mesh)
        op = AllToAll(split, join, count, self.groups(axes), CHANNEL)
        return self.facts.make(op, value, loc=self.loc)

    def slice(self, value: Value, dims: tuple[Axes, ...]) -> Value:
        """An all_slice: the device's own shard, with each dim split along these axes."""
        dims = tuple(merged_axes(axes, self.mesh) for axes in dims)
        if not any(dims):
            return value
        operand_type = tensor_of(value)
        sizes = [
            size // total_size(axes, self.mesh)
            for size, axes in zip(operand_type.sizes, dims, strict=True)
        ]
        pieces = Sharding(self.mesh_name, tuple(DimSharding(axes) for axes in dims))
        op = AllSlice(pieces, operand_type.with_shape(tuple(sizes)))
        return self.facts.make(op, value, loc=self.loc)

    def tiled(self, value: Value, dim: int, count: int) -> Value:
        """A value tiled along a dim."""
        operand_type = tensor_of(value)
        sizes = operand_type.sizes
        wide = operand_type.with_shape((*sizes[:dim], count, *sizes[dim:]))
        places = (*range(dim), *range(dim + 1, operand_type.rank + 1))
        repeated = self.facts.make(BroadcastInDim(places, wide), value, loc=self.loc)
        out = resized(operand_type, dim, count * sizes[dim])
        return self.facts.make(Reshape(out), repeated, loc=self.loc)

    def repeated(self, value: Value, reduction: Combine, count: int) -> Value | None:
        """A value combined with itself `count` times; None if there is no exact form."""
        type = tensor_of(value)
        if reduction in IDEMPOTENT or count == 1:
            return value
        is_bool = type.dtype.kind == "bool"
        if is_bool and reduction in ("add", "mul"):  # idempotent: or, and
            return value
        # x to the power of n has no op that rounds as n products do.
        if reduction != "add":
            return None
        factor = _exact(count, type)
        if factor is None:
            return None
        times = self.facts.make(Constant(Dense(factor, type)), loc=self.loc)
        return self.facts.make(Multiply(), value, times, loc=self.loc)


def _exact(count: int, type: TensorType) -> Array | None:
    """A number in an element type; None if it is not exact there."""
    held = type.dtype.numpy
    if type.dtype.is_complex or type.dtype.bits < 8:
        return None
    if type.dtype.is_integer:  # integer sums and products wrap alike
        return np.asarray(count % (1 << type.dtype.bits), np.uint64).astype(held)
    factor = np.asarray(count).astype(held)
    return factor if float(factor) == count else None
