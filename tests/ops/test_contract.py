"""Dots and einsums: values, rounding, text, refusals and work."""

from __future__ import annotations

import numpy as np
import pytest

from weft.capture import parse
from weft.errors import WeftError
from weft.ir.op import Op, infer, rule
from weft.ir.types import DTYPES, Types, tensor
from weft.ops.contract import Dot, DotAlgorithm, DotDims, DotGeneral
from weft.ops.einsum import Einsum, UnaryEinsum

MATMUL = DotDims((), (), (1,), (0,))
BATCHED = DotDims((0,), (0,), (2,), (1,))


def refusal(op: Op, *types: object) -> str:
    with pytest.raises(WeftError) as caught:
        infer(op, types)
    assert caught.value.help
    return caught.value.message


def test_batched_dot():
    lhs = np.arange(8).reshape(2, 2, 2)
    rhs = np.stack([np.eye(2, dtype=int)] * 2)
    op = DotGeneral(BATCHED, tensor(2, 2, 2, dtype="i64"))
    np.testing.assert_array_equal(op.reference(lhs, rhs), lhs)


def test_dims_of_the_result_are_batch_then_left_then_right():
    lhs, rhs = np.ones((3, 5, 2, 4)), np.ones((4, 7, 5))
    op = DotGeneral(DotDims((1,), (2,), (3,), (0,)), tensor(5, 3, 2, 7, dtype="f64"))
    assert infer(op, (tensor(3, 5, 2, 4, dtype="f64"), tensor(4, 7, 5, dtype="f64")))
    np.testing.assert_array_equal(op.reference(lhs, rhs), np.full((5, 3, 2, 7), 4.0))


def test_nothing_to_sum_is_an_outer_product():
    op = DotGeneral(DotDims(), tensor(2, 3, dtype="i32"))
    a, b = np.array([1, 2], np.int32), np.array([3, 4, 5], np.int32)
    np.testing.assert_array_equal(op.reference(a, b), np.outer(a, b))


def test_an_empty_sum_is_zero():
    op = DotGeneral(MATMUL, tensor(2, 3, dtype="bf16"))
    held = DTYPES["bf16"].numpy
    np.testing.assert_array_equal(
        op.reference(np.zeros((2, 0), held), np.zeros((0, 3), held)), np.zeros((2, 3), held)
    )


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("i8", 100, 32), ("ui8", 200, 128), ("i32", 2**20, 0), ("i4", 7, 2), ("ui64", 2**63, 0)],
)
def test_integers_wrap(name: str, value: int, expected: int):
    operand = np.full((1, 2), value).astype(DTYPES[name].numpy)
    op = DotGeneral(MATMUL, tensor(1, 1, dtype=name))
    assert int(op.reference(operand, operand.T)[0, 0]) == expected


def test_small_integers_are_summed_in_the_result_type():
    operand = np.full((1, 300), 127, np.int8)
    op = DotGeneral(MATMUL, tensor(1, 1, dtype="i32"))
    assert op.reference(operand, operand.T)[0, 0] == 300 * 127 * 127
    unsigned = np.full((300, 1), 255, np.uint8)
    assert op.reference(operand, unsigned)[0, 0] == 300 * 127 * 255


def test_booleans_multiply_by_and_and_add_by_or():
    op = DotGeneral(MATMUL, tensor(2, 1, dtype="i1"))
    lhs = np.array([[True, True, False], [False, False, True]])
    rhs = np.array([[True], [True], [False]])
    np.testing.assert_array_equal(op.reference(lhs, rhs), [[True], [False]])


def test_narrow_floats_are_summed_wide_and_rounded_once():
    held = DTYPES["bf16"].numpy
    ones = np.ones((1, 1000)).astype(held)
    op = DotGeneral(MATMUL, tensor(1, 1, dtype="bf16"))
    assert op.reference(ones, ones.T)[0, 0] == np.asarray(1000.0).astype(held)
    small = np.array([[1.0, 2.0**-9, 2.0**-8]]).astype(held)  # each alone would be lost
    assert op.reference(small, np.ones((3, 1)).astype(held))[0, 0] > 1


def test_long_sums_of_f32_are_exact():
    values = np.array([1e8, 1.0, -1e8] * 10, np.float32)[None]
    op = DotGeneral(MATMUL, tensor(1, 1))
    assert op.reference(values, np.ones((30, 1), np.float32))[0, 0] == 10.0


def test_infinities_and_nan():
    op = DotGeneral(MATMUL, tensor(1, 1))
    inf, zero = np.array([[np.inf]], np.float32), np.zeros((1, 1), np.float32)
    assert np.isnan(op.reference(inf, zero)[0, 0])
    assert op.reference(inf, inf)[0, 0] == np.inf
    big = np.array([[3e38]], np.float32)
    assert op.reference(big, big)[0, 0] == np.inf


def test_complex():
    op = DotGeneral(MATMUL, tensor(1, 1, dtype="complex<f32>"))
    z = np.array([[1 + 2j, 3 - 1j]], np.complex64)
    assert op.reference(z, z.T)[0, 0] == (1 + 2j) ** 2 + (3 - 1j) ** 2


def test_dot_takes_vectors_and_matrices():
    vector, matrix = np.array([1.0, 2.0]), np.array([[1.0, 2.0], [3.0, 4.0]])
    for left in (vector, matrix):
        for right in (vector, matrix):
            expected = left @ right
            op = Dot(tensor(*np.shape(expected), dtype="f64"))
            np.testing.assert_array_equal(op.reference(left, right), expected)


def test_einsum_of_a_diagonal_and_an_ellipsis():
    matrix = np.arange(9.0).reshape(3, 3)
    op = UnaryEinsum("ii->i", tensor(3, dtype="f64"))
    np.testing.assert_array_equal(op.reference(matrix), np.diag(matrix))
    batch = np.arange(12.0).reshape(2, 2, 3)
    product = Einsum("...ij,jk->...ik", tensor(2, 2, 3, dtype="f64"))
    np.testing.assert_array_equal(product.reference(batch, matrix), batch @ matrix)


TEXTS = (
    "stablehlo.dot_general %arg0, %arg1, batching_dims = [0] x [0], contracting_dims = [2] x [1], "
    "precision = [DEFAULT, DEFAULT], algorithm = <lhs_precision_type = tf32, rhs_precision_type = "
    "tf32, accumulation_type = f32, lhs_component_count = 1, rhs_component_count = 1, "
    "num_primitive_operations = 1, allow_imprecise_accumulation = false> : "
    "(tensor<4x2x8xf32>, tensor<4x8x6xf32>) -> tensor<4x2x6xf32>",
    "stablehlo.dot_general %arg0, %arg1, contracting_dims = [] x [] : "
    "(tensor<4xf32>, tensor<8xf32>) -> tensor<4x8xf32>",
    "stablehlo.dot %arg0, %arg1, precision = [HIGH, HIGHEST] : "
    "(tensor<4x8xf32>, tensor<8xf32>) -> tensor<4xf32>",
    'stablehlo.einsum %arg0, %arg1, config = "ij,jk->ik" : '
    "(tensor<4x8xf32>, tensor<8x6xf32>) -> tensor<4x6xf32>",
)


@pytest.mark.parametrize("line", TEXTS, ids=lambda t: t.split()[0])
def test_lines_are_written_as_mlir_writes_them(line: str):
    types, _, result = line.rpartition(" : ")[2].partition(" -> ")
    args = ", ".join(f"%arg{n}: {t}" for n, t in enumerate(types[1:-1].split(", ")))
    text = f"func.func @main({args}) -> {result} {{\n %0 = {line}\n return %0 : {result}\n}}"
    assert f"%0 = {line}\n" in parse(text).text()


def test_rules():
    types = (tensor(4, 2, 8), tensor(4, 8, 6))
    found = rule(DotGeneral(BATCHED, tensor(4, 2, 6)), types)
    assert str(found) == "([i, j, l], [i, l, k])->([i, j, k]) {i=4, j=2, k=6, l=8} reduction={l}"
    assert [f.combine for f in found.factors] == [None, None, None, "add"]
    booleans: Types = (tensor(2, 4, dtype="i1"), tensor(4, 3, dtype="i1"))
    assert rule(DotGeneral(MATMUL, tensor(2, 3, dtype="i1")), booleans).factors[-1].combine == "or"
    diagonal = rule(UnaryEinsum("iij->j", tensor(4)), (tensor(2, 2, 4),))
    assert str(diagonal) == "([j, k, i])->([i]) {i=4, j=2, k=2} need_replication={j, k}"


def test_work():
    types = (tensor(4, 8), tensor(8, 6))
    counted = DotGeneral(MATMUL, tensor(4, 6)).work(types, (tensor(4, 6),))
    assert counted.flops == 2 * 4 * 8 * 6
    assert counted.bytes == 4 * (32 + 48 + 24)
    assert Einsum("ij,jk->ik", tensor(4, 6)).work(types, (tensor(4, 6),)) == counted


def test_refusals_of_dots():
    op = DotGeneral(MATMUL, tensor(4, 6))
    assert refusal(op, tensor(4, 512), tensor(256, 6)) == (
        "stablehlo.dot_general: sizes differ: operand 0 dim 1 is 512, operand 1 dim 0 is 256"
    )
    assert refusal(op, tensor(4, 8), tensor(8, 7)) == (
        "stablehlo.dot_general: the result is tensor<4x6xf32>, "
        "but tensor<4x7xf32> follows from the operands"
    )
    assert refusal(op, tensor(4), tensor(8, 6)) == (
        "stablehlo.dot_general: the lhs batching and contracting dims holds 1, "
        "but the tensor has 1 dims"
    )
    uneven = DotGeneral(DotDims((), (), (1,), ()), tensor(4, 6))
    assert "1 lhs_contracting_dimensions, but 0 of rhs" in refusal(uneven, tensor(4, 8), tensor(6))
    twice = DotGeneral(DotDims((0,), (0,), (0,), (1,)), tensor(4, 6))
    assert "repeats a dim: (0, 0)" in refusal(twice, tensor(4, 8), tensor(4, 4))
    matrices = tensor(4, 8), tensor(8, 6)
    three = DotGeneral(MATMUL, tensor(4, 6), ("DEFAULT",) * 3)
    assert "precision_config has 3 entries" in refusal(three, *matrices)
    tf32 = DotAlgorithm("tf32", "tf32", "f32", 1, 1, 1, False)
    both = DotGeneral(MATMUL, tensor(4, 6), ("HIGH", "HIGH"), tf32)
    assert "algorithm and precision_config" in refusal(both, *matrices)
    none = DotGeneral(MATMUL, tensor(4, 6), None, DotAlgorithm("f32", "f32", "f32", 0, 1, 1, False))
    assert "counts are [0, 1, 1]" in refusal(none, *matrices)
    assert "operand 0 is tensor<2x2x2xf32>" in refusal(
        Dot(tensor(2, 2, 2)), tensor(2, 2, 2), tensor(2, 2)
    )


def test_refusals_of_einsums():
    matrix = tensor(2, 3)
    assert "does not name the dims of 2 operands" in refusal(
        Einsum("ij->ij", matrix), matrix, matrix
    )
    assert "term 'ijk' does not fit operand 0" in refusal(
        Einsum("ijk,jk->i", tensor(2)), matrix, matrix
    )
    assert "operand 0 dim 1 is 3, operand 1 dim 0 is 2" in refusal(
        Einsum("ij,jk->ik", matrix), matrix, matrix
    )
    assert "the result's term 'ii'" in refusal(UnaryEinsum("ij->ii", matrix), matrix)
    assert "follows from the operands" in refusal(UnaryEinsum("ij->i", tensor(3)), matrix)
