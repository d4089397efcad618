"""A process that has some of the devices: what its stacks show, and who meets inside of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.optimize.local_programs import local_program
from tests.varying.programs import MESH, Lines, axis, differs_along, observed, over
from weft.errors import WeftError
from weft.executable.stack_dims import StackDims, collective_dims
from weft.mesh import Axis, Mesh
from weft.mesh.sub_axes import span_of, sub_axes_of
from weft.ops.control import Tuple
from weft.ops.distributed.collective import AllReduce, CollectivePermute
from weft.ops.distributed.local import CHANNEL, AxisIndex, PermuteAlongAxes
from weft.varying.facts import varying
from weft.varying.world import World

GROUPS = ((0, 1, 2), (3, 4, 5))
CROOKED = ((0, 1, 5), (3, 4, 2))


def reduce(groups: object) -> AllReduce:
    return AllReduce(groups, CHANNEL, use_global_device_ids=True)  # type: ignore[arg-type]


def world_of(mesh: Mesh = MESH, varies: tuple[str, ...] = ()) -> World:
    return varying(Lines([varies]).module(meshes={"mesh": mesh})).world


def stacking(*names: str, world: World | None = None) -> tuple[World, StackDims]:
    """The world and the layout of a process that has the devices along these axes."""
    fine, absent = (world or world_of()).apart(tuple(map(axis, names)))
    return fine, StackDims(fine.sub_axes, absent=absent)


def test_all_devices_here():
    facts = varying(Lines([("a",), None]).module())
    everything = StackDims(facts.world.sub_axes)
    assert stacking("a", "b", world=facts.world) == (facts.world, everything)
    assert stacking("b", "a", world=facts.world)[1] == everything, "dims are in the mesh's order"
    assert [everything.shown(m) for m in range(4)] == [0, 1, 2, 3]
    assert everything.shown((1, (2, 0))) == (1, (2, 0))
    assert everything.shown(facts.axis_bits.skew | 2) == 2, "skew is nothing in lockstep"


@pytest.mark.parametrize(
    ("names", "sizes", "masks"),
    [
        (("a",), (2, 1), (0, 1, 0, 1)),
        (("b",), (1, 3), (0, 0, 2, 2)),
        ((), (1, 1), (0, 0, 0, 0)),
    ],
)
def test_some_devices_here(names: tuple[str, ...], sizes: object, masks: object):
    _, some = stacking(*names)
    assert some.shape(some.everything) == sizes
    assert tuple(some.shown(m) for m in range(4)) == masks


def test_a_single_device_has_nobody_elsewhere():
    world = world_of(Mesh(c=1))
    assert world.apart(()) == (world, ())


def test_parts_that_the_program_does_not_tell_apart():
    world = world_of(Mesh(c=12), ("c",))
    assert world.sub_axes.sizes == (12,)
    fine, some = stacking("c:2:3", world=world)
    assert (fine.sub_axes.sizes, some.absent, some.shape(some.everything)) == (
        (2, 3, 2),
        (0, 2),
        (1, 3, 1),
    )
    assert stacking("c:6:2", "c:1:2", world=world)[1].absent == (1,)


def test_parts_that_cross_those_of_the_program():
    with pytest.raises(WeftError, match="cannot be stacked") as error:
        stacking("c:1:3", world=world_of(Mesh(c=12), ("c:1:2",)))
    assert "(2, 6)" in str(error.value)


@pytest.mark.parametrize(
    ("op", "names", "dims"),
    [
        (reduce(over("b")), ("a", "b"), (1,)),
        (reduce(over("b", "a")), ("a", "b"), (1, 0)),
        (reduce(over("b")), ("b",), (1,)),
        (reduce(over("b")), ("a",), None),
        (reduce(over("a", "b")), ("a",), None),
        (reduce(GROUPS), ("b",), (1,)),
        (reduce(GROUPS), ("a",), None),
        (reduce(CROOKED), ("a", "b"), None),
        (PermuteAlongAxes(over("b"), (1, 2, -1)), ("b",), (1,)),
        (PermuteAlongAxes(over("b"), (1, 2, -1)), ("a",), None),
        (CollectivePermute(((0, 3), (1, 4), (2, 5)), CHANNEL), ("a",), (0,)),
        (CollectivePermute(((0, 3), (1, 4), (2, 5)), CHANNEL), ("b",), None),
        (CollectivePermute(((0, 1),), CHANNEL), ("b",), None),
        (CollectivePermute(((0, 1),), CHANNEL), ("a", "b"), (0, 1)),
        (CollectivePermute((), CHANNEL), (), ()),
    ],
)
def test_collectives_along_leading_dims(op: AllReduce, names: tuple[str, ...], dims: object):
    world, some = stacking(*names)
    assert collective_dims(op, some, world) == dims


@settings(max_examples=25)
@given(st.integers(0, 100_000), st.integers(4, 20), st.data())
def test_what_is_equal_in_a_process_is_stored_once(seed: int, count: int, data: st.DataObject):
    """In every process, pieces differ only along the leading dims of their masks."""
    program = local_program(seed, count)
    mesh = program.mesh
    names = [Axis(n) for n, _ in mesh.axes]
    halves = [Axis(n, before, 2) for n, size in mesh.axes if size == 4 for before in (1, 2)]
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True))
    if halves and not chosen:
        chosen = [data.draw(st.sampled_from(halves))]
    world, absent = varying(program.module).world.apart(chosen)
    some = StackDims(world.sub_axes, absent=absent)
    places = world.places()
    coordinates, rest = world.sub_axes.coordinates(places), world.sub_axes.index(absent, places)
    masks = varying(program.module, world=world).roots["main"].masks
    for value, stack in observed(program.module, program.arrays(seed), mesh.size):
        mask = some.shown(masks[value])
        for process in range(rest.max() + 1):
            mine = np.flatnonzero(rest == process)
            seen = differs_along(stack[mine], [d[mine] for d in coordinates])
            assert all(mask >> n & 1 for n in seen), repr(value.node)
    for node in program.module.nodes():
        if node.op.collective:
            groups = world.groups(node.op)
            if isinstance(node.op, CollectivePermute):
                groups = node.op.source_target_pairs
            alone = all(len({int(rest[d]) for d in group}) == 1 for group in groups)
            assert alone or collective_dims(node.op, some, world) is None


def test_the_dims_are_those_of_the_stacked_axes():
    mesh = Mesh(x=2, y=4, z=3)
    world, some = stacking("z", "y:2:2", world=world_of(mesh))
    spans = [span_of(axis(n), mesh) for n in ("y:2:2", "z")]
    fine = sub_axes_of(24, [(12, 2), (3, 4), (1, 3), *spans])
    assert (some.sub_axes, some.absent) == (fine, (0, 1))
    assert collective_dims(PermuteAlongAxes(over("z"), (1, 2, 0)), some, world) == (3,)
    assert collective_dims(reduce(over("y")), some, world) is None, "only half of it is here"


def test_parts_of_values_are_shown_each():
    lines = Lines([("a",), ("b",)])
    both = lines.add(Tuple(), *lines.args)
    lines.add(AxisIndex(over("a")))
    facts = varying(lines.module())
    _, some = stacking("b", world=facts.world)
    assert some.shown(facts.roots["main"].masks[both]) == (0, 2)
