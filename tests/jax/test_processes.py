"""`jax.distributed`: two processes of two devices each, started by `weft launch`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.jax.door import ROOT
from weft.errors import WeftError
from weft.jax.processes import JaxProcesses

SCRIPT = Path(__file__).parent / "in_processes.py"


def in_processes(*names: str, **env: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("torch")
    settings = {"JAX_PLATFORMS": "weft", "WEFT_DEVICES": "2", "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        [sys.executable, "-m", "weft", "launch", "--workers", "2", str(SCRIPT), *names],
        env=os.environ | settings,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_arrays_of_all_processes():
    ran = in_processes("devices", "arrays", "callbacks", "programs_of_some_processes")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("some_processes") == 2


@pytest.mark.long
def test_programs_of_all_processes(tmp_path: Path):
    ran = in_processes(CHECKPOINT=str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("other_programs") == 2
    want = np.arange(64, dtype=np.float32).reshape(8, 8)
    found = weft.load_state(tmp_path)
    assert found["step"] == 7
    for n, name in enumerate("abc"):
        np.testing.assert_array_equal(found[name], want + n)


@pytest.mark.long
def test_programs_from_the_cache_of_jax(tmp_path: Path):
    settings = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    for _ in range(2):
        ran = in_processes("arrays", "training", **settings)
        assert ran.returncode == 0, ran.stderr
    assert any("lambda" in path.name for path in tmp_path.iterdir())


@pytest.mark.long
def test_a_process_that_is_killed():
    ran = in_processes("killed")
    assert ran.returncode == 137
    assert "all_reduce: the process with devices [2, 3] is gone" in ran.stderr
    assert "in_processes.py" in ran.stderr


@pytest.mark.long
def test_processes_with_other_numbers_of_devices():
    ran = in_processes("devices", UNEVEN="1")
    assert ran.returncode == 1
    assert "the processes of jax.distributed have 2, 1 devices" in ran.stderr


def test_devices_are_numbered_by_process():
    all = JaxProcesses(4, size=3, index=1)
    assert (all.count, all.first) == (12, 4)
    assert [all.owner(n) for n in (0, 3, 4, 11)] == [0, 0, 1, 2]
    assert [*all.default_devices(4)] == [4, 5, 6, 7]
    assert [*all.default_devices(5)] == [0, 1, 2, 3, 4]


def test_initialized_too_late(monkeypatch: pytest.MonkeyPatch):
    from jax._src import distributed

    monkeypatch.setattr(distributed.global_state, "client", object())
    monkeypatch.setattr(distributed.global_state, "num_processes", 2)
    JaxProcesses(4, size=2).check_same()
    with pytest.raises(WeftError, match="2 processes, and JAX's devices are those of 1"):
        JaxProcesses(4).check_same()
