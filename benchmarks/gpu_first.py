"""The first call of a Llama block, in processes of their own with empty caches.

    python benchmarks/gpu_first.py weft|torch [small]

It prints the seconds from the model to its first result; with `small`, after another, small model
was compiled: what PyTorch imports to trace a model, seconds long, is loaded then. See gpu.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


def first_calls(side: str) -> tuple[float, float]:
    """Seconds of a first call after a small model, and as the first thing that a process does."""
    found = []
    with tempfile.TemporaryDirectory() as bytecode:
        # As installed packages have it: the run that writes it does not count.
        known = os.environ | {"PYTHONPYCACHEPREFIX": bytecode, "PYTHONDONTWRITEBYTECODE": ""}
        for rest in ([], ["small"], []):
            with tempfile.TemporaryDirectory() as cache:
                folders = ("WEFT_CACHE", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")
                environment = known | dict.fromkeys(folders, cache)
                command = [sys.executable, __file__, side, *rest]
                done = subprocess.run(command, env=environment, capture_output=True, check=True)
                found.append(float(done.stdout.split()[-1]))
    return found[1], found[2]


def main() -> None:
    import torch

    import weft
    from benchmarks.gpu_programs import LlamaBlock, random

    def first(model: torch.nn.Module, *given: torch.Tensor) -> float:
        model = model.cuda().bfloat16()
        torch.cuda.synchronize()
        start = time.perf_counter()
        with torch.no_grad():
            if sys.argv[1] == "weft":
                weft.compile(model, *given)(*given)
            else:
                torch.compile(model)(*given)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    if "small" in sys.argv:
        first(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)), random(64, 64))
    block = LlamaBlock()
    print(first(block, random(4, 2048, 4096), random(2048, 64), random(2048, 64)))


if __name__ == "__main__":
    main()
