"""What processes run that torchrun or a script itself has started: a mesh, and the GPU of each.

python tests/workers/launched_spawned.py                             by multiprocessing
torchrun --nproc-per-node 2 tests/workers/launched_spawned.py
"""

from __future__ import annotations

import os

import numpy as np
import torch

import weft
from weft import Mesh, P
from weft.workers.launch import free_port


def gpu_at_first_use() -> list[int]:
    """The GPU that PyTorch begins with, on a machine with four."""
    chosen: list[int] = []
    torch.cuda.device_count = lambda: 4
    torch.cuda.current_device = lambda: 0
    torch.cuda.set_device = chosen.append
    for call, _ in torch.cuda._queued_calls:
        if call.__module__.startswith("weft"):
            call()
    return chosen


def main(rank: int, port: int = 0) -> None:
    if port:
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ.update(RANK=str(rank), WORLD_SIZE="2", **where)
    x = weft.put_local(np.full((1, 3), rank, np.float32), P("x"), Mesh(x=2))
    print(f"worker {rank} sum {float(x.sum().gathered())} gpu {gpu_at_first_use()}\n", end="")


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(int(os.environ["RANK"]))
    else:
        torch.multiprocessing.spawn(main, (free_port(),), nprocs=2)
