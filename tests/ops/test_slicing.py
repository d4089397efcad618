"""Known values, corner cases and refusals of the ops that take, join or pad pieces."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import WeftError
from weft.ir.op import infer, rule
from weft.ir.types import I32, Symbol, TensorType, tensor
from weft.ops.slicing import Concatenate, DynamicSlice, DynamicUpdateSlice, Pad, Slice

INDEX = TensorType((), I32)


def refusal(op, *types):
    with pytest.raises(WeftError) as caught:
        infer(op, types)
    return caught.value.message


def test_pad_with_interior_and_negative_edges():
    operand = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    wide = Pad((0, 1), (2, 1), (1, 2)).reference(operand, np.int32(0))
    assert wide.tolist() == [
        [0, 1, 0, 0, 2, 0, 0, 3, 0],
        [0] * 9,
        [0, 4, 0, 0, 5, 0, 0, 6, 0],
        [0] * 9,
        [0] * 9,
    ]
    cut = Pad((-1, -2), (0, -1), (1, 2)).reference(operand, np.int32(9))
    assert cut.tolist() == [[9, 9, 9, 9], [9, 5, 9, 9]]
    assert Pad((0, -3), (0, 0), (0, 0)).reference(operand, np.int32(0)).shape == (2, 0)


def test_pad_can_take_back_more_than_one_edge_has():
    row = np.array([1, 2, 3], np.int32)
    assert Pad((-5,), (4,), (0,)).reference(row, np.int32(7)).tolist() == [7, 7]
    assert Pad((4,), (-5,), (0,)).reference(row, np.int32(7)).tolist() == [7, 7]


def test_pad_refusals():
    value = tensor()
    assert refusal(Pad((0,), (0,), (-1,)), tensor(3), value) == (
        "stablehlo.pad: interior_padding of dim 0 is -1"
    )
    assert refusal(Pad((-4,), (0,), (0,)), tensor(3), value) == (
        "stablehlo.pad: dim 0 of size 3 becomes -1"
    )
    assert "but operand 1 is tensor<1xf32>" in refusal(Pad((0,), (0,), (0,)), tensor(3), tensor(1))
    assert "edge_padding_high = ()" in refusal(Pad((0,), (), (0,)), tensor(3), value)


def test_a_pad_that_shifts_cannot_be_split_without_help():
    (factor,) = rule(Pad((1,), (-1,), (0,)), (tensor(4), tensor())).factors
    assert factor.role == "pass" and factor.needs_offset


def test_slice_refusals():
    assert refusal(Slice((0,), (5,), (1,)), tensor(4)) == (
        "stablehlo.slice: [0:5] of dim 0, whose size is 4"
    )
    assert refusal(Slice((3,), (2,), (1,)), tensor(4)) == (
        "stablehlo.slice: [3:2] of dim 0, whose size is 4"
    )
    assert (
        refusal(Slice((0,), (4,), (0,)), tensor(4)) == "stablehlo.slice: the stride of dim 0 is 0"
    )


def test_a_piece_of_a_slice_takes_the_whole_dims_of_the_piece():
    op = Slice((0, 1), (8, 5), (1, 2))
    assert op.local((tensor(4, 6),), (tensor(4, 2),)) is Slice((0, 1), (4, 5), (1, 2))


def test_concatenate_refusals():
    assert refusal(Concatenate(0)) == "stablehlo.concatenate: has no operands"
    assert refusal(Concatenate(0), tensor(2, 3), tensor(2, 4)) == (
        "stablehlo.concatenate: operand 0 is tensor<2x3xf32>, but operand 1 is tensor<2x4xf32>"
    )
    assert "dimension holds 2" in refusal(Concatenate(2), tensor(2, 3))


def test_a_bounded_dim_is_added_up():
    bounded = TensorType((Symbol(8), 6), tensor().dtype)
    wide = bounded.with_shape((Symbol(10), 6))
    assert infer(Concatenate(0), (bounded, tensor(2, 6))) == (wide,)
    padded = bounded.with_shape((Symbol(17), 6))
    assert infer(Pad((1, 0), (1, 0), (1, 0)), (bounded, tensor())) == (padded,)


@pytest.mark.parametrize("held", [np.int8, np.uint8, np.int64, np.uint64])
def test_dynamic_slices_stay_inside(held):
    operand = np.arange(6, dtype=np.float32)
    far = held(np.iinfo(held).max)
    assert DynamicSlice((2,)).reference(operand, np.asarray(far)).tolist() == [4, 5]
    update = np.array([7, 8], np.float32)
    updated = DynamicUpdateSlice().reference(operand, update, np.asarray(far))
    assert updated.tolist() == [0, 1, 2, 3, 7, 8]
    if held is np.int8:
        assert DynamicSlice((2,)).reference(operand, np.asarray(held(-5))).tolist() == [0, 1]
    assert operand.tolist() == [0, 1, 2, 3, 4, 5]  # operands are never changed


def test_dynamic_slice_refusals():
    op = DynamicSlice((2, 2))
    assert refusal(op, tensor(4, 4), INDEX) == (
        "stablehlo.dynamic_slice: has 1 start indices for the 2 dims of tensor<4x4xf32>"
    )
    other = tensor(dtype="i64")
    assert refusal(op, tensor(4, 4), INDEX, other) == (
        "stablehlo.dynamic_slice: operand 2 is tensor<i64>"
    )
    assert refusal(DynamicSlice((5, 2)), tensor(4, 4), INDEX, INDEX) == (
        "stablehlo.dynamic_slice: slice_sizes of dim 0 is 5, but the operand's size is 4"
    )
    update = refusal(DynamicUpdateSlice(), tensor(4), tensor(5), INDEX)
    assert "the update's size of dim 0 is 5" in update
