"""The order of updates, what falls outside, promotion, and refusals of scatter."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.example import Example
from tests.ops.examples.scatter import update_region
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.module import Region, Value, apply
from weft.ir.op import rule
from weft.ir.types import BOOL, DTYPES, F32, I32, TensorType, tensor
from weft.ops.elementwise.pointwise import Add, And, Compare, Maximum, Select, Subtract
from weft.ops.scatter import Scatter, ScatterDims

ONES = ScatterDims((), (0,), (), (), (0,), 1)  # single elements, by their number


def scattered(dims, region, *arrays):
    count = len(arrays) // 2
    scalars = region.body.results
    outs = tuple(t.with_shape(a.shape) for a, t in zip(arrays[:count], scalars, strict=True))
    return evaluate(Example(Scatter(dims, outs), arrays, (region,)).module(), *arrays)


def test_updates_of_one_element_come_in_order():
    at = np.array([[1], [0], [1], [1]])
    new = np.array([1, 2, 3, 4], np.int32)
    (out,) = scattered(ONES, update_region(None, [I32]), np.zeros(3, np.int32), at, new)
    assert out.tolist() == [2, 4, 0]
    (out,) = scattered(ONES, update_region(Subtract, [I32]), np.zeros(3, np.int32), at, new)
    assert out.tolist() == [-2, -8, 0]
    order = ScatterDims((0,), (), (), (), (0,), 1)  # windows of 2, whose elements come first
    windows = np.array([[1, 2], [3, 4]], np.int32)
    (out,) = scattered(
        order, update_region(None, [I32]), np.zeros(3, np.int32), np.array([[0], [1]]), windows
    )
    assert out.tolist() == [1, 3, 4]  # row-major: updates[0, 1] comes before updates[1, 0]


def test_what_falls_outside_is_left_out():
    at = np.array([[2], [-1], [3], [100]])
    new = np.ones((4, 2), np.float32)
    dims = ScatterDims((1,), (), (), (), (0,), 1)
    (out,) = scattered(dims, update_region(Add, [F32]), np.zeros(4, np.float32), at, new)
    assert out.tolist() == [1, 0, 1, 2]  # element by element, also inside a window
    huge = np.array([[2**64 - 1], [1]], np.uint64)
    (out,) = scattered(
        ONES, update_region(Add, [F32]), np.zeros(4, np.float32), huge, np.ones(2, np.float32)
    )
    assert out.tolist() == [0, 1, 0, 0]


def test_several_inputs_are_combined_together():
    """(a, b), (c, d) -> the pair with the larger first number."""
    types = [TensorType((), F32), TensorType((), I32)] * 2
    args = tuple(Value(t, None, n) for n, t in enumerate(types))
    larger = apply(Compare("GT"), args[0], args[2])
    chosen = [apply(Select(), larger.results[0], args[n], args[n + 2]) for n in range(2)]
    region = Region(args, [larger, *chosen], tuple(c.results[0] for c in chosen))
    values, places = scattered(
        ONES,
        region,
        np.zeros(2, np.float32),
        np.full(2, -1, np.int32),
        np.array([[0], [0], [1], [0]]),
        np.array([3, 5, -2, 4], np.float32),
        np.array([10, 11, 12, 13], np.int32),
    )
    assert values.tolist() == [5, 0] and places.tolist() == [11, -1]


def test_updates_are_computed_in_the_type_of_the_region():
    large = np.array([30000], np.int16)
    region = update_region(Add, [I32])
    (out,) = scattered(ONES, region, large, np.array([[0], [0]]), np.array([30000] * 2, np.int16))
    assert out.dtype == np.int32 and out.tolist() == [90000]


@pytest.mark.parametrize(
    ("combine", "dtype", "role", "known"),
    [
        (Add, F32, "reduction", None),
        (Maximum, F32, "reduction", "max"),
        (And, BOOL, "reduction", "and"),
        (And, I32, "whole", None),
        (Subtract, F32, "whole", None),
        (None, F32, "whole", None),
    ],
)
def test_updates_may_be_split_if_their_results_can_be_combined(combine, dtype, role, known):
    region = update_region(combine, [dtype])
    op = Scatter(ONES, (TensorType((4,), dtype),))
    types = (TensorType((4,), dtype), tensor(6, 1, dtype="i32"), TensorType((6,), dtype))
    first = rule(op, types, (region.body,)).factors[0]
    assert (first.role, first.combine) == (role, known)


def refusal(dims, region, *types):
    op = Scatter(dims, types[: len(types) // 2])
    with pytest.raises(WeftError) as caught:
        apply(op, *map(Value, types), regions=(region,))
    return caught.value.message


def test_refusals():
    region, at = update_region(Add, [F32]), tensor(6, 1, dtype="i32")
    assert refusal(ONES, region, tensor(4), at) == "stablehlo.scatter: has 2 operands"
    assert refusal(ONES, region, tensor(4), at, tensor(6, dtype="f64")) == (
        "stablehlo.scatter: the elements of input 0 are f32, of its update f64"
    )
    assert "name windows of [6]" in refusal(ONES, region, tensor(4), at, tensor(5))
    window = ScatterDims((1,), (), (), (), (0,), 1)
    assert "update dim 1 is 5, but input dim 0 is 4" in refusal(
        window, region, tensor(4), at, tensor(6, 5)
    )
    assert "for input 0, which is tensor<4xf32>" in refusal(
        ONES, update_region(Add, [DTYPES["f16"]]), tensor(4), at, tensor(6)
    )
    assert "the update computation takes" in refusal(
        ONES, update_region(Add, [F32, F32]), tensor(4), at, tensor(6)
    )
    two = (tensor(4), tensor(4), at, tensor(6), tensor(5))
    assert "and update 1 tensor<5xf32>" in refusal(ONES, update_region(Add, [F32, F32]), *two)
