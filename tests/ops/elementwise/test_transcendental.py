"""Functions of floats and complex numbers: rounded once, and right at the edges."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.ops.program import module_of
from tests.tolerance import assert_close
from weft.capture import parse
from weft.ir.types import DTYPES, tensor
from weft.ops.elementwise import special, transcendental
from weft.ops.elementwise.pointwise import Pointwise, Power

NAN, INF = np.nan, np.inf
FUNCTIONS: dict[type[Pointwise], Callable[..., object]] = {
    transcendental.Cbrt: np.cbrt,
    transcendental.Cosine: np.cos,
    transcendental.Exponential: np.exp,
    transcendental.ExponentialMinusOne: np.expm1,
    transcendental.Log: np.log,
    transcendental.LogPlusOne: np.log1p,
    transcendental.Sine: np.sin,
    transcendental.Sqrt: np.sqrt,
    transcendental.Tan: np.tan,
    transcendental.Tanh: np.tanh,
}


@pytest.mark.parametrize("name", ["f8E4M3FN", "f8E5M2", "f6E3M2FN", "bf16", "f16"])
@pytest.mark.parametrize("op", FUNCTIONS, ids=lambda op: op.name)
def test_narrow_floats_are_the_nearest_ones(op: type[Pointwise], name: str) -> None:
    """Every number of a type that has few of them, against all candidates for its result."""
    dtype = DTYPES[name]
    step = 1 if dtype.bits <= 8 else 37
    bits = np.arange(0, 1 << dtype.bits, step).astype(f"u{dtype.numpy.itemsize}")
    given = bits.view(dtype.numpy)
    with np.errstate(all="ignore"):
        exact = np.asarray(FUNCTIONS[op](given.astype(np.float64)), np.float64)
        got = op().reference(given).astype(np.float64)
        every = np.arange(1 << dtype.bits).astype(bits.dtype).view(dtype.numpy).astype(np.float64)
    held = np.unique(every[np.isfinite(every)])
    inside = np.isfinite(exact) & np.isfinite(got)
    place = np.clip(np.searchsorted(held, exact[inside]), 1, len(held) - 1)
    nearest = np.minimum(
        np.abs(held[place] - exact[inside]), np.abs(held[place - 1] - exact[inside])
    )
    np.testing.assert_array_equal(np.abs(got[inside] - exact[inside]), nearest)


def test_edges_of_real_functions() -> None:
    x = np.array([-0.0, INF, -INF, NAN, -1.0], np.float32)
    sqrt = transcendental.Sqrt().reference(x)
    np.testing.assert_array_equal(sqrt, np.array([0, INF, NAN, NAN, NAN], np.float32))
    assert np.signbit(sqrt[0])
    np.testing.assert_array_equal(
        transcendental.Rsqrt().reference(x), np.array([-INF, 0, NAN, NAN, NAN], np.float32)
    )
    np.testing.assert_array_equal(
        transcendental.Logistic().reference(x[:4]), np.array([0.5, 1, 0, NAN], np.float32)
    )
    assert transcendental.Logistic().reference(np.array([-740.0]))[0] > 0
    zeros = np.array([0.0, -0.0, 0.0, -0.0])
    angles = transcendental.Atan2().reference(zeros, np.array([1.0, 1.0, -1.0, -1.0]))
    np.testing.assert_array_equal(angles, [0.0, -0.0, np.pi, -np.pi])
    assert Power().reference(np.array([0.0, -8.0]), np.array([0.0, 1 / 3])).tolist()[0] == 1


PARTS = [  # (function, operand, result), computed with 60 digits
    ("log_plus_one", 1e-20 + 3e-21j, 1e-20 + 3e-21j),
    ("log_plus_one", -0.5 + 0.8660254037844386j, -4.345318932600586e-17 + 1.0471975511965976j),
    ("exponential_minus_one", 1e-20 + 2e-20j, 1e-20 + 2e-20j),
    ("exponential_minus_one", 0.3 - 1.2j, -0.5108681936261993 - 1.258121169197948j),
    ("sqrt", 1e300 + 1e300j, 1.09868411346781e150 + 4.550898605622274e149j),
    ("tan", 0.5 + 400j, 1j),
    ("log", -1 + 0j, np.pi * 1j),
    ("log", complex(-1.0, -0.0), -np.pi * 1j),
    ("cbrt", -8 + 0j, 1 + np.sqrt(3) * 1j),
    ("rsqrt", -4 + 0j, -0.5j),
    ("tanh", 1000 + 1j, 1 + 0j),
    ("logistic", -800 + 0j, np.exp(-800 + 0j)),
]


@pytest.mark.parametrize(("name", "operand", "expected"), PARTS)
@pytest.mark.parametrize("held", [np.complex128, np.complex64])
def test_each_part_of_complex_functions_is_exact(
    name: str, operand: complex, expected: complex, held: type[np.complexfloating]
) -> None:
    (op,) = [op for op in transcendental.OPS if op.name == f"stablehlo.{name}"]
    if held is np.complex64 and (abs(operand) > 1e30 or abs(expected.real) < 1e-16):
        return  # beyond f32
    got = op().reference(np.array([operand], held))
    wanted = np.array([expected], held)
    assert_close(got.real, wanted.real)
    assert_close(got.imag, wanted.imag)


def test_infinities_of_complex_functions() -> None:
    z = np.array([complex(-INF, 1), complex(INF, 0), complex(NAN, 0)])
    powers = transcendental.Exponential().reference(z)
    assert powers[0] == 0 and powers[1] == INF and np.isnan(powers[2])
    assert transcendental.Sqrt().reference(np.array([complex(NAN, INF)])).real == INF


@pytest.mark.parametrize("beside", [0.0, 1.0, INF, -INF])
def test_an_infinite_angle_gives_nothing(beside: float) -> None:
    along, turned = complex(beside, INF), complex(INF, beside)
    functions = (transcendental.Exponential, transcendental.ExponentialMinusOne, special.Cosh)
    tangents = (transcendental.Tan, special.ChloTan) if np.isfinite(beside) else ()
    for op, z in [*((f, along) for f in functions), *((f, turned) for f in tangents)]:
        (made,) = op().reference(np.array([z]))
        assert np.isnan(made.real) and np.isnan(made.imag), (op, z, made)


def test_a_wish_for_accuracy_is_kept_in_the_text() -> None:
    wish = "#stablehlo.result_accuracy<mode = #stablehlo.result_accuracy_mode<HIGHEST>>"
    op = transcendental.Tanh(result_accuracy=wish)  # type: ignore[call-arg]
    text = module_of(op, (tensor(2),)).text()
    assert f"stablehlo.tanh %arg0 {{result_accuracy = {wish}}} : tensor<2xf32>" in text
    (node,) = parse(text).nodes()
    assert node.op is op
