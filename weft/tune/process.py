"""A separate process that times candidates, so that a crash or a hang of one is contained."""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import struct
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import IO, Any

from weft.kernels.kernel import Kernel
from weft.kernels.text import kernel_text
from weft.target import Target

PREPARE, ANSWER = 120.0, 30.0  # seconds for compiling all candidates, and for one time
_SIZE = struct.Struct("<q")


class CandidateFailed(Exception):
    """A candidate that cannot be timed; the text is the reason."""


class BenchProcess:
    """The candidates of one kernel in a process of their own, started again after a crash."""

    def __init__(self, kernel: Kernel, candidates: Mapping[str, Kernel], target: Target) -> None:
        self.kernel, self.candidates = kernel, dict(candidates)
        self.target = target
        self.failed: dict[str, str] = {}
        self._first = next(iter(self.candidates))
        self._checked: set[str] = set()
        self._loaded: set[str] = set()  # in the present process
        self._singly = False  # whether candidates are loaded one by one
        self._worker: _Worker | None = None

    def prepare(self) -> None:
        """Start the process and load the candidates, which time limits do not count."""
        try:
            self._start()
        except CandidateFailed as error:
            self.failed[self._first] = str(error)

    def seconds(self, name: str) -> float:
        """The time of one run; infinite, with a reason in `failed`, if it cannot run."""
        try:
            if name in self.failed:
                return math.inf
            if self._worker is None:
                self._start()
            if name not in self._loaded and name not in self.failed:
                self._ask(("load", name, kernel_text(self.candidates[name])), PREPARE)
                self._loaded.add(name)
            if name not in self._checked and name not in self.failed:
                self._ask(("check", name), ANSWER)
                self._checked.add(name)
            return math.inf if name in self.failed else float(self._ask(("time", name), ANSWER))
        except CandidateFailed as error:
            self.failed[name] = str(error)
            return math.inf

    def _start(self) -> None:
        """A process, with all candidates, or with the first alone where these end it."""
        others = {n: k for n, k in self.candidates.items() if n not in self.failed}
        if self._singly:
            others = {}
        first = {self._first: self.candidates[self._first]}
        self._worker = worker_process()
        self._loaded = {*first, *others}
        try:
            texts = {name: kernel_text(one) for name, one in (first | others).items()}
            message = ("kernel", target_record(self.target), kernel_text(self.kernel), texts)
            self.failed.update(self._ask(message, PREPARE))
        except CandidateFailed:
            if self._singly:
                raise
            self._singly = True
            self._start()

    def _ask(self, question: Any, limit: float) -> Any:
        assert self._worker is not None
        try:
            answer = self._worker.ask(question, limit)
        except CandidateFailed:
            self._worker = None
            raise
        if "failed" in answer:
            if answer["ended"]:
                self._worker.close()
                self._worker = None
            raise CandidateFailed(answer["failed"])
        return answer["found"]


def target_record(target: Target) -> dict[str, Any]:
    """A target as data: its class, and its options."""
    of = type(target)
    return {"module": of.__module__, "name": of.__qualname__, "options": asdict(target.options)}


class _Worker:
    """The process, by its pipes."""

    def __init__(self) -> None:
        line = [sys.executable, "-m", "weft.tune.worker"]
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, question: Any, limit: float) -> Any:
        """The answer to a question; on a crash or after the limit the process is gone."""
        process = self.process
        assert process.stdin is not None and process.stdout is not None
        try:
            send(process.stdin, question)
            return receive(process.stdout, time.monotonic() + limit)
        except TimeoutError:
            self.close()
            raise CandidateFailed(f"no answer within {limit:.0f} s") from None
        except (OSError, EOFError):
            self.close()
            code = process.returncode
            reason = f"by signal {-code}" if code < 0 else f"with status {code}"
            raise CandidateFailed(f"its process ended {reason}") from None

    def close(self) -> None:
        """End the process."""
        _WORKERS.clear()
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


_WORKERS: list[_Worker] = []  # the one that is running, for all kernels of this process


def worker_process() -> _Worker:
    """The process, started if it is not running: it takes seconds to import PyTorch."""
    if _WORKERS and _WORKERS[0].process.poll() is None:
        return _WORKERS[0]
    _WORKERS[:] = [_Worker()]
    return _WORKERS[0]


def close_worker() -> None:
    """End the process, which holds device memory, if it is running."""
    if _WORKERS:
        _WORKERS[0].close()


def send(pipe: IO[bytes], message: Any) -> None:
    """Write a message."""
    data = json.dumps(message).encode()
    pipe.write(_SIZE.pack(len(data)) + data)
    pipe.flush()


def receive(pipe: IO[bytes], end: float | None = None) -> Any:
    """Read a message; raises EOFError, or TimeoutError at a time of the monotonic clock."""
    (size,) = _SIZE.unpack(_read(pipe, _SIZE.size, end))
    return json.loads(_read(pipe, size, end))


def _read(pipe: IO[bytes], size: int, end: float | None) -> bytes:
    received = b""
    while len(received) < size:
        left = None if end is None else end - time.monotonic()
        if left is not None and (left <= 0 or not select.select([pipe], [], [], left)[0]):
            raise TimeoutError
        # Not the buffered reader, whose contents select cannot see.
        part = os.read(pipe.fileno(), size - len(received))
        if not part:
            raise EOFError
        received += part
    return received
