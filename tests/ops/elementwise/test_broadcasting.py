"""CHLO's broadcasting ops: shapes as numpy makes them, or along dims that the op names."""

from __future__ import annotations

import numpy as np
import pytest

from weft.capture import parse
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.op import Op, infer, rule
from weft.ir.types import Type, tensor
from weft.ops.elementwise.broadcasting import (
    BroadcastAdd,
    BroadcastCompare,
    BroadcastComplex,
    BroadcastSelect,
    BroadcastSubtract,
)


def test_shapes_are_aligned_at_the_end() -> None:
    (out,) = infer(BroadcastAdd(), (tensor(4, 1, 3), tensor(2, 1)))
    assert out is tensor(4, 2, 3)
    (out,) = infer(BroadcastAdd(), (tensor(), tensor(0, 3)))
    assert out is tensor(0, 3)


def test_named_dims_place_the_smaller_operand() -> None:
    op = BroadcastSubtract(broadcast_dimensions=(0,))  # type: ignore[call-arg]
    (out,) = infer(op, (tensor(2), tensor(2, 3)))
    assert out is tensor(2, 3)
    small, large = np.array([10, 20]), np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(op.reference(small, large), small[:, None] - large)
    np.testing.assert_array_equal(op.reference(large, small), large - small[:, None])


def test_comparison_and_choice() -> None:
    op = BroadcastCompare("GT")
    (out,) = infer(op, (tensor(2, 1), tensor(3)))
    assert out is tensor(2, 3, dtype="i1")
    got = op.reference(np.array([[1.0], [2.0]]), np.array([0.0, 1.0, 2.0]))
    assert got.tolist() == [[True, False, False], [True, True, False]]
    pred, yes, no = np.array([True, False]), np.array([[1], [2]]), np.array(9)
    assert BroadcastSelect().reference(pred, yes, no).tolist() == [[1, 9], [2, 9]]


def test_result_types_may_differ_from_the_operands() -> None:
    (out,) = infer(BroadcastComplex(), (tensor(2, 1), tensor(2)))
    assert out is tensor(2, 2, dtype="complex<f32>")


def test_rules_split_what_is_not_stretched() -> None:
    found = rule(BroadcastAdd(), (tensor(4, 1, 8), tensor(2, 8)))
    assert (
        str(found) == "([i, l, k], [j, k])->([i, j, k]) {i=4, j=2, k=8, l=1} need_replication={l}"
    )


def test_programs_are_read_and_run() -> None:
    text = """
func.func @main(%a: tensor<2x1xi32>, %b: tensor<2xi32>) -> tensor<2x2xi1> {
  %0 = chlo.broadcast_multiply %a, %b : (tensor<2x1xi32>, tensor<2xi32>) -> tensor<2x2xi32>
  %1 = chlo.broadcast_compare %0, %b {broadcast_dimensions = array<i64: 0>,
    comparison_direction = #chlo<comparison_direction EQ>}
    : (tensor<2x2xi32>, tensor<2xi32>) -> tensor<2x2xi1>
  return %1 : tensor<2x2xi1>
}
"""
    a, b = np.array([[1], [2]], np.int32), np.array([3, 6], np.int32)
    module = parse(text)
    (out,) = evaluate(module, a, b)
    np.testing.assert_array_equal(out, a * b == b[:, None])
    assert parse(module.text()).text() == module.text()


def refusal(op: Op, *types: Type) -> str:
    with pytest.raises(WeftError) as caught:
        infer(op, types)
    return str(caught.value)


def test_refusals() -> None:
    assert refusal(BroadcastAdd(), tensor(3, 2), tensor(3)) == (
        "error: chlo.broadcast_add: dim 1 of the result is 2 in one operand and 3 in another: "
        "tensor<3x2xf32>, tensor<3xf32>\n"
        "help: sizes must be equal, or 1"
    )
    types = (tensor(2), tensor(2, dtype="i8"))
    assert "chlo.broadcast_add: operand 0 is tensor<2xf32>" in refusal(BroadcastAdd(), *types)
    two = BroadcastAdd(broadcast_dimensions=(0, 1))  # type: ignore[call-arg]
    assert "but the smaller operand has 1 dims" in refusal(two, tensor(2, 3), tensor(3))
    far = BroadcastAdd(broadcast_dimensions=(5,))  # type: ignore[call-arg]
    assert "name dims from 0 to 1, in rising order" in refusal(far, tensor(2, 3), tensor(3))
    assert "takes 2 operands, 0 given" in refusal(BroadcastAdd())
