"""Along which axes of the mesh a value of a local program may vary from device to device.

Every device runs the same program, so a value that is computed from equal values is equal. Values
begin to differ where pieces come in, where a device asks for its place, and where it takes its own
piece; they become equal again along axes that are reduced or gathered over.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from weft.errors import WeftError
from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.names import LOCAL_SHARDING
from weft.ir.op import Op
from weft.ir.purity import called
from weft.mesh import Axis, Mesh, MeshAxes, parse_sharding
from weft.mesh.algebra import part, size_of
from weft.mesh.axes import named
from weft.ops.collective import (
    AllGather,
    AllReduce,
    Collective,
    CollectiveBroadcast,
    DeviceId,
)
from weft.ops.control import Case, If, While
from weft.ops.local import AllSlice, AxisIndex, PermuteAlongAxes, ReduceScatterTogether
from weft.ops.sharding import ManualComputation

Axes = tuple[Axis, ...]
Mask = int  # a bit for each part of an axis


def axes_of(op: Op) -> MeshAxes | None:
    """The axes that an op of a local program runs along, if it says so by axes.

    A collective must meet over the devices of the mesh, not over replicas.
    """
    match op:
        case AllSlice(pieces=pieces):
            return MeshAxes(pieces.mesh, tuple(a for dim in pieces.dims for a in dim.axes))
        case AxisIndex() | PermuteAlongAxes() | ReduceScatterTogether():
            groups = op.axes
        case Collective() if op.channel > 0 and getattr(op, "use_global_device_ids", True):
            groups = op.replica_groups
        case _:
            return None
    return groups if isinstance(groups, MeshAxes) else None


class Parts:
    """The axes of all meshes, cut where the program cuts them, with a bit for each part."""

    def __init__(self, meshes: Mapping[str, Mesh], used: Iterable[MeshAxes]) -> None:
        self.meshes = meshes
        self.bits: dict[tuple[Mesh, str], list[tuple[int, int, int]]] = {}
        self.of_mesh: dict[Mesh, Mask] = {}
        self.everything: Mask = 0
        self._covered: dict[MeshAxes, Mask] = {}
        self._touched: dict[MeshAxes, Mask] = {}
        self._of: dict[MeshAxes, tuple[tuple[Axis, Mask], ...]] = {}
        cuts: dict[tuple[Mesh, str], set[int]] = {}
        for mesh in meshes.values():
            self._whole(mesh, cuts)
        for axes in used:
            mesh = named(axes.mesh, meshes)
            self._whole(mesh, cuts)
            for axis in axes.axes:
                cuts[mesh, axis.name] |= {axis.before, axis.before * size_of(axis, mesh)}
        for (mesh, name), places in cuts.items():
            self._cut(mesh, name, sorted(places))

    def _whole(self, mesh: Mesh, cuts: dict[tuple[Mesh, str], set[int]]) -> None:
        self.of_mesh.setdefault(mesh, 0)
        for name, size in mesh.axes:
            cuts.setdefault((mesh, name), {1, size})

    def _cut(self, mesh: Mesh, name: str, places: list[int]) -> None:
        pairs = list(pairwise(places))
        if any(b % a for a, b in pairs):  # parts that overlap without nesting: one for all
            pairs = [(1, mesh.axis_sizes[name])]
        for low, high in pairs:
            bit = 1 << self.everything.bit_length()
            self.bits.setdefault((mesh, name), []).append((low, high, bit))
            self.everything |= bit
            self.of_mesh[mesh] |= bit

    def of(self, groups: MeshAxes) -> tuple[tuple[Axis, Mask], ...]:
        """The axes of groups, cut where the program cuts them, and the parts that each touches."""
        known = self._of.get(groups)
        if known is None:
            axes = self._axes(groups, named(groups.mesh, self.meshes))
            touched = [self.touched(MeshAxes(groups.mesh, (axis,))) for axis in axes]
            known = self._of[groups] = tuple(zip(axes, touched, strict=True))
        return known

    def _axes(self, groups: MeshAxes, mesh: Mesh) -> Axes:
        found: list[Axis] = []
        for axis in groups.axes:
            begin, end = axis.before, axis.before * size_of(axis, mesh)
            rows = self.bits.get((mesh, axis.name), ())
            own = [(low, high) for low, high, _ in rows if begin <= low and high <= end]
            if math.prod(high // low for low, high in own) != end // begin:
                own = [(begin, end)]
            found += [part(axis.name, low, high // low, mesh) for low, high in own]
        return tuple(found)

    def covered(self, groups: MeshAxes) -> Mask:
        """The parts that lie wholly within these axes."""
        found = self._covered.get(groups)
        if found is None:
            found = self._covered[groups] = self._mask(groups, whole=True)
        return found

    def touched(self, groups: MeshAxes) -> Mask:
        """The parts that a difference along these axes is seen along, those of other meshes too."""
        found = self._touched.get(groups)
        if found is None:
            found = self._mask(groups, whole=False)
            if found:
                found |= self.everything & ~self.of_mesh[named(groups.mesh, self.meshes)]
            self._touched[groups] = found
        return found

    def _mask(self, groups: MeshAxes, *, whole: bool) -> Mask:
        mesh = named(groups.mesh, self.meshes)
        found = 0
        for axis in groups.axes:
            begin, end = axis.before, axis.before * size_of(axis, mesh)
            for low, high, bit in self.bits.get((mesh, axis.name), ()):
                if begin <= low and high <= end if whole else begin < high and low < end:
                    found |= bit
        return found


@dataclass(frozen=True, slots=True)
class _Change:
    """What an op does to the axes that its operands vary along."""

    equal: Mask = 0  # its results no longer vary along these
    varied: Mask = 0  # its results vary along these
    spread: Mask = 0  # its results vary along all of these if the operands do along any

    def applied(self, mask: Mask) -> Mask:
        """The parts that the results vary along, from those of all operands."""
        if mask & self.spread:
            mask |= self.spread
        return mask & ~self.equal | self.varied


_NONE = _Change()


class Varying:
    """The axes along which each value of a module may vary; it learns new values as it is asked."""

    def __init__(self, module: Module) -> None:
        self.module = module
        ops = dict.fromkeys(node.op for node in module.nodes())
        used = [axes for op in ops if (axes := axes_of(op)) is not None]
        self.given = {f.name: _shardings(f, module.meshes) for f in module.functions.values()}
        used += [axes for row in self.given.values() for axes in row if axes is not None]
        self.parts = Parts(module.meshes, used)
        self.masks: dict[Value, Mask] = {}
        self.around: dict[Node, Mask] = {}  # for loops: what decides whether devices come there
        self._changes: dict[Op, _Change] = {}
        self._calls: dict[tuple[str, tuple[Mask, ...], Mask], tuple[Mask, ...]] = {}
        reached = set(map(called, ops))
        for function in module.functions.values():
            if function.visibility != "private" or function.name not in reached:
                self._root(function)

    def of(self, value: Value) -> Mask:
        """The parts of axes that a value may vary along."""
        found = self.masks.get(value)
        if found is None:
            node = value.node
            found = self.parts.everything if node is None else self._plain(node)
            self.masks[value] = found
        return found

    def is_equal(self, value: Value, groups: MeshAxes) -> bool:
        """Whether a value is the same on all devices along these axes."""
        return not self.of(value) & self.parts.touched(groups)

    def split(self, value: Value, groups: MeshAxes) -> tuple[Axes, Axes]:
        """The parts of these axes that a value is equal along, and those that it may vary along."""
        mask, parts = self.of(value), self.parts.of(groups)
        equal = tuple([axis for axis, touched in parts if not mask & touched])
        return equal, tuple([axis for axis, touched in parts if mask & touched])

    def same(self, value: Value, other: Value) -> None:
        """Note that a new value equals one that is known."""
        if value is not other:
            self.masks[value] = self.of(value) & self.of(other)

    def _root(self, function: Function) -> None:
        everything = self.parts.everything
        masks = [
            everything if axes is None else self.parts.touched(axes)
            for axes in self.given[function.name]
        ]
        self._run(function, tuple(masks), 0)

    def _run(self, function: Function, masks: tuple[Mask, ...], around: Mask) -> tuple[Mask, ...]:
        """The masks of a function's results, for those of its arguments."""
        key = (function.name, masks, around)
        found = self._calls.get(key)
        if found is None:
            self._calls[key] = (self.parts.everything,) * len(function.body.results)
            found = self._calls[key] = self._region(function.body, masks, around)
        return found

    def _region(self, region: Region, masks: Iterable[Mask], around: Mask) -> tuple[Mask, ...]:
        known = self.masks
        for value, mask in zip(region.args, masks, strict=True):
            known[value] = known.get(value, 0) | mask
        get, everything = known.get, self.parts.everything
        changes = self._changes
        for node in region.nodes:
            op = node.op
            if node.regions or op.control:
                made = self._control(node, around)
                for value, mask in zip(node.results, made, strict=True):
                    known[value] = get(value, 0) | mask
                continue
            change = changes.get(op)
            if change is None:
                change = changes[op] = self._change(op)
            mask = 0
            for value in node.operands:
                mask |= get(value, everything)
            if change is not _NONE:
                mask = change.applied(mask)
            for value in node.results:
                known[value] = get(value, 0) | mask
        return tuple([self.of(v) for v in region.results])

    def _plain(self, node: Node) -> Mask:
        """The mask of the results of a node, from its operands alone."""
        change = self._changes.get(node.op)
        if change is None:
            change = self._changes[node.op] = self._change(node.op)
        return change.applied(_union([self.of(value) for value in node.operands]))

    def _change(self, op: Op) -> _Change:
        axes, parts = axes_of(op), self.parts
        if axes is None:
            alike = op.pure and not op.collective and not isinstance(op, DeviceId)
            alike = alike and not (op.control and not op.composite)
            return _NONE if alike else _Change(varied=parts.everything)
        match op:
            case AllReduce() | AllGather() | CollectiveBroadcast():
                return _Change(equal=parts.covered(axes))
            case PermuteAlongAxes(sources=sources) if -1 not in sources:
                return _Change(spread=parts.touched(axes))
        return _Change(varied=parts.touched(axes))

    def _control(self, node: Node, around: Mask) -> tuple[Mask, ...]:
        """The masks of the results of a node that has regions or calls a function."""
        operands = tuple([self.of(v) for v in node.operands])
        callee = called(node.op)
        if callee is not None and callee in self.module.functions:
            return self._run(self.module.functions[callee], operands, around)
        match node.op:
            case While():
                return self._loop(node, operands, around)
            case If() | Case():
                inside = around | operands[0]
                rows = [self._region(region, (), inside) for region in node.regions]
                return tuple([_union(column) | operands[0] for column in zip(*rows, strict=True)])
            case op if op.collective or not node.regions:
                return (self._plain(node),) * len(node.results)
            case ManualComputation():
                operands = (self.parts.everything,)
        mask = _union(operands)
        for region in node.regions:
            mask |= _union(self._region(region, (mask,) * len(region.args), around))
        if not node.op.pure:
            mask = self.parts.everything
        return (mask,) * len(node.results)

    def _loop(self, node: Node, masks: tuple[Mask, ...], around: Mask) -> tuple[Mask, ...]:
        """What a loop carries: all that any turn makes of it, and how many turns there are."""
        condition, body = node.regions
        self.around[node] = self.around.get(node, 0) | around
        inside = around
        while True:
            (again,) = self._region(condition, masks, inside)
            made = self._region(body, masks, inside | again)
            joined = tuple([a | b | again for a, b in zip(masks, made, strict=True)])
            if joined == masks and again | inside == inside:
                return masks
            masks, inside = joined, inside | again


def _union(masks: Iterable[Mask]) -> Mask:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _shardings(function: Function, meshes: Mapping[str, Mesh]) -> list[MeshAxes | None]:
    """For each argument, the axes that it varies along, where its sharding is told."""
    found: list[MeshAxes | None] = []
    rows = function.arg_attrs or ((),) * len(function.body.args)
    for attrs in rows:
        text = dict(attrs).get(LOCAL_SHARDING)
        if text is None:
            found.append(None)
            continue
        sharding = parse_sharding(text)
        if isinstance(sharding.mesh, str) and sharding.mesh not in meshes:
            raise WeftError(
                f"an argument of {function.name!r} is split over the mesh {sharding.mesh!r}, "
                "which the module does not have",
                help=f"known: {', '.join(meshes) or 'none'}",
                loc=function.loc,
            )
        axes = tuple(a for dim in sharding.dims for a in dim.axes)
        found.append(MeshAxes(sharding.mesh, (*axes, *sharding.unreduced)))
    return found
