"""Tile a local program: kernels, host nodes and collectives in order, with a memory plan."""

from __future__ import annotations

from collections.abc import Sequence

from weft.executable.executable import Executable
from weft.executable.items import Tiled
from weft.executable.stack_dims import StackDims
from weft.ir.attrs import Attrs
from weft.ir.module import Module
from weft.ir.names import DONATED
from weft.mesh.owners import StackedAxes
from weft.target import Target
from weft.tile.alias_views import without_views
from weft.tile.flows import with_flows
from weft.tile.lower import HostTraits, Lowering
from weft.tile.memory.plan import plan
from weft.tile.scope import Scope
from weft.tune import end_tuning
from weft.varying.facts import varying
from weft.varying.world import World


def tile(
    module: Module,
    function: str = "main",
    *,
    host: HostTraits,
    target: Target,
    fold: bool = True,
    devices: int | tuple[int, int] | None = None,
    donate: Sequence[int] | None = None,
    world: World | None = None,
    stacked: StackedAxes | None = None,
) -> Executable:
    """A function of a local module as items over stacks of a process's devices.

    Arguments vary along the axes of their `weft.sharding`, or along all axes without one. Without
    `fold` every value is computed as written, for inspection. With the world of another program on
    the same meshes, stacks have its order. A process holds the devices along the `stacked` axes
    or parts of axes: all if None, a single one if empty.
    """
    main = module.function(function)
    facts = varying(module, (function,), devices=devices, world=world)
    absent: tuple[int, ...] = ()
    if stacked is not None:
        along = stacked(facts.world.mesh) if callable(stacked) else stacked
        fine, absent = facts.world.apart(along)
        if fine is not facts.world:
            facts = varying(module, (function,), world=fine)
    body = main.body
    attrs = main.arg_attrs or ((),) * len(body.args)
    lowering = Lowering(host, target, fold)
    known = facts.roots[function]
    stack_dims = StackDims(facts.world.sub_axes, absent=absent)
    scope = Scope(module, facts.world, stack_dims, known, calls=(function,))
    masks = scope.of(body.args)
    inputs = tuple([lowering.new(v, m, scope) for v, m in zip(body.args, masks, strict=True)])
    scope.slots.update(zip(body.args, inputs, strict=True))
    block = lowering.region(body, scope)
    end_tuning(lowering.target)
    if lowering.target.has_kernels:
        block = without_views(block, lowering.stacks)
        block = with_flows(block, lowering.stacks, lowering.constants, lowering.target)
    tiled = Tiled(
        module,
        function,
        facts.world,
        scope.stack_dims,
        block,
        inputs,
        tuple(lowering.stacks),
        lowering.constants,
        masks,
        scope.of(body.results),
        donated_arguments(attrs, donate),
    )
    return Executable(tiled, plan(tiled), target.name)


def donated_arguments(attrs: Sequence[Attrs], donate: Sequence[int] | None) -> tuple[int, ...]:
    """The arguments whose memory results may take, by attributes or by request."""
    if donate is not None:
        return tuple(donate)
    return tuple(n for n, listed in enumerate(attrs) if DONATED & {name for name, _ in listed})
