"""Convolutions: the specification's example, groups, text, rules and refusals."""

from __future__ import annotations

import numpy as np
import pytest

from weft.capture import parse
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.op import infer, rule
from weft.ir.types import TensorType, tensor
from weft.ops.convolution import ConvDims, Convolution, read_conv_dims, write_conv_dims

NHWC = ConvDims(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
LINE = ConvDims(0, 1, (2,), 0, 1, (2,), 0, 1, (2,))  # batch, feature, spatial

SPECIFICATION = """
func.func @main(%lhs: tensor<1x4x4x1xi64>, %rhs: tensor<3x3x1x1xi64>) -> tensor<1x2x2x1xi64> {
  %0 = stablehlo.convolution(%lhs, %rhs)
    dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {stride = [4, 4], lhs_dilate = [2, 2]}
    {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<1x4x4x1xi64>, tensor<3x3x1x1xi64>) -> tensor<1x2x2x1xi64>
  return %0 : tensor<1x2x2x1xi64>
}
"""


def test_the_specifications_example():
    image = np.array([[1, 2, 5, 6], [3, 4, 7, 8], [10, 11, 14, 15], [12, 13, 16, 17]])
    kernel = np.ones((3, 3, 1, 1), np.int64)
    module = parse(SPECIFICATION)
    (made,) = evaluate(module, image.reshape(1, 4, 4, 1), kernel)
    np.testing.assert_array_equal(made.reshape(2, 2), [[10, 26], [46, 62]])
    assert parse(module.text()).text() == module.text()


def line(length: int, width: int, features: int = 1, batches: int = 1, **fields: object):
    """A convolution of one spatial dim."""
    out = tensor(1, 1, length - width + 1, dtype="i32")
    return Convolution(LINE, features, batches, fields.pop("out", out), **fields)


def test_a_kernel_is_not_turned_around_unless_asked():
    row = np.arange(1, 5, dtype=np.int32).reshape(1, 1, 4)
    kernel = np.array([1, 10], np.int32).reshape(1, 1, 2)
    np.testing.assert_array_equal(line(4, 2).reference(row, kernel)[0, 0], [21, 32, 43])
    turned = line(4, 2, window_reversal=(True,))
    np.testing.assert_array_equal(turned.reference(row, kernel)[0, 0], [12, 23, 34])


def test_negative_padding_takes_elements_away():
    row = np.arange(1, 6, dtype=np.int32).reshape(1, 1, 5)
    one = np.ones((1, 1, 1), np.int32)
    op = line(5, 1, padding=((-1, 2),), out=tensor(1, 1, 6, dtype="i32"))
    assert infer(op, (tensor(1, 1, 5, dtype="i32"), tensor(1, 1, 1, dtype="i32")))
    np.testing.assert_array_equal(op.reference(row, one)[0, 0], [2, 3, 4, 5, 0, 0])


def test_groups_of_features_and_of_batches():
    values = np.arange(1, 5, dtype=np.int32)
    kernel = np.array([1, 10, 100, 1000], np.int32)
    by_feature = Convolution(LINE, 4, 1, tensor(1, 4, 1, dtype="i32"))
    made = by_feature.reference(values.reshape(1, 4, 1), kernel.reshape(1, 4, 1))
    np.testing.assert_array_equal(made[0, :, 0], values * kernel)
    by_batch = Convolution(LINE, 1, 4, tensor(1, 4, 1, dtype="i32"))
    made = by_batch.reference(values.reshape(4, 1, 1), kernel.reshape(1, 4, 1))
    np.testing.assert_array_equal(made[0, :, 0], values * kernel)


def test_pieces_have_fewer_groups():
    op = Convolution(LINE, 4, 1, tensor(2, 8, 5))
    local = op.local((tensor(2, 4, 6), tensor(2, 4, 2)), (tensor(2, 4, 5),))
    assert (local.feature_group_count, local.out) == (2, tensor(2, 4, 5))
    op = Convolution(LINE, 1, 4, tensor(2, 8, 5))
    local = op.local((tensor(4, 4, 6), tensor(4, 4, 2)), (tensor(2, 4, 5),))
    assert local.batch_group_count == 2


def test_dims_are_read_in_both_forms():
    text = "#stablehlo.conv<[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]>"
    assert read_conv_dims(text) == NHWC
    assert write_conv_dims(NHWC) == text
    raw = (
        "#stablehlo.conv<raw input_batch_dimension = 0, input_feature_dimension = 3, "
        "input_spatial_dimensions = [1, 2], kernel_input_feature_dimension = 2, "
        "kernel_output_feature_dimension = 3, kernel_spatial_dimensions = [0, 1], "
        "output_batch_dimension = 0, output_feature_dimension = 3, "
        "output_spatial_dimensions = [1, 2]>"
    )
    assert read_conv_dims(raw) == NHWC
    flat = ConvDims(0, 1, (), 0, 1, (), 1, 0, ())
    assert read_conv_dims(write_conv_dims(flat)) == flat
    with pytest.raises(WeftError, match="does not name the dims"):
        read_conv_dims("#stablehlo.conv<nothing>")


def test_rule():
    types: tuple[TensorType, TensorType] = (tensor(1, 8, 8, 4), tensor(3, 3, 2, 16))
    op = Convolution(NHWC, 2, 1, tensor(1, 8, 3, 16))
    found = rule(op, types)
    assert str(found) == (
        "([i, j, kl, mn], [p, l, n, mo])->([i, j, k, mo]) "
        "{i=1, j=8, k=3, l=2, m=2, n=2, o=8, p=1} reduction={l, n} permutation={j, k}"
    )
    assert [f.combine for f in found.factors if f.role == "reduction"] == [None, "add"]


def test_work():
    op = Convolution(NHWC, 1, 1, tensor(1, 6, 6, 16))
    counted = op.work((tensor(1, 8, 8, 4), tensor(3, 3, 4, 16)), (tensor(1, 6, 6, 16),))
    assert counted.flops == 2 * (6 * 6 * 16) * (3 * 3 * 4)


def test_refusals():
    lhs, rhs = tensor(4, 8, 6), tensor(8, 2, 3)

    def refusal(lhs: object = lhs, rhs: object = rhs, **changes: object) -> str:
        op = Convolution(LINE, 1, 1, tensor(4, 2, 4)).replace(**changes)
        with pytest.raises(WeftError) as caught:
            infer(op, (lhs, rhs))
        return caught.value.message.removeprefix("stablehlo.convolution: ")

    assert infer(Convolution(LINE, 1, 1, tensor(4, 2, 4)), (lhs, rhs)) == (tensor(4, 2, 4),)
    assert refusal(tensor(4, 8, 6, 1)).startswith("operand 0 is tensor<4x8x6x1xf32>, operand 1")
    assert "elements" not in refusal(rhs=tensor(8, 2, 3, dtype="f64"))
    assert refusal(tensor(4, 7, 6)) == (
        "sizes differ: the input has 7 features a group, the kernel takes 8"
    )
    assert refusal(feature_group_count=0).startswith("feature_group_count is 0")
    assert refusal(feature_group_count=2, batch_group_count=2).startswith(
        "feature_group_count is 2"
    )
    assert refusal(feature_group_count=3) == (
        "the input's feature dim is 8, which 3 groups do not divide"
    )
    assert refusal(batch_group_count=3) == (
        "the input's batch dim is 4, which 3 groups do not divide"
    )
    assert refusal(window_strides=(0,)) == "strides of the window are [0]"
    assert refusal(window_strides=(1, 1)) == "2 strides for a window of 1 dims"
    assert refusal(rhs_dilation=(0,)) == "window_dilations of the window are [0]"
    assert refusal(window_reversal=(True, True)) == "2 window_reversal for a window of 1 dims"
    assert refusal(dimension_numbers=NHWC) == (
        "the input has 3 dims, but dimension_numbers names 4"
    )
    assert refusal(dimension_numbers=ConvDims(0, 0, (2,), 0, 1, (2,), 0, 1, (2,))) == (
        "the input of dimension_numbers repeats a dim: (0, 0, 2)"
    )
    assert refusal(out=tensor(4, 2, 5)).startswith("the result is tensor<4x2x5xf32>")
    assert refusal(precision_config=("HIGH",) * 3) == "precision_config has 3 entries"
