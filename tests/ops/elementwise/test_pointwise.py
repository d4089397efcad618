"""Elementwise arithmetic, bits, comparison and choice: the values that matter, and the refusals."""

from __future__ import annotations

import numpy as np
import pytest

from weft.capture import parse
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.op import Body, Op, infer
from weft.ir.types import DTYPES, Array, Type, dtype_of, tensor
from weft.ops.elementwise import pointwise
from weft.ops.elementwise.pointwise import Clamp, Compare, Map, Select

NAN, INF = np.nan, np.inf


def made(name: str, *values: object) -> Array:
    """An array of that element type."""
    dtype = DTYPES[name]
    if dtype.is_integer:
        wrapped = [int(v) & (2**64 - 1) for v in values]  # type: ignore[call-overload]
        return np.array(wrapped, np.uint64).astype(dtype.numpy)
    return np.array(values, np.complex128 if dtype.is_complex else np.float64).astype(dtype.numpy)


def check(op: Op, expected: Array, *arrays: Array) -> None:
    """The reference gives exactly these numbers; NaN equals NaN, and -0 is not 0."""
    got = op.reference(*arrays)
    assert got.dtype == expected.dtype
    if dtype_of(expected.dtype).is_float:
        got, expected = got.astype(np.float64), expected.astype(np.float64)
        signed = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(got[signed]), np.signbit(expected[signed]))
    np.testing.assert_array_equal(got, expected)


SIGNED = ("i2", "i4", "i8", "i16", "i32", "i64")
UNSIGNED = ("ui2", "ui4", "ui8", "ui16", "ui32", "ui64")


@pytest.mark.parametrize("name", SIGNED)
def test_signed_division_truncates_and_wraps(name: str) -> None:
    least = -(1 << (DTYPES[name].bits - 1))
    lhs = made(name, 1, -1, least, least, least + 1)
    rhs = made(name, 0, 0, -1, 0, -2)
    half = -(least + 1) // 2
    check(pointwise.Divide(), made(name, -1, -1, least, -1, half), lhs, rhs)
    check(pointwise.Remainder(), made(name, 1, -1, 0, least, -1), lhs, rhs)


@pytest.mark.parametrize("name", UNSIGNED)
def test_unsigned_division(name: str) -> None:
    most = (1 << DTYPES[name].bits) - 1
    lhs, rhs = made(name, 3, 3, 2), made(name, 0, 2, 3)
    check(pointwise.Divide(), made(name, most, 1, 0), lhs, rhs)
    check(pointwise.Remainder(), made(name, 3, 1, 2), lhs, rhs)


def test_quotients_round_toward_zero() -> None:
    lhs, rhs = made("i32", 7, -7, 7, -7), made("i32", 2, 2, -2, -2)
    check(pointwise.Divide(), made("i32", 3, -3, -3, 3), lhs, rhs)
    check(pointwise.Remainder(), made("i32", 1, -1, 1, -1), lhs, rhs)


def test_float_remainder_has_the_sign_of_the_dividend() -> None:
    lhs, rhs = made("f32", 5.5, -5.5, -0.0, 1, INF), made("f32", 2, 2, 2, 0, 2)
    check(pointwise.Remainder(), made("f32", 1.5, -1.5, -0.0, NAN, NAN), lhs, rhs)


@pytest.mark.parametrize("name", SIGNED[1:])
def test_integers_wrap(name: str) -> None:
    least = -(1 << (DTYPES[name].bits - 1))
    one = made(name, 1)
    check(pointwise.Subtract(), made(name, -least - 1), made(name, least), one)
    check(pointwise.Negate(), made(name, least), made(name, least))
    check(pointwise.Abs(), made(name, least), made(name, least))
    check(pointwise.Multiply(), made(name, 0), made(name, least), made(name, 2))


def test_integer_powers() -> None:
    base = made("i8", 2, -3, 0, 5, 1, -1, -1, 0, 2)
    power = made("i8", 3, 3, 0, 100, -7, -7, -8, -1, -1)
    check(pointwise.Power(), made("i8", 8, -27, 1, -15, 1, -1, 1, 0, 0), base, power)
    check(pointwise.Power(), made("ui4", 9, 0), made("ui4", 3, 2), made("ui4", 2, 4))


@pytest.mark.parametrize("name", SIGNED + UNSIGNED)
def test_shifts_by_all_amounts(name: str) -> None:
    dtype = DTYPES[name]
    amounts = made(name, 0, 1, -1) if dtype.kind == "int" else made(name, 0, 1, 3)
    ones = made(name, -1, -1, -1)
    beyond = dtype.bits <= int(amounts.view("u1" if dtype.bits < 8 else f"u{dtype.bits // 8}")[2])
    mask = (1 << dtype.bits) - 1
    left = made(name, mask, mask - 1, 0 if beyond else mask & ~7)
    right = made(name, mask, mask >> 1, 0 if beyond else mask >> 3)
    check(pointwise.ShiftLeft(), left, ones, amounts)
    check(pointwise.ShiftRightLogical(), right, ones, amounts)
    check(pointwise.ShiftRightArithmetic(), ones, ones, amounts)


def test_counts_of_bits() -> None:
    check(pointwise.Popcnt(), made("i4", 4, 1, 0), made("i4", -1, -8, 0))
    check(pointwise.Popcnt(), made("i64", 64, 63), made("i64", -1, 2**63 - 1))
    check(pointwise.CountLeadingZeros(), made("ui2", 2, 1, 0), made("ui2", 0, 1, 2))
    check(pointwise.CountLeadingZeros(), made("i16", 16, 15, 0), made("i16", 0, 1, -1))


@pytest.mark.parametrize("name", ["f8E5M2", "bf16", "f16", "f32", "f64"])
def test_extremes_of_floats(name: str) -> None:
    lhs, rhs = made(name, NAN, 1, -0.0, 0.0, -INF), made(name, 1, NAN, 0.0, -0.0, 2)
    check(pointwise.Maximum(), made(name, NAN, NAN, 0.0, 0.0, 2), lhs, rhs)
    check(pointwise.Minimum(), made(name, NAN, NAN, -0.0, -0.0, -INF), lhs, rhs)


def test_complex_numbers_are_ordered_like_words() -> None:
    lhs, rhs = made("complex<f32>", 1 + 2j, 1 + 2j, 3 - 1j), made("complex<f32>", 1 + 3j, 0, 3 - 2j)
    check(pointwise.Maximum(), made("complex<f32>", 1 + 3j, 1 + 2j, 3 - 1j), lhs, rhs)
    check(pointwise.Minimum(), made("complex<f32>", 1 + 2j, 0, 3 - 2j), lhs, rhs)
    check(Compare("LT"), np.array([True, False, False]), lhs, rhs)
    check(Compare("GE"), np.array([False, True, True]), lhs, rhs)
    check(Compare("LE"), np.array([True, True, True]), lhs, lhs)
    check(Compare("NE"), np.array([True, False]), lhs[:2], np.array([0, 1 + 2j], np.complex64))


def test_booleans_compute_as_logic() -> None:
    lhs, rhs = np.array([0, 0, 1, 1], bool), np.array([0, 1, 0, 1], bool)
    either, both = np.array([0, 1, 1, 1], bool), np.array([0, 0, 0, 1], bool)
    for op, expected in (
        (pointwise.Add(), either),
        (pointwise.Maximum(), either),
        (pointwise.Or(), either),
        (pointwise.Multiply(), both),
        (pointwise.Minimum(), both),
        (pointwise.And(), both),
        (pointwise.Xor(), lhs != rhs),
        (Compare("LT"), ~lhs & rhs),
    ):
        check(op, expected, lhs, rhs)
    check(pointwise.Not(), ~lhs, lhs)


@pytest.mark.parametrize("name", ["f8E4M3", "bf16", "f16", "f32", "f64"])
def test_total_order(name: str) -> None:
    rising = made(name, -NAN, -INF, -1, -0.0, 0.0, 2, INF, NAN)
    rising[0], rising[-1] = -np.abs(rising[0]), np.abs(rising[-1])
    size = len(rising)
    lhs, rhs = np.repeat(rising, size), np.tile(rising, size)
    before = np.less.outer(np.arange(size), np.arange(size)).ravel()
    check(Compare("LT", "TOTALORDER"), before, lhs, rhs)
    check(Compare("EQ", "TOTALORDER"), np.eye(size, dtype=bool).ravel(), lhs, rhs)


def test_comparison_with_nan() -> None:
    lhs, rhs = made("f16", NAN, NAN, 1), made("f16", NAN, 1, 1)
    for direction, expected in (("EQ", [0, 0, 1]), ("NE", [1, 1, 0]), ("GE", [0, 0, 1])):
        check(Compare(direction), np.array(expected, bool), lhs, rhs)


def test_signs() -> None:
    given = made("f32", -2, -0.0, 0.0, 3, NAN, -INF)
    check(pointwise.Sign(), made("f32", -1, -0.0, 0.0, 1, NAN, -1), given)
    check(pointwise.Sign(), made("i4", -1, 0, 1), made("i4", -8, 0, 7))
    given = np.array([0, 3 - 4j, 1e38 + 1e38j], np.complex64)
    unit = np.array([0, 0.6 - 0.8j, np.sqrt(0.5) * (1 + 1j)], np.complex64)
    check(pointwise.Sign(), unit, given)


def test_size_of_complex_numbers_is_real() -> None:
    (out,) = infer(pointwise.Abs(), (tensor(2, dtype="complex<f32>"),))
    assert out is tensor(2, dtype="f32")
    check(
        pointwise.Abs(), made("f32", 5, INF), np.array([3 - 4j, complex(-INF, NAN)], np.complex64)
    )
    check(pointwise.Abs(), made("f32", 1e38), np.array([1e38j], np.complex64))


def test_products_of_complex_numbers_round_each_part() -> None:
    lhs = np.array([complex(1 + 2**-12, 1)], np.complex64)
    rhs = np.array([complex(1 + 2**-12, 1 + 2**-11)], np.complex64)
    exact = (1 + 2**-12) ** 2 - (1 + 2**-11)
    assert exact == 2**-24
    assert pointwise.Multiply().reference(lhs, rhs)[0].real == 0


def test_quotients_of_complex_numbers() -> None:
    divide = pointwise.Divide()
    big = np.array([1e300 + 1e300j, 4e-320], np.complex128)
    check(divide, np.array([1, 1], np.complex128), big, big)
    zero, inf = np.zeros(1, np.complex128), np.array([complex(INF, 1)])
    assert divide.reference(np.array([1 + 1j]), zero)[0] == complex(INF, INF)
    assert divide.reference(np.array([1 + 1j]), inf)[0] == 0
    assert np.isinf(divide.reference(inf, np.array([1 + 1j]))[0])


def test_rounding() -> None:
    given = made("f32", 0.5, 1.5, 2.5, -0.5, -2.5, 0.49999997, INF, -0.2)
    check(pointwise.RoundNearestEven(), made("f32", 0, 2, 2, -0.0, -2, 0, INF, -0.0), given)
    check(pointwise.RoundNearestAfz(), made("f32", 1, 2, 3, -1, -3, 0, INF, -0.0), given)
    check(pointwise.Floor(), made("f32", 0, 1, 2, -1, -3, 0, INF, -1), given)
    check(pointwise.Ceil(), made("f32", 1, 2, 3, -0.0, -2, 1, INF, -0.0), given)


def test_is_finite() -> None:
    given = made("f8E4M3FN", 448, NAN, 0)
    check(pointwise.IsFinite(), np.array([True, False, True]), given)
    check(pointwise.IsFinite(), np.array([False, True]), made("f8E5M2", INF, 1))


def test_a_type_without_sign_and_zero() -> None:
    two, four = made("f8E8M0FNU", 2), made("f8E8M0FNU", 4)
    check(pointwise.Multiply(), made("f8E8M0FNU", 8), two, four)
    assert np.isnan(pointwise.Subtract().reference(two, four).astype(float))
    check(Compare("LT", "TOTALORDER"), np.array([True]), two, made("f8E8M0FNU", NAN))


def test_choices() -> None:
    yes, a, b = np.array(True), made("i8", 1, 2), made("i8", 3, 4)
    check(Select(), a, yes, a, b)
    check(Select(), made("i8", 3, 2), np.array([False, True]), a, b)
    low, high = np.array(2, np.int8), made("i8", 9, 3)
    check(Clamp(), made("i8", 2, 3), low, made("i8", 1, 7), high)
    check(
        Clamp(),
        made("f32", NAN, 1),
        np.array(0, np.float32),
        made("f32", NAN, 4),
        np.array(1, np.float32),
    )


def test_scalars_stay_arrays() -> None:
    for op in (pointwise.Add(), pointwise.Divide(), Compare("LT")):
        got = op.reference(np.array(1.5, np.float32), np.array(2, np.float32))
        assert isinstance(got, np.ndarray) and got.shape == ()


MAP = """
func.func @main(%a: tensor<2x2xi32>, %b: tensor<2x2xi32>) -> tensor<2x2xf32> {
  %0 = "stablehlo.map"(%a, %b) <{dimensions = array<i64: 0, 1>}> ({
  ^bb0(%x: tensor<i32>, %y: tensor<i32>):
    %c = stablehlo.constant dense<10> : tensor<i32>
    %p = stablehlo.multiply %x, %c : tensor<i32>
    %s = stablehlo.add %p, %y : tensor<i32>
    %f = stablehlo.convert %s : (tensor<i32>) -> tensor<f32>
    stablehlo.return %f : tensor<f32>
  }) : (tensor<2x2xi32>, tensor<2x2xi32>) -> tensor<2x2xf32>
  return %0 : tensor<2x2xf32>
}
"""


def test_map_applies_its_region_everywhere() -> None:
    a = np.arange(4, dtype=np.int32).reshape(2, 2)
    (out,) = evaluate(parse(MAP), a, a.T)
    np.testing.assert_array_equal(out, (10 * a + a.T).astype(np.float32))


def refusal(op: Op, *types: Type, bodies: tuple[Body, ...] = ()) -> str:
    with pytest.raises(WeftError) as caught:
        infer(op, types, bodies)
    return str(caught.value)


def test_operands_that_do_not_fit_are_refused() -> None:
    f32, i32 = tensor(2, dtype="f32"), tensor(2, dtype="i32")
    assert refusal(pointwise.Add(), f32, i32) == (
        "error: stablehlo.add: operand 0 is tensor<2xf32>, but operand 1 is tensor<2xi32>\n"
        "help: the operands must have one type; convert or broadcast one of them"
    )
    assert refusal(pointwise.And(), f32, f32) == (
        "error: stablehlo.and: operand 0 is tensor<2xf32>\n"
        "help: its elements must be bool or int or uint"
    )
    assert "takes 2 operands, 1 given" in refusal(pointwise.Add(), f32)
    assert refusal(Compare("LT", "SIGNED"), f32, f32) == (
        "error: stablehlo.compare: SIGNED cannot compare f32\n"
        "help: use FLOAT or TOTALORDER, or leave it out"
    )


def test_choices_that_do_not_fit_are_refused() -> None:
    f32, pred = tensor(2, dtype="f32"), tensor(3, dtype="i1")
    assert "the predicate must be a scalar or have the shape of the choices" in refusal(
        Select(), pred, f32, f32
    )
    assert "stablehlo.select: operand 0 is tensor<2xf32>" in refusal(Select(), f32, f32, f32)
    assert "operand 2 is tensor<3xf32>, but operand 1 is tensor<2xf32>" in refusal(
        Clamp(), f32, f32, tensor(3)
    )


def test_maps_that_do_not_fit_are_refused() -> None:
    scalar, vector = tensor(), tensor(2)
    body = Body((scalar,), (scalar,))
    assert "a map runs over all dims in order: [0]" in refusal(Map((1,)), vector, bodies=(body,))
    assert refusal(Map((0,)), vector, bodies=(Body((scalar,), (vector,)),)) == (
        "error: stablehlo.map: the region returns (tensor<2xf32>)\nhelp: it must return one scalar"
    )
    other = Body((tensor(dtype="i8"),), (scalar,))
    assert "the region takes (tensor<i8>)" in refusal(Map((0,)), vector, bodies=(other,))
    assert "has no operands" in refusal(Map(()), bodies=(body,))
