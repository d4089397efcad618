"""Fourier transforms of all kinds and factors, in one pass and in two, beside numpy's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.emit.llvm.single.lone_nodes import check_alone, lone_kernel, node_of
from weft.emit.llvm.fft.plan import LineMap, Mirror, plan_of, refuses_fft
from weft.ir.types import Array
from weft.kernels.nest.loop_dims import LoopDim
from weft.ops.linalg import Fft

KINDS = ("FFT", "IFFT", "RFFT", "IRFFT")


def near(actual: Array, expected: Array) -> None:
    """Fail unless the difference is a few units in the last place of the largest number."""
    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    most = np.max(np.abs(expected.astype(wide)), initial=1e-30)
    apart = np.max(np.abs(actual.astype(wide) - expected.astype(wide)), initial=0.0)
    assert apart <= 32 * np.finfo(actual.dtype).eps * most


def operand(kind: str, shape: tuple[int, ...], wide: bool) -> Array:
    """Numbers whose transform has that shape, or that have it."""
    rng = np.random.default_rng(sum(shape))
    if kind == "IRFFT":
        shape = (*shape[:-1], shape[-1] // 2 + 1)
    numbers = rng.standard_normal((2, *shape))
    if kind == "RFFT":
        return numbers[0].astype(np.float64 if wide else np.float32)
    both = numbers[0] + 1j * numbers[1]
    return both.astype(np.complex128 if wide else np.complex64)


def check(kind: str, batch: tuple[int, ...], lengths: tuple[int, ...], wide: bool = False) -> None:
    """Compare one transform with the reference."""
    given = operand(kind, (*batch, *lengths), wide)
    check_alone(Fft(kind, lengths), given, compare=near)


# One pass, masked lanes, whole squares of lanes, two passes; every radix.
LINES = ((1, ()), (16, (16,)), (64, (3, 16)), (60, (5,)), (96, (9,)), (250, (2,)), (1024, ()))
LINES += ((13 * 11, ()), (49, (17,)), (512, (16,)), (4096, (2,)), (360, (16,)), (31, (5,)))
# Convolutions: one pass, two, half of an even length.
LINES += ((37, (3, 7)), (997, ()), (2 * 509, (2,)))


@pytest.mark.parametrize("kind", KINDS)
def test_lines(kind: str):
    for length, batch in LINES:
        check(kind, batch, (length,))
    check(kind, (16,), (32,), wide=True)


@pytest.mark.parametrize("kind", KINDS)
@settings(suppress_health_check=list(HealthCheck), max_examples=12)
@given(data=st.data())
def test_several_dims(kind: str, data: st.DataObject):
    sizes = st.sampled_from([1, 2, 3, 5, 8, 14, 16, 20, 33, 37, 64])
    others = data.draw(st.lists(sizes, min_size=1, max_size=2))
    last = data.draw(st.sampled_from([1, 2, 4, 10, 15, 16, 26, 37, 64, 100]))
    batch = data.draw(st.sampled_from([(), (3,), (2, 2)]))
    check(kind, batch, (*others, last), data.draw(st.booleans()))


def refused(kind: str, *lengths: int) -> str | None:
    """Why there is no kernel of a transform."""
    return refuses_fft(lone_kernel(node_of(Fft(kind, lengths), operand(kind, lengths, False))))


def test_what_numpy_does():
    too_long = "a length of 40009 is too long for its prime factors"
    assert refused("FFT", 40009) == too_long and refused("IRFFT", 2 * 40009) == too_long
    assert refused("FFT", 3000, 40, 41) == "it needs too much memory at once"
    assert refused("FFT", 0) is None and refused("FFT", 1 << 20) is None


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_long_lines(kind: str):
    for length in (10007, 1 << 17, 5**7, 3**8):
        check(kind, (), (length,), wide=True)
    check(kind, (), (4099, 2))
    check(kind, (2,), (3, 2500, 2))


def loops_text(dims: tuple[LoopDim, ...]) -> str:
    return " ".join(f"{dim.size} by {'/'.join(map(str, dim.steps))}" for dim in dims) or "none"


def passes(kind: str, batch: tuple[int, ...], lengths: tuple[int, ...]) -> Iterator[str]:
    """The passes of a transform, which decide how fast it is, not what it gives."""
    arrays = operand(kind, (*batch, *lengths), False)
    plan = plan_of(lone_kernel(node_of(Fft(kind, lengths), arrays)))
    yield f"{kind} of {lengths}, batch {batch}: workspace {plan.workspace}, inverse {plan.inverse}"
    for step in plan.steps:
        where = " to ".join(f"{area.buffer}+{area.offset}" for area in step.areas)
        if isinstance(step, Mirror):
            real = "real" if step.to_real else "halves"
            yield f"  mirror of {step.half} to {real}, {loops_text(step.outer)}, {where}"
            continue
        if isinstance(step, LineMap):
            forms, outer = " to ".join(step.forms), loops_text(step.outer)
            yield f"  map of {step.count} to {step.length}, {forms}, rows {step.rows}, {where}"
            yield f"    outer {outer}, {step.table}"
            continue
        lanes = loops_text((step.lanes,))
        yield f"  lines of {step.length} in {lanes} lanes, rows {step.rows}, {where}"
        outer = loops_text(step.outer)
        yield f"    outer {outer}, twiddle {step.twiddle}, scale {step.scale:.6g}"


def test_passes(golden: Callable[[Path, str], None]):
    """At the edges of what is short, long, few and many, for every kind."""
    lengths = (2, 16, 18, 32, 254, 256, 512, 520, 2048, 4096, 1 << 15)
    cases = [("FFT", batch, (n,)) for n in lengths for batch in ((), (7,), (8,), (2, 16))]
    cases += [(kind, (3,), (6, 20, 64)) for kind in KINDS] + [("RFFT", (), (1024,))]
    cases += [(kind, (3,), (37, 15)) for kind in KINDS] + [("FFT", (), (997,))]
    lines = [line for case in cases for line in passes(*case)]
    golden(Path(__file__).parents[3] / "golden/emit/fft.txt", "\n".join(lines) + "\n")
