"""A launcher that is ended, however it is, leaves no worker behind."""

from __future__ import annotations

import errno
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from weft.workers import launch as launching
from weft.workers.launch import GRACE
from weft.workers.own_folder import OwnFolder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="by prctl, on Linux")
ROOT = Path(__file__).parents[2]
SCRIPT = "import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(1000)\n"
LIMIT = 60.0


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("start", "sent", "status"),
    [
        ("fork", signal.SIGTERM, 143),
        ("spawn", signal.SIGKILL, -9),
        pytest.param("fork", signal.SIGKILL, -9, marks=pytest.mark.long),
        ("fork", signal.SIGINT, 130),
        pytest.param("spawn", signal.SIGHUP, 129, marks=pytest.mark.long),
    ],
)
def test_workers_end_with_their_launcher(
    start: str,
    sent: signal.Signals,
    status: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    (tmp_path / "script.py").write_text(SCRIPT)
    line = ["launch", "--workers", "2", "--start", start, str(tmp_path / "script.py")]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "weft", *line],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert launcher.stdout is not None
    pids = [int(launcher.stdout.readline().split()[-1]) for _ in range(2)]
    # A terminal sends Ctrl-C to every process of the job.
    (os.killpg if sent == signal.SIGINT else os.kill)(launcher.pid, sent)
    _, errors = launcher.communicate(timeout=LIMIT)
    assert launcher.returncode == status and "fork_server" not in errors, errors
    end = time.monotonic() + LIMIT
    while any(map(is_running, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(is_running, pids))
    if sent == signal.SIGKILL:  # the next launcher does it
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        own, other = OwnFolder("weft-launch-"), OwnFolder("weft-launch-")
        assert {*tmp_path.glob("weft-*")} == {own.path, other.path}, "those in use stay"
        own.remove()
        other.remove()
    assert not [*tmp_path.glob("weft-*")], "files of the attempt"


def test_output_that_is_read_no_longer(tmp_path: Path):
    """As by `head`: the job ends, and quietly."""
    script = tmp_path / "script.py"
    script.write_text("import time\nfor n in range(1000):\n    print(n)\n    time.sleep(0.05)\n")
    launcher = subprocess.Popen(
        [sys.executable, "-m", "weft", "launch", str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert launcher.stdout is not None and launcher.stderr is not None
    launcher.stdout.readline()
    launcher.stdout.close()
    assert launcher.wait(LIMIT) == 141
    lines = launcher.stderr.read().splitlines()
    launcher.stderr.close()
    assert not any(line.startswith(("Exception", "error")) for line in lines), lines


def test_an_interrupt_before_the_workers_run(tmp_path: Path):
    """A script that has not begun leaves nothing to wait for."""
    (tmp_path / "script.py").write_text(SCRIPT)
    launcher = subprocess.Popen(
        [sys.executable, "-m", "weft", "launch", str(tmp_path / "script.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    end = time.monotonic() + LIMIT
    while not [*tmp_path.glob("weft-launch-*")] and time.monotonic() < end:
        time.sleep(0.01)
    os.killpg(launcher.pid, signal.SIGINT)
    assert launcher.communicate(timeout=GRACE)[1] == "interrupted\n" and launcher.returncode == 130
    assert not [*tmp_path.glob("weft-*")], "files of the attempt"


def children() -> set[str]:
    """The process ids of this process's children, ended ones as well."""
    listed = [path.read_text() for path in Path("/proc/self/task").glob("*/children")]
    return {*" ".join(listed).split()}


LEFT_OVER = """
import os, subprocess, sys, threading, time
if os.environ["RANK"] == "0":
    print(subprocess.Popen(["sleep", "60"]).pid)  # which has the output of this worker, too
    sys.exit()
threading.Thread(target=time.sleep, args=(60,)).start()
raise ValueError("no data")
"""


def test_processes_and_threads_that_workers_leave_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Neither an open output nor a thread keeps the job from ending."""
    monkeypatch.setattr(launching, "GRACE", 0.5)
    (tmp_path / "script.py").write_text(LEFT_OVER)
    began, out, err = time.monotonic(), io.StringIO(), io.StringIO()
    job = launching.LaunchJob([str(tmp_path / "script.py")], 2)
    before = children()
    ended = launching.launch(job, out=out, err=err)
    assert children() == before, "the fork server is reaped, too"
    os.kill(int(out.getvalue().split()[-1]), signal.SIGKILL)
    assert time.monotonic() - began < LIMIT / 2
    assert (ended.status, ended.rank, ended.reason) == (1, 1, "failed, and did not end")
    line = f'{tmp_path / "script.py"}:7  raise ValueError("no data")'
    assert ended.error == f"ValueError: no data\n  --> {line}", err.getvalue()


class FullDisk(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def test_output_that_cannot_be_written(tmp_path: Path):
    """A worker does not wait for it, as it would for a full pipe."""
    (tmp_path / "script.py").write_text("print('0123456789' * 10_000)")
    err = io.StringIO()
    job = launching.LaunchJob([str(tmp_path / "script.py")], 1)
    assert launching.launch(job, out=FullDisk(), err=err).status == 0
    assert err.getvalue() == "lines of the workers are lost: No space left on device\n"


def test_streams_that_are_closed(tmp_path: Path):
    (tmp_path / "script.py").write_text("print('0')\nopen('seen', 'w').close()")
    words = [sys.executable, "-m", "weft", "launch", "--workers", "1", "script.py"]
    shell = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*shell, *words], env=environment, cwd=tmp_path, check=True, timeout=LIMIT)
    assert (tmp_path / "seen").exists()
