"""The axes along which each value of a local program varies between devices.

Every device runs the same program, so a value computed from uniform values is uniform. Values vary
where shards are passed in, where a device reads its id, and where it slices its own shard; they
become uniform again along axes that are reduced or gathered over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import cached_property

from weft.errors import WeftError
from weft.ir.module import Function, Module, Node, Value
from weft.ir.op import Op
from weft.ir.purity import callee_of
from weft.ir.uses import free_variables
from weft.mesh import Axis, MeshAxes
from weft.mesh.axes import named
from weft.records import dataclass
from weft.varying.analysis import NONE, Analysis, FunctionFacts
from weft.varying.axis_bits import AxisBits
from weft.varying.masks import Mask, Masks, join, same_for_elements, union
from weft.varying.world import World, axes_of, sharding_in, world_of


@dataclass(frozen=True)
class Varying:
    """The sub-axes along which each value of a module may vary.

    The analysis is context-sensitive: a function has facts for each call, by the masks of its
    arguments. `roots` has the bodies of functions without callers, by name.
    """

    world: World
    axis_bits: AxisBits
    roots: Mapping[str, FunctionFacts]
    analysis: Analysis = field(repr=False)

    def come_together(self, loop: Node, op: Op) -> bool:
        """Whether a collective's groups enter a loop as a whole or not at all, in all its calls."""
        # With the skew: outside of lockstep a device may reach the loop an iteration earlier.
        parting = self.axis_bits.plain(self._around.get(loop, self.axis_bits.everything))
        axes = axes_of(op)
        return not parting & (parting if axes is None else self.axis_bits.along(axes)[1])

    @cached_property
    def _around(self) -> Mapping[Node, int]:
        around: dict[Node, int] = {}
        for body in self.analysis.bodies.values():
            for node, mask in body.around.items():
                around[node] = around.get(node, 0) | mask
        return around

    def joined_masks(self) -> dict[Value, Mask]:
        """The mask of each value, joined over all calls of its function."""
        masks: dict[Value, Mask] = {}
        seen: set[str] = set()
        for (name, _, _), body in self.analysis.bodies.items():
            if name in seen:  # another context of the same function
                for value, mask in body.masks.items():
                    masks[value] = join(masks[value], mask)
            else:
                masks.update(body.masks)
            seen.add(name)
        return masks


class IncrementalVarying:
    """Varying facts of a module during a rewrite: those of new values are computed as they come."""

    def __init__(self, facts: Varying) -> None:
        self.facts, self.axis_bits = facts, facts.axis_bits
        self.masks = facts.joined_masks()

    def of(self, value: Value) -> int:
        """The sub-axes, and the skew, along which a value may vary."""
        mask = self.masks.get(value)
        if mask is None:
            mask = self.masks[value] = self._computed(value.node)
        return mask if isinstance(mask, int) else union(mask)

    def _computed(self, node: Node | None) -> int:
        # New arguments and new control flow: not analysed again, so anything is possible.
        if node is None or (node.regions and node.op.control):
            return self.axis_bits.everything
        joined = 0
        for value in (*node.operands, *free_variables(node)) if node.regions else node.operands:
            joined |= self.of(value)
        change = self.facts.analysis.change(node.op)
        return joined if change is NONE else change.applied(joined)

    def same(self, value: Value, other: Value) -> None:
        """Record that a new value equals a known one."""
        if value is not other:
            # Both masks are upper bounds of one variation, and so is their intersection.
            self.masks[value] = self.of(value) & self.of(other)

    def is_equal(self, value: Value, axes: MeshAxes) -> bool:
        """Whether a value is uniform along these axes."""
        mask = self.axis_bits.plain(self.of(value))
        return not mask & self.axis_bits.along(axes)[1]

    def split(self, value: Value, axes: MeshAxes) -> tuple[tuple[Axis, ...], tuple[Axis, ...]]:
        """The parts of these axes that a value is uniform along, and those that it varies along."""
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
    """The facts of a module: of these functions, or of all without callers, and their callees.

    With a world, of another program on the same meshes, sub-axes are taken from there.
    """
    nodes: dict[Op, Node] = {}  # one for each op: only attributes matter to the world
    for node in module.nodes():
        nodes.setdefault(node.op, node)
    if functions is None:
        reached = set(map(callee_of, nodes))
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
    roots: dict[str, FunctionFacts] = {}
    for function in listed:
        body = analysis.body(function, _masks(function, split[function.name], axis_bits))
        assert body is not None, "nothing is being called yet"
        roots[function.name] = body
    return Varying(world, axis_bits, roots, analysis)


def _arguments(function: Function, module: Module) -> list[MeshAxes | None]:
    """For each argument, the axes that it varies along, if it has a sharding."""
    split: list[MeshAxes | None] = []
    for attrs in function.arg_attrs or ((),) * len(function.body.args):
        sharding = sharding_in(attrs)
        if sharding is None:
            split.append(None)
            continue
        try:
            named(sharding.mesh, module.meshes)
        except WeftError as error:
            raise error.at(function.loc) from None
        # Partial sums differ as well along the axes over which they are unreduced.
        axes = tuple(a for dim in sharding.dims for a in dim.axes)
        split.append(MeshAxes(sharding.mesh, (*axes, *sharding.unreduced)))
    return split


def _masks(function: Function, split: list[MeshAxes | None], axis_bits: AxisBits) -> Masks:
    """The masks of arguments: the axes of their shardings, or everything."""
    mask_of = {
        axes: axis_bits.everything if axes is None else axis_bits.affected_bits(axes)
        for axes in dict.fromkeys(split)
    }
    args = zip(function.body.args, split, strict=True)
    return tuple([same_for_elements(value.type, mask_of[axes]) for value, axes in args])
