"""Along which axes values vary: exactly, on small programs, and never too few, on random ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.optimize.local_programs import local_program
from tests.run.random_programs import Sample, programs
from tests.varying.programs import INDEX, MESH, ROW, Lines, along, axis, check, over, sub_axes
from weft.errors import WeftError
from weft.ir.dense import Dense
from weft.ir.module import Module, Region, Value, apply
from weft.ir.op import Op
from weft.ir.types import F32, TOKEN, FutureType, TensorType
from weft.mesh import DimSharding, Mesh, MeshAxes, Sharding
from weft.ops.combiners import combiner
from weft.ops.control import (
    AsyncDone,
    AsyncStart,
    Call,
    Case,
    CreateToken,
    GetTupleElement,
    If,
    OptimizationBarrier,
    Tuple,
    While,
)
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.distributed.collective import (
    AllReduce,
    AllToAll,
    CollectiveBroadcast,
    CollectivePermute,
    PartitionId,
    ReduceScatter,
    ReplicaId,
)
from weft.ops.distributed.local import CHANNEL, AllSlice, AxisIndex, PermuteAlongAxes
from weft.ops.distributed.sharding import ManualComputation, NamedComputation
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Add, Compare, Negate
from weft.ops.random import Rng
from weft.ops.reduce import Reduce
from weft.ops.shape import BroadcastInDim, Constant, Reshape
from weft.varying.facts import IncrementalVarying, varying
from weft.varying.masks import union

A, B = 0, 1  # the sub-axes of the axes of MESH
seeds = st.integers(0, 100_000)


# Never too few


@settings(max_examples=40)
@given(seeds, st.integers(4, 24))
def test_values_vary_only_where_the_facts_say(seed: int, count: int):
    program = local_program(seed, count)
    check(program.module, program.arrays(seed), program.mesh.size)


@settings(max_examples=25, suppress_health_check=list(HealthCheck))
@given(programs())
def test_values_of_other_programs_do_too(sample: Sample):
    check(sample.module, sample.stacks, sample.mesh.size)


# Exactly


def constant(lines: Lines, number: int = 1) -> Value:
    return lines.add(Constant(Dense(np.asarray(number, np.int32))))


def flag(lines: Lines, *names: str) -> Value:
    """A predicate that varies along axes."""
    place = lines.add(AxisIndex(over(*names)))
    return lines.add(Compare("EQ"), place, constant(lines))


PIECE = TensorType((4,), F32)
HALF = TensorType((6,), F32)
SUM_B = AllReduce(over("b"), CHANNEL, use_global_device_ids=True)
BY_HAND = ((0, 1, 2), (3, 4, 5))
CROOKED = ((0, 1, 5), (3, 4, 2))
PAIRS_B = ((0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3))
PAIRS_A = ((0, 3), (3, 0), (1, 4), (4, 1), (2, 5), (5, 2))


@pytest.mark.parametrize(
    ("op", "given_along", "expected"),
    [
        (Negate(), (), set()),
        (Negate(), ("a",), {A}),
        (Negate(), ("a", "b"), {A, B}),
        (Negate(), None, {A, B}),
        (SUM_B, ("a", "b"), {A}),
        (SUM_B, ("b",), set()),
        (SUM_B, ("a",), {A}),
        (SUM_B, (), set()),
        (AllReduce(BY_HAND, CHANNEL, use_global_device_ids=True), ("a", "b"), {A}),
        (AllReduce(CROOKED, CHANNEL, use_global_device_ids=True), (), {A, B}),
        (AllReduce(over("b"), CHANNEL, use_global_device_ids=False), (), {A, B}),
        (AllReduce(over("b"), None, use_global_device_ids=False), (), {A, B}),
        (CollectiveBroadcast(over("a"), None), (), {A, B}),
        (CollectiveBroadcast(over("a"), CHANNEL), ("a", "b"), {B}),
        (ReduceScatter(0, over("b"), (PIECE,), CHANNEL, use_global_device_ids=True), (), {B}),
        (
            ReduceScatter(0, over("b"), (PIECE,), CHANNEL, use_global_device_ids=True),
            ("a",),
            {A, B},
        ),
        (AllToAll(0, 0, 2, over("a"), CHANNEL), ("b",), {A, B}),
        (AllToAll(0, 0, 2, over("a"), CHANNEL), (), {A}),
        (AllSlice(Sharding("mesh", (DimSharding((axis("a"),)),)), HALF), (), {A}),
        (AllSlice(Sharding("mesh", (DimSharding((axis("a"),)),)), HALF), ("b",), {A, B}),
        (PermuteAlongAxes(over("b"), (1, 2, 0)), ("a",), {A}),
        (PermuteAlongAxes(over("b"), (1, 2, 0)), ("b",), {B}),
        (PermuteAlongAxes(over("a", "b"), (1, 2, 3, 4, 5, 0)), ("a",), {A, B}),
        (PermuteAlongAxes(over("b"), (1, 2, -1)), ("a",), {A, B}),
        (PermuteAlongAxes(over("b"), (1, 2, -1)), (), {B}),
        (CollectivePermute(PAIRS_B, CHANNEL), (), set()),
        (CollectivePermute(PAIRS_B, CHANNEL), ("a",), {A}),
        (CollectivePermute(PAIRS_A, CHANNEL), ("a",), {A}),
        (CollectivePermute(PAIRS_A[:2], CHANNEL), (), {A, B}),
        (CollectivePermute(PAIRS_B[:3], CHANNEL), (), {A, B}),
        (CollectivePermute(((0, 6),), CHANNEL), (), {A, B}),
        (OptimizationBarrier(), ("a",), {A}),
    ],
)
def test_one_op(op: Op, given_along: tuple[str, ...] | None, expected: set[int]):
    lines = Lines([given_along])
    regions = (combiner("add", ROW),) if isinstance(op, AllReduce | ReduceScatter) else ()
    value = lines.add(op, *lines.args, regions=regions)
    assert along(varying(lines.module()), value) == expected


def test_places():
    lines = Lines()
    values = [lines.add(op) for op in (AxisIndex(over("b")), PartitionId(), ReplicaId())]
    facts = varying(lines.module())
    assert [along(facts, v) for v in values] == [{B}, {A, B}, set()]
    facts = varying(lines.module(), devices=(2, 6))
    assert facts.world.sub_axes.sizes == (2, 6)
    assert [along(facts, v) for v in values] == [{0, 1}, {1}, {0}]
    assert not IncrementalVarying(facts).is_equal(values[2], over("a")), (
        "replicas may stand anywhere"
    )
    turned = Mesh((("a", 2), ("b", 3)), (1, 0, 2, 3, 4, 5))
    facts = varying(lines.module(meshes={"mesh": turned}))
    assert [along(facts, v) for v in values] == [{B}, {A, B}, {A, B}]


def test_a_single_device_tells_nothing_apart():
    lines = Lines([None])
    value = lines.add(Add(), *lines.args * 2)
    place = lines.add(PartitionId())
    facts = varying(lines.module(meshes={"mesh": Mesh(a=1)}))
    assert facts.axis_bits.everything == 0
    assert along(facts, value) == along(facts, place) == set()


def test_results_of_a_collective_follow_their_own_operands():
    lines = Lines([("a",), ("b",)])
    first, second = lines.all(PermuteAlongAxes(over("b"), (2, 0, 1)), *lines.args)
    facts = varying(lines.module())
    assert (along(facts, first), along(facts, second)) == ({A}, {B})


def test_what_a_region_reads_counts():
    lines = Lines([("a",), ("b",)])
    x, y = lines.args
    zero = lines.add(Constant(Dense(np.asarray(0, np.float32))))
    scalar = TensorType((), F32)
    number = lines.add(Reduce((0,), (scalar,)), y, zero, regions=(combiner("add", ROW),))
    inner = Lines([(), ()], scalar)
    inner.add(Add(), inner.add(Add(), *inner.args), number)
    value = lines.add(
        Reduce((0,), (scalar,)), x, zero, regions=(inner.region(inner.nodes[-1].results[0]),)
    )
    facts = varying(lines.module())
    assert (along(facts, number), along(facts, value)) == ({B}, {A, B})


# Control flow


def branch(kind: type[Op], *names: str) -> tuple[Lines, Value]:
    lines = Lines([("a",), ()])
    place = lines.add(AxisIndex(over(*names)))
    chosen = place if kind is Case else flag(lines, *names)
    regions = []
    for value in lines.args:
        inner = Lines()
        regions.append(inner.region(inner.add(Negate(), value)))
    return lines, lines.add(kind(), chosen, regions=tuple(regions))


@pytest.mark.parametrize("kind", [If, Case])
def test_a_branch_varies_as_its_predicate_and_all_its_results(kind: type[Op]):
    lines, value = branch(kind, "b")
    facts = varying(lines.module())
    assert along(facts, value) == {A, B}
    yes, no = (r.results[0] for r in lines.nodes[-1].regions)
    assert (along(facts, yes), along(facts, no)) == ({A}, set())


def loop(lines: Lines, bound: Value, *carried: Value, work: object) -> tuple[Value, ...]:
    """Count up to a bound, and change what is carried in every turn."""
    zero = constant(lines, 0)
    types = [INDEX, *[v.type for v in carried]]
    test, body = Lines(), Lines()
    for inner in (test, body):
        inner.args = tuple(Value(t, None, n) for n, t in enumerate(types))
    again = test.add(Compare("LT", "SIGNED"), test.args[0], bound)
    count = body.add(Add(), body.args[0], constant(body))
    made = work(body, *body.args[1:])  # type: ignore[operator]
    regions = (test.region(again), body.region(count, *made))
    return tuple(lines.all(While(), zero, *carried, regions=regions))


def test_a_loop_rests_where_nothing_more_varies():
    lines = Lines([(), ("a",), ("b",)])
    moved = loop(lines, constant(lines, 3), *lines.args, work=lambda _, x, y, z: (y, z, z))
    facts = varying(lines.module())
    assert [along(facts, v) for v in moved] == [set(), {A, B}, {A, B}, {B}]
    body = lines.nodes[-1].regions[1]
    assert [along(facts, v) for v in body.args] == [set(), {A, B}, {A, B}, {B}]


def test_devices_that_leave_a_loop_at_different_times():
    """In lockstep the turn is the same for all who are in it; by themselves, devices are apart."""
    lines = Lines([("b",)])
    bound = lines.add(AxisIndex(over("a")))
    result = loop(lines, bound, *lines.args, work=lambda inner, x: (inner.add(Negate(), x),))
    facts = varying(lines.module())
    count, value = lines.nodes[-1].regions[1].args
    assert [along(facts, v) for v in (count, value, *result)] == [set(), {B}, {A}, {A, B}]
    learned = IncrementalVarying(facts)
    assert not learned.is_equal(count, over("a")) and learned.is_equal(count, over("b"))
    assert not learned.is_equal(value, over("a"))
    one = lines.nodes[-1].regions[1].nodes[0].results[0]
    assert learned.is_equal(one, over("a", "b")), "a constant is one in every turn"


def test_a_sum_over_devices_ends_the_skew():
    lines = Lines([()])
    bound = lines.add(AxisIndex(over("a")))
    loop(lines, bound, *lines.args, work=lambda inner, x: (inner.sum(x, over("a")),))
    learned = IncrementalVarying(varying(lines.module()))
    body = lines.nodes[-1].regions[1]
    assert not learned.is_equal(body.args[1], over("a"))
    assert learned.is_equal(body.results[1], over("a"))


def test_skew_spreads_as_differences_do():
    lines = Lines([()])
    turn = PermuteAlongAxes(over("a", "b"), (1, 2, 3, 4, 5, 0))
    bound = lines.add(AxisIndex(over("a")))
    loop(lines, bound, *lines.args, work=lambda inner, x: (inner.add(turn, x),))
    learned = IncrementalVarying(varying(lines.module()))
    body = lines.nodes[-1].regions[1]
    assert along(learned.facts, body.results[1]) == set()
    assert not learned.is_equal(body.results[1], over("b"))


def test_who_comes_to_a_loop_together():
    lines, _ = branch(If, "b")
    inner = Lines()
    inside = loop(inner, constant(inner), work=lambda _: ())
    region = inner.region(inner.add(Convert(TensorType((), F32)), inside[0]))
    deep = inner.nodes[-2]
    lines.add(If(), flag(lines, "b"), regions=(region, region))
    loop(lines, constant(lines), work=lambda _: ())
    top = lines.nodes[-1]
    facts = varying(lines.module())
    by_hand = AllReduce(BY_HAND, CHANNEL, use_global_device_ids=True)
    sum_a = AllReduce(over("a"), CHANNEL, use_global_device_ids=True)
    assert [facts.come_together(top, op) for op in (SUM_B, sum_a, by_hand)] == [True] * 3
    assert [facts.come_together(deep, op) for op in (SUM_B, sum_a, by_hand)] == [False, True, False]
    unknown = lines.nodes[0]
    assert not facts.come_together(unknown, sum_a)


def test_a_loop_in_a_skewed_loop():
    lines = Lines()
    bound = lines.add(AxisIndex(over("a")))
    found = []

    def work(inner: Lines) -> tuple[Value, ...]:
        loop(inner, inner.args[0], work=lambda _: ())
        found.append(inner.nodes[-1])
        return ()

    loop(lines, bound, work=work)
    facts = varying(lines.module())
    sum_a = AllReduce(over("a"), CHANNEL, use_global_device_ids=True)
    assert facts.come_together(found[0], SUM_B) and not facts.come_together(found[0], sum_a)


# Calls


def called(*arguments: tuple[str, ...] | None) -> tuple[Lines, Lines, Module]:
    inner = Lines([()])
    inner.add(Negate(), inner.add(Negate(), *inner.args))
    function = inner.function(inner.nodes[-1].results[0], name="twice")
    lines = Lines(arguments)
    for arg in lines.args:
        lines.add(Call("twice", (ROW,)), arg)
    return lines, inner, lines.module(function)


def test_every_call_has_its_own_facts():
    lines, inner, module = called(("a",), ("b",), ("a",), ())
    facts = varying(module)
    assert [along(facts, n.results[0]) for n in lines.nodes] == [{A}, {B}, {A}, set()]
    value, frame = inner.nodes[0].results[0], facts.axis_bits.frames[0]
    bodies = [facts.roots["main"].calls[n] for n in lines.nodes]
    assert [sub_axes(b.masks[value], frame) for b in bodies] == [{A}, {B}, {A}, set()]
    assert bodies[0] is bodies[2], "calls that are alike are looked at once"
    assert sub_axes(facts.joined_masks()[value], frame) == {A, B}
    assert sub_axes(facts.joined_masks()[lines.nodes[3].results[0]], frame) == set()


def test_a_function_that_calls_itself():
    inner = Lines([()])
    inner.add(Call("again", (ROW,)), *inner.args)
    lines = Lines([()])
    value = lines.add(Call("again", (ROW,)), *lines.args)
    module = lines.module(inner.function(inner.nodes[-1].results[0], name="again"))
    facts = varying(module)
    assert along(facts, value) == {A, B}
    learned = IncrementalVarying(facts)
    assert not learned.is_equal(inner.nodes[0].results[0], over("a"))


def test_which_functions_are_looked_at():
    _, _, module = called(("a",))
    assert list(varying(module).roots) == ["main"]
    assert list(varying(module, ["twice"]).roots) == ["twice"]
    alone = module.with_functions({"twice": module.functions["twice"]})
    assert list(varying(alone).roots) == ["twice"], "nobody calls it"


# Parts, effects and what is not known


def test_parts_of_tuples_and_futures_keep_their_own():
    lines = Lines([("a",), ("b",)])
    both = lines.add(Tuple(), *lines.args)
    first, second = (lines.add(GetTupleElement(n), both) for n in range(2))
    inner = Lines([(), ()])
    inner.all(PermuteAlongAxes(over("b"), (2, 0, 1)), *inner.args)
    start = AsyncStart((FutureType((ROW, ROW)),))
    future = lines.add(start, *lines.args, regions=(inner.region(*inner.nodes[-1].results),))
    third, fourth = lines.all(AsyncDone(), future)
    facts = varying(Module({"main": lines.function(first)}, {"mesh": MESH}))
    assert [along(facts, v) for v in (first, second, third, fourth)] == [{A}, {B}, {A}, {B}]
    assert along(facts, both) == along(facts, future) == {A, B}


def test_what_each_device_does_by_itself():
    lines = Lines([("a",)])
    sizes = lines.add(Constant(Dense(np.asarray([12]))))
    low = lines.add(Constant(Dense(np.asarray(0, np.float32))))
    number = lines.add(Rng("UNIFORM", ROW), low, low, sizes)
    unknown = lines.add(CustomCall("nobody_knows", (ROW,)), *lines.args)
    facts = varying(lines.module())
    learned = IncrementalVarying(facts)
    for value, expected in ((number, set()), (unknown, {A})):
        assert along(facts, value) == expected
        assert not learned.is_equal(value, over("a")) and not learned.is_equal(value, over("b"))


def test_named_and_manual_computations():
    lines = Lines([("a",)])
    inner = Lines([()])
    region = inner.region(inner.add(Negate(), *inner.args))
    value = lines.add(NamedComputation("part"), *lines.args, regions=(region,))
    inside = Lines([()])
    region = inside.region(inside.add(Negate(), *inside.args))
    whole = Sharding("mesh", (DimSharding(),))
    manual = lines.add(
        ManualComputation((whole,), (whole,), (), (ROW,)), *lines.args, regions=(region,)
    )
    facts = varying(lines.module())
    assert [along(facts, v) for v in (value, inner.nodes[0].results[0])] == [{A}, {A}]
    assert [along(facts, v) for v in (manual, inside.nodes[0].results[0])] == [{A, B}, {A, B}]


# Several meshes

LINE = Mesh(all=6)
OTHER = Mesh((("x", 2), ("y", 3)), (0, 3, 1, 4, 2, 5))
THREE = Mesh(x=3, y=2)
PART = Mesh(x=3)


@pytest.mark.parametrize("other", [LINE, OTHER, THREE, PART])
def test_meshes_are_taken_apart_together_as_far_as_they_go(other: Mesh):
    first = other.axes[0][0]
    lines = Lines([("a", "b"), ("a",), ()])
    values = [
        lines.sum(x, groups)
        for x in lines.args
        for groups in (over(first, mesh="other"), over("b"))
    ]
    module = lines.module(meshes={"mesh": MESH, "other": other})
    learned = IncrementalVarying(varying(module))
    assert len(learned.axis_bits.frames) == (1 if other is LINE else 2)
    for n, value in enumerate(values):
        groups = over("b") if n % 2 else over(first, mesh="other")
        assert learned.is_equal(value, groups), "what is summed up is equal"
    assert all(learned.is_equal(values[4], over(*n)) for n in (("a",), ("b",)))
    if other is not PART:
        numbers = np.random.default_rng(0).integers(0, 9, (3, 6, 12)).astype(np.float32)
        given_rows = [numbers[0], np.repeat(numbers[1, ::3], 3, 0), numbers[2, :1].repeat(6, 0)]
        check(module, given_rows, 6)


def test_a_sum_along_another_order_mixes_what_differs():
    """Devices 0 and 1 meet, and 2 and 4: what was equal along an axis is not any more."""
    cube, odd = Mesh(a=2, b=2, c=2), Mesh((("x", 4), ("y", 2)), (0, 1, 2, 4, 3, 5, 6, 7))
    lines = Lines([("a",)])
    value = lines.sum(*lines.args, over("y", mesh="odd"))
    module = lines.module(meshes={"mesh": cube, "odd": odd})
    rows = np.repeat(np.arange(8) // 4, 12).reshape(8, 12).astype(np.float32)
    check(module, [rows], 8)
    assert along(varying(module), value) == {0, 1, 2}


def test_parts_of_axes():
    mesh = Mesh(c=12)
    lines = Lines([("c:1:2",), ("c:4:3",)])
    values = [lines.sum(lines.args[0], over("c:1:2")), lines.sum(lines.args[1], over("c:2:2"))]
    values.append(lines.add(AxisIndex(over("c:4:3", "c:1:2"))))
    facts = varying(lines.module(meshes={"mesh": mesh}))
    assert facts.world.sub_axes.sizes == (2, 2, 3)
    assert [along(facts, v) for v in (*lines.args, *values)] == [{0}, {2}, set(), {2}, {0, 2}]
    learned = IncrementalVarying(facts)
    parts = tuple(map(axis, ("c:1:2", "c:2:2", "c:4:3")))
    assert learned.split(lines.args[0], over("c")) == (parts[1:], parts[:1])
    assert learned.split(values[2], over("c:2:6")) == (parts[1:2], parts[2:])
    assert learned.split(values[0], over("c:2:2")) == (parts[1:2], ())


def test_a_part_that_crosses_others_touches_the_whole_axis():
    """Halves come first; thirds of the same axis cannot be told from them."""
    mesh = Mesh(c=12, d=2)
    lines = Lines([("c:1:2",), ("c:1:3",), ("d",)])
    third = lines.sum(lines.args[1], over("c:1:3"))
    halves = lines.sum(lines.args[0], over("c:1:3"))
    still = lines.sum(lines.args[2], over("c:1:3"))
    facts = varying(lines.module(meshes={"mesh": mesh}))
    assert facts.world.sub_axes.sizes == (2, 6, 2)
    assert [along(facts, v) for v in lines.args] == [{0}, {0, 1}, {2}]
    assert [along(facts, v) for v in (third, halves, still)] == [{0, 1}, {0, 1}, {2}]
    learned = IncrementalVarying(facts)
    assert learned.split(lines.args[0], over("c:1:3")) == ((), (axis("c:1:3"),))


# What is learned while a module is rebuilt


def test_new_values_are_learned():
    lines = Lines([("a",), ("b",)])
    learned = IncrementalVarying(varying(lines.module()))
    both = apply(Add(), *lines.args).results[0]
    assert not learned.is_equal(both, over("a")) and not learned.is_equal(both, over("b"))
    summed = apply(SUM_B, both, regions=(combiner("add", ROW),)).results[0]
    assert learned.is_equal(summed, over("b")) and not learned.is_equal(summed, over("a"))
    assert not learned.is_equal(Value(ROW, None, 0), over("a")), "nothing is known of it"
    region = Region((), [], (lines.args[0],))
    yes = apply(Constant(Dense(np.asarray(True)))).results[0]
    made = apply(If(), yes, regions=(region, region)).results[0]
    assert not learned.is_equal(made, over("b"))
    learned.same(both, summed)
    assert learned.is_equal(both, over("b")) and not learned.is_equal(both, over("a"))
    learned.same(summed, summed)
    assert not learned.is_equal(summed, over("a"))


def test_an_argument_on_a_mesh_that_there_is_not():
    lines = Lines([("a",)])
    module = replace(lines.module(), meshes={"other": MESH})
    with pytest.raises(WeftError, match="no mesh 'mesh'"):
        varying(module)


def test_the_sub_axes_of_another_program():
    lines = Lines([("a",)])
    meshes = {"line": LINE, "mesh": MESH}
    coarse = varying(Lines([]).module(meshes=meshes)).world
    value = lines.add(Negate(), *lines.args)
    facts = varying(lines.module(meshes=meshes), world=coarse)
    assert facts.world is coarse and along(facts, value) == {0}
    assert not IncrementalVarying(facts).is_equal(value, over("a"))
    assert IncrementalVarying(facts).is_equal(value, over("b"))


def test_tokens_and_reshapes_are_plain():
    lines = Lines([("a",)])
    wide = TensorType((2, 12), F32)
    value = lines.add(BroadcastInDim((1,), wide), *lines.args)
    value = lines.add(Reshape(TensorType((24,), F32)), value)
    assert union(varying(lines.module()).roots["main"].masks[value]) == 1 << A


def test_groups_by_a_mesh_that_is_written_out():
    lines = Lines([("a", "b")])
    value = lines.sum(*lines.args, MeshAxes(MESH, (axis("b"),)))
    assert along(varying(lines.module()), value) == {A}


def test_a_program_takes_devices_apart_as_finely_as_it_must():
    mesh, half = Mesh(c=12), TensorType((6,), F32)
    pieces = Sharding("mesh", (DimSharding((axis("c:1:2"),)),))
    lines = Lines([()])
    lines.add(AllSlice(pieces, half), *lines.args)
    assert varying(lines.module(meshes={"mesh": mesh})).world.sub_axes.sizes == (2, 6)
    lines = Lines([()])
    lines.sum(*lines.args, over("c:2:3"))
    assert varying(lines.module(meshes={"mesh": mesh})).world.sub_axes.sizes == (2, 3, 2)
    lines = Lines([()])
    lines.attrs = ((("weft.sharding", str(pieces)),),)
    facts = varying(lines.module(meshes={"mesh": mesh}))
    assert facts.world.sub_axes.sizes == (2, 6)
    assert sub_axes(facts.roots["main"].masks[lines.args[0]], facts.axis_bits.frames[0]) == {0}


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_groups_over_replicas(replicas: int):
    """Without a channel replicas meet, with one and without global ids all of their partitions."""
    lines = Lines([None])
    everyone = (tuple(range(replicas)),)
    ops = [
        AllReduce(everyone, None, use_global_device_ids=False),
        AllReduce(everyone, CHANNEL, use_global_device_ids=False),
    ]
    values = [lines.add(op, *lines.args, regions=(combiner("add", ROW),)) for op in ops]
    facts = varying(lines.module(meshes={"line": LINE}), devices=(replicas, 6))
    partitions = {0} if replicas == 1 else {1}
    assert [along(facts, v) for v in values] == [partitions, set()]


def test_tokens_carry_order_and_nothing_that_varies():
    lines = Lines([("a",)])
    first = lines.add(CreateToken())
    _, token = lines.all(CustomCall("nobody_knows", (ROW, TOKEN)), *lines.args, first)
    value = lines.add(CustomCall("nobody_knows", (ROW,)), token)
    main = lines.function(value)
    facts = varying(Module({"main": main}, {"mesh": MESH}))
    assert along(facts, token) == along(facts, value) == set()
