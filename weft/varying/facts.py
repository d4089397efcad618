"""Along which axes each value of a local program varies, and which devices of a process show it.

Every device runs the same program, so a value that is computed from equal values is equal. Values
begin to differ where pieces come in, where a device asks for its place, and where it takes its own
piece; they become equal again along axes that are reduced or gathered over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from weft.errors import WeftError
from weft.ir.module import Function, Module, Node, Value
from weft.ir.op import Op
from weft.ir.purity import called
from weft.ir.reading import captured
from weft.mesh import Axis, MeshAxes
from weft.mesh.axes import named
from weft.mesh.parts import Atoms, atoms_of, span_of
from weft.ops.collective import CollectivePermute
from weft.varying.analysis import Analysis, Body
from weft.varying.axis_bits import AxisBits
from weft.varying.masks import Mask, Masks, alike, join, union
from weft.varying.world import World, axes_of, sharding_in, world_of


@dataclass(frozen=True)
class Varying:
    """The digits along which each value of a module may vary.

    The facts of a function are found from those of the arguments of each of its calls, so that
    two calls do not blur each other: `roots` has the bodies of what nobody calls, by name.
    """

    world: World
    axis_bits: AxisBits
    roots: Mapping[str, Body]
    analysis: Analysis = field(repr=False)

    def come_together(self, loop: Node, op: Op) -> bool:
        """Whether all who meet in a collective come to a loop, in any of its calls, or none do."""
        parting = self.axis_bits.plain(self._around.get(loop, self.axis_bits.everything))
        axes = axes_of(op)
        return not parting & (parting if axes is None else self.axis_bits.along(axes)[1])

    @cached_property
    def _around(self) -> Mapping[Node, int]:
        found: dict[Node, int] = {}
        for body in self.analysis.bodies.values():
            for node, mask in body.around.items():
                found[node] = found.get(node, 0) | mask
        return found

    def joined(self) -> dict[Value, Mask]:
        """What each value may vary along, in any call of its function."""
        found: dict[Value, Mask] = {}
        seen: set[str] = set()
        for (name, _, _), body in self.analysis.bodies.items():
            if name in seen:
                for value, mask in body.masks.items():
                    found[value] = join(found[value], mask)
            else:
                found.update(body.masks)
            seen.add(name)
        return found

    def restricted(self, stacked: Sequence[Axis] | None = None) -> Stacking:
        """The facts for a process that has the devices along these axes of the world's mesh.

        None stands for all axes.
        """
        atoms, mesh = self.world.atoms, self.world.mesh
        if stacked is None:
            return Stacking(self.world, atoms, tuple(range(len(atoms.sizes))))
        spans = [span_of(axis, mesh) for axis in stacked]
        own = zip(atoms.strides, atoms.sizes, strict=True)
        fine = atoms_of(atoms.count, [*own, *spans])
        kept = fine.dims_of(spans)
        if kept is None:
            raise WeftError(
                f"the devices along {', '.join(map(str, stacked))} cannot be stacked: the program "
                f"takes the devices apart as {atoms.sizes}",
                help="stack whole axes, or parts that the program's own parts of the axis divide",
            )
        return Stacking(self.world, fine, tuple(sorted(kept)))


@dataclass(frozen=True)
class Stacking:
    """The facts as one process sees them: a leading dim for each digit that it has devices along.

    The digits of the other devices, which are in other processes, are in no mask.
    """

    world: World
    digits: Atoms  # of all devices, as finely as the program or the stack takes them apart
    kept: tuple[int, ...]  # the digits that are stacked, in order: the leading dims

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of the leading dims."""
        return tuple([self.digits.sizes[n] for n in self.kept])

    @cached_property
    def _dims(self) -> tuple[int, ...]:
        """For each digit of the world, the leading dims that show it, as a mask."""
        coarse = self.world.atoms
        spans = zip(coarse.strides, coarse.sizes, strict=True)
        found = [self.digits.dims(span) or () for span in spans]
        return tuple([sum(1 << self.kept.index(d) for d in ds if d in self.kept) for ds in found])

    def mask(self, mask: Mask) -> Mask:
        """The leading dims that a value varies along, from its digits."""
        if isinstance(mask, tuple):
            return tuple([self.mask(part) for part in mask])
        return union(*[dims for n, dims in enumerate(self._dims) if mask >> n & 1])

    def dims(self, op: Op) -> tuple[int, ...] | None:
        """The leading dims along which devices meet; None if they do so in no such way, or not all
        of a group are here."""
        along = self.world.moves(op)[0] if isinstance(op, CollectivePermute) else None
        along = self.world.meets_along(op) if along is None else along
        if along is None:
            return None
        coarse = self.world.atoms
        found = self.digits.dims_of([(coarse.strides[n], coarse.sizes[n]) for n in along])
        assert found is not None, "the digits of the world are made of finer ones"
        if any(digit not in self.kept for digit in found):
            return None
        return tuple([self.kept.index(digit) for digit in found])

    def is_inside(self, op: Op) -> bool:
        """Whether all who meet in a collective, or send to one another, are in one process."""
        rest = [n for n in range(len(self.digits.sizes)) if n not in self.kept]
        process = self.digits.index(rest, np.arange(self.world.count))
        if isinstance(op, CollectivePermute):
            sources = self.world.sources(op)
            sent = np.flatnonzero(sources >= 0)
            return bool((process[sources[sent]] == process[sent]).all())
        along, places = self.world.meets_along(op), self.world.places()
        if along is not None:
            return self.dims(op) is not None
        return all(len({*process[places[list(group)]]}) <= 1 for group in self.world.groups(op))


class Learned:
    """What is known of a module's values while it is rebuilt: new ones are learned as they come."""

    def __init__(self, facts: Varying) -> None:
        self.facts, self.axis_bits = facts, facts.axis_bits
        self.masks = facts.joined()

    def of(self, value: Value) -> int:
        """The digits, and the skew, along which a value may vary."""
        found = self.masks.get(value)
        if found is None:
            node = value.node
            everything = self.axis_bits.everything
            if node is None or (node.op.control and node.regions):
                found = everything
            else:
                given = [*node.operands, *captured(node)] if node.regions else node.operands
                mask = union(*[self.of(v) for v in given])
                found = self.facts.analysis.change(node.op).applied(mask)
            self.masks[value] = found
        return found if isinstance(found, int) else union(found)

    def same(self, value: Value, other: Value) -> None:
        """Note that a new value equals one that is known."""
        if value is not other:
            self.masks[value] = self.of(value) & self.of(other)

    def is_equal(self, value: Value, axes: MeshAxes) -> bool:
        """Whether a value is the same on all devices along these axes."""
        mask = self.axis_bits.plain(self.of(value))
        return not mask & self.axis_bits.along(axes)[1]

    def split(self, value: Value, axes: MeshAxes) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
        """The parts of these axes that a value is equal along, and those that it may vary along."""
        mask, parts = self.axis_bits.plain(self.of(value)), self.axis_bits.parts(axes)
        equal = tuple([axis for axis, touched in parts if not mask & touched])
        return equal, tuple([axis for axis, touched in parts if mask & touched])


def varying(
    module: Module,
    functions: Iterable[str] | None = None,
    *,
    devices: int | tuple[int, int] | None = None,
    world: World | None = None,
) -> Varying:
    """The facts of a module: of these functions, or of all that nobody calls, and what they call.

    With a world, that of another program of the same meshes, digits are as they are there.
    """
    nodes: dict[Op, Node] = {}
    for node in module.nodes():
        nodes.setdefault(node.op, node)
    if functions is None:
        reached = set(map(called, nodes))
        listed = [
            f for f in module.functions.values()
            if f.visibility != "private" or f.name not in reached
        ]  # fmt: skip
    else:
        listed = [module.function(name) for name in functions]
    world = world or world_of(module, listed, nodes.values(), devices)
    split = {f.name: _arguments(f, module) for f in listed}
    used = [axes for op in nodes if (axes := axes_of(op)) is not None]
    used += [axes for row in split.values() for axes in row if axes is not None]
    axis_bits = AxisBits(world, used)
    analysis = Analysis(module.functions, axis_bits)
    roots: dict[str, Body] = {}
    for function in listed:
        body = analysis.body(function, _masks(function, split[function.name], axis_bits))
        assert body is not None, "nothing is being called yet"
        roots[function.name] = body
    return Varying(world, axis_bits, roots, analysis)


def _arguments(function: Function, module: Module) -> list[MeshAxes | None]:
    """For each argument, the axes that it varies along, where its sharding is told."""
    found: list[MeshAxes | None] = []
    for attrs in function.arg_attrs or ((),) * len(function.body.args):
        sharding = sharding_in(attrs)
        if sharding is None:
            found.append(None)
            continue
        try:
            named(sharding.mesh, module.meshes)
        except WeftError as error:
            raise error.at(function.loc) from None
        axes = tuple(a for dim in sharding.dims for a in dim.axes)
        found.append(MeshAxes(sharding.mesh, (*axes, *sharding.unreduced)))
    return found


def _masks(function: Function, split: list[MeshAxes | None], axis_bits: AxisBits) -> Masks:
    """What arguments vary along: what their shardings split, or everything."""
    found = {
        axes: axis_bits.everything if axes is None else axis_bits.seen(axes)
        for axes in dict.fromkeys(split)
    }
    args = zip(function.body.args, split, strict=True)
    return tuple([alike(value.type, found[axes]) for value, axes in args])
