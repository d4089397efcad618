"""Known values, corner cases and refusals of the ops that rearrange elements."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import WeftError
from weft.ir.dense import Dense
from weft.ir.op import infer, rule
from weft.ir.types import I32, Symbol, TensorType, tensor
from weft.ops.shape import (
    BitcastConvert,
    Broadcast,
    BroadcastInDim,
    Constant,
    GetDimensionSize,
    Iota,
    Reshape,
    Reverse,
    SetDimensionSize,
    Transpose,
)


def refusal(op, *types):
    with pytest.raises(WeftError) as caught:
        infer(op, types)
    return caught.value.message


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ((4, 6), (2, 12), "([ij, k])->([i, jk]) {i=2, j=2, k=6}"),
        ((6,), (2, 3), "([ij])->([i, j]) {i=2, j=3}"),
        ((2, 3), (3, 2), "([i, k])->([j, l]) {i=2, j=3, k=3, l=2}"),
        ((1, 4, 1), (4,), "([i, j, k])->([j]) {i=1, j=4, k=1}"),
        ((8, 1), (2, 1, 4), "([ik, l])->([i, j, k]) {i=2, j=1, k=4, l=1}"),
        ((0, 3), (3, 0), "([i, j])->([k, l]) {i=0, j=3, k=3, l=0} need_replication={i, j, k, l}"),
        ((), (1, 1), "([])->([i, j]) {i=1, j=1}"),
    ],
)
def test_reshape_factors(source, target, expected):
    assert str(rule(Reshape(tensor(*target)), (tensor(*source),))) == expected


def test_factors_of_one_side_of_a_reshape_are_aided():
    factors = rule(Reshape(tensor(3, 2)), (tensor(2, 3),)).factors
    assert all(f.needs_offset for f in factors)
    factors = rule(Reshape(tensor(2, 12)), (tensor(4, 6),)).factors
    assert not any(f.needs_offset for f in factors)


def test_reshape_refuses_another_number_of_elements():
    assert refusal(Reshape(tensor(5)), tensor(2, 3)) == (
        "stablehlo.reshape: tensor<2x3xf32> has 6 elements, but tensor<5xf32> has 5"
    )
    assert refusal(Reshape(tensor(6)), tensor(2, 3, dtype="i32")) == (
        "stablehlo.reshape: the operand's elements are i32, the result's are f32"
    )


def test_broadcast_in_dim_permutes_and_repeats():
    operand = np.array([[1, 2, 3]], np.int32)
    op = BroadcastInDim((2, 1), tensor(2, 3, 2, dtype="i32"))
    assert op.reference(operand).tolist() == [[[1, 1], [2, 2], [3, 3]]] * 2


def test_broadcast_in_dim_refusals():
    out = tensor(2, 3)
    assert refusal(BroadcastInDim((0, 0), out), tensor(2, 2)) == (
        "stablehlo.broadcast_in_dim: broadcast_dimensions repeats a dim: (0, 0)"
    )
    assert refusal(BroadcastInDim((1,), out), tensor(2)) == (
        "stablehlo.broadcast_in_dim: operand dim 0 is 2, but result dim 1 is 3"
    )
    assert "but the operand has 1 dims" in refusal(BroadcastInDim((), out), tensor(2))


def test_transpose_refuses_what_is_no_permutation():
    assert refusal(Transpose((0, 0)), tensor(2, 3)) == (
        "stablehlo.transpose: (0, 0) is not a permutation of the dims of tensor<2x3xf32>"
    )


def test_iota_counts_in_every_type():
    assert Iota(0, tensor(6, dtype="i2")).reference().astype(int).tolist() == [0, 1, -2, -1, 0, 1]
    assert Iota(1, tensor(2, 2, dtype="complex<f32>")).reference().tolist() == [[0, 1], [0, 1]]
    assert refusal(Iota(0, tensor(2, dtype="i1"))) == "stablehlo.iota: the result is tensor<2xi1>"
    assert "iota_dimension holds 1" in refusal(Iota(1, tensor(2)))


def test_bitcast_splits_and_joins():
    one = np.array([0.0, 1.0], np.float32)
    parts = BitcastConvert(tensor(2, 4, dtype="i8")).reference(one)
    assert parts.tolist() == [[0, 0, 0, 0], [0, 0, -128, 63]]
    assert BitcastConvert(tensor(2)).reference(parts).tolist() == [0.0, 1.0]
    halves = BitcastConvert(tensor(2, dtype="i4")).reference(np.array(0x2F, np.uint8))
    assert halves.astype(int).tolist() == [-1, 2]  # the low bits come first
    bits = BitcastConvert(tensor(8, dtype="i1")).reference(np.array(5, np.uint8))
    assert bits.tolist() == [True, False, True] + [False] * 5


def test_bitcast_keeps_the_payload_of_nan():
    bits = np.array([0x7FC01234, 0xFF800001], np.uint32)
    floats = BitcastConvert(tensor(2)).reference(bits)
    assert BitcastConvert(tensor(2, dtype="ui32")).reference(floats).tolist() == bits.tolist()


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (tensor(4, dtype="complex<f32>"), tensor(4, 2)),
        (tensor(4), tensor(4, 2, dtype="complex<f32>")),
        (tensor(4), tensor(4, dtype="i8")),
        (tensor(4), tensor(4, 3, dtype="i8")),
        (tensor(4, 3, dtype="i8"), tensor(4)),
        (tensor(4, dtype="f6E2M3FN"), tensor(4, dtype="i8")),
        (tensor(4), tensor(4, 4)),
    ],
)
def test_bitcast_refuses_what_does_not_fit(source, target):
    assert refusal(BitcastConvert(target), source).startswith("stablehlo.bitcast_convert: ")


def test_reverse_of_no_dims_is_the_operand():
    operand = np.arange(6).reshape(2, 3)
    assert Reverse(()).reference(operand).tolist() == operand.tolist()
    assert Reverse((0, 1)).reference(operand).tolist() == operand[::-1, ::-1].tolist()
    assert "repeats a dim" in refusal(Reverse((0, 0)), tensor(2, 3))


def test_set_dimension_size_checks_the_size():
    op = SetDimensionSize(1, tensor(2, 3))
    operand = np.arange(8, dtype=np.float32).reshape(2, 4)
    assert op.reference(operand, np.int32(3)).tolist() == [[0, 1, 2], [4, 5, 6]]
    with pytest.raises(WeftError, match="the size is 2, but the result is tensor<2x3xf32>"):
        op.reference(operand, np.int32(2))
    with pytest.raises(WeftError, match="the operand tensor<3x4xf32>"):
        infer(op, (tensor(3, 4), TensorType((), I32)))


def test_a_bounded_dim_is_carried_along():
    bounded = TensorType((Symbol(8), 6), tensor().dtype)
    assert infer(Transpose((1, 0)), (bounded,)) == (bounded.with_shape((6, Symbol(8))),)
    assert infer(Broadcast((2,)), (bounded,)) == (bounded.with_shape((2, Symbol(8), 6)),)
    size = TensorType((), I32)
    assert infer(SetDimensionSize(0, bounded), (tensor(8, 6), size)) == (bounded,)
    with pytest.raises(WeftError, match="known only at run time"):
        SetDimensionSize(0, bounded).reference(np.ones((8, 6)), np.int32(2))


def test_get_dimension_size():
    assert GetDimensionSize(1).reference(np.ones((2, 5))).tolist() == 5
    assert "dimension holds 2" in refusal(GetDimensionSize(2), tensor(2, 5))


def test_a_splat_constant_can_be_split_freely():
    splat, other = Dense(np.ones(4)), Dense(np.arange(4.0))
    assert not rule(Constant(splat), ()).factors[0].needs_offset
    assert rule(Constant(other), ()).factors[0].needs_offset
