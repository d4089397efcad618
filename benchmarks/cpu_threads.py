"""The same work on 1, 2, 4, 8, 16 threads, beside torch (MKL, oneDNN) and JAX's CPU, and its plot.

    python benchmarks/cpu_threads.py [--threads 1 2 4 8 16] [--json FILE] [--svg FILE]
    python benchmarks/cpu_threads.py --draw FILE --svg docs/threads.svg

For each count and side a process of its own runs on that many cores (its affinity is set,
`WEFT_THREADS` is not): the threads of two pools would be in each other's way. Counts that have
cores side by side are measured at the same time. Products and chains are kernels on buffers that
are there; programs are calls by `jax.jit` on Weft's devices and on JAX's own. A time is the lower
quartile of calls.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.cpu_rows import timed
from benchmarks.threads_plot import draw

COUNTS = (1, 2, 4, 8, 16)
SIZES = ((1, 384, 384, 384), (1, 1024, 1024, 1024), (1, 512, 5859, 700))
PRODUCTS = {"f32": SIZES, "bf16": SIZES}
CHAINS = (("bias+gelu+residual", "1M"), ("softmax", "1M"), ("layer_norm", "1M"))
PROGRAMS = ("runge-kutta x500", "row gather 4096x64", "adam step")
SIDES = ("weft", "torch", "jax")
Side = Callable[[], object]
Found = dict[str, dict[str, float]]  # seconds by case and side


def cases() -> Iterator[tuple[str, Callable[[str], Side | None]]]:
    """Every case, and what makes a side of it, if it has that one."""
    from benchmarks import cpu_products

    for kind, sizes in PRODUCTS.items():
        for size in sizes:
            case = cpu_products.Case(*size, kind)
            yield f"{case.name} {case.text}", lambda side, case=case: _product(case, side)
    for name, size in CHAINS:
        yield f"{name} {size}", lambda side, name=name, size=size: _chain(name, size, side)
    for name in PROGRAMS:
        yield name, lambda side, name=name: _program(name, side)


def _product(case: Any, side: str) -> Side | None:
    from benchmarks import cpu_products

    makers = {"weft": cpu_products.weft_side, "torch": cpu_products.torch_side}
    return makers[side](case, cpu_products.operands(case)) if side in makers else None


def _chain(name: str, size: str, side: str) -> Side:
    from benchmarks import cpu_chains
    from weft.ir.types import F32

    cpu_chains.keep_pages()
    count = cpu_chains.SIZES[size] // cpu_chains.ROW
    arrays = cpu_chains.inputs(name, "f32", count)
    if side == "weft":
        built = cpu_chains.CHAINS[name](count, cpu_chains.ROW, F32)
        return cpu_chains.kernel_side(built, arrays)
    if side == "torch":
        return cpu_chains.torch_side(name, arrays, compiled=False)
    return cpu_chains.xla_side(name, arrays)


def _program(name: str, side: str) -> Side | None:
    import jax

    from benchmarks.programs import PROGRAMS as ALL

    if side == "torch":
        return None
    function, arguments = ALL[name]()
    device = jax.devices("weft" if side == "weft" else "cpu")[0]
    given = jax.tree.map(lambda a: jax.device_put(a, device), arguments)
    call = jax.jit(function)
    return lambda: jax.block_until_ready(call(*given))


def measured(run: Side, seconds: float) -> float:
    """The lower quartile of calls that take so long together."""
    took: list[float] = []
    run()
    run()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(took) < 5:
        took.append(timed(run, 1))
    return sorted(took)[len(took) // 4]


def serve(side: str, seconds: float) -> None:
    """One side on the cores of this process: print the times as JSON."""
    answers, sys.stdout = sys.stdout, sys.stderr
    if side == "torch":
        import torch

        torch.set_num_threads(len(os.sched_getaffinity(0)))
    found = {}
    for name, make in cases():
        run = make(side)
        if run is not None:
            found[name] = measured(run, seconds)
    print(json.dumps(found), file=answers)


def measure(counts: Sequence[int], seconds: float) -> dict[str, Found]:
    """The times of all sides on these counts, those at the same time that have cores for it."""
    cores, found = sorted(os.sched_getaffinity(0)), dict[str, Found]()
    left = sorted(counts)
    while left:
        now = [left.pop(0)]
        while left and sum(now) + left[0] <= len(cores):
            now.append(left.pop(0))
        for side in SIDES:
            running = [
                _start(side, cores[sum(now[:n]) : sum(now[: n + 1])], seconds)
                for n in range(len(now))
            ]
            for count, process in zip(now, running, strict=True):
                for name, took in json.loads(process.communicate()[0]).items():
                    found.setdefault(str(count), {}).setdefault(name, {})[side] = took
    return found


def _start(side: str, cores: Sequence[int], seconds: float) -> subprocess.Popen[str]:
    line = [sys.executable, __file__, "--serve", side, "--seconds", str(seconds)]
    env = os.environ | {"JAX_PLATFORMS": "weft,cpu", "OMP_NUM_THREADS": str(len(cores))}
    return subprocess.Popen(
        line,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )


def table(all_found: dict[str, Found]) -> str:
    """Weft's microseconds and the peers' ratios, a line for each case."""
    lines = [f"{'':34s}" + "".join(f"{count:>22s}" for count in all_found)]
    for name in next(iter(all_found.values())):
        cells = []
        for found in all_found.values():
            row = dict(found[name])
            weft = row.pop("weft")
            ratios = " ".join(f"{side[0]}{peer / weft:.2f}" for side, peer in row.items())
            cells.append(f"{1e6 * weft:10.1f}us {ratios:>9s}")
        lines.append(f"{name:34s}" + "".join(cells))
    return "\n".join(lines)


def main() -> None:
    """Measure and draw, or be one of the processes that measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, nargs="*", default=COUNTS)
    parser.add_argument("--seconds", type=float, default=0.3, help="of measuring a case")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--draw", type=Path, help="draw these figures, and measure nothing")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.seconds)
        return
    found: dict[str, Found] = {}
    if given.draw:
        found = json.loads(given.draw.read_text())
    else:
        here = len(os.sched_getaffinity(0))
        found = measure([count for count in given.threads if count <= here], given.seconds)
        print(table(found))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    if given.svg:
        given.svg.write_text(draw(found))


if __name__ == "__main__":
    main()
