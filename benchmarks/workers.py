"""Several processes: training steps, small collectives and start-up, beside JAX and PyTorch.

    python benchmarks/workers.py [--only jax torch start] [--workers 4] [--steps 20] [--width 256]

A step trains three layers whose parameters are split over all processes (one device each): by JAX
on Weft's devices and on JAX's CPU devices, both with `jax.distributed`; by `weft.train_step` and by
PyTorch's FSDP2. Weft's processes share memory, the others use gloo. Times are processor time,
summed over the processes, as processes share the cores; a ratio is the peer's time over Weft's:
above 1, Weft is ahead. `start` is the time by the clock, from nothing to the end of processes that
compute one sum over all of them; those with Weft are started by `weft launch`, the others side by
side.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from weft.workers.launch import free_port

LAYERS, ROWS, WARM = 3, 64, 3
Times = dict[str, float]


# The sides, each in processes of its own


def measured(step: Callable[[], object], steps: int) -> float:
    """Processor time of a step, without the first ones."""
    for _ in range(WARM):
        step()
    begin = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - begin) / steps


def layers(width: int) -> Any:
    import torch

    made = [torch.nn.Linear(width, width, bias=False) for _ in range(LAYERS)]
    return torch.nn.Sequential(*[part for layer in made for part in (layer, torch.nn.Tanh())])


def weft_side(given: argparse.Namespace) -> Times:
    """`weft.train_step` on launched workers."""
    import numpy as np

    import weft
    from weft import Mesh, P

    mesh = Mesh(data=int(os.environ["WORLD_SIZE"]))
    ones = weft.put(np.ones((mesh.size, 8), np.float32), P("data"), mesh)
    total = weft.compile(_SUM.replace("SIZE", str(mesh.size)))
    assert float(np.asarray(total(ones)[0])) == 8 * mesh.size
    if given.part == "start":
        return {}
    import torch

    torch.manual_seed(0)
    model = layers(given.width)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    step = weft.train_step(model, lambda y: (y * y).mean(), sgd, mesh=mesh, plan="fsdp")
    x = torch.ones(ROWS * mesh.size, given.width)
    small = measured(lambda: np.asarray(total(ones)[0]), 10 * given.steps)
    return {"sum of 8 numbers": small, "training step": measured(lambda: step(x), given.steps)}


_SUM = """
module @sum {
  sdy.mesh @mesh = <["data"=SIZE]>
  func.func @main(%x: tensor<SIZEx8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {}]>})
      -> (tensor<f32> {sdy.sharding = #sdy.sharding<@mesh, []>}) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %0 = stablehlo.reduce(%x init: %zero) applies stablehlo.add across dimensions = [0, 1]
        : (tensor<SIZEx8xf32>, tensor<f32>) -> tensor<f32>
    return %0 : tensor<f32>
  }
}
"""


def fsdp_side(given: argparse.Namespace) -> Times:
    """PyTorch's FSDP2, eager."""
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    model = layers(given.width)
    for part in model:
        if isinstance(part, torch.nn.Linear):
            fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    x, ones = torch.ones(ROWS, given.width), torch.ones(8)

    def run() -> None:
        loss = (model(x) ** 2).mean()
        sgd.zero_grad()
        loss.backward()
        sgd.step()

    small = measured(lambda: dist.all_reduce(ones), 10 * given.steps)
    return {"sum of 8 numbers": small, "training step": measured(run, given.steps)}


JAX_SCRIPT = str(Path(__file__).with_name("workers_jax.py"))
# The script and the variables of each side.
SIDES: dict[str, tuple[str, dict[str, str]]] = {
    "JAX on Weft": (JAX_SCRIPT, {"JAX_PLATFORMS": "weft", "WEFT_DEVICES": "1"}),
    "JAX on CPU": (JAX_SCRIPT, {"JAX_PLATFORMS": "cpu"}),
    "weft.train_step": (__file__, {}),
    "FSDP2": (__file__, {}),
}
OWN_SIDES: dict[str, Callable[[argparse.Namespace], Times]] = {
    "weft.train_step": weft_side,
    "FSDP2": fsdp_side,
}
PAIRS = {
    "jax": (("JAX on Weft", "JAX on CPU"),),
    "torch": (("weft.train_step", "FSDP2"),),
    "start": (("weft.train_step", "JAX on CPU"), ("JAX on Weft", "JAX on CPU")),
}


# The table


def run_side(name: str, part: str, given: argparse.Namespace) -> Times:
    """The times of one side, summed over its processes, and how long all of them took."""
    line = [SIDES[name][0], "--side", name, "--part", part]
    line += ["--steps", str(given.steps), "--width", str(given.width)]
    if part == "start":
        return started(name, line, given.workers)
    told = [process.communicate()[0] for process in processes(name, line, given.workers)]
    each = [json.loads(text.splitlines()[-1]) for text in told]
    return {key: sum(one[key] for one in each) for key in each[0]}


def started(name: str, line: Sequence[str], workers: int) -> Times:
    """The time by the clock, the launcher's included, whose workers are processes of a server."""
    begin = time.perf_counter()
    if name in ("JAX on Weft", "weft.train_step"):
        launcher = [sys.executable, "-m", "weft", "launch", "--workers", str(workers)]
        env = os.environ | {"WEFT_THREADS": "1", "OMP_NUM_THREADS": "1", **SIDES[name][1]}
        subprocess.run([*launcher, *line], env=env, stdout=subprocess.DEVNULL, check=True)
    else:
        for process in processes(name, line, workers):
            process.communicate()
    return {"start, by the clock": time.perf_counter() - begin}


def processes(name: str, line: Sequence[str], workers: int) -> list[subprocess.Popen[str]]:
    """The processes of a side, which end by themselves."""
    port, found = free_port(), []
    for rank in range(workers):
        env = {"RANK": rank, "WORLD_SIZE": workers, "LOCAL_RANK": rank, "MASTER_PORT": port}
        env |= {"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": workers}
        env |= {"OMP_NUM_THREADS": 1, "WEFT_THREADS": 1, **SIDES[name][1]}
        full = os.environ | {key: str(value) for key, value in env.items()}
        command = [sys.executable, *line]
        found.append(subprocess.Popen(command, env=full, stdout=subprocess.PIPE, text=True))
    return found


def main(line: Sequence[str]) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PAIRS, default=[*PAIRS])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--part", default="")
    given = parser.parse_args(line)
    if given.side is not None:
        print(json.dumps(OWN_SIDES[given.side](given)), flush=True)
        return
    print(f"{given.workers} processes, one device each; processor time of all of them, in ms")
    for part in given.only:
        for ours, theirs in PAIRS[part]:
            if part == "start":  # caches are warm
                _ = [run_side(name, part, given) for name in (ours, theirs)]
            mine, other = run_side(ours, part, given), run_side(theirs, part, given)
            print(f"\n{'':22}{ours:>18}{theirs:>14}{'ratio':>9}")
            for name, took in mine.items():
                peer = other.get(name)
                rest = "" if peer is None else f"{1000 * peer:14.2f}{peer / took:9.2f}"
                print(f"{name:22}{1000 * took:18.2f}{rest}")


if __name__ == "__main__":
    main(sys.argv[1:])
