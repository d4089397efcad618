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
from weft.workers.jax_cluster import tell_jax
from weft.workers.launch import free_port

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


def test_sums_without_python():
    ran = in_processes("sums", WEFT_DEVICES="1")
    assert ran.returncode == 0, ran.stderr


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


UNTOLD = """
import sys, jax, weft
jax.distributed.initialize()
from jax.experimental import multihost_utils
found = multihost_utils.process_allgather(jax.numpy.array([jax.process_index()]))
sys.stdout.write(f"{jax.process_index()} of {jax.process_count()}: {found.tolist()}\\n")
"""
PYTHON = [sys.executable, "-c", UNTOLD]
TORCHRUN = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--no-python"]
RANKS = {
    "torchrun": "",
    "open mpi": "OMPI_COMM_WORLD_RANK={0} OMPI_COMM_WORLD_SIZE=2",
    "hydra": "PMI_RANK={0} PMI_SIZE=2 MPI_LOCALRANKID={0} MPI_LOCALNRANKS=2",
    "slurm": "SLURM_STEP_ID=0 SLURM_PROCID={0} SLURM_LOCALID={0} SLURM_NTASKS=2 "
    "SLURM_STEP_NODELIST=127.0.0.1",
}


@pytest.mark.long
@pytest.mark.parametrize("launcher", RANKS)
def test_processes_that_their_launcher_tells(launcher: str):
    """As on Weft's own workers, `jax.distributed.initialize` has no arguments."""
    pytest.importorskip("torch")
    common = {"JAX_PLATFORMS": "weft", "WEFT_DEVICES": "2", "PYTHONPATH": str(ROOT)}
    if launcher == "torchrun":
        lines, own = [[sys.executable, *TORCHRUN, *PYTHON]], [common]
    else:
        port = str(free_port())
        texts = [RANKS[launcher].format(rank) for rank in range(2)]
        own = [dict(each.split("=") for each in text.split()) for text in texts]
        lines, own = [PYTHON] * 2, [common | each | {"MASTER_PORT": port} for each in own]
    started = [
        subprocess.Popen(line, env=os.environ | env, stdout=subprocess.PIPE, text=True)
        for line, env in zip(lines, own, strict=True)
    ]
    text = "".join([each.communicate(timeout=300)[0] for each in started])
    assert sorted(text.splitlines()) == [f"{rank} of 2: [[0], [1]]" for rank in range(2)]


def test_launchers_that_jax_knows_are_left_to_it(monkeypatch: pytest.MonkeyPatch):
    """But not where another one runs in their jobs."""
    from jax._src.clusters import ClusterEnv

    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "n[3-4]", "SLURM_NTASKS": "2",
             "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}  # fmt: skip
    for name, value in slurm.items():
        monkeypatch.setenv(name, value)
    tell_jax()
    detect = ClusterEnv.auto_detect_unset_distributed_params
    assert detect(None, None, None, None, None, 1)[1:] == (2, 1, [0])
    launched = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    for name, value in {**launched, "MASTER_ADDR": "::1", "MASTER_PORT": "80"}.items():
        monkeypatch.setenv(name, value)
    assert detect(None, None, None, None, None, 1) == ("[::1]:81", 4, 3, [1])
    assert detect("h:1", 2, 0, [0], None, 1) == ("h:1", 2, 0, [0]), "what is given stays"


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
