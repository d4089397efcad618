"""Workers that a fork server forks, with the interface of `subprocess.Popen`."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from typing import IO

from weft.records import dataclass

CAN_FORK = sys.platform == "linux"
SERVER_GRACE = 5.0  # seconds for the fork server to end after its workers
_KILLED = -int(signal.SIGKILL)
_PARENT_DEATH = 1  # prctl's PR_SET_PDEATHSIG
_ENDING = {signal.SIGINT, signal.SIGTERM} | ({signal.SIGHUP} if os.name == "posix" else set())


def end_with_parent(sent: signal.Signals) -> None:
    """Have the kernel send a signal to this process when its parent has ended."""
    ctypes.CDLL(None).prctl(_PARENT_DEATH, int(sent), 0, 0, 0)


@contextmanager
def held_signals() -> Iterator[None]:
    """Hold back requests to end this process until the block is left.

    Processes that the block starts begin with them held back, too: see `release_signals`.
    """
    if os.name != "posix":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def release_signals() -> None:
    """Let requests to end reach this process, and those that were held back."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)


@dataclass(eq=False)
class ForkedWorker:
    """A worker: its output, its process id once it runs, and its exit code once it has ended."""

    stdout: IO[str]
    stderr: IO[str]
    pid: int | None = None
    returncode: int | None = None
    fork_server: subprocess.Popen[bytes] | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def poll(self) -> int | None:
        """The exit code, if the worker has ended."""
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; raises `subprocess.TimeoutExpired` if the worker runs on."""
        if not self.ended.wait(timeout):
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, sent: int) -> None:
        """Send a signal to the worker; one that does not run yet never will."""
        if self.returncode is not None:
            return
        if self.pid is not None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sent)
        elif self.fork_server is not None:  # workers that it has forked already end with it
            self.fork_server.kill()

    def terminate(self) -> None:
        """Ask the worker to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the worker."""
        self.send_signal(signal.SIGKILL)

    def reap_server(self) -> None:
        """Wait until the fork server has ended, as it does after its last worker."""
        if self.fork_server is None:
            return
        try:
            self.fork_server.wait(SERVER_GRACE)
        except subprocess.TimeoutExpired:
            self.fork_server.kill()
            self.fork_server.wait()

    def note(self, *, pid: int | None = None, code: int | None = None) -> None:
        """Take a report of the fork server: the process id, or the exit code."""
        if pid is not None:
            self.pid = pid
        if code is not None:
            self.returncode = code
            self.ended.set()


def fork_workers(
    command: Sequence[str], environments: Mapping[int, Mapping[str, str]]
) -> dict[int, ForkedWorker]:
    """Fork a worker for each rank from one process that has imported their modules."""
    ours, theirs = socket.socketpair()
    workers: dict[int, ForkedWorker] = {}
    listed: list[dict[str, object]] = []
    inherited = [theirs.fileno()]
    try:
        for rank, environment in environments.items():
            (out, write_out), (err, write_err) = os.pipe(), os.pipe()
            workers[rank] = ForkedWorker(
                os.fdopen(out, errors="replace"), os.fdopen(err, errors="replace")
            )
            listed.append(
                {"rank": rank, "out": write_out, "err": write_err, "environment": {**environment}}
            )
            inherited += [write_out, write_err]
    except OSError:  # too many open files, of which the caller needs some
        for fd in inherited[1:]:
            os.close(fd)
        raise
    common = {"OMP_NUM_THREADS", "PYTHONUNBUFFERED"}  # read at the start, and by what is imported
    first = next(iter(environments.values()))
    fork_server = subprocess.Popen(
        [sys.executable, "-m", "weft.workers.fork_server", str(theirs.fileno()), str(os.getpid())],
        env={**os.environ, **{name: first[name] for name in common}},
        pass_fds=inherited,
    )
    for fd in inherited[1:]:
        os.close(fd)
    theirs.close()
    lines = ours.makefile("rw", encoding="utf-8", errors="replace")
    with suppress(OSError):  # it has ended already
        print(json.dumps({"command": [*command], "workers": listed}), file=lines, flush=True)
    for worker in workers.values():
        worker.fork_server = fork_server

    def follow() -> None:
        with suppress(OSError, ValueError), ours, lines:  # it was killed while it wrote
            for line in lines:
                report = json.loads(line)
                workers[report.pop("rank")].note(**report)
        fork_server.wait()
        began = all(worker.pid is not None for worker in workers.values())
        for worker in workers.values():  # those that are left end with their parent
            if worker.returncode is None:
                worker.note(code=_KILLED if began else 1)

    threading.Thread(target=follow, name="weft-fork-server", daemon=True).start()
    return workers
