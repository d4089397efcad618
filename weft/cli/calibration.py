"""Measurements of this computer by Weft's own kernels, as numbers of a machine file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from weft.cli.kernel_calibration import kernel_times, overheads
from weft.emit.llvm.pool.thread_count import thread_count
from weft.machine import Machine, rate_text, seconds_text
from weft.machine.machine import OVERHEADS
from weft.records import dataclass

_DTYPES: dict[str, Any] = {
    "f64": np.float64,
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "i8": np.int8,
}
_ACCUMULATED = {"i8": "i32"}
_SIDE = 256  # of the products whose rate is measured: a busy computer interrupts larger ones
_CURVE = (64, 128)  # sides of smaller ones, whose share of it is
_WATCHED = 0.3  # seconds for which the cores are watched
_IDLE, _IDLE_SHARE = 3, 0.85  # the place of idle ticks; their share where nobody computes
_SIZES = (1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24, 1 << 27)  # bytes that are summed


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
        before = _core_times()
        time.sleep(_WATCHED)
        spent = [now - then for now, then in zip(_core_times(), before, strict=True)]
    except OSError:  # not Linux: the last minute, this process's own work with it
        return os.getloadavg()[0] > 0.5 * (os.cpu_count() or 1)
    return spent[_IDLE] < _IDLE_SHARE * sum(spent)


def _core_times() -> list[int]:
    """The ticks of all cores by kind, since the system started."""
    first = Path("/proc/stat").read_text().splitlines()[0]
    return [int(word) for word in first.split()[1:9]]


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
    ((_, launch),) = kernel_times(pointwise_program("multiply", 1, 8), seconds)
    yield Measurement(
        "device.launch", float(f"{launch:.2e}"), "of 8 elements", seconds_text(launch)
    )
    rates = {}
    for name in _DTYPES:
        rate = rates[name] = product_rate(name, _SIDE, seconds, launch)
        note = f"{_SIDE} x {_SIDE} x {_SIDE}"
        shown = rate_text(rate, "flop/s")
        yield Measurement(f"rates.{name}", float(f"{rate:.3g}"), note, shown)
    # 8-bit floats are converted to f32 by the kernels: no rate of their own.
    yield Measurement("rates.f8", float(f"{rates['f32']:.3g}"), "as f32", "as f32")
    yield _product_curve(rates["f32"], seconds, launch)
    yield from _memory(seconds, launch)
    yield _pointwise("vector", "multiply", 64, seconds, launch)
    yield _pointwise("transcendental", "tanh", 16, seconds, launch)
    threads = thread_count()
    yield Measurement("device.threads", threads, "that kernels use", str(threads))


def overhead_measurements(machine: Machine, seconds: float) -> Iterator[Measurement]:
    """Overheads of small kernels and calls beside the roofline of a measured machine."""
    for name, found in overheads(machine, seconds / 10).items():
        yield Measurement(
            f"overheads.{name}", float(f"{found:.3g}"), OVERHEADS[name], seconds_text(found)
        )


def product_rate(name: str, side: int, seconds: float, launch: float) -> float:
    """Flops a second of a square product."""
    ((_, spent),) = kernel_times(product_program(name, side), seconds)
    # At least a tenth: a launch that came out too long must not make the rate endless.
    return 2.0 * side**3 / max(spent - launch, spent / 10)


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


def _product_curve(rate: float, seconds: float, launch: float) -> Measurement:
    """The shares of the rate that smaller products reach."""
    shares = [min(product_rate("f32", n, seconds, launch) / rate, 1.0) for n in _CURVE]
    curve = [[2.0 * n**3, round(share, 3)] for n, share in zip(_CURVE, shares, strict=True)]
    shown = ", ".join(f"{share:.0%} at {n}" for n, (_, share) in zip(_CURVE, curve, strict=True))
    curve.append([2.0 * _SIDE**3, 1.0])
    return Measurement("efficiency.products", curve, "f32 products of smaller sides", shown)


def _memory(seconds: float, launch: float) -> Iterator[Measurement]:
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
        ((_, spent),) = kernel_times(program, seconds)
        rates.append(size / max(spent - launch, spent / 10))
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


def _pointwise(key: str, op: str, times: int, seconds: float, launch: float) -> Measurement:
    """Elements a second of a chain of one op, in a kernel that the cache holds."""
    count = 1 << 14
    ((_, spent),) = kernel_times(pointwise_program(op, times, count), seconds)
    rate = count * times / max(spent - launch, spent / 10)
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
