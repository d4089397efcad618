"""Measurements of a GPU by Weft's own kernels, as numbers of a machine file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from weft.array import put
from weft.cli.calibration import (
    Measurement,
    bandwidths,
    chain_program,
    pointwise_program,
    product_program,
    sample,
)
from weft.compiled import compile as compile_program
from weft.machine import rate_text, seconds_text

_TYPES = ("f64", "f32", "f16", "bf16", "i8")
_SIDE = 8192  # of the products whose rate is measured
_CURVE = (256, 512, 1024, 2048, 4096)  # sides of smaller ones, whose share of it is
_SIZES = (1 << 22, 1 << 24, 1 << 26, 1 << 28)  # bytes that a kernel reads and writes
_COLD = 1 << 28  # bytes that kernels of one program touch: more than any cache holds
_LITTLE = 1 << 18  # bytes whose transfer itself takes no time
_MOST = 256  # kernels of one program
_CALLS = 5  # calls that are timed together
_CYCLES = 2e9  # of a GPU in a second, about
_LAUNCHES = 128  # kernels in a row whose launches are measured


def gpu_measurements(seconds: float) -> Iterator[Measurement]:
    """All that can be measured on this GPU, each for about so many seconds."""
    launch = _launch(seconds)
    note = f"{_LAUNCHES} kernels in a row, in a graph"
    yield Measurement("device.launch", float(f"{launch:.2e}"), note, seconds_text(launch))
    rates = {}
    for name in _TYPES:
        side = _SIDE if name in ("f16", "bf16") else _SIDE // 2
        rate = rates[name] = _product_rate(name, side, seconds, launch)
        shown = rate_text(rate, "flop/s")
        yield Measurement(f"rates.{name}", float(f"{rate:.3g}"), f"{side} x {side} x {side}", shown)
    curve = [
        [2.0 * n**3, round(min(_product_rate("bf16", n, seconds, launch) / rates["bf16"], 1.0), 3)]
        for n in _CURVE
    ]
    shown = ", ".join(f"{share:.0%} at {n}" for n, (_, share) in zip(_CURVE, curve, strict=True))
    curve.append([2.0 * _SIDE**3, 1.0])
    yield Measurement("efficiency.products", curve, "bf16 products of smaller sides", shown)
    yield from _memory(seconds, launch)
    for key, op, times, unit in (
        ("vector", "multiply", 256, "flop/s"),
        ("transcendental", "tanh", 32, "/s"),
    ):
        rate = _pointwise_rate(op, times, seconds, launch)
        note = f"{times} times {op} in one kernel"
        yield Measurement(f"device.{key}", float(f"{rate:.3g}"), note, rate_text(rate, unit))


def _launch(seconds: float) -> float:
    """Seconds of one more kernel in a program of many."""
    arguments = [sample("f32", (8, 8))] * 2
    few, many = (
        _time(chain_program(count, 8), arguments, seconds) for count in (_LAUNCHES // 2, _LAUNCHES)
    )
    return max((many - few) / (_LAUNCHES - _LAUNCHES // 2), 1e-7)


def _product_rate(name: str, side: int, seconds: float, launch: float) -> float:
    """Flops a second of square products; of small ones many in a row, without the call itself."""
    arguments = [sample(name, (side, side))] * 2
    if side >= _SIDE // 2:
        spent = _time(product_program(name, side), arguments, seconds)
    else:
        few, many = (
            _time(chain_program(count, side, name), arguments, seconds) for count in (16, 48)
        )
        spent = (many - few) / 32
    return 2.0 * side**3 / max(spent - launch, spent / 10)


def _memory(seconds: float, launch: float) -> Iterator[Measurement]:
    """The bandwidth of kernels that read and write, by their bytes, of what no cache holds."""
    waited = max(_pass_seconds(_LITTLE, seconds) - launch, 0.0)  # before its bytes arrive
    rates = []
    for size in _SIZES:
        spent = _pass_seconds(size, seconds)
        rates.append(size / max(spent - launch - waited, spent / 10))
    kernel = f"a kernel that reads and writes {_SIZES[-1] >> 20} MiB"
    yield from bandwidths(_SIZES, rates, kernel, "kernels of fewer bytes, not in a cache")


def _pass_seconds(size: int, seconds: float) -> float:
    """Seconds of a kernel that reads and writes so many bytes, of what no cache holds."""
    count = min(max(2, _COLD // size), _MOST)
    shape = f"tensor<{size // 8}xf32>"
    names = [f"%a{n}" for n in range(count)]
    parameters = ", ".join([f"{name}: {shape}" for name in names])
    body = "\n  ".join([f"%r{n} = stablehlo.negate %a{n} : {shape}" for n in range(count)])
    results = ", ".join([f"%r{n}" for n in range(count)])
    types = ", ".join([shape] * count)
    program = f"""
func.func @main({parameters}) -> ({types}) {{
  {body}
  return {results} : {types}
}}"""
    arguments = [sample("f32", (size // 8,)) for _ in range(count)]
    return _time(program, arguments, seconds) / count


def _pointwise_rate(op: str, times: int, seconds: float, launch: float) -> float:
    """Elements a second of a chain of one op in one kernel."""
    count = 1 << 24
    values = np.linspace(0.999, 1.001, count, dtype=np.float32)
    spent = _time(pointwise_program(op, times, count), [values, values], seconds)
    return count * times / max(spent - launch, spent / 10)


def _time(program: str, arguments: Sequence[Any], seconds: float) -> float:
    """The mean seconds of a call on the GPU, by its own clock.

    The GPU idles for a while first, so that the host has enqueued all calls when it starts.
    """
    import torch

    compiled = compile_program(program, target="triton")
    kept: dict[int, Any] = {}
    on_device = [kept.setdefault(id(a), put(a, device="cuda")) for a in arguments]
    for _ in range(4):  # launched, captured, replayed
        compiled(*on_device)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(_CALLS):
        compiled(*on_device)
    torch.cuda.synchronize()
    idle = int(2 * _CYCLES * (time.perf_counter() - began))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    spent, rounds, stop = 0.0, 0, time.perf_counter() + seconds
    while rounds < 2 or time.perf_counter() < stop:
        torch.cuda._sleep(idle)
        start.record()
        for _ in range(_CALLS):
            compiled(*on_device)
        end.record()
        torch.cuda.synchronize()
        spent, rounds = spent + start.elapsed_time(end) / 1e3, rounds + 1
    return spent / (rounds * _CALLS)
