"""The builder of a local program: nodes, small constants, and reshards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np

from weft.cost.prices import BYTES, CollectivePrices
from weft.ir.dense import Dense
from weft.ir.location import UNKNOWN, Location
from weft.ir.module import Node, Region, Value, apply
from weft.ir.op import Op
from weft.ir.rule import Combine
from weft.ir.types import I32, Array, TensorType
from weft.mesh import Axis, Mesh, MeshAxes
from weft.mesh.algebra import Axes, DimAxes, merged, size_of, total_size
from weft.ops.combiners import combiner
from weft.ops.distributed.collective import AllGather, AllReduce, AllToAll, ReduceScatter
from weft.ops.distributed.local import CHANNEL, AllSlice, AxisIndex, PermuteAlongAxes
from weft.ops.elementwise.pointwise import Add, Compare, Multiply, Select
from weft.ops.shape import BroadcastInDim, Constant, Iota
from weft.ops.slicing import Pad, Slice
from weft.partition.piece import Partial, Piece, local_type, sharding_of
from weft.partition.reshard import ReshardStep, plan
from weft.records import dataclass


@dataclass
class Builder:
    """Emits the nodes of one region of a local program."""

    mesh: Mesh
    mesh_name: str
    nodes: list[Node] = field(default_factory=list)
    loc: Location = UNKNOWN  # the location of the op that is being partitioned
    outer: Builder | None = None
    prices: CollectivePrices = BYTES  # of reshards

    def emit(self, op: Op, *operands: Value, regions: tuple[Region, ...] = ()) -> Value:
        """Apply an op with one result."""
        node = apply(op, *operands, regions=regions, loc=self.loc)
        self.nodes.append(node)
        return node.results[0]

    def add(self, node: Node) -> tuple[Value, ...]:
        """Append an existing node."""
        self.nodes.append(node)
        return node.results

    # Small values

    def constant(self, array: Array) -> Value:
        """A constant."""
        return self.emit(Constant(Dense(array)))

    def splat(self, number: object, type: TensorType) -> Value:
        """A splat constant."""
        scalar = np.asarray(number).astype(type.dtype.numpy).reshape(())
        return self.emit(Constant(Dense(scalar, type)))

    def index(self, axes: Axes) -> Value:
        """The device's index along axes, as an i32 scalar."""
        return self.emit(AxisIndex(MeshAxes(self.mesh_name, axes)))

    def scaled(self, value: Value, factor: int) -> Value:
        """An i32 scalar times a number."""
        if factor == 1:
            return value
        return self.emit(Multiply(), value, self.constant(np.asarray(factor, np.int32)))

    def counted(self, type: TensorType, dim: int, start: Value | None) -> Value:
        """An iota along one dim, plus a start, of that shape, in i32 (or the like)."""
        made = self.emit(Iota(dim, type))
        if start is None:
            return made
        return self.emit(Add(), made, self.spread(start, type))

    def spread(self, scalar: Value, type: TensorType) -> Value:
        """A scalar broadcast to a shape."""
        if not type.shape:
            return scalar
        assert isinstance(scalar.type, TensorType)
        return self.emit(BroadcastInDim((), type.with_dtype(scalar.type.dtype)), scalar)

    def masked(self, piece: Piece, dims: Sequence[int], fill: object) -> Value:
        """A local value with the padding of these dims masked by a number."""
        value = piece.value
        local = local_type(piece.type, piece.split, self.mesh)
        for dim in dims:
            axes = piece.split[dim]
            size = piece.type.sizes[dim]
            # Only the last shards of an uneven dim have padding.
            if not axes or size % total_size(axes, self.mesh) == 0:
                continue
            inside = self.inside(local, dim, axes, size)
            value = self.emit(Select(), inside, value, self.splat(fill, local))
        return value

    def inside(self, local: TensorType, dim: int, axes: Axes, size: int) -> Value:
        """The mask of elements that are not padding along a dim."""
        counting = local.with_dtype(I32)
        # The global index of an element, from the device's place along the axes that split the dim.
        start = self.scaled(self.index(axes), local.sizes[dim])
        at = self.counted(counting, dim, start)
        return self.emit(Compare("LT", "SIGNED"), at, self.splat(size, counting))

    def only_first(self, value: Value, axes: Axes, fill: object) -> Value:
        """The value on the first device along axes, a number on the others."""
        assert isinstance(value.type, TensorType)
        zero = self.constant(np.asarray(0, np.int32))
        first = self.emit(Compare("EQ", "SIGNED"), self.index(axes), zero)
        return self.emit(Select(), first, value, self.splat(fill, value.type))

    # Reshards

    def groups(self, axes: Axes) -> MeshAxes:
        """The groups along axes."""
        return MeshAxes(self.mesh_name, merged(axes, self.mesh))

    def reshard(self, piece: Piece, split: DimAxes, unreduced: Axes = ()) -> Piece:
        """The value resharded to another split, unreduced over at most these axes."""
        before = piece.partial.axes if piece.partial else ()
        made = plan(piece.type, piece.split, before, split, unreduced, self.mesh, self.prices)
        value = piece.value
        combine: Combine = piece.partial.combine if piece.partial else "add"
        for step in made.steps:
            value = self.step(step, value, piece.type, combine)
        left = Partial(unreduced, combine) if unreduced else None
        return piece.moved(value, split, left)

    def step(self, step: ReshardStep, value: Value, type: TensorType, combine: Combine) -> Value:
        """One collective of a reshard."""
        after = local_type(type, step.split, self.mesh)
        if not all(after.shape):  # no data movement without elements
            return self.splat(0, after)
        groups = self.groups(step.axes)
        match step.kind:
            case "slice":
                return self.slice(step, value, after)
            case "permute":
                return self.permute(value, step.before, step.split)
            case "all_to_all":
                count = total_size(step.axes, self.mesh)
                exchange = AllToAll(step.to, step.dim, count, groups, CHANNEL)
                return self.cut(self.emit(exchange, value), after)
            case "all_gather":
                return self.gather(step, value, after)
            case "all_reduce":
                region = combiner(combine, after)
                op: Op = AllReduce(groups, CHANNEL, use_global_device_ids=True)
                return self.emit(op, value, regions=(region,))
            case "reduce_scatter":
                region = combiner(combine, after)
                op = ReduceScatter(step.dim, groups, (after,), CHANNEL, use_global_device_ids=True)
                return self.emit(op, value, regions=(region,))

    def gather(self, step: ReshardStep, value: Value, after: TensorType) -> Value:
        given = value.type
        assert isinstance(given, TensorType)
        sizes = list(after.sizes)
        sizes[step.dim] = given.sizes[step.dim] * total_size(step.axes, self.mesh)
        joined = after.with_shape(tuple(sizes))
        op = AllGather(
            step.dim, self.groups(step.axes), (joined,), CHANNEL, use_global_device_ids=True
        )
        return self.cut(self.emit(op, value), after)

    def cut(self, value: Value, type: TensorType) -> Value:
        """A value without the padding at the end of its dims."""
        if value.type is type:
            return value
        return self.emit(Slice((0,) * type.rank, type.sizes, (1,) * type.rank), value)

    def pad(self, value: Value, type: TensorType) -> Value:
        """A value with zeros at the end of its dims, up to these sizes."""
        source = value.type
        assert isinstance(source, TensorType)
        if source is type:
            return value
        high = tuple(b - a for a, b in zip(source.sizes, type.sizes, strict=True))
        none = (0,) * type.rank
        zero = self.splat(0, type.with_shape(()))
        return self.emit(Pad(none, high, none), value, zero)

    def slice(self, step: ReshardStep, value: Value, after: TensorType) -> Value:
        source = value.type
        assert isinstance(source, TensorType)
        sizes = list(source.sizes)
        sizes[step.dim] = after.sizes[step.dim] * total_size(step.axes, self.mesh)
        padded = self.pad(value, source.with_shape(tuple(sizes)))
        axes = merged(step.axes, self.mesh)
        pieces = tuple(axes if dim == step.dim else () for dim in range(source.rank))
        return self.emit(AllSlice(sharding_of(pieces, self.mesh_name), after), padded)

    def permute(self, value: Value, before: DimAxes, after: DimAxes) -> Value:
        """A permute from the device order of one split to that of another."""
        axes, sources = moves(before, after, self.mesh)
        return self.emit(PermuteAlongAxes(MeshAxes(self.mesh_name, axes), sources), value)

    def shift(self, value: Value, axes: Axes, by: int) -> Value:
        """The value of the device `by` further along axes; zeros beyond the end."""
        count = total_size(axes, self.mesh)
        sources = tuple(n + by if 0 <= n + by < count else -1 for n in range(count))
        return self.permute_along(value, axes, sources)

    def permute_along(self, value: Value, axes: Axes, sources: tuple[int, ...]) -> Value:
        """A permute: device n along axes gets the value of device sources[n]; zeros for -1."""
        return self.emit(PermuteAlongAxes(MeshAxes(self.mesh_name, axes), sources), value)


def moves(before: DimAxes, after: DimAxes, mesh: Mesh) -> tuple[Axes, tuple[int, ...]]:
    """The axes of a permute from one split to another, and the source of each target along them."""
    old = [axis for axes in before for axis in axes]
    new = [axis for axes in after for axis in axes]
    everything = [*old, *[a for a in new if a not in old]]
    sizes = {axis: size_of(axis, mesh) for axis in everything}
    removed = [a for a in old if a not in new]
    come = [a for a in new if a not in old]
    count = int(np.prod([sizes[a] for a in everything]))
    places = np.unravel_index(np.arange(count), [sizes[a] for a in everything])
    at = dict(zip(everything, places, strict=True))  # coordinates of every target
    # Dim by dim, the number of the piece that a target wants is that of the piece its source has.
    # Axes of one side only take each other's coordinates, so that every device sends once.
    source: dict[Axis, Array] = {}
    for given, wanted in [*zip(before, after, strict=True), (tuple(come), tuple(removed))]:
        _set(source, given, _number(wanted, at, sizes), sizes)
    index = _number(tuple(everything), source, sizes)
    return tuple(everything), tuple(int(n) for n in np.broadcast_to(index, (count,)))


def _number(axes: Axes, at: Mapping[Axis, Array], sizes: Mapping[Axis, int]) -> Array:
    found = np.zeros((), np.int64)
    for axis in axes:
        found = found * sizes[axis] + at[axis]
    return found


def _set(at: dict[Axis, Array], axes: Axes, number: Array, sizes: Mapping[Axis, int]) -> None:
    for axis in reversed(axes):
        at[axis] = number % sizes[axis]
        number = number // sizes[axis]
