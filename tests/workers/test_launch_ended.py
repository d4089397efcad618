"""A launcher that is ended, however it is, leaves no worker behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

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
        pytest.param("fork", signal.SIGINT, 130, marks=pytest.mark.long),
        pytest.param("spawn", signal.SIGHUP, 129, marks=pytest.mark.long),
    ],
)
def test_workers_end_with_their_launcher(
    start: str, sent: signal.Signals, status: int, tmp_path: Path
):
    (tmp_path / "script.py").write_text(SCRIPT)
    line = ["launch", "--workers", "2", "--start", start, str(tmp_path / "script.py")]
    launcher = subprocess.Popen(
        [sys.executable, "-m", "weft", *line],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert launcher.stdout is not None
    pids = [int(launcher.stdout.readline().split()[-1]) for _ in range(2)]
    launcher.send_signal(sent)
    assert launcher.wait(LIMIT) == status
    end = time.monotonic() + LIMIT
    while any(map(is_running, pids)) and time.monotonic() < end:
        time.sleep(0.02)
    assert not any(map(is_running, pids))
    if sent != signal.SIGKILL:
        assert not [*tmp_path.glob("weft-*")], "files of the attempt"
