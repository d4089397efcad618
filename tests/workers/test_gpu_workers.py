"""Workers on one GPU: NCCL beside several virtual devices, two workers, and a profile of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
SCRIPT = Path(__file__).parent / "launched_gpu.py"
ROOT = SCRIPT.parent.parent.parent


def run(*line: str, **more: str) -> str:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path, **more}
    line = (sys.executable, *line)
    ran = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_world_size_one_with_nccl():
    ranks = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555"}
    assert "trained 100 steps" in run(str(SCRIPT), "nccl", "100", **ranks, **where)


def test_two_workers_of_one_gpu():
    """Their shards are in the GPU's memory; what they send each other goes through the host."""
    shown = run("-m", "weft", "launch", "--workers", "2", str(SCRIPT), "none", "20")
    assert shown.count("trained 20 steps on cuda:0") == 2


def test_a_profile(tmp_path):
    line = ("-m", "weft", "profile", "-o", str(tmp_path / "t.json"), "--json", "--")
    shown = run(*line, sys.executable, str(SCRIPT), "none", "5")
    told = json.loads(shown[shown.index("{\n") :])
    training = max(told["programs"], key=lambda program: program["runs"])
    assert training["runs"] == 5 and training["machine"] != "host"
    timed = [row for row in training["lines"] if row["measured"] and row["predicted"]]
    assert len(timed) > len(training["lines"]) / 2
