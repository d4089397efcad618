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
        ("fork", signal.SIGINT, 130),
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
    if sent != signal.SIGKILL:
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
