"""Chains of elementwise steps and row reductions as models have them, written as kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.kernels.building import Building
from weft.ir.types import I32, DType
from weft.ops.elementwise.pointwise import Add, Compare, Divide, Multiply, Select, Subtract
from weft.ops.elementwise.transcendental import Exponential, Log, Logistic, Rsqrt, Tanh

EPSILON = 1e-5


def bias_gelu_residual(rows: int, row: int, dtype: DType) -> Building:
    """gelu(x + bias) + residual, with gelu by tanh."""
    b = Building(i=rows, j=row)
    u = b.apply(Add(), b.read("ij", dtype), b.read("j", dtype))
    cube = b.apply(Multiply(), u, b.apply(Multiply(), u, u))
    inner = b.apply(Add(), u, b.apply(Multiply(), b.fill(0.044715, dtype), cube))
    tanh = b.apply(Tanh(), b.apply(Multiply(), b.fill(0.7978845608, dtype), inner))
    half = b.apply(Multiply(), b.fill(0.5, dtype), u)
    gelu = b.apply(Multiply(), half, b.apply(Add(), b.fill(1.0, dtype), tanh))
    b.write("ij", b.apply(Add(), gelu, b.read("ij", dtype)))
    return b


def swiglu(rows: int, row: int, dtype: DType) -> Building:
    """x * sigmoid(x) * gate."""
    b = Building(i=rows, j=row)
    x, gate = b.read("ij", dtype), b.read("ij", dtype)
    b.write("ij", b.apply(Multiply(), b.apply(Multiply(), x, b.apply(Logistic(), x)), gate))
    return b


def softmax(rows: int, row: int, dtype: DType) -> Building:
    """exp(x - max) / sum."""
    b = Building(i=rows, j=row)
    x = b.read("ij", dtype)
    power = b.apply(Exponential(), b.apply(Subtract(), x, b.reduce("max", x, "j")))
    b.write("ij", b.apply(Divide(), power, b.reduce("add", power, "j")))
    return b


def layer_norm(rows: int, row: int, dtype: DType) -> Building:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias."""
    b = Building(i=rows, j=row)
    x, scale, bias = b.read("ij", dtype), b.read("j", dtype), b.read("j", dtype)
    mean = b.apply(Multiply(), b.reduce("add", x, "j"), b.fill(1 / row, dtype))
    away = b.apply(Subtract(), x, mean)
    normal = b.apply(Multiply(), away, _spread(b, away, row, dtype))
    b.write("ij", b.apply(Add(), b.apply(Multiply(), normal, scale), bias))
    return b


def rms_norm(rows: int, row: int, dtype: DType) -> Building:
    """x / sqrt(mean of x^2 + epsilon) * scale."""
    b = Building(i=rows, j=row)
    x, scale = b.read("ij", dtype), b.read("j", dtype)
    b.write("ij", b.apply(Multiply(), b.apply(Multiply(), x, _spread(b, x, row, dtype)), scale))
    return b


def _spread(b: Building, x: int, row: int, dtype: DType) -> int:
    squares = b.reduce("add", b.apply(Multiply(), x, x), "j")
    mean = b.apply(Multiply(), squares, b.fill(1 / row, dtype))
    return b.apply(Rsqrt(), b.apply(Add(), mean, b.fill(EPSILON, dtype)))


def cross_entropy(rows: int, row: int, dtype: DType) -> Building:
    """log(sum(exp(x - max))) - (x - max)[label], for each row."""
    b = Building(i=rows, j=row)
    x, label = b.read("ij", dtype), b.read("i", I32)
    away = b.apply(Subtract(), x, b.reduce("max", x, "j"))
    total = b.reduce("add", b.apply(Exponential(), away), "j")
    hit = b.apply(Compare("EQ"), b.position(b.affine(j=1), I32), label)
    picked = b.reduce("add", b.apply(Select(), hit, away, b.fill(0.0, dtype)), "j")
    b.write("i", b.apply(Subtract(), b.apply(Log(), total), picked))
    return b


def rotary(rows: int, row: int, dtype: DType) -> Building:
    """Rows of eight heads; both halves of a head turned by angles that differ by row."""
    size = row // 8
    half = size // 2
    b = Building(s=rows, h=8, j=size)
    x = b.input(rows, 8, size, dtype=dtype)
    cosine, sine = (b.input(rows, half, dtype=dtype) for _ in range(2))
    low, high = [b.guard(0, half, j=1)], [b.guard(half, size, j=1)]
    at = b.rows("shj")

    def angle(operand: int, first: bool) -> int:
        place = b.affine(0 if first else -half, s=half, j=1)
        return b.load(operand, place, low if first else high)

    def part(moved: int, first: bool) -> int:
        return b.load(x, replace(at, offset=moved), low if first else high)

    def product(*args: int) -> int:
        return b.apply(Multiply(), *args)

    first = b.apply(
        Subtract(),
        product(part(0, True), angle(cosine, True)),
        product(part(half, True), angle(sine, True)),
    )
    second = b.apply(
        Add(),
        product(part(0, False), angle(cosine, False)),
        product(part(-half, False), angle(sine, False)),
    )
    b.write("shj", b.choose(low, first, second))
    return b


CHAINS: dict[str, Callable[[int, int, DType], Building]] = {
    "bias+gelu+residual": bias_gelu_residual,
    "swiglu": swiglu,
    "softmax": softmax,
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "cross_entropy": cross_entropy,
    "rotary": rotary,
}
