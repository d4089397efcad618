"""The ragged dot: its three modes against JAX, and its refusals."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from weft.errors import WeftError
from weft.ir.op import infer, rule
from weft.ir.types import tensor
from weft.ops.ragged import RaggedDims, RaggedDot

ROWS = RaggedDims((), (), (1,), (1,), (0,), (0,))
SUMS = RaggedDims((), (), (1,), (0,), (1,))


def test_each_row_meets_the_part_of_its_group():
    lhs = np.ones((5, 2), np.float32)
    rhs = np.array([[[1.0], [1.0]], [[10.0], [10.0]]], np.float32)
    op = RaggedDot(ROWS, tensor(5, 1))
    made = op.reference(lhs, rhs, np.array([3, 1], np.int32))
    np.testing.assert_array_equal(made[:, 0], [2, 2, 2, 20, 0])  # the last row is in no group


def test_what_is_in_no_group_does_not_matter():
    lhs = np.array([[1.0], [np.nan], [2.0]], np.float32)
    rhs = np.array([[[2.0]], [[np.inf]]], np.float32)
    op = RaggedDot(ROWS, tensor(3, 1))
    made = op.reference(lhs, rhs, np.array([1, 0], np.int32))
    np.testing.assert_array_equal(made[:, 0], [2, 0, 0])
    sums = RaggedDot(SUMS, tensor(2, 1, 1))
    made = sums.reference(lhs.T, np.array([[1.0], [1.0], [1.0]], np.float32), np.array([1, 0]))
    np.testing.assert_array_equal(made[:, 0, 0], [1, 0])


@pytest.mark.parametrize("mode", ["rows", "sums", "batch", "rows of each batch"])
def test_modes_agree_with_jax(mode: str):
    random = np.random.default_rng(0)
    lhs = random.integers(-4, 5, (2, 6, 4)).astype(np.float32)
    groups = np.array([2, 1, 3], np.int32)
    rhs_shape = (3, 2, 4, 5) if mode.startswith("rows") else (2, 4, 5)
    rhs = random.integers(-4, 5, rhs_shape).astype(np.float32)
    if mode.startswith("rows"):
        dims = RaggedDims((0,), (1,), (2,), (2,), (1,), (0,))
        out = tensor(2, 6, 5)
        groups = np.stack([groups, groups[::-1]]) if "each" in mode else groups
    elif mode == "sums":
        dims, out = RaggedDims((0,), (0,), (2,), (1,), (2,)), tensor(3, 2, 6, 5)
        groups = np.array([1, 0, 2], np.int32)
    else:
        dims, out, groups = RaggedDims((0,), (0,), (2,), (1,), (0,)), tensor(2, 6, 5), groups[:2]
    contract = (dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions)
    batch = (dims.lhs_batching_dimensions, dims.rhs_batching_dimensions)
    theirs = jax.lax.ragged_dot_general(
        lhs,
        rhs,
        groups,
        jax.lax.RaggedDotDimensionNumbers(
            (contract, batch), dims.lhs_ragged_dimensions, dims.rhs_group_dimensions
        ),
    )
    np.testing.assert_array_equal(RaggedDot(dims, out).reference(lhs, rhs, groups), theirs)


def test_rule_keeps_groups_whole():
    types = (tensor(16, 32, 64), tensor(4, 16, 64, 8), tensor(16, 4, dtype="i32"))
    op = RaggedDot(RaggedDims((0,), (1,), (2,), (2,), (1,), (0,)), tensor(16, 32, 8))
    assert str(rule(op, types)) == (
        "([i, j, l], [m, i, l, k], [i, m])->([i, j, k]) {i=16, j=32, k=8, l=64, m=4} "
        "reduction={l} need_replication={j, m}"
    )


def test_refusals():
    def refusal(op: RaggedDot, *types: object) -> str:
        with pytest.raises(WeftError) as caught:
            infer(op, types)
        return caught.value.message

    lhs, rhs, groups = tensor(6, 4), tensor(3, 4, 5), tensor(3, dtype="i32")
    op = RaggedDot(ROWS, tensor(6, 5))
    assert infer(op, (lhs, rhs, groups)) == (tensor(6, 5),)
    assert "operand 2 is tensor<3xf32>" in refusal(op, lhs, rhs, tensor(3))
    assert "operand 2 is tensor<2x3xi32>" in refusal(op, lhs, rhs, tensor(2, 3, dtype="i32"))
    assert "operand 1 dim 0 is 3, but operand 2 has 4 groups" in refusal(
        op, lhs, rhs, tensor(4, dtype="i32")
    )
    no_group = RaggedDot(RaggedDims((), (), (1,), (1,), (0,)), tensor(6, 5))
    assert "0 rhs_group_dimensions" in refusal(no_group, lhs, rhs, groups)
    no_ragged = RaggedDot(RaggedDims((), (), (1,), (1,), ()), tensor(6, 5))
    assert "0 lhs_ragged_dimensions" in refusal(no_ragged, lhs, rhs, groups)
