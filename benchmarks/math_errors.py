"""How exact the kernels' functions of floats are, and how fast: the table of docs/math.md.

    python benchmarks/math_errors.py [--count 10000000] [--only exp tanh] [--write]
    python benchmarks/math_errors.py --approximate

Errors are in units in the last place (ulp) of the exact result: the largest one of so many random
bit patterns (with infinities, NaN, zeros of both signs and subnormal numbers), and the largest one
where programs use the function. f32 is compared with f64, f64 (a tenth as many numbers) with the
processor's longest float. `--write` puts the table into the page. `--approximate` has the largest
relative errors of the functions of f32 that the option `approximate` stands for, where results are
normal numbers.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from tests.emit.llvm.functions import FUNCTIONS, Function, errors, patterns, usual
from tests.emit.llvm.jit import Compiled
from weft.emit.llvm.jit.supplied import estimate, estimate_rsqrt
from weft.emit.llvm.math.exponential import coarse_exp
from weft.emit.llvm.math.logistic import coarse_logistic, coarse_one_plus_tanh, one_plus_tanh
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vectors
from weft.ir.types import F32, F64, Array, DType

PAGE = Path(__file__).resolve().parents[1] / "docs" / "math.md"
BEGIN, END = "<!-- table -->\n", "<!-- end of table -->"
AT_ONCE = 1_000_000
HEAD = (
    "| function | f32, any bits | f32, usual | f64, any bits | f64, usual | ns in f32 | ns in f64 |"
)

# The approximate functions, by option; and the exact ones that FUNCTIONS lacks.
APPROXIMATE = (
    ("exp", "exp", coarse_exp),
    ("exp", "logistic", coarse_logistic),
    ("exp", "1 + tanh", coarse_one_plus_tanh),
    ("rsqrt", "rsqrt", estimate_rsqrt),
    ("reciprocal", "1 / x", estimate),
)
OTHERS: dict[str, dict[str, Any]] = {
    "1 + tanh": {"emit": one_plus_tanh, "exact": lambda x: 2 / (1 + np.exp(-2 * x))},
    "1 / x": {
        "emit": lambda v, x: v.div(v.constant(1.0, x.kind), x),
        "exact": lambda x: 1 / x,
        "usual": (0.1, 10),
    },
}


def compiled(function: Function, dtype: DType) -> Compiled:
    """A function as a loop over arrays."""

    def body(v: Vectors, args: list[Held]) -> Held:
        return (function.emit(v, *(arg[0] for arg in args)),)

    return Compiled(body, [dtype] * function.arity, dtype, 32)


def largest(function: Function, run: Compiled, dtype: DType, count: int, *, bits: bool) -> float:
    """The largest error of so many numbers."""
    worst = 0.0
    for seed in range(0, count, AT_ONCE):
        size = min(AT_ONCE, count - seed)
        seeds = [7 * seed + n for n in range(function.arity)]
        args = [
            patterns(dtype, size, s) if bits else usual(function, dtype, size, s) for s in seeds
        ]
        worst = max(worst, float(errors(function, run, *args).max()))
    return worst


def nanoseconds(function: Function, run: Compiled, dtype: DType) -> float:
    """The time of an element on one core, from and to a cache."""
    args = [usual(function, dtype, 16384, n) for n in range(function.arity)]
    out = np.empty_like(args[0])
    times = []
    for _ in range(60):
        begin = time.perf_counter()
        run.into(out, *args)
        times.append(time.perf_counter() - begin)
    return 1e9 * min(times) / out.size


def row(function: Function, count: int) -> str:
    """A row of the table."""
    found: list[str] = []
    speeds: list[str] = []
    for dtype, numbers in ((F32, count), (F64, count // 10)):
        run = compiled(function, dtype)
        for bits in (True, False):
            error = largest(function, run, dtype, numbers, bits=bits)
            found.append(f"{error:.2f}" if error < 100 else f"{error:.1g}")
        speeds.append(f"{nanoseconds(function, run, dtype):.1f}")
    return f"| {function.name} | {' | '.join(found + speeds)} |"


def rows(names: list[str], count: int) -> Iterator[str]:
    """The lines of the table."""
    yield HEAD
    yield "|---" * HEAD.count(" | ") + "|---|"
    for function in FUNCTIONS:
        if not names or function.name in names:
            yield row(function, count)


def approximate_rows(count: int) -> Iterator[str]:
    """The lines of the table of approximate functions."""
    yield "| name | function | largest relative error | bits | ns | ns if exact |"
    yield "|---|---|---|---|---|---|"
    by_name = {function.name: function for function in FUNCTIONS}
    for option, name, emit in APPROXIMATE:
        exact = by_name.get(name) or replace(by_name["exp"], name=name, **OTHERS[name])
        found = replace(exact, emit=emit)
        run = compiled(found, F32)
        worst = max(
            relative(found, run, patterns(F32, AT_ONCE, seed)) for seed in range(count // AT_ONCE)
        )
        times = [nanoseconds(found, one, F32) for one in (run, compiled(exact, F32))]
        bits = int(-np.log2(worst))
        yield f"| {option} | {name} | {worst:.1e} | {bits} | {times[0]:.2f} | {times[1]:.2f} |"


def relative(function: Function, run: Compiled, x: Array) -> float:
    """The largest relative error where results are normal numbers."""
    with np.errstate(all="ignore"):
        exact = function.exact(x.astype(np.float64))
        error = np.abs(run(x) / exact - 1)
    limits = np.finfo(np.float32)
    normal = (np.abs(exact) >= 2 * limits.tiny) & (np.abs(exact) <= limits.max * (1 - 2.0**-13))
    return float(error[normal].max())


def main() -> None:
    """Measure, print, and write the page if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000_000)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--approximate", action="store_true")
    options = parser.parse_args()
    lines = []
    if options.approximate:
        for line in approximate_rows(options.count):
            print(line, flush=True)
        return
    for line in rows(options.only, options.count):
        print(line, flush=True)
        lines.append(line)
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after)


if __name__ == "__main__":
    main()
