"""What the PyTorch door costs: the zoo's models by Weft, by eager PyTorch and by torch.compile.

    python benchmarks/torch_door.py [MODEL ...] [--pass inference training] [--rounds 3] [--json]

A model's call in evaluation mode, and a training step with AdamW, on one device. Every side runs
in a process of its own; the sides take turns, and the table shows the fastest of all rounds, since
other programs only slow a call down. `first` is the first call, with everything that is compiled
(the caches of Weft and of Inductor are empty). `memory` is the largest number of bytes of tensors
that are alive at a time in a later call: parameters, the optimizer's state and inputs, and what the
call allocates on top, as PyTorch's profiler counts it; of Weft's programs also the memory that they
plan, outside of PyTorch. A ratio is a peer's number over Weft's: above 1, Weft is better.
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
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SIDES = ("eager", "inductor", "weft")
PASSES = ("inference", "training")
MODELS = "mlp resnet unet dit transformer llama gpt2 bert vit".split()
SECONDS = 1.0  # of calls that a side is measured for in a round


@dataclass(frozen=True)
class Side:
    """One call of a model, or one training step; and the bytes that are alive before and after."""

    call: Callable[[], object]
    kept: Callable[[], int]
    compiled: Any = None  # Weft's


def call_of(side: str, name: str, what: str) -> Side:
    """One call of a model, or one training step, by one side."""
    import torch

    import weft
    from weft.zoo import ZOO

    module, inputs = ZOO[name].make()
    state = [*module.parameters(), *module.buffers()]
    given = [each for each in inputs.values() if isinstance(each, torch.Tensor)]
    if what == "inference":
        kept = partial(bytes_of, [*state, *given])
        if side == "weft":
            compiled = weft.compile(module)
            return Side(lambda: compiled(**inputs), kept, compiled)
        run = torch.compile(module) if side == "inductor" else module
        return Side(lambda: without_gradients(run, inputs), kept)
    module.train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)

    def kept_by_training() -> int:
        moments = [each for held in optimizer.state.values() for each in held.values()]
        return bytes_of([*state, *given, *[m for m in moments if isinstance(m, torch.Tensor)]])

    if side == "weft":
        step = weft.train_step(module, loss_of, optimizer)
        return Side(lambda: float(step(**inputs)), kept_by_training, step)
    loss = torch.compile(loss_of) if side == "inductor" else loss_of

    def train() -> float:
        optimizer.zero_grad()
        made = loss(module, **inputs)
        made.backward()
        optimizer.step()
        return float(made)

    return Side(train, kept_by_training)


def bytes_of(tensors: list[Any]) -> int:
    """The bytes of all tensors, those in one memory once."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def peak_bytes(side: Side) -> int:
    """The most bytes of tensors at a time in a call that is not the first one."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        side.call()
    events = recorded.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    alive = peak = 0
    for _, change in sorted(changes):
        alive += change
        peak = max(peak, alive)
    if side.compiled is None:
        return side.kept() + peak
    # What the program allocates, and its arguments, are in its plan; PyTorch's allocator has the
    # rest: results that are copied.
    return max(side.compiled.memory().peak, side.kept()) + peak


def without_gradients(run: Any, inputs: dict[str, Any]) -> object:
    import torch

    with torch.no_grad():
        return run(**inputs)


def loss_of(module: Any, **inputs: Any) -> Any:
    """The mean square of all floats that a model returns."""
    import torch
    from torch.utils._pytree import tree_leaves

    made = [t for t in tree_leaves(module(**inputs)) if isinstance(t, torch.Tensor)]
    return sum(t.float().square().mean() for t in made if t.is_floating_point())


def measure(side: str, name: str, what: str) -> dict[str, float]:
    """Seconds of the first call and of the fastest of the others, and megabytes of tensors."""
    warnings.simplefilter("ignore")
    chosen = call_of(side, name, what)
    call = chosen.call
    began = time.perf_counter()
    call()
    first = time.perf_counter() - began
    times, end = [], time.perf_counter() + SECONDS
    while len(times) < 5 or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return {"first": first, "call": min(times), "memory": peak_bytes(chosen) / 1e6}


def in_process(side: str, name: str, what: str) -> dict[str, float]:
    """The same, in a process with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        env = os.environ | {"TORCHINDUCTOR_CACHE_DIR": folder, "WEFT_CACHE": folder}
        line = [sys.executable, __file__, "--side", side, "--pass", what, "--", name]
        done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{side} {name} {what}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def race(name: str, what: str, rounds: int) -> dict[str, dict[str, float]]:
    """The best numbers of each side over rounds in which they take turns."""
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(rounds):
        for side in SIDES:
            found[side].append(in_process(side, name, what))
    return {s: {key: min(r[key] for r in rows) for key in rows[0]} for s, rows in found.items()}


def ratios(row: dict[str, dict[str, float]]) -> dict[str, float]:
    """The better peer's call over Weft's, Inductor's first call, and eager's memory."""
    ours = row["weft"]
    better = min(row["eager"]["call"], row["inductor"]["call"])
    return {
        "call": better / ours["call"],
        "first": row["inductor"]["first"] / ours["first"],
        "memory": row["eager"]["memory"] / ours["memory"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--pass", dest="passes", nargs="+", choices=PASSES, default=PASSES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if given.side is not None:
        print(json.dumps(measure(given.side, given.models[0], given.passes[0])))
        return
    rows = {}
    head = (
        f"{'':<22}{'eager':>10}{'inductor':>10}{'weft':>10}  {'call':>6}{'first':>7}{'memory':>8}"
    )
    print(head, file=sys.stderr if given.json else sys.stdout)
    for name in given.models:
        for what in given.passes:
            row = rows[f"{name} {what}"] = race(name, what, given.rounds)
            made = ratios(row)
            times = "".join(f"{1e3 * row[side]['call']:>8.2f}ms" for side in SIDES)
            line = f"{name + ' ' + what:<22}{times}  {made['call']:>6.2f}{made['first']:>7.1f}"
            print(f"{line}{made['memory']:>8.2f}", file=sys.stderr if given.json else sys.stdout)
    every = [ratios(row) for row in rows.values()]
    means = {k: math.exp(sum(math.log(r[k]) for r in every) / len(every)) for k in every[0]}
    if given.json:
        print(json.dumps({"rows": rows, "means": means}, indent=1))
    else:
        words = ", ".join(f"{key} {mean:.2f}" for key, mean in means.items())
        print(f"geometric means of the ratios: {words}")


if __name__ == "__main__":
    main()
