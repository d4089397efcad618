"""Ops of a local program that StableHLO lacks: own shard, own index, permutation along axes.

They have mesh axes and never lists of devices, so their size does not grow with the mesh. Each is
written as a composite whose decomposition is plain StableHLO, and read back as itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.ir.check import require, tensor_type
from weft.ir.dense import Dense
from weft.ir.module import Function, Node, Region, Value, apply
from weft.ir.op import Evaluation, Op, RegionCall, Steps, op
from weft.ir.rule import Combine, Rule
from weft.ir.types import I32, Array, TensorType, Type, Types
from weft.ir.work import Work, elements, moved
from weft.mesh import Axis, Lists, Mesh, MeshAxes
from weft.mesh.algebra import size_of, total_size
from weft.mesh.axes import named
from weft.mesh.groups import cross_partition
from weft.mesh.pieces import index_along
from weft.ops.combiners import BY_OP, COMBINERS, SHORT_NAMES, combiner
from weft.ops.control import opaque
from weft.ops.distributed.collective import (
    ChannelHandle,
    CollectivePermute,
    DeviceValues,
    PartitionId,
    ReduceScatter,
    ReplicaGroups,
    dim_by_dim,
    tensors,
)
from weft.ops.distributed.ragged import RaggedAllToAll
from weft.ops.distributed.sharding import OneSharding
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Add, Divide, Multiply, Remainder
from weft.ops.shape import Constant, Reshape
from weft.ops.slicing import DynamicSlice

CHANNEL = ChannelHandle(1, 1)  # the channel of every collective of Weft's
INDEX = TensorType((), I32)


class LocalOp(Op):
    """An op that is written as a composite.

    Its `decomposition(name, operand types, meshes)` is a StableHLO function of that name.
    """

    __slots__ = ()
    composite = True

    def rule(self, *operands: Type) -> Rule:
        results = self.infer(*operands)
        return opaque(operands, results if isinstance(results, tuple) else (results,))


class _Lines:
    """The nodes of a decomposition, in order."""

    def __init__(self, operands: Types) -> None:
        self.args = tuple(Value(t, None, n) for n, t in enumerate(operands))
        self.nodes: list[Node] = []

    def add(self, made: Op, *operands: Value, regions: tuple[Region, ...] = ()) -> Value:
        self.nodes.append(apply(made, *operands, regions=regions))
        return self.nodes[-1].results[0]

    def number(self, value: int) -> Value:
        return self.add(Constant(Dense(np.asarray(value, np.int32))))

    def index(self, axes: tuple[Axis, ...], mesh: Mesh) -> Value:
        """The device's index along axes, from its partition id by division and remainder."""
        at = self.add(Convert(INDEX), self.add(PartitionId()))
        if mesh.device_ids is not None:
            # The inverse of the permutation: from a device's id to its place in the order of the
            # axes.
            places = np.argsort(np.asarray(mesh.device_ids)).astype(np.int32)
            table = self.add(Constant(Dense(places)))
            at = self.add(Reshape(INDEX), self.add(DynamicSlice((1,)), table, at))
        index: Value | None = None
        for axis in axes:
            size, minor = size_of(axis, mesh), _minor(axis, mesh)
            coordinate = at if minor == 1 else self.add(Divide(), at, self.number(minor))
            coordinate = self.add(Remainder(), coordinate, self.number(size))
            if index is not None:
                coordinate = self.add(
                    Add(), self.add(Multiply(), index, self.number(size)), coordinate
                )
            index = coordinate
        return self.number(0) if index is None else index

    def function(self, name: str, *results: Value) -> Function:
        return Function(name, Region(self.args, self.nodes, results), "private")


def _minor(axis: Axis, mesh: Mesh) -> int:
    """The stride of an axis in device order."""
    minor = mesh.axis_sizes[axis.name] // (axis.before * size_of(axis, mesh))
    names = [name for name, _ in mesh.axes]
    for _, size in mesh.axes[names.index(axis.name) + 1 :]:
        minor *= size
    return minor


def own_index(axes: tuple[Axis, ...], mesh: Mesh, run: Evaluation) -> int:
    """The index of the running device along axes, major first."""
    return index_along(axes, mesh, mesh.position(run.device[1]))


@op("weft.axis_index")
class AxisIndex(LocalOp):
    """The index of a device along mesh axes, the first axis major."""

    axes: ReplicaGroups
    control = True

    @property
    def over(self) -> MeshAxes:
        """The axes."""
        assert isinstance(self.axes, MeshAxes)
        return self.axes

    def infer(self) -> Type:
        return INDEX

    def reference(self, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        yield from ()
        mesh = named(self.over.mesh, run.meshes)
        return (np.asarray(own_index(self.over.axes, mesh, run), np.int32),)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*results))

    def decomposition(self, name: str, operands: Types, meshes: Mapping[str, Mesh]) -> Function:
        lines = _Lines(operands)
        return lines.function(name, lines.index(self.over.axes, named(self.over.mesh, meshes)))


@op("weft.all_slice")
class AllSlice(LocalOp):
    """A device's own shard of its operand under a sharding."""

    pieces: OneSharding
    out: TensorType
    control = True

    def infer(self, operand: Type) -> Type:
        operand_type = tensor_type(self.name, 0, operand)
        same_rank = operand_type.rank == self.out.rank == len(self.pieces.dims)
        # A split dim is a multiple of its piece: by how much, only the mesh says, which is not
        # known here.
        fits = same_rank and all(
            size == part if not dim.axes else size == (size // part) * part if part else size == 0
            for size, part, dim in zip(
                operand_type.bounds, self.out.bounds, self.pieces.dims, strict=True
            )
        )
        require(
            fits and operand_type.dtype is self.out.dtype,
            f"{self.name}: {self.out} is not a piece of {operand_type} split as {self.pieces}",
            "each dim is divided by the number of its pieces",
        )
        return self.out

    def reference(self, operand: Array, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        yield from ()
        mesh = named(self.pieces.mesh, run.meshes)
        starts = [own_index(dim.axes, mesh, run) for dim in self.pieces.dims]
        window = tuple(
            slice(n * size, (n + 1) * size) for n, size in zip(starts, self.out.sizes, strict=True)
        )
        return (operand[window],)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=2 * moved(*results))

    def decomposition(self, name: str, operands: Types, meshes: Mapping[str, Mesh]) -> Function:
        lines, mesh = _Lines(operands), named(self.pieces.mesh, meshes)
        starts = []
        for dim, size in zip(self.pieces.dims, self.out.bounds, strict=True):
            if not dim.axes:
                starts.append(lines.number(0))
                continue
            starts.append(lines.add(Multiply(), lines.index(dim.axes, mesh), lines.number(size)))
        cut = DynamicSlice(self.out.sizes)
        return lines.function(name, lines.add(cut, lines.args[0], *starts))


@op("weft.collective_permute")
class PermuteAlongAxes(LocalOp):
    """The device at index n along the axes gets the operands of the one at sources[n], or zeros."""

    axes: ReplicaGroups
    sources: tuple[int, ...]  # -1 where nothing is sent
    collective = True

    @property
    def over(self) -> MeshAxes:
        """The axes."""
        assert isinstance(self.axes, MeshAxes)
        return self.axes

    def infer(self, *operands: Type) -> Types:
        used = [s for s in self.sources if s >= 0]
        require(
            len(set(used)) == len(used) and all(s < len(self.sources) for s in used),
            f"{self.name}: sources {list(self.sources)} repeat or are out of range",
            "name each device along the axes at most once, and -1 for none",
        )
        return tensors(self.name, operands)

    def rule(self, *operands: Type) -> Rule:
        return dim_by_dim(operands, operands)

    def groups(self, replicas: int, partitions: int, meshes: Mapping[str, Mesh]) -> Lists:
        """The groups as lists of devices."""
        mesh = named(self.over.mesh, meshes)
        count = total_size(self.over.axes, mesh)
        require(
            count == len(self.sources),
            f"{self.name}: {len(self.sources)} sources for {count} devices along the axes",
            "name a source, or -1, for each",
        )
        return cross_partition(mesh.groups(self.over.axes), replicas, partitions)

    def reference(self, *members: DeviceValues) -> list[DeviceValues]:
        # Zeros where nothing is sent, as in StableHLO's collective_permute.
        nothing = tuple(np.zeros_like(a) for a in members[0])
        return [members[s] if s >= 0 else nothing for s in self.sources]

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*operands, *results), sent=moved(*operands))

    def pairs(self, meshes: Mapping[str, Mesh]) -> tuple[tuple[int, int], ...]:
        """Every source and its target, as devices."""
        groups = named(self.over.mesh, meshes).groups(self.over.axes)
        moves = [(s, t) for t, s in enumerate(self.sources) if s >= 0]
        return tuple(sorted((group[s], group[t]) for group in groups for s, t in moves))

    def decomposition(self, name: str, operands: Types, meshes: Mapping[str, Mesh]) -> Function:
        lines = _Lines(operands)
        made = CollectivePermute(self.pairs(meshes), CHANNEL)
        return lines.function(name, *[lines.add(made, value) for value in lines.args])


@op("weft.reduce_scatter")
class VariadicReduceScatter(LocalOp):
    """Several operands reduced over the axes at once; every device gets its shard of each."""

    scatter_dimensions: tuple[int, ...]  # one for each operand
    reduction: str  # add, maximum, ...
    axes: ReplicaGroups
    outs: Types
    collective = True

    def infer(self, *operands: Type) -> Types:
        require(
            self.reduction in SHORT_NAMES.values(),
            f"{self.name}: no reduction {self.reduction!r}",
            f"known: {', '.join(SHORT_NAMES.values())}",
        )
        require(
            len(operands) == len(self.outs) == len(self.scatter_dimensions),
            f"{self.name}: {len(operands)} operands, {len(self.outs)} results and "
            f"{len(self.scatter_dimensions)} scatter_dimensions",
            "give one of each for every operand",
        )
        for single, operand in zip(self.singles(), operands, strict=True):
            type = tensor_type(self.name, 0, operand)
            single.infer(operand, regions=(combiner(self.combine, type).body,))
        return self.outs

    @property
    def combine(self) -> Combine:
        """How values are combined."""
        return BY_OP[f"stablehlo.{self.reduction}"]

    def singles(self) -> list[ReduceScatter]:
        """The op for each operand alone."""
        return [
            ReduceScatter(dim, self.axes, (out,), CHANNEL, use_global_device_ids=True)
            for dim, out in zip(self.scatter_dimensions, self.outs, strict=True)
        ]

    def groups(self, replicas: int, partitions: int, meshes: Mapping[str, Mesh]) -> Lists:
        """The groups as lists of devices."""
        return self.singles()[0].groups(replicas, partitions, meshes)

    def reference(self, *members: DeviceValues) -> list[DeviceValues]:
        by_member: list[list[Array]] = [[] for _ in members]
        call = _Combine(COMBINERS[self.combine].reference)
        for n, single in enumerate(self.singles()):
            alone = [(member[n],) for member in members]
            for results, (piece,) in zip(
                by_member, single.reference(*alone, regions=(call,)), strict=True
            ):
                results.append(piece)
        return [tuple(results) for results in by_member]

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        flops = sum(elements(t) for t in operands)
        return Work(flops=flops, bytes=moved(*operands, *results), sent=moved(*operands))

    def decomposition(self, name: str, operands: Types, meshes: Mapping[str, Mesh]) -> Function:
        lines = _Lines(operands)
        results = []
        for single, value in zip(self.singles(), lines.args, strict=True):
            region = combiner(self.combine, tensor_type(self.name, 0, value.type))
            results.append(lines.add(single, value, regions=(region,)))
        return lines.function(name, *results)


class _Combine:
    """An op's own reference as the combiner of a reduction."""

    combiners: tuple[str | None, ...] = (None,)

    def __init__(self, reference: Callable[..., Array]) -> None:
        self.reference = reference

    def __call__(self, *arrays: Array) -> tuple[Array, ...]:
        return (self.reference(*arrays),)

    each = __call__

    def run(self, *values: Any) -> Steps:
        yield from ()
        return self(*values)


OPS: tuple[type[Op], ...] = (
    AxisIndex,
    AllSlice,
    PermuteAlongAxes,
    VariadicReduceScatter,
    RaggedAllToAll,
)
