"""Orders that sorts make: stable, with several inputs, with odd comparators, and fast."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.ops.example import Example
from tests.ops.examples.sort import comparator
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.module import Region, Value, apply
from weft.ir.op import infer, rule
from weft.ir.types import BOOL, F32, I32, TensorType, tensor, type_of
from weft.ir.work import Work
from weft.ops.elementwise.pointwise import Compare
from weft.ops.sort import Sort, TopK


def sorted_by(direction, *arrays, dimension=0, kind=None):
    region = comparator([type_of(a).dtype for a in arrays], direction, kind)
    return evaluate(Example(Sort(dimension, True), arrays, (region,)).module(), *arrays)


@given(st.lists(st.integers(-4, 4), max_size=40))
def test_is_stable(keys):
    held = np.array(keys, np.int32)
    places = np.arange(len(keys), dtype=np.int32)
    ours, order = sorted_by("LT", held, places)
    assert order.tolist() == np.argsort(held, kind="stable").tolist()
    assert ours.tolist() == sorted(keys)
    _, order = sorted_by("GT", held, places)
    assert order.tolist() == np.argsort(-held, kind="stable").tolist()


@pytest.mark.parametrize("dimension", [0, 1, 2, -1, -2])
def test_sorts_along_any_dim(dimension):
    cube = np.random.default_rng(0).permutation(60).reshape(3, 4, 5)
    (ours,) = sorted_by("LT", cube, dimension=dimension)
    assert ours.tolist() == np.sort(cube, axis=dimension).tolist()


def test_negative_dims_have_the_same_rule():
    region = comparator([F32]).body
    ours = [rule(Sort(d), (tensor(4, 6),), (region,)) for d in (1, -1)]
    assert ours[0] == ours[1] and ours[0].factors[1].role == "whole"


def test_total_order_puts_nan_last():
    odd = np.array([np.nan, 1, -np.inf, -0.0, 0.0, -np.nan, np.inf], np.float32)
    odd[5] = np.copysign(odd[5], -1)
    _, order = sorted_by("LT", odd, np.arange(7, dtype=np.int32), kind="TOTALORDER")
    assert order.tolist() == [5, 2, 3, 4, 1, 6, 0]


@pytest.mark.parametrize("direction", ["NE", "EQ", "GE", "LE"])
def test_no_comparator_loses_an_element(direction):
    keys = np.array([3, 1, 2, 3, 1, 2, 2, 0, 3], np.float32)
    (ours,) = sorted_by(direction, keys)
    assert sorted(ours.tolist()) == sorted(keys.tolist())
    odd = np.where(keys == 2, np.nan, keys)
    (ours,) = sorted_by("LT", odd)
    assert sorted(ours.view(np.int32).tolist()) == sorted(odd.view(np.int32).tolist())


def test_many_elements_are_sorted_in_seconds():
    keys = np.random.default_rng(0).permutation(100_000).astype(np.float32)
    began = time.monotonic()
    (ours,) = sorted_by("LT", keys)
    assert np.array_equal(ours, np.arange(100_000))
    assert time.monotonic() - began < 30


def test_sort_refusals():
    region = comparator([F32])

    def refusal(op, *types):
        with pytest.raises(WeftError) as caught:
            infer(op, types, (region.body,))
        return caught.value.message

    assert refusal(Sort(0)) == "stablehlo.sort: has no inputs"
    assert refusal(Sort(1), tensor(4)) == (
        "stablehlo.sort: dimension is 1, but the inputs have 1 dims"
    )
    assert refusal(Sort(0), tensor(4), tensor(5)) == (
        "stablehlo.sort: input 0 is tensor<4xf32>, but input 1 is tensor<5xf32>"
    )
    assert "the comparator takes" in refusal(Sort(0), tensor(4, dtype="f64"))
    args = tuple(Value(TensorType((), F32), None, n) for n in range(2))
    two = [apply(Compare("LT"), *args), apply(Compare("GT"), *args)]
    wide = Region(args, two, tuple(n.results[0] for n in two))
    assert wide.body.results == (TensorType((), BOOL),) * 2
    with pytest.raises(WeftError, match="the comparator takes"):
        infer(Sort(0), (tensor(4),), (wide.body,))


def test_top_k_takes_the_first_of_equals():
    values, places = TopK(3).reference(np.array([[1, 3, 3, 2], [0, 0, 0, 0]], np.int32))
    assert values.tolist() == [[3, 3, 2], [0, 0, 0]] and places.tolist() == [[1, 2, 3], [0, 1, 2]]
    values, places = TopK(2).reference(np.array([3, 255, 255, 0], np.uint8))
    assert places.tolist() == [1, 2] and places.dtype == np.int32
    values, places = TopK(2).reference(np.array([-128, 127], np.int8))
    assert values.tolist() == [127, -128]


def test_top_k_orders_floats_as_jax_does():
    odd = np.array([0.0, -0.0, np.nan, -np.inf, np.inf, -np.nan, 1, -1, 0.0], np.float32)
    odd[5] = np.copysign(np.nan, -1)
    for dtype in ("f32", "f64", "bf16", "f16"):
        _, places = TopK(9).reference(odd.astype(tensor(dtype=dtype).dtype.numpy))
        assert places.tolist() == [2, 4, 6, 0, 8, 1, 7, 3, 5]


def test_top_k_refusals():
    for k, type in ((5, tensor(4)), (-1, tensor(4)), (0, tensor()), (1, tensor(2, dtype="i32"))):
        if type.rank and 0 <= k <= type.sizes[-1]:
            assert infer(TopK(k), (type,))[1] is TensorType((1,), I32)
            continue
        with pytest.raises(WeftError, match=f"chlo.top_k: k is {k}"):
            infer(TopK(k), (type,))
    with pytest.raises(WeftError, match="operand 0 is tensor<4xcomplex<f32>>"):
        infer(TopK(1), (tensor(4, dtype="complex<f32>"),))


def test_work():
    body = Work(flops=1)
    for length, rounds in ((0, 0), (1, 0), (2, 1), (3, 2), (8, 3), (9, 4)):
        given = (tensor(5, length),)
        assert Sort(1).work(given, given, (body,)).flops == 5 * length * rounds
