"""A process that has some of the devices: what its stacks show, and who meets inside of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.optimize.local_programs import local_program
from tests.varying.programs import MESH, Lines, axis, differs_along, observed, over
from weft.errors import WeftError
from weft.mesh import Axis, Mesh
from weft.mesh.parts import atoms_of, span_of
from weft.ops.collective import AllReduce, CollectivePermute
from weft.ops.control import Tuple
from weft.ops.local import CHANNEL, AxisIndex, PermuteAlongAxes
from weft.varying import Stacking, varying

GROUPS = ((0, 1, 2), (3, 4, 5))
CROOKED = ((0, 1, 5), (3, 4, 2))
UNEVEN = ((0, 1), (2,), (3, 4, 5))


def reduce(groups: object) -> AllReduce:
    return AllReduce(groups, CHANNEL, use_global_device_ids=True)  # type: ignore[arg-type]


def stacking(*names: str, mesh: Mesh = MESH) -> Stacking:
    facts = varying(Lines().module(meshes={"mesh": mesh}))
    return facts.restricted(tuple(map(axis, names)))


def test_all_devices_here():
    facts = varying(Lines([("a",), None]).module())
    everything = facts.restricted()
    assert everything == facts.restricted((Axis("a"), Axis("b")))
    assert everything == facts.restricted((Axis("b"), Axis("a"))), "dims are in the mesh's order"
    assert everything.sizes == (2, 3)
    assert [everything.mask(m) for m in range(4)] == [0, 1, 2, 3]
    assert everything.mask((1, (2, 0))) == (1, (2, 0))
    assert everything.mask(facts.axis_bits.skew | 2) == 2, "skew is nothing in lockstep"


@pytest.mark.parametrize(
    ("names", "sizes", "masks"),
    [
        (("a",), (2,), (0, 1, 0, 1)),
        (("b",), (3,), (0, 0, 1, 1)),
        ((), (), (0, 0, 0, 0)),
    ],
)
def test_some_devices_here(names: tuple[str, ...], sizes: object, masks: object):
    some = stacking(*names)
    assert (some.sizes, tuple(some.mask(m) for m in range(4))) == (sizes, masks)


def test_parts_that_the_program_does_not_tell_apart():
    facts = varying(Lines([("c",)]).module(meshes={"mesh": Mesh(c=12)}))
    assert facts.world.atoms.sizes == (12,)
    some = facts.restricted((axis("c:2:3"),))
    assert (some.sizes, some.mask(0), some.mask(1)) == ((3,), 0, 1)
    some = facts.restricted((axis("c:6:2"), axis("c:1:2")))
    assert (some.sizes, some.mask(1)) == ((2, 2), 3)


def test_parts_that_cross_those_of_the_program():
    facts = varying(Lines([("c:1:2",)]).module(meshes={"mesh": Mesh(c=12)}))
    with pytest.raises(WeftError, match="cannot be stacked") as error:
        facts.restricted((axis("c:1:3"),))
    assert "(2, 6)" in str(error.value)


@pytest.mark.parametrize(
    ("op", "names", "dims", "inside"),
    [
        (reduce(over("b")), ("a", "b"), (1,), True),
        (reduce(over("b", "a")), ("a", "b"), (1, 0), True),
        (reduce(over("b")), ("b",), (0,), True),
        (reduce(over("b")), ("a",), None, False),
        (reduce(over("a", "b")), ("a",), None, False),
        (reduce(GROUPS), ("b",), (0,), True),
        (reduce(GROUPS), ("a",), None, False),
        (reduce(CROOKED), ("a", "b"), None, True),
        (reduce(CROOKED), ("b",), None, False),
        (reduce(UNEVEN), ("b",), None, True),
        (reduce(UNEVEN), ("a",), None, False),
        (PermuteAlongAxes(over("b"), (1, 2, -1)), ("b",), (0,), True),
        (PermuteAlongAxes(over("b"), (1, 2, -1)), ("a",), None, False),
        (CollectivePermute(((0, 3), (1, 4), (2, 5)), CHANNEL), ("a",), (0,), True),
        (CollectivePermute(((0, 3), (1, 4), (2, 5)), CHANNEL), ("b",), None, False),
        (CollectivePermute(((0, 1),), CHANNEL), ("b",), None, True),
        (CollectivePermute(((0, 1),), CHANNEL), ("a",), None, False),
        (CollectivePermute(((0, 1),), CHANNEL), ("a", "b"), (0, 1), True),
        (CollectivePermute((), CHANNEL), (), (), True),
    ],
)
def test_who_meets_inside(op: AllReduce, names: tuple[str, ...], dims: object, inside: bool):
    some = stacking(*names)
    assert (some.dims(op), some.is_inside(op)) == (dims, inside)


def test_devices_in_another_order():
    mesh = Mesh((("a", 2), ("b", 3)), (0, 2, 4, 1, 3, 5))
    some = stacking("b", mesh=mesh)
    assert some.is_inside(reduce(((0, 2), (4,), (1, 3, 5))))
    assert not some.is_inside(reduce(((0, 1), (2, 3, 4, 5))))
    assert some.is_inside(CollectivePermute(((0, 2), (5, 1)), CHANNEL))
    assert not some.is_inside(CollectivePermute(((0, 1),), CHANNEL))


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
    facts = varying(program.module)
    some = facts.restricted(chosen)
    places = facts.world.places()
    digits = some.digits.digits(places)
    here = [digits[n] for n in some.kept]
    rest = some.digits.index([n for n in range(len(digits)) if n not in some.kept], places)
    masks = facts.roots["main"].masks
    for value, stack in observed(program.module, program.arrays(seed), mesh.size):
        mask = some.mask(masks[value])
        for process in range(rest.max() + 1):
            mine = np.flatnonzero(rest == process)
            seen = differs_along(stack[mine], [d[mine] for d in here])
            assert all(mask >> n & 1 for n in seen), repr(value.node)
    for node in program.module.nodes():
        if node.op.collective:
            groups = facts.world.groups(node.op)
            if isinstance(node.op, CollectivePermute):
                groups = node.op.source_target_pairs
            alone = all(len({int(rest[d]) for d in group}) == 1 for group in groups)
            assert some.is_inside(node.op) == alone
            assert alone or some.dims(node.op) is None


def test_the_dims_are_those_of_the_stacked_axes():
    mesh = Mesh(x=2, y=4, z=3)
    facts = varying(Lines().module(meshes={"mesh": mesh}))
    some = facts.restricted((axis("z"), axis("y:2:2")))
    spans = [span_of(axis(n), mesh) for n in ("y:2:2", "z")]
    fine = atoms_of(24, [(12, 2), (3, 4), (1, 3), *spans])
    assert (some.digits, some.kept, some.sizes) == (fine, (2, 3), (2, 3))
    assert [some.mask(1 << n) for n in range(3)] == [0, 1, 2]
    assert some.dims(PermuteAlongAxes(over("z"), (1, 2, 0))) == (1,)
    assert some.dims(reduce(over("y"))) is None, "only half of it is here"


def test_parts_of_values_are_shown_each():
    lines = Lines([("a",), ("b",)])
    both = lines.add(Tuple(), *lines.args)
    lines.add(AxisIndex(over("a")))
    module = lines.module()
    facts = varying(module)
    assert facts.restricted((Axis("b"),)).mask(facts.roots["main"].masks[both]) == (0, 1)
