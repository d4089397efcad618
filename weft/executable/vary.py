"""The analysis that lockstep rests on: along which digits of the devices each value varies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from weft.errors import Unsupported
from weft.executable.layout import Layout, Mask, also, join, union
from weft.executable.world import World
from weft.ir.module import Module, Node, Region, Value
from weft.ir.op import Op
from weft.ir.reading import captured
from weft.ir.types import Array, FutureType, TensorType, TupleType, Type
from weft.mesh import Sharding
from weft.ops.callbacks import called_by_each
from weft.ops.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectiveBroadcast,
    CollectivePermute,
    PartitionId,
    ReduceScatter,
    ReplicaId,
)
from weft.ops.control import (
    AsyncDone,
    AsyncStart,
    Call,
    Case,
    Composite,
    GetTupleElement,
    If,
    OptimizationBarrier,
    Tuple,
    While,
)
from weft.ops.custom import CustomCall
from weft.ops.local import AllSlice, AxisIndex, PermuteAlongAxes, ReduceScatterTogether
from weft.ops.sharding import NamedComputation
from weft.ops.together import DoneTogether, StartTogether

Masks: TypeAlias = tuple[Mask, ...]


class Where(Protocol):
    """The devices, and where their digits are in a stack."""

    @property
    def world(self) -> World: ...
    @property
    def layout(self) -> Layout: ...


@dataclass
class Scope:
    """What is known where a node stands: the program, the layout, and what its values vary along.

    `slots` says where the values are when the program runs; the analysis alone needs none.
    """

    module: Module
    world: World
    layout: Layout
    masks: dict[Value, Mask] = field(default_factory=dict)
    slots: dict[Value, int] = field(default_factory=dict)
    # Leading dims that a value has been summed over already, which a collective is to sum over.
    summed: dict[Value, int] = field(default_factory=dict)
    # Broadcasts that are left to numpy: their dims are in place, but not repeated.
    placed: set[Value] = field(default_factory=set)
    calls: tuple[str, ...] = ()  # the functions that are being called, the outermost first

    def inner(self, layout: Layout | None = None, call: str | None = None) -> Scope:
        """A scope for a function, or for a part with another layout: it sees no values."""
        if call in self.calls:
            raise Unsupported(f"{call} calls itself", help="write a loop: stablehlo.while")
        calls = self.calls if call is None else (*self.calls, call)
        return Scope(self.module, self.world, layout or self.layout, calls=calls)

    def of(self, values: Sequence[Value]) -> Masks:
        """The masks of values."""
        return tuple([self.masks[v] for v in values])

    def let(self, values: Sequence[Value], masks: Sequence[Mask]) -> None:
        """Take note of what values vary along."""
        self.masks.update(zip(values, masks, strict=True))


def nothing(type: Type) -> Mask:
    """The mask of a value that is equal everywhere."""
    if isinstance(type, TupleType | FutureType):
        return tuple(nothing(t) for t in type.types)
    return 0


def outcome(node: Node, given: Masks, scope: Scope) -> Masks:
    """Along which leading dims the results of a node vary."""
    found = VARY.get(type(node.op))
    if found is not None:
        return found(node, given, scope)
    seen = union(*given, *scope.of(captured(node))) if node.regions else union(*given)
    return tuple(
        [
            seen if isinstance(v.type, TensorType) else also(nothing(v.type), seen)
            for v in node.results
        ]
    )


def analyze(region: Region, args: Sequence[Mask], scope: Scope) -> Masks:
    """Note the masks of all values of a region, whose results' masks are returned."""
    scope.let(region.args, args)
    for node in region.nodes:
        scope.let(node.results, outcome(node, scope.of(node.operands), scope))
    return scope.of(region.results)


# Control flow


def _call(node: Node, given: Masks, scope: Scope) -> Masks:
    callee = getattr(node.op, "callee", None) or node.op.decomposition  # type: ignore[attr-defined]
    return analyze(scope.module.function(callee).body, given, scope.inner(call=callee))


def loop_masks(node: Node, given: Masks, scope: Scope) -> tuple[Masks, int]:
    """What the carried values of a loop vary along, and what its predicate does, at rest."""
    condition, body = node.regions
    carried = given
    while True:
        made = analyze(body, carried, scope)
        after = tuple(join(a, b) for a, b in zip(carried, made, strict=True))
        if after == carried:
            (predicate,) = analyze(condition, carried, scope)
            return carried, union(predicate)
        carried = after


def _while(node: Node, given: Masks, scope: Scope) -> Masks:
    carried, predicate = loop_masks(node, given, scope)
    return tuple(also(m, predicate and merged(scope.layout, predicate)) for m in carried)


def merged(layout: Layout, predicate: int) -> int:
    """The leading dims that become one of rows where a predicate varies along some of them."""
    return predicate | 1 if layout.has_rows else predicate


def _branch(node: Node, given: Masks, scope: Scope) -> Masks:
    predicate = union(given[0])
    found: Masks | None = None
    for region in node.regions:
        made = analyze(region, (), scope)
        found = made if found is None else tuple(map(join, found, made))
    assert found is not None
    if predicate:
        found = tuple(also(m, merged(scope.layout, predicate)) for m in found)
    return found


def _inline(node: Node, given: Masks, scope: Scope) -> Masks:
    return analyze(node.regions[0], given, scope)


def _async_start(node: Node, given: Masks, scope: Scope) -> Masks:
    return (analyze(node.regions[0], given, scope),)


def _async_done(node: Node, given: Masks, scope: Scope) -> Masks:
    (parts,) = given
    assert isinstance(parts, tuple)
    return parts


def _tuple(node: Node, given: Masks, scope: Scope) -> Masks:
    return (given,)


def _element(node: Node, given: Masks, scope: Scope) -> Masks:
    (parts,) = given
    assert isinstance(parts, tuple) and isinstance(node.op, GetTupleElement)
    return (parts[node.op.index],)


def _same(node: Node, given: Masks, scope: Scope) -> Masks:
    return given


def _custom_call(node: Node, given: Masks, scope: Scope) -> Masks:
    """What every device gets by itself may differ."""
    assert isinstance(node.op, CustomCall)
    seen = scope.layout.everything if called_by_each(node.op) else union(*given)
    return tuple([seen if isinstance(v.type, TensorType) else 0 for v in node.results])


# Who a device is


def _replica(node: Node, given: Masks, scope: Scope) -> Masks:
    world = scope.world
    dims = world.atoms.dims((world.grid[1], world.grid[0])) or ()
    return (scope.layout.mask_of(dims),)


def _partition(node: Node, given: Masks, scope: Scope) -> Masks:
    world = scope.world
    if world.grid[0] == 1:
        return (scope.layout.everything,)
    return (scope.layout.mask_of(world.atoms.dims((1, world.grid[1])) or ()),)


def _axis_index(node: Node, given: Masks, scope: Scope) -> Masks:
    assert isinstance(node.op, AxisIndex)
    dims = scope.world.axis_dims(node.op.over.mesh, node.op.over.axes)
    return (scope.layout.everything if dims is None else scope.layout.mask_of(dims),)


def _all_slice(node: Node, given: Masks, scope: Scope) -> Masks:
    assert isinstance(node.op, AllSlice)
    pieces, found = node.op.pieces, union(*given)
    for dim in pieces.dims:
        atoms = scope.world.axis_dims(pieces.mesh, dim.axes)
        found |= scope.layout.everything if atoms is None else scope.layout.mask_of(atoms)
    return (found,)


# Collectives


def group_dims(node: Node, scope: Where) -> tuple[int, ...] | None:
    """The leading dims along which devices meet; None if they meet one group at a time."""
    return scope.layout.dims(scope.world.meets_along(node.op))


def _gives_one(node: Node, given: Masks, scope: Scope) -> Masks:
    """Every device of a group gets the same."""
    dims = group_dims(node, scope)
    if dims is None:
        return (scope.layout.everything,) * len(given)
    gone = scope.layout.mask(dims)
    return tuple(union(m) & ~gone for m in given)


def _gives_each(node: Node, given: Masks, scope: Scope) -> Masks:
    """Every device of a group gets something else."""
    dims = group_dims(node, scope)
    if dims is None:
        return (scope.layout.everything,) * len(given)
    return tuple(union(m) | scope.layout.mask(dims) for m in given)


def moves(node: Node, scope: Where) -> tuple[tuple[int, ...], Array] | None:
    """The leading dims along which values move, and for each index along them its source.

    None if the devices meet one group at a time.
    """
    op, world, layout = node.op, scope.world, scope.layout
    if isinstance(op, PermuteAlongAxes):
        dims = group_dims(node, scope)
        return None if dims is None else (dims, np.asarray(op.sources))
    assert isinstance(op, CollectivePermute)
    sources, atoms = world.sources(op), world.atoms
    places = np.arange(world.count)
    sent = sources >= 0
    # A digit is needed along which values move, or on which it depends what is sent where.
    digits, from_digits = atoms.digits(places), atoms.digits(sources)
    needed = [
        n
        for n in range(len(atoms.sizes))
        if (digits[n] != from_digits[n])[sent].any() or not _alike(sources, n, world)
    ]
    dims = layout.dims(needed)
    if dims is None:
        return None
    along, where = atoms.index(needed, places), atoms.index(needed, sources)
    found = np.full(int(np.prod([atoms.sizes[n] for n in needed], initial=1)), -1)
    found[along[sent]] = where[sent]
    return dims, found


def _alike(sources: Array, digit: int, world: World) -> bool:
    """Whether what is sent does not depend on a digit of the device's number."""
    atoms = world.atoms
    grid = sources.reshape(atoms.sizes)
    first = np.take(grid, [0], digit)
    step = np.arange(atoms.sizes[digit]) * atoms.strides[digit]
    step = step.reshape([-1 if n == digit else 1 for n in range(len(atoms.sizes))])
    return bool(np.array_equal(grid, np.where(first < 0, -1, first + step)))


def _permute(node: Node, given: Masks, scope: Scope) -> Masks:
    found = moves(node, scope)
    if found is None:
        return (scope.layout.everything,) * len(given)
    dims, sources = found
    moved = scope.layout.mask(dims)
    holes = bool((sources < 0).any())
    return tuple(m | moved if m & moved or holes else m for m in map(union, given))


Outcome: TypeAlias = Callable[[Node, Masks, Scope], Masks]
VARY: dict[type[Op], Outcome] = {
    Call: _call,
    Composite: _call,
    While: _while,
    If: _branch,
    Case: _branch,
    NamedComputation: _inline,
    AsyncStart: _async_start,
    AsyncDone: _async_done,
    StartTogether: _async_start,
    DoneTogether: _async_done,
    Tuple: _tuple,
    GetTupleElement: _element,
    OptimizationBarrier: _same,
    CustomCall: _custom_call,
    ReplicaId: _replica,
    PartitionId: _partition,
    AxisIndex: _axis_index,
    AllSlice: _all_slice,
    AllReduce: _gives_one,
    AllGather: _gives_one,
    CollectiveBroadcast: _gives_one,
    ReduceScatter: _gives_each,
    ReduceScatterTogether: _gives_each,
    AllToAll: _gives_each,
    CollectivePermute: _permute,
    PermuteAlongAxes: _permute,
}


def argument_masks(
    scope: Scope, shardings: Sequence[Sharding | None], values: Sequence[Value]
) -> Masks:
    """What the arguments of a function vary along: what their shardings split, or everything."""
    everything = scope.layout.everything
    split = {s: everything if s is None else _split_by(s, scope) for s in dict.fromkeys(shardings)}
    return tuple([also(nothing(v.type), split[s]) for s, v in zip(shardings, values, strict=True)])


def _split_by(sharding: Sharding, scope: Scope) -> int:
    found = 0
    for axes in (*(d.axes for d in sharding.dims), sharding.unreduced):
        dims = scope.world.axis_dims(sharding.mesh, axes)
        found |= scope.layout.everything if dims is None else scope.layout.mask_of(dims)
    return found
