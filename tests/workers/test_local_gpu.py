"""Workers begin with the GPU of their local rank, by any launcher."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from weft.workers.local_gpu import choose_gpu

SCRIPT = Path(__file__).parent / "launched_spawned.py"
LAUNCHERS = {
    "multiprocessing": [],
    "torchrun": ["-m", "torch.distributed.run", "--nproc-per-node", "2"],
    "weft, spawned": ["-m", "weft", "launch", "--start", "spawn"],
}


@pytest.mark.parametrize(
    ("worker", "current", "gpus", "chosen"),
    [("6", 0, 4, [2]), ("6", 3, 4, []), ("6", 0, 0, []), ("", 0, 4, []), ("8", 0, 4, [])],
    ids=["local rank", "chosen by the script", "no GPU", "alone", "wrong variables"],
)
def test_the_gpu_of_a_worker(worker, current, gpus, chosen, monkeypatch: pytest.MonkeyPatch):
    """Chosen when it first uses one, by the variables of that moment."""
    queued, found = [], []
    cuda = ModuleType("torch.cuda")
    cuda.__dict__.update(
        _lazy_call=queued.append,
        is_initialized=lambda: False,
        current_device=lambda: current,
        device_count=lambda: gpus,
        set_device=found.append,
    )
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    for _ in range(2):  # once
        choose_gpu()
    if worker:
        for name, value in (("RANK", worker), ("LOCAL_RANK", worker), ("WORLD_SIZE", "8")):
            monkeypatch.setenv(name, value)
    (choose,) = queued
    choose()
    assert found == chosen


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_processes_of_launchers(launcher: str):
    pytest.importorskip("torch")
    ran = subprocess.run(
        [sys.executable, *LAUNCHERS[launcher], str(SCRIPT)],
        env={**os.environ, "PYTHONPATH": str(SCRIPT.parents[2])},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    for rank in range(2):
        assert f"worker {rank} sum 3.0 gpu [{rank}]" in ran.stdout
