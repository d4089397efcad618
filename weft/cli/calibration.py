"""Measurements of this computer by Weft's own kernels, as numbers of a machine file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from weft.array import put
from weft.compiled import compile as compile_program
from weft.machine import rate_text, seconds_text
from weft.records import dataclass

_DTYPES: dict[str, Any] = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i8": np.int8,
}
_ACCUMULATED = {"i8": "i32"}
_SIDE = 1024  # of the products whose rate is measured
_CURVE = (64, 256)  # sides of smaller ones, whose share of it is
_SIZES = (1 << 22, 1 << 24, 1 << 27)  # bytes that are summed; of fewer a call takes longer
_CHAIN = 32  # products in a row whose launches are measured


@dataclass(frozen=True, slots=True)
class Measurement:
    """One number: its key in a machine file, its value, how it was measured, how it is shown."""

    key: str
    value: Any
    note: str
    text: str


def is_busy() -> bool:
    """Whether others use this computer's cores: then all rates come out too low."""
    try:
        return os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1)
    except OSError:  # a system that does not tell
        return False


def machine_text(found: list[Measurement], about: str, base: str = "host") -> str:
    """A machine file that is based on a shipped one, with what was measured."""
    sections: dict[str, list[str]] = {}
    for one in found:
        section, _, name = one.key.partition(".")
        value = json.dumps(one.value)
        sections.setdefault(section, []).append(f'{name} = [{value}, "measured", "{one.note}"]')
    lines = [f"based_on = {json.dumps(base)}", f"about = {json.dumps(about)}"]
    lines += ["", "[sources]", 'measured = "weft calibrate"']
    for section, entries in sections.items():
        lines += ["", f"[{section}]", *entries]
    return "\n".join(lines) + "\n"


def measurements(seconds: float) -> Iterator[Measurement]:
    """All that can be measured here, each for about so many seconds."""
    empty = _time(chain_program(1, 8), [sample("f32", (8, 8))] * 2, seconds)
    yield _launch(empty, seconds)
    rates = {}
    for name in _DTYPES:
        rate = rates[name] = product_rate(name, _SIDE, seconds, empty)
        note = f"{_SIDE} x {_SIDE} x {_SIDE}"
        shown = rate_text(rate, "flop/s")
        yield Measurement(f"rates.{name}", float(f"{rate:.3g}"), note, shown)
    # 8-bit floats are converted to f32 by the kernels: no rate of their own.
    yield Measurement("rates.f8", float(f"{rates['f32']:.3g}"), "as f32", "as f32")
    yield _product_curve(rates["f32"], seconds)
    yield from _memory(seconds, empty)
    yield _pointwise("vector", "multiply", 64, seconds, empty)
    yield _pointwise("transcendental", "tanh", 16, seconds, empty)


def product_rate(name: str, side: int, seconds: float, empty: float) -> float:
    """Flops a second of a square product."""
    spent = _time(product_program(name, side), [sample(name, (side, side))] * 2, seconds)
    return 2.0 * side**3 / max(spent - empty, spent / 10)


def product_program(name: str, side: int) -> str:
    """One square product of an element type."""
    out = _ACCUMULATED.get(name, name)
    square = f"tensor<{side}x{side}x"
    return f"""
func.func @main(%a: {square}{name}>, %b: {square}{name}>) -> {square}{out}> {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : ({square}{name}>, {square}{name}>) -> {square}{out}>
  return %0 : {square}{out}>
}}"""


def _launch(empty: float, seconds: float) -> Measurement:
    """Seconds of one more launch in a program of many."""
    many = _time(chain_program(_CHAIN, 8), [sample("f32", (8, 8))] * 2, seconds)
    each = max((many - empty) / (_CHAIN - 1), 1e-8)
    note = f"{_CHAIN} products of 8 x 8 in a row"
    return Measurement("device.launch", float(f"{each:.2e}"), note, seconds_text(each))


def _product_curve(rate: float, seconds: float) -> Measurement:
    """Rates of smaller products, several in one program, so that the call itself does not count."""
    shares = [min(_rate_in_a_row(n, seconds) / rate, 1.0) for n in _CURVE]
    curve = [[2.0 * n**3, round(share, 3)] for n, share in zip(_CURVE, shares, strict=True)]
    shown = ", ".join(f"{share:.0%} at {n}" for n, (_, share) in zip(_CURVE, curve, strict=True))
    curve.append([2.0 * _SIDE**3, 1.0])
    return Measurement("efficiency.products", curve, "f32 products of smaller sides", shown)


def _rate_in_a_row(side: int, seconds: float) -> float:
    arguments = [sample("f32", (side, side))] * 2
    one, many = (_time(chain_program(times, side), arguments, seconds) for times in (1, 17))
    return 16 * 2.0 * side**3 / max(many - one, many / 10)


def _memory(seconds: float, empty: float) -> Iterator[Measurement]:
    """The bandwidth of reading what no cache holds, and what caches make of less.

    It is a sum, as the pages of a large result are new at each call.
    """
    rates = []
    for size in _SIZES:
        shape = f"tensor<{size // 4}xf32>"
        program = f"""
func.func @main(%a: {shape}) -> tensor<f32> {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0]
    : ({shape}, tensor<f32>) -> tensor<f32>
  return %0 : tensor<f32>
}}"""
        spent = _time(program, [sample("f32", (size // 4,))], seconds)
        rates.append(size / max(spent - empty, spent / 10))
    total = f"the sum of {_SIZES[-1] >> 20} MiB"
    yield from bandwidths(_SIZES, rates, total, "sums that caches hold")


def bandwidths(
    sizes: Sequence[int], rates: Sequence[float], last_note: str, curve_note: str
) -> Iterator[Measurement]:
    """The bandwidth of the last and largest size, and the efficiency curve of all."""
    last = rates[-1]
    yield Measurement("device.bandwidth", float(f"{last:.3g}"), last_note, rate_text(last, "B/s"))
    pairs = zip(sizes, rates, strict=True)
    curve = [[float(size), round(max(rate / last, 0.01), 3)] for size, rate in pairs]
    shown = ", ".join(rate_text(rate, "B/s") for rate in rates[:-1])
    yield Measurement("efficiency.memory", curve, curve_note, shown)


def _pointwise(key: str, op: str, times: int, seconds: float, empty: float) -> Measurement:
    """Elements a second of a chain of one op, in a kernel that the cache holds."""
    count = 1 << 18
    # Near 1, so that no product becomes a denormal number, which takes much longer.
    values = np.linspace(0.999, 1.001, count, dtype=np.float32)
    spent = _time(pointwise_program(op, times, count), [values, values], seconds)
    rate = count * times / max(spent - empty, spent / 10)
    unit = "flop/s" if key == "vector" else "/s"
    return Measurement(
        f"device.{key}",
        float(f"{rate:.3g}"),
        f"{times} times {op} in one kernel",
        rate_text(rate, unit),
    )


def pointwise_program(op: str, times: int, count: int) -> str:
    """A chain of one op on so many elements, which is one kernel."""
    shape = f"tensor<{count}xf32>"
    operands = "%{0}, %b" if op == "multiply" else "%{0}"
    steps = ["%0 = stablehlo.negate %a : " + shape]
    steps += [
        f"%{n} = stablehlo.{op} {operands.format(n - 1)} : {shape}" for n in range(1, times + 1)
    ]
    lines = "\n  ".join(steps)
    return f"""
func.func @main(%a: {shape}, %b: {shape}) -> {shape} {{
  {lines}
  return %{times} : {shape}
}}"""


def chain_program(times: int, side: int, name: str = "f32") -> str:
    """So many products in a row, each of the one before."""
    square = f"tensor<{side}x{side}x{name}>"
    steps = [
        f"%{n + 1} = stablehlo.dot_general %{n if n else 'a'}, %b, contracting_dims = [1] x [0] : "
        f"({square}, {square}) -> {square}"
        for n in range(times)
    ]
    lines = "\n  ".join(steps)
    return f"""
func.func @main(%a: {square}, %b: {square}) -> {square} {{
  {lines}
  return %{times} : {square}
}}"""


def sample(name: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Random elements; of integers not too large."""
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    scaled = values if name != "i8" else np.clip(values * 20, -100, 100)
    made: npt.NDArray[Any] = scaled.astype(_DTYPES[name])
    return made


def _time(program: str, arguments: list[npt.NDArray[Any]], seconds: float) -> float:
    """The least seconds of a call; a busy computer makes all but the least longer."""
    compiled = compile_program(program, tune="remembered")
    placed = [put(array) for array in arguments]  # numpy's would be copied at every call
    for _ in range(2):
        np.asarray(compiled(*placed))
    end = time.perf_counter() + seconds
    least, rounds = float("inf"), 0
    while rounds < 5 or time.perf_counter() < end:
        began = time.perf_counter()
        np.asarray(compiled(*placed))  # which waits for the result
        least, rounds = min(least, time.perf_counter() - began), rounds + 1
    return least
