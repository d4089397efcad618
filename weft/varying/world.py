"""The devices of a local program: their number and order, and the groups of its collectives."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field

import numpy as np

from weft.errors import WeftError
from weft.ir.module import Function, Module, Node
from weft.ir.names import LOCAL_SHARDING
from weft.ir.op import Op
from weft.ir.types import Array
from weft.mesh import Axis, Lists, Mesh, MeshAxes, Sharding, parse_sharding
from weft.mesh.axes import named
from weft.mesh.sub_axes import AxisSpan, SubAxes, mesh_spans, separate_spans, span_of, sub_axes_of
from weft.ops.distributed.collective import CollectiveOp, CollectivePermute
from weft.ops.distributed.local import AllSlice, AxisIndex, PermuteAlongAxes, VariadicReduceScatter
from weft.records import dataclass

Moves = tuple[tuple[int, ...] | None, Array]


@dataclass
class World:
    """Replicas and partitions, the mesh that orders stacks, and the sub-axes in use."""

    shape: tuple[int, int]  # replicas, partitions
    mesh: Mesh  # a mesh of all devices, the order of stacks
    meshes: Mapping[str, Mesh]
    sub_axes: SubAxes = field(init=False)
    _spans: dict[Op, tuple[AxisSpan, ...] | None] = field(default_factory=dict)
    _dims: dict[Op, tuple[int, ...] | None] = field(default_factory=dict)
    _moves: dict[Op, Moves] = field(default_factory=dict)
    _aligned: dict[Mesh, bool] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of devices."""
        return math.prod(self.shape)

    def devices(self) -> Array:
        """The device at each position of a stack."""
        return self.mesh.devices().reshape(-1)

    def places(self) -> Array:
        """The position of each device in a stack."""
        return np.argsort(self.devices(), kind="stable")  # the inverse permutation

    def aligned(self, mesh: Mesh) -> bool:
        """Whether a mesh orders the devices as the stacks do, so that its axes are spans."""
        aligned = self._aligned.get(mesh)
        if aligned is None:
            # Devices of a mesh are partitions; with replicas, a stack has more devices than a mesh.
            aligned = self.shape[0] == 1 and mesh.size == self.count
            if mesh.device_ids is not None or self.mesh.device_ids is not None:
                aligned = aligned and np.array_equal(mesh.devices().reshape(-1), self.devices())
            self._aligned[mesh] = aligned
        return aligned

    def axis_dims(self, mesh: str | Mesh, axes: tuple[Axis, ...]) -> tuple[int, ...] | None:
        """The stack dims of these mesh axes, or None if they do not map to whole dims."""
        spans = self.axis_spans(named(mesh, self.meshes), axes)
        return None if spans is None else self.sub_axes.dims_of(spans)

    def axis_spans(self, mesh: Mesh, axes: tuple[Axis, ...]) -> tuple[AxisSpan, ...] | None:
        """The spans of axes; None if the mesh's device order differs from the stacks'."""
        if not self.aligned(mesh):
            return None
        return tuple(span_of(axis, mesh) for axis in axes)

    def apart(self, stacked: Sequence[Axis]) -> tuple[World, tuple[int, ...]]:
        """The world of a process that has only the devices along these axes of the mesh.

        Its sub-axes are fine enough to separate these axes; returned with it are the sub-axes along
        which devices are in other processes.
        """
        sub_axes = self.sub_axes
        separated = separate_spans(sub_axes, [span_of(axis, self.mesh) for axis in stacked])
        if separated is None:
            raise WeftError(
                f"the devices along {', '.join(map(str, stacked))} cannot be stacked: the program "
                f"takes the devices apart as {sub_axes.sizes}",
                help="stack whole axes, or parts that the program's own parts of the axis divide",
            )
        fine, absent = separated
        if fine == sub_axes:
            return self, absent
        world = World(self.shape, self.mesh, self.meshes)
        world.sub_axes = fine
        return world, absent

    # Groups

    def group_sub_axes(self, op: Op) -> tuple[int, ...] | None:
        """The sub-axes of a collective's groups; None if they are irregular."""
        if op not in self._dims:
            spans = self.spans(op)
            self._dims[op] = None if spans is None else self.sub_axes.dims_of(spans)
        return self._dims[op]

    def spans(self, op: Op) -> tuple[AxisSpan, ...] | None:
        """The spans of a collective's groups."""
        if op not in self._spans:
            self._spans[op] = self._find_spans(op)
        return self._spans[op]

    def _find_spans(self, op: Op) -> tuple[AxisSpan, ...] | None:
        axes = axes_of(op)
        if axes is not None:
            mesh = named(axes.mesh, self.meshes)
            if self.aligned(mesh):
                return self.axis_spans(mesh, axes.axes)
        return self.match(self.groups(op))

    def groups(self, op: Op) -> Lists:
        """The groups as lists of devices."""
        groups: Lists = op.groups(*self.shape, self.meshes)  # type: ignore[attr-defined]
        return groups

    def match(self, groups: Lists) -> tuple[AxisSpan, ...] | None:
        """The spans that equal these lists of devices, or None."""
        sizes = {len(group) for group in groups}
        if len(sizes) != 1 or sum(len(g) for g in groups) != self.count:
            return None
        if any(not 0 <= d < self.count for group in groups for d in group):
            return None
        # In positions of the stack, not in device numbers: a mesh may list its devices in any
        # order.
        rows = self.places()[np.asarray(groups)]
        spans = _runs(rows[0] - rows[0, 0])
        if spans is None:
            return None
        sub_axes = sub_axes_of(self.count, spans)
        dims = sub_axes.dims_of(spans)
        if dims is None:
            return None
        order = sub_axes.index(
            [*(d for d in range(len(sub_axes.sizes)) if d not in dims), *dims],
            np.arange(self.count),
        )
        # The first group suggests the spans; all others must follow them, in any order of groups.
        expected = np.argsort(order).reshape(rows.shape)
        same = np.array_equal(rows[np.argsort(rows[:, 0])], expected[np.argsort(expected[:, 0])])
        return spans if same else None

    # Permutations

    def moves(self, op: CollectivePermute | PermuteAlongAxes) -> Moves:
        """The sub-axes along which values move, and the source index of each index along them.

        -1 stands for no source; the sub-axes are None if they are irregular.
        """
        moves = self._moves.get(op)
        if moves is None:
            if isinstance(op, PermuteAlongAxes):
                moves = self.group_sub_axes(op), np.asarray(op.sources)
            else:
                moves = self._moved_along(self.sources(op))
            self._moves[op] = moves
        return moves

    def sources(self, op: CollectivePermute) -> Array:
        """For each position in a stack the position of its source; -1 for none."""
        places = self.places()
        sources = np.full(self.count, -1)
        for group in self.groups(op):
            for source, target in op.source_target_pairs:
                if max(source, target) >= len(group):
                    raise WeftError(
                        f"{op.name}: {source} sends to {target} in a group of {len(group)} devices",
                        help="run on more devices, or correct source_target_pairs",
                    )
                sources[places[group[target]]] = places[group[source]]
        return sources

    def _moved_along(self, sources: Array) -> tuple[tuple[int, ...], Array]:
        """The sub-axes along which values move, or on which the permutation depends."""
        sub_axes, places, sent = self.sub_axes, np.arange(self.count), sources >= 0
        coordinates, from_coordinates = sub_axes.coordinates(places), sub_axes.coordinates(sources)
        needed = tuple(
            n
            for n in range(len(sub_axes.sizes))
            # Sources of -1 have meaningless coordinates, hence the mask.
            if (coordinates[n] != from_coordinates[n])[sent].any()
            or not _alike(sources, n, sub_axes)
        )
        along, where = sub_axes.index(needed, places), sub_axes.index(needed, sources)
        # The permutation of indices along the needed sub-axes alone, the same everywhere else.
        source_of = np.full(math.prod(sub_axes.sizes[n] for n in needed), -1)
        source_of[along[sent]] = where[sent]
        return needed, source_of


def _alike(sources: Array, sub_axis: int, sub_axes: SubAxes) -> bool:
    """Whether the permutation is independent of a sub-axis."""
    by_coordinates = sources.reshape(sub_axes.sizes)
    first = np.take(by_coordinates, [0], sub_axis)
    step = np.arange(sub_axes.sizes[sub_axis]) * sub_axes.strides[sub_axis]
    step = step.reshape([-1 if n == sub_axis else 1 for n in range(len(sub_axes.sizes))])
    return bool(np.array_equal(by_coordinates, np.where(first < 0, -1, first + step)))


def axes_of(op: Op) -> MeshAxes | None:
    """The mesh axes of an op of a local program, if it has them.

    Not of collectives over replicas: these are not devices of the mesh.
    """
    match op:
        case AllSlice(pieces=pieces):
            return MeshAxes(pieces.mesh, tuple(a for dim in pieces.dims for a in dim.axes))
        case AxisIndex() | PermuteAlongAxes() | VariadicReduceScatter():
            groups = op.axes
        case CollectiveOp() if op.channel > 0 and getattr(op, "use_global_device_ids", True):
            groups = op.replica_groups
        case _:
            return None
    return groups if isinstance(groups, MeshAxes) else None


def _runs(offsets: Array) -> tuple[AxisSpan, ...] | None:
    """Offsets 0, s, 2s, .., t, t + s, .. as spans, the slowest first."""
    runs: list[AxisSpan] = []
    done, total = 1, len(offsets)
    while done < total:
        stride = int(offsets[done])
        if stride <= 0:
            return None
        size = 1
        while size * done < total and offsets[size * done] == size * stride:
            size += 1
        if total % (done * size):
            return None
        runs.append((stride, size))
        done *= size
    return tuple(reversed(runs))


# The world of a module


def world_of(
    module: Module,
    functions: Iterable[Function],
    nodes: Iterable[Node],
    devices: int | tuple[int, int] | None = None,
) -> World:
    """The devices that a local program runs on, and the sub-axes that it uses.

    `nodes` needs one of each set of equal nodes.
    """
    shape = _shape(module, devices)
    world = World(shape, _mesh(module, math.prod(shape)), module.meshes)
    world.sub_axes = sub_axes_of(world.count, _used(functions, nodes, world))
    return world


def _shape(module: Module, devices: int | tuple[int, int] | None) -> tuple[int, int]:
    if isinstance(devices, tuple):
        return devices
    if devices is not None:
        return 1, devices
    attrs = dict(module.attrs)
    replicas, partitions = (
        # `8 : i32`
        int(attrs.get(f"mhlo.num_{what}", "1").split(":")[0])
        for what in ("replicas", "partitions")
    )
    # A module without the attributes, or with their default: as many as its largest mesh has.
    if partitions == 1 and replicas == 1:
        partitions = max((mesh.size for mesh in module.meshes.values()), default=1)
    return replicas, partitions


def _mesh(module: Module, count: int) -> Mesh:
    """The first mesh of all devices; one of a single axis if there is none."""
    for mesh in module.meshes.values():
        if mesh.size == count and mesh.axes:
            return mesh
    return Mesh((("device", count),))


def _used(functions: Iterable[Function], nodes: Iterable[Node], world: World) -> Iterator[AxisSpan]:
    """The spans that a program uses, in order of use: earlier ones are cut first."""
    # First: spans that cross earlier ones are left out, and the mesh's own axes matter most.
    yield from mesh_spans(world.mesh)
    if world.shape[0] > 1:
        yield world.shape[1], world.shape[0]
    shardings = [sharding_in(a) for f in functions for a in (*f.arg_attrs, *f.res_attrs)]
    for sharding in dict.fromkeys(shardings):
        if sharding is not None:
            yield from _sharding_spans(sharding, world)
    for node in nodes:
        yield from _node_spans(node, world)


def _node_spans(node: Node, world: World) -> Iterator[AxisSpan]:
    op = node.op
    try:
        match op:
            case AxisIndex():
                mesh = named(op.over.mesh, world.meshes)
                yield from world.axis_spans(mesh, op.over.axes) or ()
            case AllSlice():
                yield from _sharding_spans(op.pieces, world)
            case CollectivePermute():  # moves along the sub-axes of others, whatever they are
                pass
            case _ if op.collective:
                yield from world.spans(op) or ()
    except WeftError as error:
        raise error.at(node.loc) from None


def _sharding_spans(sharding: Sharding, world: World) -> Iterator[AxisSpan]:
    mesh = sharding.resolve(world.meshes)
    for dim in sharding.dims:
        yield from world.axis_spans(mesh, dim.axes) or ()
    yield from world.axis_spans(mesh, sharding.unreduced) or ()


def sharding_in(attrs: tuple[tuple[str, str], ...]) -> Sharding | None:
    """The sharding in the attributes of an argument or a result."""
    text = dict(attrs).get(LOCAL_SHARDING)
    return None if text is None else parse_sharding(text)
