"""The fork server: a process that imports the workers' modules once, and forks the workers.

`python -m weft.workers.fork_server FD PID` reads the workers to start, as JSON, from a socket of
the launcher with that process id, and writes there the process ids and exit codes. Imports take
longer than everything else until a first step, so workers of one host share them.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import runpy
import signal
import socket
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from weft.errors import WeftError
from weft.ir.gc_pause import importing
from weft.recording import FOLDER
from weft.workers import forked
from weft.workers.failure import ERROR_FILE, note_of, write_note
from weft.workers.forked import end_with_parent, release_signals
from weft.workers.jax_cluster import tell_jax
from weft.workers.local_gpu import choose_gpu
from weft.workers.preload import preloaded

# Files whose frames are those of a worker's start, or of an interrupt.
_OWN = (__file__, forked.__file__, signal.__file__, "<frozen runpy>")

REPEATED = 1.0  # seconds in which another interrupt is the same one
_raised = [float("-inf")]  # when an interrupt was raised


def main(control: socket.socket, launcher: int) -> Callable[[], object]:
    """Fork the workers and wait for them; a worker itself returns the script to run."""
    # Before anything else: a launcher that is killed must not leave workers behind.
    end_with_parent(signal.SIGTERM)
    # A terminal sends Ctrl-C to all processes; the workers are told by it, and by the launcher.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    release_signals()
    lines = control.makefile("rw", encoding="utf-8")
    text = ""
    with suppress(OSError):
        text = lines.readline()
    if not text or os.getppid() != launcher:
        os._exit(1)  # the launcher ended before it was watched
    job: dict[str, Any] = json.loads(text)
    preload(job["command"])
    ranks: dict[int, int] = {}
    parent = os.getpid()
    # An interrupt of a worker waits until it has a handler for it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    for worker in job["workers"]:
        try:
            pid = os.fork()
        except OSError as error:
            print(f"worker {worker['rank']} cannot be forked: {error.strerror}", file=sys.stderr)
            os._exit(1)
        if pid == 0:
            control.detach()  # the parent's; a worker's exit must not close it twice
            own = interrupt is signal.default_int_handler
            signal.signal(signal.SIGINT, _interrupt if own else interrupt)
            return _become(worker, job["command"], parent)
        ranks[pid] = worker["rank"]
        print(json.dumps({"rank": worker["rank"], "pid": pid}), file=lines, flush=True)
    for worker in job["workers"]:
        for fd in (worker["out"], worker["err"]):
            os.close(fd)
    while ranks:
        pid, status = os.wait()
        code = os.waitstatus_to_exitcode(status)
        if pid in ranks:  # not a process that an imported module has started
            print(json.dumps({"rank": ranks.pop(pid), "code": code}), file=lines, flush=True)
    os._exit(0)


def preload(command: Sequence[str]) -> None:
    """Import the workers' modules; a missing one is an error of the worker that imports it."""
    with importing():
        for name in preloaded(command):
            with suppress(ImportError):
                importlib.import_module(name)
        if FOLDER in os.environ:  # a profile has the programs of workers alone
            return
        with suppress(ImportError, WeftError):  # no llvmlite, or a target that cannot be used here
            for name in ("weft.pipeline", "weft.jax.plugin"):
                if name in sys.modules:
                    importlib.import_module(name).warm_up()


def _become(worker: dict[str, Any], command: Sequence[str], parent: int) -> Callable[[], object]:
    """Make this process a worker: its output, environment and command line."""
    end_with_parent(signal.SIGKILL)
    # The parent may have ended between the fork and prctl, which then sends nothing.
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before it was watched
    os.dup2(worker["out"], 1)
    os.dup2(worker["err"], 2)
    sys.stdout, sys.stderr = _stream(1, sys.stdout), _stream(2, sys.stderr)
    # Pipes of other workers as well: one that is held open here would never end for its reader.
    os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    if worker["rank"] != 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(worker["environment"])
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # workers would draw the same numbers
    choose_gpu()
    tell_jax()
    sys.excepthook = partial(_report, os.environ[ERROR_FILE], worker["rank"])
    release_signals()
    # At the very end: to look for cycles among all that is imported takes most of a second.
    atexit.register(gc.freeze)
    return _script(command)


def _interrupt(number: int, frame: types.FrameType | None) -> None:
    """Raise KeyboardInterrupt; a moment later inside of a callback of the garbage collector.

    JAX has one, and Python ignores what it raises. The launcher repeats what the terminal sent:
    one Ctrl-C is one exception, and none in the report of the first.
    """
    if time.monotonic() - _raised[0] < REPEATED:
        return
    callbacks = [getattr(each, "__code__", None) for each in gc.callbacks]
    if frame is not None and frame.f_code in callbacks:
        again = threading.Timer(0.01, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
    else:
        _raised[0] = time.monotonic()
        signal.default_int_handler(number, frame)


def _stream(fd: int, before: Any) -> io.TextIOWrapper:
    """Standard output or error anew: the old one may remember a file, where a pipe is now."""
    raw: Any = io.FileIO(fd, "w", closefd=False)
    rest: dict[str, Any] = {"line_buffering": True, "write_through": True}
    return io.TextIOWrapper(raw, encoding=before.encoding, errors=before.errors, **rest)


def _script(command: Sequence[str]) -> Callable[[], object]:
    """A function that runs a script as `python SCRIPT ARGUMENTS` or `python -m MODULE` would."""
    if command[0] == "-m":
        sys.argv[:] = command[1:]
        return lambda: runpy.run_module(command[1], run_name="__main__", alter_sys=True)
    path = os.path.abspath(command[0])
    sys.argv[:] = command
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(path)
    return lambda: runpy.run_path(path, run_name="__main__")


def _report(
    path: str,
    rank: int,
    kind: type[BaseException],
    error: BaseException,
    trace: types.TracebackType | None,
) -> None:
    """Print the traceback of the script; the launcher gets the error, if it has none yet."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the launcher repeats what the terminal sent
    with suppress(OSError):  # a full disk: the launcher has the traceback at least
        if not os.path.exists(path):
            write_note(note_of(rank, error), path)
    whole = traceback.TracebackException(kind, error, trace)
    shown = [frame for frame in whole.stack if frame.filename not in _OWN]
    whole.stack = traceback.StackSummary.from_list(shown)
    print("".join(whole.format()), end="", file=sys.stderr)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))()
