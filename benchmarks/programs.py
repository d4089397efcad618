"""Programs of the kinds that people write, on Weft's devices, on JAX's CPU and in torch.

    python benchmarks/programs.py [--only scan while] [--rounds 5] [--torch] [--json FILE]

Each side is a process of its own, with `JAX_PLATFORMS` set to weft or to cpu, or torch eager; for
every program the sides (torch.compile is the fourth) take short turns, and the least of a side's
lower quartiles counts, as other programs may use the machine. Times are of whole calls that are
waited for. A ratio is the time of the peer over Weft's: above 1, Weft is faster. `processor` is the
same ratio of processor time, of all threads. `err` is the largest difference of results between
JAX's CPU and Weft.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.programs_arrays import ARRAYS, MESHES
from benchmarks.programs_flow import FLOW, Program
from benchmarks.programs_linalg import LINALG
from benchmarks.programs_torch import torch_call

PROGRAMS: dict[str, Program] = {**FLOW, **LINALG, **ARRAYS, **MESHES}
_SECONDS = 0.08  # of measuring a program in one turn
_TURNS = 400  # calls in a turn, at most


def chosen(only: Sequence[str] | None) -> list[str]:
    """The names that contain one of these words, or all."""
    return [name for name in PROGRAMS if not only or any(word in name for word in only)]


# One side: a process that reads names and writes times


def serve(platform: str, folder: str) -> None:
    """Answer each name on standard input with the seconds of a call, wall and processor."""
    answers, sys.stdout = sys.stdout, sys.stderr
    calls: dict[str, Callable[[], object] | None] = {}
    for line in sys.stdin:
        wanted, _, name = line.strip().partition(" ")
        if name not in calls:
            calls[name] = prepare(platform, name, folder)
        call = calls[name] if wanted == "measure" else None
        print(json.dumps(call and timed(call)), file=answers, flush=True)


def prepare(platform: str, name: str, folder: str) -> Callable[[], object] | None:
    """A compiled call of a program, its results in a file; None if torch does not have it."""
    if platform in ("torch", "inductor"):
        return torch_call(name, compiled=platform == "inductor")
    import jax

    function, arguments = PROGRAMS[name]()
    call, given = jax.jit(function), jax.tree.map(jax.device_put, arguments)
    if name in MESHES:
        given = arguments
    made = jax.block_until_ready(call(*given))
    np.savez(_results(folder, name, platform), *map(np.asarray, jax.tree.leaves(made)))
    return lambda: jax.block_until_ready(call(*given))


def _results(folder: str, name: str, platform: str) -> str:
    return f"{folder}/{name.replace('/', ' ')}.{platform}.npz"


def timed(call: Callable[[], object]) -> tuple[float, float]:
    """The lower quartile of calls that take a while together, and their mean processor time."""
    begin = time.perf_counter()
    call()
    once = max(time.perf_counter() - begin, 1e-6)
    count = min(max(int(_SECONDS / once), 3), _TURNS)
    took = []
    busy = time.process_time()
    for _ in range(count):
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
    busy = time.process_time() - busy
    return sorted(took)[count // 4], busy / count


# All sides


class Side:
    """A process that measures on one platform."""

    def __init__(self, platform: str, devices: int, folder: str) -> None:
        env = {**os.environ, "JAX_ENABLE_X64": "0", "WEFT_DEVICES": str(devices)}
        if platform in ("weft", "cpu"):
            env["JAX_PLATFORMS"] = platform
        if devices > 1:
            env["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
        command = [sys.executable, __file__, "--serve", platform, "--folder", folder]
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def prepare(self, names: Sequence[str]) -> None:
        """Compile programs, each with a first call."""
        for name in names:
            self._ask(f"prepare {name}")

    def measure(self, name: str) -> tuple[float, float] | None:
        """The seconds of a call of a program, wall and processor."""
        times = self._ask(f"measure {name}")
        return times and (times[0], times[1])

    def _ask(self, line: str) -> Any:
        assert self.process.stdin and self.process.stdout
        print(line, file=self.process.stdin, flush=True)
        if not (answer := self.process.stdout.readline()):
            raise SystemExit(f"a side failed at {line!r}")
        return json.loads(answer)

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


Times = dict[str, dict[str, float]]


def race(names: Sequence[str], rounds: int, with_torch: bool) -> Times:
    """The least time of each program on each platform, and the largest difference of results."""
    found: Times = {}
    with tempfile.TemporaryDirectory() as folder:
        for devices in (1, 8):
            here = [name for name in names if (name in MESHES) == (devices > 1)]
            torch = ("torch", "inductor") if with_torch and devices == 1 else ()
            platforms = ("cpu", "weft", *torch)
            sides = {p: Side(p, devices, folder) for p in platforms} if here else {}
            with ThreadPoolExecutor() as pool:  # the sides compile side by side
                [*pool.map(lambda side: side.prepare(here), sides.values())]  # noqa: B023
            for name in here:
                found[name] = _row(name, sides, rounds)
                found[name]["err"] = _apart(name, folder)
                print(line(name, found[name]), flush=True)
            for side in sides.values():
                side.close()
    return found


def _row(name: str, sides: dict[str, Side], rounds: int) -> dict[str, float]:
    row: dict[str, float] = {}
    for _ in range(rounds):
        for platform, side in sides.items():
            if (times := side.measure(name)) is None:
                continue
            wall, busy = times
            row[platform] = min(row.get(platform, math.inf), wall)
            row[f"{platform} busy"] = min(row.get(f"{platform} busy", math.inf), busy)
    return row


def _apart(name: str, folder: str) -> float:
    files = [np.load(_results(folder, name, platform)) for platform in ("cpu", "weft")]
    return max(_difference(files[0][key], files[1][key]) for key in files[1].files)


def _difference(one: Any, other: Any) -> float:
    if one.size == 0:
        return 0.0
    kind = np.complex128 if np.iscomplexobj(one) else np.float64
    a, b = one.astype(kind), other.astype(kind)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return float(np.max(np.where(same, 0.0, np.abs(a - b) / (1 + np.abs(a)))))


def line(name: str, row: dict[str, float]) -> str:
    """One program: times, ratios, difference."""
    times = f"{row['cpu'] * 1e6:9.1f}us {row['weft'] * 1e6:9.1f}us"
    ratios = f"{row['cpu'] / row['weft']:6.2f} {row['cpu busy'] / row['weft busy']:9.2f}"
    torch = [
        f"{row[p] / row['weft']:8.2f}" if p in row else f"{'-':>8s}" for p in ("torch", "inductor")
    ]
    return f"{name:30s} {times} {ratios} {' '.join(torch)} {row['err']:8.1e}"


def table(found: Times) -> str:
    """A line for each program, slowest first, and the geometric means."""
    head = f"{'jax cpu':>11s} {'weft':>11s} {'ratio':>6s} {'processor':>9s}"
    lines = [f"{'program':30s} {head} {'torch':>8s} {'compiled':>8s} {'err':>8s}"]
    ordered = sorted(found.items(), key=lambda item: item[1]["cpu"] / item[1]["weft"])
    lines += [line(name, row) for name, row in ordered]
    for peer in ("cpu", "torch", "inductor"):
        ratios = [row[peer] / row["weft"] for row in found.values() if peer in row]
        if ratios:
            mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
            slower = sum(ratio < 1 for ratio in ratios)
            lines.append(f"{peer}: geometric mean {mean:.2f} of {len(ratios)}; {slower} below 1.0")
    return "\n".join(lines)


def main() -> None:
    """Race, or be one side of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--torch", action="store_true", help="torch eager and torch.compile as well"
    )
    parser.add_argument("--json")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve(given.serve, given.folder)
        return
    found = race(chosen(given.only), given.rounds, given.torch)
    print(f"\n{table(found)}")
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
