"""Sorts and top k: lengths of every path, all kinds of comparators, NaN and signed zeros."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import weft
from tests.emit.llvm.single.lone_nodes import check_alone, compiled, constant, lone_kernel, node_of
from tests.emit.llvm.single.lone_nodes import scalar_region as region
from weft.emit.llvm.single.comparator import sort_keys
from weft.emit.llvm.single.radix import FEW
from weft.ir.module import Node, Region, Value, apply
from weft.ir.types import DTYPES, F32, I32, I64, Array, DType, dtype_of
from weft.ops.elementwise.pointwise import Add, And, Compare, Multiply, Or, Select
from weft.ops.sort import Sort, TopK

LENGTHS = (1, 2, 7, 8, 9, 33, FEW, FEW + 1, 200, 1025)
SPECIAL = (np.nan, -np.nan, 0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-45)


def numbers(shape: tuple[int, ...], dtype: DType, seed: int = 0) -> Array:
    """Numbers with many equal ones and all special ones."""
    random = np.random.default_rng(seed)
    if not dtype.is_float:
        info = (0, 1) if dtype.kind == "bool" else (-3 if dtype.kind == "int" else 0, 5)
        made = random.integers(*info, shape, endpoint=True).astype(dtype.numpy)
        if dtype.bits > 8:
            ends = np.iinfo(dtype.numpy)
            made = np.where(random.random(shape) < 0.1, ends.max, made)
            made = np.where(random.random(shape) < 0.1, ends.min, made)
        return made.astype(dtype.numpy)
    values = random.standard_normal(shape).round(1)
    chosen = random.choice(SPECIAL, shape)
    return np.where(random.random(shape) < 0.3, chosen, values).astype(dtype.numpy)


def ordering(dtype: DType, direction: str = "LT", *, total: bool = True, more: int = 0) -> Region:
    """A comparator of the first input."""
    kind = ("TOTALORDER" if total else "FLOAT") if dtype.is_float else None
    others = [I32] * (2 * more)
    return region(lambda a, b, *_: [apply(Compare(direction, kind), a, b)], dtype, dtype, *others)


def canonical(x: Value) -> list[Node]:
    """How JAX makes zeros and NaNs alike."""
    zero, nan = constant(np.float32(0)), constant(np.float32(np.nan))
    is_zero = apply(Compare("EQ", "FLOAT"), x, zero.results[0])
    plain = apply(Select(), is_zero.results[0], zero.results[0], x)
    is_nan = apply(Compare("NE", "FLOAT"), x, x)
    key = apply(Select(), is_nan.results[0], nan.results[0], plain.results[0])
    return [zero, nan, is_zero, plain, is_nan, key]


def as_jax_compares(count: int) -> Region:
    """JAX's comparator of several float inputs, in dictionary order."""

    def build(*args: Value) -> list[Node]:
        nodes, answer = [], None
        for n in reversed(range(count)):
            a, b = canonical(args[2 * n]), canonical(args[2 * n + 1])
            keys = a[-1].results[0], b[-1].results[0]
            less = apply(Compare("LT", "TOTALORDER"), *keys)
            nodes += [*a, *b, less]
            if answer is not None:
                equal = apply(Compare("EQ", "TOTALORDER"), *keys)
                tie = apply(And(), equal.results[0], answer.results[0])
                less = apply(Or(), less.results[0], tie.results[0])
                nodes += [equal, tie, less]
            answer = less
        return nodes

    return region(build, *[F32] * (2 * count))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("name", ["f32", "bf16", "f64", "i32", "ui8", "i64", "i1"])
def test_lengths_and_types(length: int, name: str):
    dtype = DTYPES[name]
    x = numbers((3, length), dtype, length)
    check_alone(Sort(1, True), x, regions=(ordering(dtype),))


@pytest.mark.parametrize("direction", ["LT", "GT", "LE", "GE"])
@pytest.mark.parametrize("length", [5, 130])
def test_directions_with_what_comes_along(direction: str, length: int):
    x, i = numbers((2, length), I32), np.arange(2 * length, dtype=np.int32).reshape(2, length)
    check_alone(Sort(1, True), x, i, regions=(ordering(I32, direction, more=1),))


@given(seed=st.integers(0, 99), length=st.sampled_from(LENGTHS), count=st.integers(1, 3))
def test_as_jax_sorts(seed: int, length: int, count: int):
    arrays = [numbers((2, length), F32, seed + n) for n in range(count)]
    comparator = as_jax_compares(count)
    keys = sort_keys(comparator)
    assert keys is not None and [key.operand for key in keys] == list(range(count))
    check_alone(Sort(-1, True), *arrays, regions=(comparator,))


def test_keys_of_more_than_64_bits():
    arrays = [np.asarray(numbers((300,), I64, n) % 3) for n in range(3)]

    def build(*args: Value) -> list[Node]:
        nodes, answer = [], None
        for n in reversed(range(3)):
            pair = args[2 * n : 2 * n + 2]
            less = apply(Compare("GT"), *pair[::-1])
            nodes.append(less)
            if answer is not None:
                equal = apply(Compare("EQ"), *pair)
                tie = apply(And(), answer.results[0], equal.results[0])
                less = apply(Or(), tie.results[0], less.results[0])
                nodes += [equal, tie, less]
            answer = less
        return nodes

    check_alone(Sort(0, True), *arrays, regions=(region(build, *[I64] * 6),))


def test_a_comparator_without_keys():
    """a * a + b < c * c + d, of two inputs."""

    def build(a: Value, b: Value, c: Value, d: Value) -> list[Node]:
        squares = [apply(Multiply(), v, v) for v in (a, b)]
        sums = [apply(Add(), s.results[0], v) for s, v in zip(squares, (c, d), strict=True)]
        return [*squares, *sums, apply(Compare("LT"), sums[0].results[0], sums[1].results[0])]

    comparator = region(build, I32, I32, I32, I32)
    assert sort_keys(comparator) is None
    random = np.random.default_rng(0)
    arrays = [random.integers(-4, 5, (3, 77), np.int32) for _ in range(2)]
    check_alone(Sort(1, True), *arrays, regions=(comparator,))


@pytest.mark.parametrize("dimension", [0, 1, -1])
@pytest.mark.parametrize("masks", [(0, 0), (1, 0), (2, 1), (3, 3)])
def test_dims_and_devices(dimension: int, masks: tuple[int, int]):
    x, i = numbers((5, 130, 3), F32), np.arange(5 * 130 * 3, dtype=np.int32).reshape(5, 130, 3)
    comparator = ordering(F32, "GT", more=1)
    check_alone(Sort(dimension, True), x, i, regions=(comparator,), sizes=(2, 3), masks=masks)


def test_numbers_without_a_total_order_stay_the_same_numbers():
    x = numbers((4, 500), F32)
    node = node_of(Sort(1, True), x, regions=(ordering(F32, total=False),))
    (made,) = compiled(lone_kernel(node))(x)
    as_bits = [np.sort(a.view(np.uint32), axis=1) for a in (made, x)]
    np.testing.assert_array_equal(*as_bits)
    for row in made:
        kept = row[~np.isnan(row)]
        assert (kept[1:] >= kept[:-1]).all()


@pytest.mark.parametrize("length", [1, 60, 100, 500, 3000])
@pytest.mark.parametrize("k", [0, 1, 5, 40])
@pytest.mark.parametrize("name", ["f32", "f16", "f64", "i32", "ui8"])
def test_top_k(length: int, k: int, name: str):
    x = numbers((2, length), DTYPES[name], length)
    check_alone(TopK(min(k, length)), x, sizes=(2,), masks=(1,))


@pytest.mark.parametrize("order", [1, -1])
def test_top_k_of_rows_in_order(order: int):
    x = np.sort(numbers((2, 4000), F32), axis=1)[:, ::order].copy()
    assert dtype_of(x.dtype) is F32
    check_alone(TopK(30), x)
    check_alone(TopK(30), np.zeros((1, 4000), np.float32))


def test_keys_wider_than_a_word_together():
    """The second key is looked up in the order that the first pass has found."""
    draw = np.random.default_rng(0)
    first = draw.integers(0, 3, (5, 40)).astype(np.int32)
    second = draw.standard_normal((5, 40))
    order = np.lexsort((second, first))
    text = """
func.func @main(%y: tensor<5x40xi32>, %x: tensor<5x40xf64>)
    -> (tensor<5x40xi32>, tensor<5x40xf64>) {
  %0:2 = "stablehlo.sort"(%y, %x) <{dimension = 1 : i64, is_stable = true}> ({
  ^bb0(%a: tensor<i32>, %b: tensor<i32>, %c: tensor<f64>, %d: tensor<f64>):
    %1 = stablehlo.compare LT, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %2 = stablehlo.compare EQ, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %3 = stablehlo.compare LT, %c, %d : (tensor<f64>, tensor<f64>) -> tensor<i1>
    %4 = stablehlo.and %2, %3 : tensor<i1>
    %5 = stablehlo.or %1, %4 : tensor<i1>
    stablehlo.return %5 : tensor<i1>
  }) : (tensor<5x40xi32>, tensor<5x40xf64>) -> (tensor<5x40xi32>, tensor<5x40xf64>)
  return %0#0, %0#1 : tensor<5x40xi32>, tensor<5x40xf64>
}
"""
    made = weft.compile(text)(first, second)
    np.testing.assert_array_equal(np.asarray(made[0]), np.take_along_axis(first, order, 1))
    np.testing.assert_array_equal(np.asarray(made[1]), np.take_along_axis(second, order, 1))
