"""CHLO's functions against values computed with 60 digits, and at their edges."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from tests.ops.program import module_of
from tests.tolerance import assert_close
from weft.capture import parse
from weft.ir.dense import Dense
from weft.ir.types import DTYPES, Array, tensor
from weft.ops.elementwise import special
from weft.ops.elementwise.pointwise import Pointwise
from weft.ops.elementwise.special import ConstantLike

NAN, INF = np.nan, np.inf

KNOWN: dict[type[Pointwise], dict[float, float]] = {
    special.Digamma: {
        0.1: -10.423754940411076,
        0.9: -0.7549269499470513,
        1.4616321449683622: -9.241265521729427e-17,
        1.5: 0.03648997397857652,
        3.75: 1.1825373886117962,
        12.5: 2.4851956512749123,
        1e10: 23.025850929890456,
        -0.25: 2.9141391202135276,
        -7.3: 4.33730730551005,
    },
    special.Lgamma: {
        0.1: 2.252712651734206,
        0.9999: 5.7729791561193866e-05,
        1.5: -0.12078223763524522,
        2.0001: 4.2281658112919945e-05,
        2.75: 0.47521466691493713,
        7.5: 7.534364236758733,
        100.25: 360.28455963776423,
        1e6: 12815504.569147611,
        -0.5: 1.2655121234846454,
        -3.3: -0.8243558050174264,
    },
    special.ErfInv: {
        1e-20: 8.86226925452758e-21,
        0.25: 0.2253120550121781,
        -0.5: -0.4769362762044699,
        0.9: 1.1630871536766743,
        -0.9999999999999: -5.261483331372676,
    },
    special.BesselI1e: {
        1e-05: 4.999950000312499e-06,
        0.5: 0.1564208031848717,
        -3.0: -0.19682671329730086,
        15.0: 0.10037417504516666,
        19.99: 0.08752724194828622,
        20.5: 0.08647411349408725,
        10000.0: 0.003989273195983662,
    },
    special.Erfc: {
        -2.0: 1.9953222650189528,
        0.5: 0.4795001221869535,
        5.0: 1.537459794428035e-12,
        20.0: 5.395865611607901e-176,
    },
    special.Erf: {0.5: 0.5204998778130465, -1e-10: -1.1283791670955127e-10},
}
KNOWN_PAIRS: dict[type[Pointwise], dict[tuple[float, float], float]] = {
    special.Zeta: {
        (2.0, 1.0): 1.6449340668482264,
        (1.5, 0.25): 10.213055360466601,
        (3.0, 10.5): 0.004987572123857585,
        (20.0, 2.0): 9.539620338727962e-07,
        (50.5, 30.0): 3.1530652455406205e-75,
        (4.0, -2.5): 32.4579793698646,
    },
    special.Polygamma: {
        (0.0, 2.5): 0.7031566406452432,
        (1.0, 1.0): 1.6449340668482264,
        (2.0, 0.5): -16.82879664423432,
        (5.0, 3.25): 0.13160608578097313,
        (19.0, 7.0): 1.6414757386157335,
    },
}
APPROXIMATED = (special.Digamma, special.Lgamma, special.ErfInv, special.BesselI1e, special.Erf)
EDGES: dict[type[Pointwise], dict[float, float]] = {
    special.Digamma: {0.0: NAN, -1.0: NAN, INF: INF, -INF: NAN, NAN: NAN},
    special.Lgamma: {0.0: INF, -2.0: INF, INF: INF, -INF: INF, 1e306: INF},
    special.ErfInv: {1.0: INF, -1.0: -INF, 1.5: NAN, NAN: NAN, 0.0: 0.0},
    special.BesselI1e: {0.0: 0.0, INF: 0.0, NAN: NAN},
    special.Acosh: {0.5: NAN, 1.0: 0.0, INF: INF},
    special.Atanh: {1.0: INF, -1.0: -INF, 1.5: NAN},
    special.Acos: {1.0: 0.0, -1.0: np.pi, 1.5: NAN},
}


@pytest.mark.parametrize("op", KNOWN, ids=lambda op: op.name)
@pytest.mark.parametrize("name", ["f64", "f32", "bf16"])
def test_known_values(op: type[Pointwise], name: str) -> None:
    exact = np.array(list(KNOWN[op]))
    given = exact.astype(DTYPES[name].numpy)
    kept = given.astype(np.float64) == exact
    expected = np.array(list(KNOWN[op].values())).astype(DTYPES[name].numpy)
    check = assert_approximated if op in APPROXIMATED else assert_close
    check(op().reference(given[kept]), expected[kept])


def assert_approximated(actual: Array, expected: Array) -> None:
    """XLA's approximations are good to a few hundred units in the last place of 1."""
    slack = 300 * float(ml_dtypes.finfo(expected.dtype).eps)
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    assert np.all(np.abs(a - e) <= slack * np.maximum(1, np.abs(e))), (a, e)


@pytest.mark.parametrize("op", KNOWN_PAIRS, ids=lambda op: op.name)
def test_known_values_of_two_operands(op: type[Pointwise]) -> None:
    lhs, rhs = (np.array(side) for side in zip(*KNOWN_PAIRS[op], strict=True))
    assert_approximated(op().reference(lhs, rhs), np.array(list(KNOWN_PAIRS[op].values())))


def slow_digamma(x: float) -> float:
    """By reflection, recurrence and the asymptotic series, none of which the op uses."""
    if x < 0.5:
        return slow_digamma(1 - x) - math.pi / math.tan(math.pi * (x - round(x)))
    if x < 10:
        return slow_digamma(x + 1) - 1 / x
    series = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760)
    terms = [b * x ** (-2 * k) for k, b in enumerate(series, 1)]
    return math.log(x) - 1 / (2 * x) - math.fsum(terms)


def slow_bessel_i1e(x: float) -> float:
    """Its integral, by the trapezoidal rule, which converges fast for periodic functions."""
    angles = np.linspace(0, 2 * np.pi, 512, endpoint=False)
    return float(np.mean(np.exp(x * np.cos(angles) - abs(x)) * np.cos(angles)))


SPREAD = np.linspace(-6.93, 60, 301)
NEAR_POLES = np.array([-0.9990234375, -1.99951171875, -5.998046875])  # whose sines are small
# A function that is computed otherwise, numbers in every range that the op tells apart, and by how
# many units in the last place it may be off.
SLOW: dict[type[Pointwise], tuple[Callable[[float], float], Array, float]] = {
    special.Erf: (math.erf, np.linspace(-5, 5, 301), 4),
    special.Erfc: (math.erfc, np.append(np.linspace(-5, 9, 301), np.linspace(9, 30, 80)), 500),
    special.Lgamma: (math.lgamma, np.append(SPREAD, NEAR_POLES), 60),
    special.Digamma: (slow_digamma, np.append(SPREAD, np.linspace(-1000.7, -990.2, 40)), 150),
    special.BesselI1e: (slow_bessel_i1e, np.linspace(-40, 40, 301), 1.5),
}


@pytest.mark.parametrize("op", SLOW, ids=lambda op: op.name)
@pytest.mark.parametrize("name", ["f64", "f32"])
def test_every_range_of_a_function(op: type[Pointwise], name: str) -> None:
    slow, points, units = SLOW[op]
    held = DTYPES[name].numpy
    given = points.astype(held)
    expected = np.array([slow(float(x)) for x in given])
    found = op().reference(given)
    assert found.dtype == held
    slack, least = units * float(np.finfo(held).eps), float(np.finfo(held).tiny)
    relative = op is special.Erfc  # whose tail is small, and exact all the same
    scale = np.abs(expected) if relative else np.maximum(1, np.abs(expected))
    off = np.abs(found.astype(np.float64) - expected)
    wrong = off > slack * scale + least
    assert not wrong.any(), (given[wrong], found[wrong], expected[wrong])


@pytest.mark.parametrize("name", ["f64", "f32"])
def test_the_inverse_error_function_in_every_range(name: str) -> None:
    held = DTYPES[name].numpy
    least = 7 if name == "f32" else 15
    tails = 1 - np.logspace(-least, -1, 120)
    given = np.concatenate([np.linspace(-0.95, 0.95, 101), tails, -tails]).astype(held)
    given = given[np.abs(given) < 1]
    found = special.ErfInv().reference(given).astype(np.float64)
    # What it is the inverse of, in the number that is left to 1: there the tail is told apart.
    left = np.array([math.erfc(abs(x)) for x in found])
    expected = 1 - np.abs(given.astype(np.float64))
    assert np.all(np.sign(found) == np.sign(given))
    eps = float(np.finfo(held).eps)  # which the square of the operand is off by, too
    assert np.all(np.abs(left - expected) <= 2000 * eps * expected + 4 * eps)


def test_zeta_is_its_sum() -> None:
    """zeta(x, q) = q^-x + zeta(x, q + 1), down to where it is the integral of its terms."""
    x = np.repeat([1.25, 2.0, 3.5, 8.0], 5)
    q = np.tile([0.25, 1.0, 2.5, 7.0, 20.0], 4)
    zeta = special.Zeta()
    terms = np.arange(4000.0)
    sums = [np.sum((b + terms) ** -a) for a, b in zip(x, q, strict=True)]
    start = q + 4000
    rest = start ** (1 - x) / (x - 1) + start**-x / 2 + x * start ** (-x - 1) / 12
    assert_approximated(zeta.reference(x, q), sums + rest)
    assert_approximated(zeta.reference(x, q), q**-x + zeta.reference(x, q + 1))
    x, q = np.repeat([2.0, 3.0, 6.0, 7.0], 4), np.tile([-0.5, -0.75, -1.5, -3.25], 4)
    assert_approximated(zeta.reference(x, q), q**-x + zeta.reference(x, q + 1))


@pytest.mark.parametrize("op", EDGES, ids=lambda op: op.name)
@pytest.mark.parametrize("name", ["f64", "f32", "f16"])
def test_edges(op: type[Pointwise], name: str) -> None:
    held = DTYPES[name].numpy
    with np.errstate(over="ignore"):
        given = np.array(list(EDGES[op])).astype(held)
    np.testing.assert_array_equal(op().reference(given), np.array(list(EDGES[op].values()), held))


def test_edges_of_zeta_and_polygamma() -> None:
    zeta, polygamma = special.Zeta(), special.Polygamma()
    x = np.array([1.0, 0.5, 2.0, 3.0, 2.5, 2.0, NAN, 2.0, 2.0, 3.0, 600.0])
    q = np.array([3.0, 3.0, -1.0, -1.0, -0.5, INF, 1.0, NAN, 0.0, 0.0, 1.0])
    expected = [INF, NAN, INF, NAN, NAN, 0, NAN, NAN, INF, NAN, 1]
    np.testing.assert_array_equal(zeta.reference(x, q), expected)
    n = np.array([-1.0, 0.5, 0.0, 1.0])
    x = np.array([1.0, 1.0, 0.0, 0.0])
    np.testing.assert_array_equal(polygamma.reference(n, x), [NAN, NAN, NAN, INF])


INVERSES = [  # (op, operand, result), computed with 60 digits
    (special.Asin, 2 + 1e-20j, 1.5707963267948966 + 1.3169578969248168j),
    (special.Acosh, 0.5 + 1e-12j, 1.1547005383792514e-12 + 1.0471975511965979j),
    (special.Atanh, 1 + 1e-20j, 23.37242452022043 + 0.7853981633974483j),
    (special.Asinh, 1e-20 + 1j, 1e-10 + 1.5707963266948965j),
]


@pytest.mark.parametrize(("op", "operand", "expected"), INVERSES)
def test_inverse_functions_of_complex_numbers(
    op: type[Pointwise], operand: complex, expected: complex
) -> None:
    got = op().reference(np.array([operand]))
    assert_close(got.real, np.array([expected.real]))
    assert_close(got.imag, np.array([expected.imag]))


def test_branch_cuts_belong_to_the_side_of_positive_parts() -> None:
    below = np.array([complex(-2.0, -0.0), complex(2.0, -0.0)])
    for op in (special.Asin, special.Acos, special.Acosh, special.Atanh):
        np.testing.assert_array_equal(op().reference(below), op().reference(below + 0.0))
    left = np.array([complex(-0.0, 2.0), complex(-0.0, -2.0)])
    for op in (special.Asinh, special.Atan):
        np.testing.assert_array_equal(op().reference(left), op().reference(left + 0.0))


def test_the_kernel_gives_the_arc_sine_and_its_kin() -> None:
    parts = np.array([-1e12, -2, -1, -0.3, 0.0, 1e-9, 0.7, 1, 3, 1e200])
    z = (parts[:, None] + 1j * parts[None, :]).ravel()
    w = special.AsinAcosKernel().reference(z)
    sign = np.where(z.imag < 0, -1, 1)
    asin, acos = special.Asin().reference(z), special.Acos().reference(z)
    assert_close(np.arctan2(z.real, w.real), asin.real)
    assert_close(sign * w.imag, asin.imag)
    assert_close(np.arctan2(w.real, z.real), acos.real)
    assert_close(-sign * w.imag, acos.imag)
    far = special.AsinAcosKernel().reference(np.array([complex(INF, 2)]))
    assert far[0] == complex(2, INF)


@pytest.mark.parametrize("name", [n for n, d in DTYPES.items() if d.is_float])
def test_the_next_number_up_and_down(name: str) -> None:
    dtype = DTYPES[name]
    if dtype.bits > 8:
        numbers = np.array([1.0, 1.5, -2.0]).astype(dtype.numpy)
        up = special.NextAfter().reference(numbers, np.full(3, 100.0).astype(dtype.numpy))
        step = np.array([1, 1, 1]) * 2.0**-dtype.mantissa
        np.testing.assert_array_equal(up.astype(np.float64), numbers.astype(np.float64) + step)
        return
    every = np.arange(1 << dtype.bits).astype(np.uint8).view(dtype.numpy)
    with np.errstate(invalid="ignore"):
        values = every.astype(np.float64)
    rising = np.unique(values[np.isfinite(values)]).astype(dtype.numpy)
    most, least = np.full_like(rising, rising[-1]), np.full_like(rising, rising[0])
    np.testing.assert_array_equal(special.NextAfter().reference(rising, most)[:-1], rising[1:])
    np.testing.assert_array_equal(special.NextAfter().reference(rising, least)[1:], rising[:-1])


def test_the_next_number_of_equal_ones_is_the_second() -> None:
    got = special.NextAfter().reference(np.array([0.0, -0.0, NAN]), np.array([-0.0, 0.0, 1.0]))
    assert np.signbit(got[0]) and not np.signbit(got[1]) and np.isnan(got[2])


def test_the_upper_half_of_products() -> None:
    mulhi = special.Mulhi()
    big = np.array([2**63 - 1, -(2**63), -1], np.int64)
    expected = [(int(v) * int(v)) >> 64 for v in big]
    assert mulhi.reference(big, big).tolist() == expected
    top = np.array([2**64 - 1], np.uint64)
    assert mulhi.reference(top, top).tolist() == [2**64 - 2]
    small = np.array([-8, 7]).astype(DTYPES["i4"].numpy)
    assert mulhi.reference(small, small).astype(int).tolist() == [4, 3]


def test_predicates() -> None:
    x = np.array([INF, -INF, NAN, 1], np.float16)
    assert special.IsInf().reference(x).tolist() == [True, True, False, False]
    assert special.IsPosInf().reference(x).tolist() == [True, False, False, False]
    assert special.IsNegInf().reference(x).tolist() == [False, True, False, False]


def test_squares_and_conjugates() -> None:
    z = np.array([3 + 4j, 1e200 + 1e200j])
    assert special.Square().reference(z)[0] == -7 + 24j
    assert special.Square().reference(z)[1] == complex(0, INF)
    assert special.Conj().reference(z)[0] == 3 - 4j
    assert special.Conj().reference(np.array([-2.5], np.float16))[0] == -2.5


@pytest.mark.parametrize("name", ["i1", "i32", "ui8", "f32", "bf16", "f8E4M3FN", "complex<f64>"])
def test_a_constant_for_every_element(name: str) -> None:
    value = Dense(np.array(1).astype(DTYPES[name].numpy))
    op = ConstantLike(value)
    module = module_of(op, (tensor(2, 3, dtype="f16"),))
    (node,) = parse(module.text()).nodes()
    assert node.op is op
    assert node.types == (tensor(2, 3, dtype=name),)
    got = op.reference(np.zeros((2, 3), np.float16))
    assert got.dtype == DTYPES[name].numpy and got.astype(complex).tolist() == [[1, 1, 1]] * 2


def test_special_constants_are_written_as_bits() -> None:
    op = ConstantLike(Dense(np.array(NAN, np.float32)))
    assert op.attributes() == (("value", "0x7FC00000 : f32"),)
