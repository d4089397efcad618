"""Sizes that are operands must agree with the result type."""

from __future__ import annotations

import numpy as np
import pytest

from weft.errors import WeftError
from weft.ir.op import infer
from weft.ir.types import Symbol, TensorType, tensor
from weft.ops.convolution import ConvDims
from weft.ops.dynamic import (
    DynamicBroadcastInDim,
    DynamicConv,
    DynamicGather,
    DynamicIota,
    DynamicPad,
    DynamicReshape,
    RealDynamicSlice,
)
from weft.ops.index import GatherDims

ROWS = GatherDims((1,), (0,), (), (), (0,), 1)
CONV = ConvDims(0, 2, (1,), 1, 2, (0,), 0, 2, (1,))
SIX = np.arange(6.0, dtype=np.float32)


def sizes(*numbers):
    return np.array(numbers, np.int32)


@pytest.mark.parametrize(
    ("op", "operands", "made"),
    [
        (DynamicReshape(tensor(2, 3)), (SIX, sizes(3, 2)), "tensor<3x2xf32>"),
        (DynamicBroadcastInDim((0,), tensor(6, 2)), (SIX, sizes(6, 3)), "tensor<6x3xf32>"),
        (DynamicIota(0, tensor(4)), (sizes(5),), "tensor<5xf32>"),
        (
            DynamicPad(tensor(8)),
            (SIX, np.float32(0), sizes(1), sizes(2), sizes(0)),
            "tensor<9xf32>",
        ),
        (RealDynamicSlice(tensor(2)), (SIX, sizes(1), sizes(6), sizes(2)), "tensor<3xf32>"),
        (
            DynamicGather(ROWS, tensor(2, 2)),
            (SIX.reshape(2, 3), np.zeros((2, 1), np.int64), sizes(1, 3)),
            "tensor<2x3xf32>",
        ),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_sizes_that_disagree_are_refused(op, operands, made):
    with pytest.raises(WeftError) as caught:
        op.reference(*operands)
    assert caught.value.message == (
        f"{op.name}: the sizes are those of {made}, but the result is {op.out}"
    )


def test_sizes_that_agree():
    assert DynamicReshape(tensor(2, 3)).reference(SIX, sizes(2, 3)).shape == (2, 3)
    padded = DynamicPad(tensor(4)).reference(SIX, np.float32(9), sizes(-4), sizes(2), sizes(0))
    assert padded.tolist() == [4, 5, 9, 9]
    part = RealDynamicSlice(tensor(2)).reference(SIX, sizes(1), sizes(5), sizes(2))
    assert part.tolist() == [1, 3]
    with pytest.raises(WeftError, match=r"\[1:7\] of dim 0, whose size is 6"):
        RealDynamicSlice(tensor(2)).reference(SIX, sizes(1), sizes(7), sizes(3))


def test_a_result_of_unknown_size_is_not_computed():
    out = TensorType((Symbol(6),), tensor().dtype)
    op = DynamicReshape(out)
    assert infer(op, (tensor(6), tensor(1, dtype="i32"))) == (out,)
    with pytest.raises(WeftError, match="known only at run time"):
        op.reference(SIX, sizes(6))


def test_refusals():
    def refusal(op, *types):
        with pytest.raises(WeftError) as caught:
            infer(op, types)
        return caught.value.message

    two, pair = tensor(2, dtype="i32"), tensor(2, dtype="i64")
    assert refusal(DynamicReshape(tensor(2, 3)), tensor(6), tensor(3, dtype="i32")) == (
        "stablehlo.dynamic_reshape: operand 1 is tensor<3xi32>"
    )
    assert refusal(DynamicReshape(tensor(2, 3)), tensor(6), tensor(2)) == (
        "stablehlo.dynamic_reshape: operand 1 is tensor<2xf32>"
    )
    assert "operand 3 is tensor<2xi64>" in refusal(
        DynamicPad(tensor(2, 2)), tensor(2, 2), tensor(), two, pair, two
    )
    assert "operand 2 is tensor<2xi64>" in refusal(
        RealDynamicSlice(tensor(2, 2)), tensor(2, 2), two, pair, two
    )
    known = DynamicBroadcastInDim((0,), tensor(6, 2), (0,), (0,))
    assert "what is known of dims repeats a dim" in refusal(known, tensor(6), two)
    wrong = DynamicGather(ROWS, tensor(3, 3))
    assert "the result tensor<3x3xf32>" in refusal(
        wrong, tensor(2, 3), tensor(2, 1, dtype="i32"), two
    )


def test_dynamic_conv_pads_by_its_operand():
    op = DynamicConv(CONV, 1, 1, tensor(1, 4, 1))
    lhs, rhs = SIX.reshape(1, 6, 1)[:, :4], np.ones((3, 1, 1), np.float32)
    assert op.reference(lhs, rhs, sizes([1, 1])).ravel().tolist() == [1, 3, 6, 5]
    with pytest.raises(WeftError):
        op.reference(lhs, rhs, sizes([0, 0]))
    types = (tensor(1, 4, 1), tensor(3, 1, 1))
    with pytest.raises(WeftError, match="operand 2 is tensor<2x2xi32>"):
        infer(op, (*types, tensor(2, 2, dtype="i32")))
    assert op.work((*types, tensor(1, 2, dtype="i32")), (op.out,)).flops > 0
