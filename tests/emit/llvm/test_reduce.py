"""Reductions with any region: argmax as JAX writes it, several inputs, orders that matter."""

from __future__ import annotations

import numpy as np
import pytest

from tests.emit.llvm.single.lone_nodes import check_alone, combiner, constant, scalar_region
from weft.ir.module import Node, Region, Value, apply
from weft.ir.types import F32, I32, Array, TensorType
from weft.ops.elementwise.pointwise import Add, And, Compare, Maximum, Or, Select
from weft.ops.reduce import Reduce

RANDOM = np.random.default_rng(0)
SHAPES = [
    ((3, 700), (1,)),
    ((300, 40), (0,)),
    ((2, 40, 50), (0, 2)),
    ((50, 3, 7), (0, 1)),
    ((33,), (0,)),
]


def argmax() -> Region:
    """JAX's: NaN is largest, and the lower index wins among equal ones."""

    def build(x: Value, i: Value, y: Value, j: Value) -> list[Node]:
        above = apply(Compare("GT", "FLOAT"), x, y)
        is_nan = apply(Compare("NE", "FLOAT"), x, x)
        taken = apply(Or(), above.results[0], is_nan.results[0])
        equal = apply(Compare("EQ", "FLOAT"), x, y)
        lower = apply(Compare("LT"), i, j)
        tie = apply(And(), equal.results[0], lower.results[0])
        first = apply(Or(), taken.results[0], tie.results[0])
        value = apply(Select(), taken.results[0], x, y)
        index = apply(Select(), first.results[0], i, j)
        return [above, is_nan, taken, equal, lower, tie, first, value, index]

    made = scalar_region(build, F32, I32, F32, I32)
    return Region(made.args, made.nodes, tuple(n.results[0] for n in made.nodes[-2:]))


def results(shape: tuple[int, ...], dims: tuple[int, ...]) -> tuple[TensorType, TensorType]:
    kept = tuple(n for d, n in enumerate(shape) if d not in dims)
    return TensorType(kept, F32), TensorType(kept, I32)


def numbers(shape: tuple[int, ...], nans: float) -> Array:
    made = RANDOM.integers(-9, 10, shape).astype(np.float32)
    made[RANDOM.random(shape) < nans] = np.nan
    return made


@pytest.mark.parametrize("nans", [0.0, 0.01, 1.0])
@pytest.mark.parametrize(("shape", "dims"), SHAPES)
def test_argmax(shape: tuple[int, ...], dims: tuple[int, ...], nans: float):
    index = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    op = Reduce(dims, results(shape, dims))
    arrays = (numbers(shape, nans), index, np.float32(-np.inf), np.int32(0))
    check_alone(op, *arrays, regions=(argmax(),), sizes=(2,), masks=(1, 0, 0, 0), known=(2, 3))


@pytest.mark.parametrize(("shape", "dims"), SHAPES)
def test_two_things_at_once(shape: tuple[int, ...], dims: tuple[int, ...]):
    both = scalar_region(
        lambda a, b, c, d: [apply(Add(), a, c), apply(Maximum(), b, d)], F32, I32, F32, I32
    )
    region = Region(both.args, both.nodes, tuple(n.results[0] for n in both.nodes))
    arrays = (numbers(shape, 0), RANDOM.integers(-9, 9, shape, np.int32))
    inits = (np.float32(5), np.int32(-4))
    op = Reduce(dims, results(shape, dims))
    check_alone(op, *arrays, *inits, regions=(region,), sizes=(2, 2), masks=(1, 2, 0, 1))


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("length", [1, 31, 32, 500])
def test_elements_are_combined_in_order(side: int, length: int):
    """The first one that is not 0, or the last one."""

    def build(a: Value, b: Value) -> list[Node]:
        chosen, other = (a, b) if side == 0 else (b, a)
        nothing = constant(np.int32(0))
        zero = apply(Compare("EQ"), chosen, nothing.results[0])
        return [nothing, zero, apply(Select(), zero.results[0], other, chosen)]

    x = RANDOM.integers(0, 9, (3, length), np.int32)
    op = Reduce((1,), (TensorType((3,), I32),))
    check_alone(op, x, np.int32(0), regions=(scalar_region(build, I32, I32),))


def test_nothing_to_combine():
    op = Reduce((1,), (TensorType((3,), F32),))
    check_alone(op, np.zeros((3, 0), np.float32), np.float32(7), regions=(combiner(Add(), F32),))
