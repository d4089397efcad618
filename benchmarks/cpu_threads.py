"""The same work on 1, 2, 4, 8, 16 threads, beside torch (MKL, oneDNN) and JAX's CPU, and its plot.

    python benchmarks/cpu_threads.py [--threads 1 2 4 8 16] [--json FILE] [--svg FILE]
    python benchmarks/cpu_threads.py --draw FILE --svg docs/threads.svg

For each count a process of its own runs on that many cores (its affinity is set, `WEFT_THREADS` is
not), and all sides take turns in it. Products and chains are kernels on buffers that are there;
programs are calls by `jax.jit` on Weft's devices and on JAX's own.
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

from benchmarks.cpu_rows import REST, timed
from benchmarks.threads_plot import draw

COUNTS = (1, 2, 4, 8, 16)
PRODUCTS = {
    "f32": ((1, 256, 256, 256), (1, 1024, 1024, 1024), (1, 4096, 1024, 1024), (1, 512, 5859, 700),
            (256, 128, 256, 64), (1, 8, 4096, 4096)),
    "bf16": ((1, 256, 256, 256), (1, 1024, 1024, 1024), (1, 4096, 1024, 1024), (1, 8, 4096, 4096)),
}  # fmt: skip
CHAINS = (("bias+gelu+residual", "1M"), ("softmax", "1M"), ("layer_norm", "16M"))
PROGRAMS = ("runge-kutta x500", "row gather 4096x64", "take along axis", "adam step")
Side = Callable[[], object]
Found = dict[str, dict[str, float]]  # seconds by case and side


def sides(words: Sequence[str]) -> Iterator[tuple[str, dict[str, Side]]]:
    """Every case whose name has one of these words, with its sides."""
    for name, make in _cases():
        if not words or any(word in name for word in words):
            yield name, make()


def _cases() -> Iterator[tuple[str, Callable[[], dict[str, Side]]]]:
    from benchmarks import cpu_products

    for kind, sizes in PRODUCTS.items():
        for size in sizes:
            case = cpu_products.Case(*size, kind)
            yield f"{case.name} {case.text}", lambda case=case: _product(case)
    for name, size in CHAINS:
        yield f"{name} {size}", lambda name=name, size=size: _chain(name, size)
    for name in PROGRAMS:
        yield name, lambda name=name: _program(name)


def _product(case: Any) -> dict[str, Side]:
    from benchmarks import cpu_products

    arrays = cpu_products.operands(case)
    return {
        "weft": cpu_products.weft_side(case, arrays),
        "torch": cpu_products.torch_side(case, arrays),
    }


def _chain(name: str, size: str) -> dict[str, Side]:
    from benchmarks import cpu_chains
    from weft.ir.types import F32

    cpu_chains.keep_pages()
    count = cpu_chains.SIZES[size] // cpu_chains.ROW
    arrays = cpu_chains.inputs(name, "f32", count)
    built = cpu_chains.CHAINS[name](count, cpu_chains.ROW, F32)
    return {
        "weft": cpu_chains.kernel_side(built, arrays),
        "torch": cpu_chains.torch_side(name, arrays, compiled=False),
        "jax": cpu_chains.xla_side(name, arrays),
    }


def _program(name: str) -> dict[str, Side]:
    import jax

    from benchmarks.programs import PROGRAMS as ALL

    function, arguments = ALL[name]()
    made: dict[str, Side] = {}
    for side, platform in (("weft", "weft"), ("jax", "cpu")):
        device = jax.devices(platform)[0]
        given = jax.tree.map(lambda a, device=device: jax.device_put(a, device), arguments)
        call = jax.jit(function)
        made[side] = lambda call=call, given=given: jax.block_until_ready(call(*given))
    return made


def measured(runs: dict[str, Side], rounds: int, seconds: float = 0.02) -> dict[str, float]:
    """The least mean of a call of each side; the sides take turns."""
    calls, found = {}, dict.fromkeys(runs, float("inf"))
    for name, run in runs.items():
        run()
        calls[name] = max(2, min(1000, round(seconds / max(1e-7, timed(run, 1)))))
    for _ in range(rounds):
        for name, run in runs.items():
            time.sleep(REST)
            timed(run, calls[name] // 2)
            found[name] = min(found[name], timed(run, calls[name]))
    return found


def serve(words: Sequence[str], rounds: int) -> None:
    """One count of threads: print the times as JSON."""
    answers, sys.stdout = sys.stdout, sys.stderr
    import torch

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    found = {name: measured(runs, rounds) for name, runs in sides(words)}
    print(json.dumps(found), file=answers)


def count_of(threads: int, words: Sequence[str], rounds: int) -> Found:
    """The times on so many cores, of a process of its own."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    line = [sys.executable, __file__, "--serve", "--rounds", str(rounds), "--only", *words]
    env = os.environ | {"JAX_PLATFORMS": "weft,cpu", "OMP_NUM_THREADS": str(threads)}
    made = subprocess.run(
        line,
        env=env,
        stdout=subprocess.PIPE,
        check=True,
        preexec_fn=lambda: os.sched_setaffinity(0, cores),
    )
    found: Found = json.loads(made.stdout)
    return found


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
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--svg", type=Path)
    parser.add_argument("--draw", type=Path, help="draw these figures, and measure nothing")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.only, given.rounds)
        return
    found: dict[str, Found] = {}
    if given.draw:
        found = json.loads(given.draw.read_text())
    else:
        here = len(os.sched_getaffinity(0))
        for threads in [count for count in given.threads if count <= here]:
            found[str(threads)] = count_of(threads, given.only, given.rounds)
        print(table(found))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))
    if given.svg:
        given.svg.write_text(draw(found))


if __name__ == "__main__":
    main()
