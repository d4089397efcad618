"""Whatever befalls a worker, the job ends in time, and the error names the culprit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.workers.faults import FAULTS, Fault
from weft import Mesh, P
from weft.workers.failure import FailureNote, WorkerLost, note_of, root_cause
from weft.workers.launch import free_port, smaller

pytest.importorskip("torch")
HERE = Path(__file__).parent
SCRIPT = HERE / "faults.py"
Job = tuple[int, str]  # its status, and all that was printed
LIMIT = 240.0


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(HERE.parent.parent), "WEFT_TIMEOUT": "60", **more}


def run(line: list[str]) -> Job:
    ran = subprocess.run(
        [sys.executable, *line],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return ran.returncode, ran.stdout


def by_weft(words: list[str]) -> Job:
    return run(["-m", "weft", "launch", "--workers", "2", str(SCRIPT), *words])


def by_ray(words: list[str]) -> Job:
    """In the cluster of RAY_ADDRESS."""
    return run(["-m", "weft", "launch", "--ray", "--workers", "2", str(SCRIPT), *words])


def by_torchrun(words: list[str]) -> Job:
    return run(["-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPT), *words])


def by_slurm(words: list[str]) -> Job:
    """As srun does: tasks by themselves, with Slurm's variables; those that are left are killed."""
    common = {"SLURM_NTASKS": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "2"}
    common |= {"SLURM_STEP_NODELIST": "127.0.0.1", "MASTER_PORT": str(free_port())}
    tasks = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), *words],
            env=environment(SLURM_PROCID=str(n), SLURM_LOCALID=str(n), **common),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for n in range(2)
    ]
    victim, end = int(words[2]), time.monotonic() + LIMIT
    while any(task.poll() is None for task in tasks) and time.monotonic() < end:
        if tasks[1 - victim].poll() is not None:  # what srun --kill-on-bad-exit does
            time.sleep(1)
            if tasks[victim].poll() is None:
                tasks[victim].send_signal(signal.SIGKILL)
        time.sleep(0.1)
    assert all(task.poll() is not None for task in tasks), "a task hangs"
    text = "".join([task.communicate()[0] for task in tasks])
    return next((abs(task.returncode) for task in tasks if task.returncode), 0), text


LAUNCHERS: dict[str, Callable[[list[str]], Job]] = {
    "weft": by_weft,
    "torchrun": by_torchrun,
    "slurm": by_slurm,
    "ray": by_ray,
}
WORDS = {
    "raise": "ValueError: no more data",
    "memory": "MemoryError",
    "program": "another program: other",
    "order": "are in stablehlo",
    "mesh": "another version of step",
    "hang": "ValueError: no more data",
    "disk": "File too large",
    "clock": "no sign of life for",
    "gil": "no sign of life for",
    "exec": "no sign of life for",
    "loader": "rows.get()",
}


def check(fault: Fault, launcher: str, folder: Path) -> None:
    status, text = LAUNCHERS[launcher](
        [fault.action, fault.moment, str(fault.victim), str(folder / "run")]
    )
    if fault.is_slow:
        assert status == 0 and text.count("ended at 4") == 2, text
        return
    assert status != 0, text
    assert WORDS.get(fault.action, "") in text, text
    if launcher in ("weft", "ray") and fault.action != "order":
        (said,) = re.findall(r"^error: worker \d .*", text, re.MULTILINE)
        assert said.startswith(f"error: worker {fault.victim} "), text
    elif launcher == "torchrun":
        assert re.search(rf"worker {fault.victim}\b|rank +: {fault.victim} ", text), text
    elif fault.action != "order":
        # Those that save a checkpoint may be processes of JAX's as well.
        noun = "process" if fault.action == "disk" else "worker"
        assert f"{noun} {fault.victim}" in text, text
    if fault.moment in ("step", "collective", "save"):
        saved = weft.load_state(folder / "run", mesh=Mesh(y=2), plan={"w": P("y")})
        assert saved["step"] >= 2, "nothing is lost past the last checkpoint"
        wanted = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
        for _ in range(saved["step"]):
            wanted = np.tanh(wanted.T @ wanted)
        np.testing.assert_allclose(saved["w"].numpy(), wanted, rtol=1e-5)


def test_a_stopped_worker_is_named(tmp_path: Path):
    check(Fault("stop", "step", 1), "weft", tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault(
    fault: Fault,
    launcher: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
):
    if launcher == "ray":
        monkeypatch.setenv("RAY_ADDRESS", request.getfixturevalue("cluster"))
    check(fault, launcher, tmp_path)


def test_the_root_cause():
    notes = {0: FailureNote(0, "late", blames=2), 2: FailureNote(2, "gone", blames=1)}
    assert root_cause(0, notes) == 1, "it wrote nothing: it was killed, or hangs"
    assert root_cause(3, notes) == 3
    assert root_cause(0, {**notes, 1: FailureNote(1, "ValueError")}) == 1
    assert root_cause(0, {**notes, 1: FailureNote(1, "late", blames=0)}) == 0, "a circle"


def test_an_error_that_a_script_makes_of_a_lost_worker():
    lost = WorkerLost("worker 3 is gone", rank=3, help="see its output")
    try:
        try:
            raise lost
        except WorkerLost as error:
            raise KeyError("loss") from error
    except KeyError as error:
        assert error.__traceback__ is not None
        line = f'{__file__}:{error.__traceback__.tb_lineno}  raise KeyError("loss") from error'
        assert note_of(1, error, 7) == FailureNote(1, f"KeyError: 'loss'\n  --> {line}", 3, 7)


def test_fewer_workers():
    assert [smaller(n, 1) for n in (8, 4, 6, 3, 1)] == [4, 2, 3, 1, 1]
    assert smaller(8, 4) == 4 and smaller(8, 5) == 8
