"""Rings of products: the same numbers, only where they pay, only on the fast interconnect."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest

from tests.ops.draw import array
from tests.tolerance import assert_close
from weft.capture import parse
from weft.evaluate import evaluate
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.types import TensorType, tensor
from weft.ir.verify import verify
from weft.machine import H100, HOST, Machine
from weft.mesh import Axis, Mesh, MeshAxes
from weft.ops.combiners import combiner
from weft.ops.contract import DotDims, DotGeneral
from weft.ops.distributed.collective import AllGather, ReduceScatter
from weft.ops.distributed.local import CHANNEL, PermuteAlongAxes
from weft.ops.elementwise.pointwise import Negate
from weft.optimize import collective_matmul, cse, schedule, split_async

MESH = Mesh(x=2, y=4)
# Small tensors pay here: products are slow, and nothing costs anything to begin.
SLOW = replace(
    H100,
    launch=0.0,
    table="",  # links as they are written here
    rates=tuple((name, 1e9) for name, _ in H100.rates),
    bandwidth=1e15,
    links=(replace(H100.fast, launch=0.0, latency=0.0, bandwidth=1e9),),
)
MATMUL = DotDims((), (), (1,), (0,))
BATCHED = DotDims((0,), (1,), (2,), (0,))


class Case(NamedTuple):
    """A product one of whose operands is gathered along a dim."""

    dims: DotDims
    lhs: tuple[int, ...]
    rhs: tuple[int, ...]
    side: int
    dim: int
    axes: str
    dtype: str = "f32"


CASES = (
    Case(MATMUL, (2, 3), (3, 5), 0, 0, "y"),
    Case(MATMUL, (2, 3), (3, 5), 1, 1, "y"),
    Case(MATMUL, (2, 3), (3, 5), 1, 1, "yx"),
    Case(MATMUL, (2, 3), (24, 5), 0, 1, "xy"),
    Case(MATMUL, (2, 24), (3, 5), 1, 0, "yx"),
    Case(MATMUL, (2, 3), (24, 5), 0, 1, "xy", "bf16"),
    Case(MATMUL, (2, 3), (6, 5), 0, 1, "x", "i32"),
    Case(BATCHED, (2, 3, 4), (4, 8, 5), 0, 0, "y"),
    Case(BATCHED, (2, 3, 4), (4, 2, 5), 0, 1, "y"),
)


def axes_of(names: str) -> tuple[MeshAxes, int]:
    count = 1
    for name in names:
        count *= MESH.axis_sizes[name]
    return MeshAxes("mesh", tuple(Axis(name) for name in names)), count


def gathered(value: Value, dim: int, names: str) -> Node:
    groups, count = axes_of(names)
    type = value.type
    assert isinstance(type, TensorType)
    out = type.with_shape(tuple(s * count if d == dim else s for d, s in enumerate(type.sizes)))
    return apply(AllGather(dim, groups, (out,), CHANNEL, True), value)


def product(dims: DotDims, lhs: Value, rhs: Value) -> Node:
    left, right = lhs.type, rhs.type
    assert isinstance(left, TensorType) and isinstance(right, TensorType)
    shape = (
        *(left.sizes[d] for d in dims.lhs_batching_dimensions),
        *(left.sizes[d] for d in dims.lhs_free(left.rank)),
        *(right.sizes[d] for d in dims.rhs_free(right.rank)),
    )
    return apply(DotGeneral(dims, left.with_shape(shape)), lhs, rhs)


def module(args: tuple[Value, ...], nodes: list[Node], *results: Value) -> Module:
    main = Function("main", Region(args, nodes, results))
    return verify(Module({"main": main}, {"mesh": MESH}))


def a_gather(case: Case) -> Module:
    args = (
        Value(tensor(*case.lhs, dtype=case.dtype), None, 0),
        Value(tensor(*case.rhs, dtype=case.dtype), None, 1),
    )
    gather = gathered(args[case.side], case.dim, case.axes)
    sides = [*args]
    sides[case.side] = gather.results[0]
    dot = product(case.dims, *sides)
    return module(args, [gather, dot], *dot.results)


def a_scatter(lhs: tuple[int, int], rhs: tuple[int, int], dim: int, names: str) -> Module:
    groups, count = axes_of(names)
    args = (Value(tensor(*lhs), None, 0), Value(tensor(*rhs), None, 1))
    dot = product(MATMUL, *args)
    shape = [lhs[0], rhs[1]]
    shape[dim] //= count
    op = ReduceScatter(dim, groups, (tensor(*shape),), CHANNEL, True)
    node = apply(op, dot.results[0], regions=(combiner("add", tensor(1)),))
    return module(args, [dot, node], *node.results)


def check(before: Module, collectives: type) -> Module:
    """Rings came of it, and the numbers are the same, at once and after the passes that follow."""
    after = verify(collective_matmul(before, SLOW))
    kinds = {type(n.op) for n in after.nodes()}
    assert collectives not in kinds and PermuteAlongAxes in kinds
    assert collective_matmul(after, SLOW) is after
    later = verify(schedule(split_async(cse(after)), SLOW))
    types = before.function("main").arg_types
    draw = [array((8, *t.sizes), t.dtype, n) for n, t in enumerate(types)]  # type: ignore[union-attr]
    (expected,) = evaluate(before, *draw, devices=8)
    for made in (after, later, parse(later.text())):
        assert_close(evaluate(made, *draw, devices=8)[0], expected, length=32)
    return after


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.dtype}-{c.side}{c.dim}{c.axes}")
def test_gathered_operands(case: Case):
    check(a_gather(case), AllGather)


@pytest.mark.parametrize(("dim", "names"), [(0, "y"), (1, "xy"), (0, "yx"), (1, "x")])
def test_scattered_results(dim: int, names: str):
    check(a_scatter((8, 3), (3, 16), dim, names), ReduceScatter)


def test_products_of_one_gather_share_the_ring():
    args = (
        Value(tensor(2, 3), None, 0),
        Value(tensor(3, 4), None, 1),
        Value(tensor(3, 5), None, 2),
    )
    gather = gathered(args[0], 0, "y")
    dots = [product(MATMUL, gather.results[0], w) for w in args[1:]]
    before = module(args, [gather, *dots], *[d.results[0] for d in dots])
    after = cse(collective_matmul(before, SLOW))
    moves = [n for n in after.nodes() if isinstance(n.op, PermuteAlongAxes)]
    assert len(moves) == 3


def unchanged(before: Module, machine: Machine = SLOW) -> bool:
    return collective_matmul(before, machine) is before


def test_what_is_read_by_others_stays_gathered():
    args = (Value(tensor(2, 3), None, 0), Value(tensor(3, 4), None, 1))
    gather = gathered(args[0], 0, "y")
    dot = product(MATMUL, gather.results[0], args[1])
    other = apply(Negate(), gather.results[0])
    assert unchanged(module(args, [gather, dot, other], dot.results[0], other.results[0]))
    assert unchanged(module(args, [gather, dot], dot.results[0], gather.results[0]))


def test_only_where_it_pays():
    assert unchanged(a_gather(CASES[0]), H100), "too small"
    assert unchanged(a_gather(CASES[0]), HOST), "nothing overlaps"


def test_only_inside_the_fast_domain():
    four = replace(SLOW, links=(replace(SLOW.fast, devices=4),))
    assert not unchanged(a_gather(CASES[0]), four), "y is 4 neighbours"
    assert unchanged(a_gather(CASES[3]), four), "x and y are 8"
    far = replace(SLOW, links=(replace(SLOW.fast, devices=2), H100.links[1]))
    assert unchanged(a_gather(CASES[0]), far), "y spans two domains"


def test_groups_that_are_lists_stay():
    args = (Value(tensor(2, 3), None, 0), Value(tensor(3, 4), None, 1))
    groups = ((0, 1), (2, 3), (4, 5), (6, 7))
    gather = apply(AllGather(0, groups, (tensor(4, 3),), CHANNEL, True), args[0])
    dot = product(MATMUL, gather.results[0], args[1])
    assert unchanged(module(args, [gather, dot], *dot.results))
