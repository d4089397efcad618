"""What the PyTorch door costs: the zoo's models by Weft, by eager PyTorch and by torch.compile.

    python benchmarks/torch_door.py [MODEL ...] [--pass inference training] [--rounds 3] [--json]

A model's call in evaluation mode, and a training step with AdamW, on one device. Every side runs
in a process of its own; the sides take turns, and the table shows the fastest of all rounds, since
other programs only slow a call down. `first` is the first call, with everything that is compiled
(the caches of Weft and of Inductor are empty). `memory` is how much the process grew. A ratio is a
peer's number over Weft's: above 1, Weft is better.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SIDES = ("eager", "inductor", "weft")
PASSES = ("inference", "training")
MODELS = "mlp resnet unet dit transformer llama gpt2 bert vit".split()
SECONDS = 1.0  # of calls that a side is measured for in a round


def call_of(side: str, name: str, what: str) -> Callable[[], object]:
    """One call of a model, or one training step."""
    import torch

    import weft
    from weft.zoo import ZOO

    module, inputs = ZOO[name].make()
    if what == "inference":
        if side == "weft":
            compiled = weft.compile(module)
            return lambda: compiled(**inputs)
        run = torch.compile(module) if side == "inductor" else module
        return lambda: without_gradients(run, inputs)
    module.train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    if side == "weft":
        step = weft.train_step(module, loss_of, optimizer)
        return lambda: float(step(**inputs))
    loss = torch.compile(loss_of) if side == "inductor" else loss_of

    def train() -> float:
        optimizer.zero_grad()
        made = loss(module, **inputs)
        made.backward()
        optimizer.step()
        return float(made)

    return train


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
    """Seconds of the first call and of the fastest of the others, and megabytes of growth."""
    warnings.simplefilter("ignore")
    call = call_of(side, name, what)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    call()
    first = time.perf_counter() - began
    times, end = [], time.perf_counter() + SECONDS
    while len(times) < 5 or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"first": first, "call": min(times), "memory": grown / 1024}


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
        "memory": row["eager"]["memory"] / max(ours["memory"], 0.1),
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
            print(f"{line}{made['memory']:>8.1f}", file=sys.stderr if given.json else sys.stdout)
    every = [ratios(row) for row in rows.values()]
    means = {k: math.exp(sum(math.log(r[k]) for r in every) / len(every)) for k in every[0]}
    if given.json:
        print(json.dumps({"rows": rows, "means": means}, indent=1))
    else:
        words = ", ".join(f"{key} {mean:.2f}" for key, mean in means.items())
        print(f"geometric means of the ratios: {words}")


if __name__ == "__main__":
    main()
