"""Programs of the kinds that people write, on Weft's devices and on JAX's CPU.

    python benchmarks/programs.py [--only scan while] [--rounds 3] [--json FILE]

Each side is a process of its own, with `JAX_PLATFORMS` set to weft or to cpu; the sides take turns,
and the least of a side's lower quartiles counts, as others may use the machine. Times are of whole
calls that are waited for. A ratio is the time of JAX's CPU over Weft's: above 1, Weft is faster.
`err` is the largest difference of results.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.programs_flow import FLOW, Program

PROGRAMS: dict[str, Program] = {**FLOW}
PLATFORMS = ("cpu", "weft")
_SECONDS = 0.25  # of measuring a program in one turn


def chosen(only: Sequence[str] | None) -> list[str]:
    """The names that contain one of these words, or all."""
    return [name for name in PROGRAMS if not only or any(word in name for word in only)]


# One side


def measure(names: Sequence[str], results: str) -> dict[str, float]:
    """The seconds of a call of each program; its results go to a file."""
    import jax

    times: dict[str, float] = {}
    kept: dict[str, Any] = {}
    for name in names:
        function, arguments = PROGRAMS[name]()
        call = jax.jit(function)
        given = [jax.device_put(a) for a in arguments]
        made = jax.block_until_ready(call(*given))
        kept |= {f"{name}/{n}": np.asarray(x) for n, x in enumerate(jax.tree.leaves(made))}
        times[name] = _quartile(lambda: jax.block_until_ready(call(*given)))  # noqa: B023  # now
    np.savez(results, **kept)
    return times


def _quartile(call: Any) -> float:
    """The lower quartile of calls that take a while together."""
    begin = time.perf_counter()
    call()
    once = max(time.perf_counter() - begin, 1e-6)
    count = min(max(int(_SECONDS / once), 5), 5000)
    took = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
    return sorted(took)[count // 4]


# Both sides


def race(names: Sequence[str], rounds: int) -> dict[str, dict[str, float]]:
    """The least time of each program on each platform, and how far results are apart."""
    found: dict[str, dict[str, float]] = {name: {} for name in names}
    with tempfile.TemporaryDirectory() as folder:
        files = {platform: f"{folder}/{platform}.npz" for platform in PLATFORMS}
        for _ in range(rounds):
            for platform in PLATFORMS:
                for name, seconds in _side(platform, names, files[platform]).items():
                    before = found[name].get(platform, math.inf)
                    found[name][platform] = min(before, seconds)
        theirs, ours = (np.load(files[platform]) for platform in PLATFORMS)
        for key in ours.files:
            name = key.rpartition("/")[0]
            far = _apart(theirs[key], ours[key])
            found[name]["err"] = max(found[name].get("err", 0.0), far)
    return found


def _side(platform: str, names: Sequence[str], results: str) -> dict[str, float]:
    env = {**os.environ, "JAX_PLATFORMS": platform, "JAX_ENABLE_X64": "0"}
    command = [sys.executable, __file__, "--side", results, "--names", *names]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def _apart(one: Any, other: Any) -> float:
    if one.size == 0:
        return 0.0
    kind = np.complex128 if np.iscomplexobj(one) else np.float64
    a, b = one.astype(kind), other.astype(kind)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return float(np.max(np.where(same, 0.0, np.abs(a - b) / (1 + np.abs(a)))))


def table(found: dict[str, dict[str, float]]) -> str:
    """A line for each program, and the geometric mean."""
    lines = [f"{'program':34s} {'jax cpu':>10s} {'weft':>10s} {'ratio':>7s} {'err':>8s}"]
    ratios = []
    for name, row in found.items():
        ratio = row["cpu"] / row["weft"]
        ratios.append(ratio)
        times = f"{row['cpu'] * 1e6:8.1f}us {row['weft'] * 1e6:8.1f}us"
        lines.append(f"{name:34s} {times} {ratio:7.2f} {row['err']:8.1e}")
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    slower = sum(ratio < 1 for ratio in ratios)
    lines.append(f"geometric mean {mean:.2f} of {len(ratios)}; {slower} below 1.0")
    return "\n".join(lines)


def main() -> None:
    """Race, or be one side of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--names", nargs="*", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        print(json.dumps(measure(given.names, given.side)))
        return
    found = race(chosen(given.only), given.rounds)
    print(table(found))
    if given.json:
        Path(given.json).write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
