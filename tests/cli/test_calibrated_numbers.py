"""What `weft calibrate` makes of measured seconds: planted overheads and rates are found again."""

from __future__ import annotations

import re

import numpy as np
import pytest

from weft.capture import parse
from weft.cli import (
    calibration,
    call_calibration,
    gpu_calibration,
    kernel_calibration,
    least_seconds,
)
from weft.cli.calibration import Measurement, machine_text
from weft.ir.types import TensorType
from weft.machine import HOST

LAUNCH = 3e-6


def arguments_of(text: str) -> list[TensorType]:
    types = parse(text).function("main").arg_types
    return [t for t in types if isinstance(t, TensorType)]


def spent(text: str) -> float:
    """Seconds by the size of a program: every rate differs, and no two are multiples."""
    work = sum(t.size for t in arguments_of(text)) + 31 * text.count("stablehlo.")
    return LAUNCH + 1.7e-9 * work


def test_rates_of_this_computer(monkeypatch):
    """Flops, bytes and elements over what the launches leave."""
    programs: list[str] = []

    def timed(text: str, seconds: float):
        assert seconds == 0.25
        programs.append(text)
        return iter([(None, LAUNCH if "tensor<8xf32>" in text else spent(text))])

    monkeypatch.setattr(calibration, "kernel_times", timed)
    monkeypatch.setattr(calibration, "thread_count", lambda: 7)
    found = {m.key: m for m in calibration.measurements(0.25)}
    assert found["device.launch"].value == LAUNCH and found["device.threads"].value == 7
    inside = {n: spent(calibration.product_program("f32", n)) - LAUNCH for n in (64, 128, 256)}
    for name in ("f64", "f32", "f16", "bf16", "i8"):
        assert found[f"rates.{name}"].value == pytest.approx(2 * 256**3 / inside[256], rel=5e-3)
    assert found["rates.f8"].value == found["rates.f32"].value
    curve = [[2.0 * n**3, min(n**3 / inside[n] * inside[256] / 256**3, 1.0)] for n in (64, 128)]
    assert found["efficiency.products"].value == [
        *[[flops, pytest.approx(share, abs=6e-4)] for flops, share in curve],
        [2.0 * 256**3, 1.0],
    ]
    assert "13% at 64" not in found["efficiency.products"].text or curve[0][1] < 0.14
    sizes = [1 << n for n in (14, 17, 20, 22, 24, 27)]
    sums = [p for p in programs if "reduce" in p]
    assert [arguments_of(p)[0].size * 4 for p in sums] == sizes
    rates = [size / (spent(p) - LAUNCH) for size, p in zip(sizes, sums, strict=True)]
    assert found["device.bandwidth"].value == pytest.approx(rates[-1], rel=5e-3)
    assert found["device.bandwidth"].note == "the sum of 128 MiB"
    assert found["efficiency.memory"].value == [
        [float(size), pytest.approx(rate / rates[-1], abs=6e-4)]
        for size, rate in zip(sizes, rates, strict=True)
    ]
    for key, op, times in (("vector", "multiply", 64), ("transcendental", "tanh", 16)):
        text = calibration.pointwise_program(op, times, 1 << 14)
        rate = times * (1 << 14) / (spent(text) - LAUNCH)
        assert found[f"device.{key}"].value == pytest.approx(rate, rel=5e-3)
        assert found[f"device.{key}"].note == f"{times} times {op} in one kernel"


def test_a_launch_longer_than_a_kernel_leaves_a_tenth(monkeypatch):
    monkeypatch.setattr(calibration, "kernel_times", lambda *_: iter([(None, 2e-6)]))
    assert calibration.product_rate("f32", 10, 1.0, 5e-6) == pytest.approx(2000 / 2e-7)


def test_rates_of_a_gpu(monkeypatch):
    """Its kernels are timed by its own clock; here by their sizes."""
    rate, wire, waited = 3e11, 2e9, 5e-6

    def timed(text: str, arguments, seconds: float) -> float:
        assert seconds == 0.5
        assert [t.sizes for t in arguments_of(text)] == [a.shape for a in arguments]
        products = re.findall(r"dot_general.*?tensor<(\d+)x", text, re.S)
        passes = text.count("negate") if text.count("%r0") else 0
        chained = len(re.findall("multiply|tanh", text))
        total = sum(LAUNCH + 2 * int(side) ** 3 / rate for side in products)
        if passes:
            size = 8 * arguments[0].size
            total += passes * (LAUNCH + waited + (0 if size == 1 << 18 else size / wire))
        if chained:
            total += LAUNCH + chained * arguments[0].size / 1e12
        return total

    monkeypatch.setattr(gpu_calibration, "_time", timed)
    monkeypatch.setattr(gpu_calibration, "sample", lambda _, shape: np.broadcast_to(1, shape))
    found = {m.key: m for m in gpu_calibration.gpu_measurements(0.5)}
    assert found["device.launch"].value == pytest.approx(LAUNCH + 2 * 8**3 / rate, rel=5e-3)
    assert found["rates.bf16"].note == "8192 x 8192 x 8192"
    assert found["rates.f32"].note == found["rates.i8"].note == "4096 x 4096 x 4096"
    for name in ("f64", "f32", "f16", "bf16", "i8"):
        assert found[f"rates.{name}"].value == pytest.approx(rate, rel=5e-3)
    curve = found["efficiency.products"].value
    assert [flops for flops, _ in curve] == [2.0 * n**3 for n in (256, 512, 1024, 2048, 4096, 8192)]
    assert [share for _, share in curve] == pytest.approx([1.0] * 6, abs=2e-3)
    assert found["efficiency.products"].text.startswith("100% at 256, 100% at 512")
    assert found["device.bandwidth"].value == pytest.approx(wire, rel=5e-3)
    assert found["device.bandwidth"].note == "a kernel that reads and writes 256 MiB"
    memory = found["efficiency.memory"].value
    assert memory == [[float(1 << n), pytest.approx(1.0, abs=2e-3)] for n in (22, 24, 26, 28)]
    for key in ("vector", "transcendental"):
        assert found[f"device.{key}"].value == pytest.approx(1e12, rel=5e-3)


def test_overheads_of_calls(monkeypatch):
    """Planted seconds of a call, its arguments, results, a gather and its operands."""
    planted = {"argument": 2e-7, "result": 5e-7, "call": 3e-6, "operand": 7e-7, "queue": 1.1e-5}
    planted |= {"queued_argument": 9e-7, "queued_result": 2e-6, "view": 3e-7, "summand": 6e-6}
    shapes = {"operand": "tensor<32x64xf32>", "view": "tensor<8x4xf32>"}
    shapes |= {"summand": "tensor<8x8xf32>", "large": "tensor<8x1024xf32>"}
    summed = 3e-11
    planted["large"] = planted["summand"] + 3 * 4 * 8 * (1024 - 8) * summed

    def timed(text: str, seconds: float) -> float:
        assert seconds == 1.5
        count = len(arguments_of(text))
        results = len(parse(text).function("main").body.results)
        kind = "queued_" if "sdy" in text else ""
        total = planted["call"] + count * planted[f"{kind}argument"]
        total += results * planted[f"{kind}result"]
        if not kind:
            return total
        # Results of that shape are those of the collective.
        name, shape = next(pair for pair in shapes.items() if pair[1] in text)
        main = parse(text).function("main")
        gathered = sum(str(value.type) == shape for value in main.body.results)
        return total + planted["queue"] + gathered * planted[name]

    monkeypatch.setattr(call_calibration, "compile_program", lambda text, **_: text)
    monkeypatch.setattr(call_calibration, "call_seconds", timed)
    monkeypatch.setattr(call_calibration, "_outside_kernels", timed)
    monkeypatch.setattr(kernel_calibration, "kernel_programs", lambda: iter(()))
    monkeypatch.setattr(kernel_calibration, "fitted", lambda timed, machine: {"block": 1.0})
    found = kernel_calibration.overheads(HOST, 0.15)
    wake = found.pop("wake", 0.0)
    assert wake == 0.0 or HOST.threads > 1
    del planted["large"]
    expected = planted | {"segment": planted["call"], "summed": summed, "block": 1.0}
    assert found == pytest.approx(expected, rel=1e-6)


def test_the_least_of_several_calls(monkeypatch):
    ticks = iter([0.0, 10.0, 14.0, 20.0, 23.0, 30.0, 37.0, 40.0, 44.0, 50.0, 58.0, *[99.0] * 9])
    monkeypatch.setattr(least_seconds.time, "perf_counter", lambda: next(ticks))
    calls = []
    assert least_seconds.least(lambda: calls.append(1), 5.0) == 3.0
    assert len(calls) == 6  # one to warm up, and five at least


def test_the_text_of_a_machine_file():
    made = machine_text(
        [
            Measurement("device.launch", 1.5e-06, "of 8", "1.5 us"),
            Measurement("rates.f32", 3.0, "n", "3"),
            Measurement("device.threads", 2, "used", "2"),
        ],
        'a "host"',
    )
    assert made == (
        'based_on = "host"\nabout = "a \\"host\\""\n\n[sources]\nmeasured = "weft calibrate"\n'
        '\n[device]\nlaunch = [1.5e-06, "measured", "of 8"]\nthreads = [2, "measured", "used"]\n'
        '\n[rates]\nf32 = [3.0, "measured", "n"]\n'
    )
