"""Kernels that verify, and those that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emit.llvm.corpus import corpus
from tests.kernels import attention_cases, random_kernels
from tests.kernels.building import Building
from weft.errors import WeftError
from weft.ir.module import Node, Region, Value
from weft.ir.types import BOOL, DTYPES, F32, F64, I32, TensorType
from weft.kernels.attention import AttentionMask, Window
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Affine, Apply, Contract, Fill, Guard, Load, Operand, Reduce, Shift
from weft.kernels.kernel import Store as Stored
from weft.kernels.single_node import SingleNode
from weft.kernels.verify import reach, verify_kernel
from weft.ops.elementwise.pointwise import Add, And, Compare
from weft.ops.index import Gather, GatherDims
from weft.ops.shape import Transpose
from weft.ops.sort import Sort, TopK


@pytest.mark.parametrize("kernel", [k for _, k in corpus()], ids=lambda kernel: kernel.name)
def test_the_corpus_verifies(kernel):
    verify_kernel(kernel)


@settings(max_examples=30)
@given(random_kernels.kernels())
def test_random_kernels_verify(made):
    verify_kernel(made[1])


@settings(max_examples=20)
@given(attention_cases.kernels(lse=True), st.booleans())
def test_random_attention_verifies(kernel, bias):
    verify_kernel(kernel)
    verify_kernel(attention_cases.backward(kernel, bias=bias))


# Where accesses reach


def building():
    """out[i, j] = in0[i, j] of 4 x 8."""
    k = Building(i=4, j=8)
    k.write("ij", k.read("ij"))
    return k


@pytest.mark.parametrize(
    ("offset", "strides", "guards", "shifts", "found"),
    [
        (0, (8, 1), (), (), (0, 31)),
        (-1, (8, 1), (), (), (-1, 30)),
        (31, (-8, -1), (), (), (0, 31)),
        # A guard of one factor
        (-1, (8, 1), (((0, 1), 0, 1, 9),), (), (0, 30)),
        (-2, (8, 1), (((0, -2), 3, -11, 0),), (), (0, 29)),
        # A guard of two factors, such as those of a window, and one of them with a third
        (-1, (1, 1), (((1, 1), -1, 0, 5),), (), (0, 4)),
        (-3, (2, 2), (((1, 1), -1, 0, 5),), (), (-1, 7)),
        (0, (8, 1), (((8, 1), 0, 3, 30),), (), (3, 29)),
        # Guards that never hold
        (99, (8, 1), (((0, 1), 0, 8, 9),), (), None),
        (99, (0, 0), (((0, 0), 5, 0, 5),), (), None),
        (99, (8, 1), (((1, 1), 0, 11, 12),), (), None),
        # Shifts
        (0, (0, 1), (), ((3, 8, True),), (0, 31)),
        (24, (0, 1), (), ((3, -8, False),), (0, 31)),
    ],
)
def test_reach(offset, strides, guards, shifts, found):
    conditions = [Guard(Affine(s, o), low, high) for s, o, low, high in guards]
    moves = [Shift(0, limit, stride, clamped) for limit, stride, clamped in shifts]
    assert reach(Affine(strides, offset), conditions, moves, [4, 8], 32) == found


@settings(max_examples=60)
@given(st.data())
def test_reach_bounds_every_point(data):
    """Whatever the guards: no point that they leave is outside, and few points are met exactly."""
    sizes = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    affine = st.builds(Affine, st.tuples(*[st.integers(-6, 6) for _ in sizes]), st.integers(-9, 9))
    at = data.draw(affine)
    low, size = st.integers(-9, 9), st.integers(0, 12)
    guards = data.draw(
        st.lists(st.builds(lambda a, n, m: Guard(a, n, n + m), affine, low, size), max_size=3)
    )
    found = []
    for point in points(sizes):
        place, *indices = [
            a.offset + sum(s * i for s, i in zip(a.strides, point, strict=True))
            for a in (at, *(g.index for g in guards))
        ]
        if all(g.low <= i < g.high for g, i in zip(guards, indices, strict=True)):
            found.append(place)
    bounds = reach(at, guards, (), sizes, 3)
    if not found:
        # What does not vary along an empty factor may be read before its loop.
        assert bounds is None or 0 <= bounds[0] <= bounds[1] < 3 or 0 in sizes
        return
    assert bounds is not None and bounds[0] <= min(found) and max(found) <= bounds[1]
    if not 0 <= bounds[0] <= bounds[1] < 3:
        assert bounds == (min(found), max(found))


def points(sizes):
    """Every point of factors."""
    if not sizes:
        yield ()
        return
    for first in range(sizes[0]):
        for rest in points(sizes[1:]):
            yield (first, *rest)


# Hostile kernels


def hostile(**fields):
    return lambda: replace(building().kernel(), **fields)


def step(number, **fields):
    """The kernel with a step that has other fields."""

    def make():
        kernel = building().kernel()
        steps = list(kernel.steps)
        steps[number] = replace(steps[number], **fields)
        return replace(kernel, steps=tuple(steps))

    return make


def more(*steps):
    """The kernel with more steps at its end."""

    def make():
        kernel = building().kernel()
        return replace(kernel, steps=(*kernel.steps, *steps))

    return make


def schedule(**fields):
    def make():
        kernel = building().kernel()
        return replace(kernel, schedule=replace(kernel.schedule, **fields))

    return make


FACTORS = building().kernel().factors
OPERANDS = building().kernel().operands
NOWHERE = Affine((0, 0))
HOSTILE = {
    "is not a valid function name": hostile(name='x"() { ret void } define void @"y'),
    "' is not a valid function name": hostile(name="x\n"),
    "it has too many operands": hostile(operands=(Operand(F32, (), False),) * (1 << 12 | 1)),
    "in0 has too many dims": hostile(operands=(Operand(F32, (1,) * 65, False),)),
    "it has too many factors": hostile(factors=building().kernel().factors * 33),
    "it has too many steps": hostile(steps=(Fill(1, F32),) * (1 << 14 | 1)),
    "it has too many points": hostile(
        factors=(replace(FACTORS[0], size=1 << 61), replace(FACTORS[1], size=4))
    ),
    "a factor has a negative size": hostile(factors=(replace(FACTORS[0], size=-4), FACTORS[1])),
    "two factors have one name": hostile(factors=(FACTORS[0], FACTORS[0])),
    "a factor has no name": hostile(factors=(replace(FACTORS[0], name="%x"), FACTORS[1])),
    "in0 has a negative size": hostile(operands=(Operand(F32, (-4, -8)), OPERANDS[1])),
    "in0 is too large": hostile(operands=(Operand(F32, (1 << 40, 1 << 20)), OPERANDS[1])),
    "step 0: it reaches 0..31 of in0, which has 30": hostile(
        operands=(Operand(F32, (30,)), OPERANDS[1])
    ),
    "step 1: it reaches 0..31 of out1, which has 31": hostile(
        operands=(OPERANDS[0], Operand(F32, (31,), output=True))
    ),
    "step 0: it reaches -1..30 of in0": step(0, at=Affine((8, 1), -1)),
    "step 0: unknown operand 2": step(0, operand=2),
    "step 0: unknown operand -1": step(0, operand=-1),
    "step 0: out1 is not read": step(0, operand=1),
    "step 1: in0 is not written": step(1, operand=0),
    "step 0: in0 is f32, not f64": step(0, dtype=F64),
    "step 0: a place has not a stride for each factor": step(0, at=Affine((8,))),
    "step 0: a place is too far away": step(0, at=Affine((1 << 62, 1))),
    "step 1: it reads step 1, which does not come before it": step(1, arg=1),
    "step 1: it reads step -1": step(1, arg=-1),
    "step 2: it reads step 1, a store": more(Stored(1, NOWHERE, 1)),
    "step 0: a guard is too far away": step(0, guards=(Guard(NOWHERE, -(1 << 63), 1),)),
    "step 2: a place is counted in integers": more(Load(0, NOWHERE, F32, (), (Shift(0, 1, 1),))),
    "step 3: a limit is negative": more(
        Fill(1, I32), Load(0, NOWHERE, F32, (), (Shift(2, -1, 1),))
    ),
    "step 3: it reaches 0..32 of in0": more(
        Fill(1, I32), Load(0, NOWHERE, F32, (), (Shift(2, 4, 8),))
    ),
    "step 3: it reaches -8..0 of in0": more(
        Fill(1, I32), Load(0, NOWHERE, F32, (), (Shift(2, 1, -8, clamped=False),))
    ),
    "step 2: 2147483648 is not a valid i32": more(Fill(1 << 31, I32)),
    "step 2: 0.5 is not a valid i32": more(Fill(0.5, I32)),
    "step 2: 1j is not a valid f32": more(Fill(1j, F32)),
    "step 2: stablehlo.add gives f32, not f64": more(Apply(Add(), (0, 0), F64)),
    "step 2: stablehlo.add: takes 2 operands, 1 given": more(Apply(Add(), (0,), F32)),
    "step 2: stablehlo.and: ": more(Apply(And(), (0, 0), F32)),
    "step 2: stablehlo.transpose is not elementwise": more(Apply(Transpose(()), (0,), F32)),
    "step 2: unknown factors": more(Reduce("add", 0, None, (2,), F32)),
    "step 2: it combines twice along one factor": more(Reduce("add", 0, None, (1, 1), F32)),
    "step 2: what it begins with varies along what it combines": more(
        Reduce("add", 0, 0, (1,), F32)
    ),
    "step 2: step 0 is f32, not f64": more(Reduce("add", 0, None, (1,), F64)),
    "step 2: unknown reduction 'sub'": more(Reduce("sub", 0, None, (1,), F32)),
    "step 2: stablehlo.and": more(Reduce("and", 0, None, (1,), F32)),
    "step 2: a product of numbers of different kinds": more(Contract(0, 0, (1,), I32, I32)),
    "the schedule lists other factors": schedule(order=(0, 0)),
    "the schedule has tasks of other factors": schedule(tasks=3),
    "an option is given twice": schedule(options=(("task", 3), ("task", 4))),
}


@pytest.mark.parametrize("message", HOSTILE)
def test_hostile_kernels_are_refused(message):
    verify_kernel(building().kernel())
    with pytest.raises(WeftError) as caught:
        verify_kernel(HOSTILE[message]())
    assert message in caught.value.message


def test_what_is_nowhere_read_reaches_nothing():
    """A load at no point, because a factor that it varies along has none, is never run."""
    k = Building(i=0, j=8)
    k.write("j", k.reduce("add", k.load(k.input(2), k.affine(99, i=1)), "i"))
    verify_kernel(k.kernel())
    k = Building(i=0, j=8)
    k.write("j", k.reduce("add", k.load(k.input(2), k.affine(99, j=1)), "i"))
    with pytest.raises(WeftError, match="reaches 99..106"):
        verify_kernel(k.kernel())


# Nodes alone


def stack(*shape, dtype=F32, output=False):
    return Operand(dtype, shape, output)


SORTED = (stack(2, 8), stack(2, 8, output=True))


def sort(body, operands=SORTED, lead=1):
    args = tuple([Value(TensorType((), F32), None, n) for n in range(2)])
    nodes, results = body(*args)
    return SingleNode("sort", Sort(0, True), operands, lead, (Region(args, nodes, results),))


def less(a, b):
    node = Node(Compare("LT", "FLOAT"), (a, b), (TensorType((), BOOL),))
    return [node], node.results


def test_a_sort_verifies():
    verify_kernel(sort(less))


TABLE = (stack(8, 4), stack(5, 1, dtype=I32), stack(5, 4, output=True))
GATHERED = GatherDims((1,), (0,), (), (), (0,), 1)
ALONE = {
    "operands are of different devices": lambda: sort(
        less, (stack(3, 8), stack(2, 8, output=True))
    ),
    "operands are of different devices ": lambda: sort(
        less, (stack(0, 8), stack(1, 8, output=True))
    ),
    "device dims are missing": lambda: sort(less, lead=3),
    "device dims are missing ": lambda: sort(less, lead=-1),
    "stablehlo.sort: the result type is": lambda: sort(
        less, (stack(1, 8), stack(1, 9, output=True))
    ),
    "outputs stand before inputs": lambda: sort(less, (stack(2, 8, output=True), stack(2, 8))),
    "a region reads what is not in it": lambda: sort(
        lambda a, b: ([], (Value(TensorType((), BOOL)),))
    ),
    "the comparator takes": lambda: sort(lambda a, b: ([], (a,))),
    "known scalars are not those of the inputs": lambda: replace(sort(less), known=(1, 2)),
    "stablehlo.sort: has 0 regions": lambda: replace(sort(less), regions=()),
    "slice_sizes": lambda: SingleNode("g", Gather(GATHERED, (1, 5)), TABLE, 0),
    "slice_sizes ": lambda: SingleNode("g", Gather(GATHERED, (2, 4)), TABLE, 0),
    "stablehlo.gather: ": lambda: SingleNode(
        "g", Gather(replace(GATHERED, start_index_map=(7,)), (1, 4)), TABLE, 0
    ),
    "k is 9": lambda: SingleNode(
        "t", TopK(9), (stack(8), stack(9, output=True), stack(9, dtype=I32, output=True)), 0
    ),
}


@pytest.mark.parametrize("message", ALONE)
def test_hostile_nodes_are_refused(message):
    verify_kernel(SingleNode("g", Gather(GATHERED, (1, 4)), TABLE, 0))
    with pytest.raises(WeftError) as caught:
        verify_kernel(ALONE[message]())
    assert message.strip() in caught.value.message


# Attention


def attention(**fields):
    sizes = attention_cases.Sizes((2,), (False,), 20, 33, 16, 8)
    return replace(attention_cases.forward(sizes, lse=True, mask=(False, False)), **fields)


def access(name, **fields):
    return lambda: attention(**{name: replace(getattr(attention(), name), **fields)})


ATTENTION = {
    "q reaches 3..652 of 643": access("q", outer=(330,)),
    "k reaches -1..": access("k", offset=-1),
    "v is not an operand": access("v", operand=99),
    "out is read elsewhere": access("out", operand=0),
    "mask is f32 where": lambda: attention(mask=AttentionMask(replace(attention().q, row=0))),
    "q is i1 where": lambda: attention(q=replace(attention().mask.access, row=1, column=1)),
    "k is f32 where numbers are held in f64": lambda: attention(
        operands=(replace(attention().operands[0], dtype=F64), *attention().operands[1:])
    ),
    "lse is f16 where": lambda: attention(
        operands=(
            *attention().operands[:-1],
            replace(attention().operands[-1], dtype=DTYPES["f16"]),
        )
    ),
    "q reaches 3..962 of 643": lambda: attention(queries=40, outer=(2,)),
    "a size is negative": lambda: attention(keys=-1),
    "a window is too large": lambda: attention(window=Window(left=1 << 63)),
    "an option is given twice": lambda: attention(options=(("keys", 16), ("keys", 32))),
    "unknown result of an empty row: 'one'": lambda: attention(empty="one"),
    "two results are in one operand": lambda: attention(lse=replace(attention().out, column=0)),
}


@pytest.mark.parametrize("message", ATTENTION)
def test_hostile_attention_is_refused(message):
    verify_kernel(attention())
    with pytest.raises(WeftError) as caught:
        verify_kernel(ATTENTION[message]())
    assert message in caught.value.message


def test_what_verifies_can_be_interpreted():
    """The interpreter indexes plainly, so that it would say what is outside."""
    k = building()
    verify_kernel(k.kernel())
    interpret(k.kernel(), k.arrays())
