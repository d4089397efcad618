"""The launcher: starts the workers of one host, passes their output on, and ends them together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from typing import IO, TextIO

from weft.records import dataclass

GRACE = 10.0  # seconds for the others to see a failure, and again to end when asked
POLL = 0.05


@dataclass(frozen=True, slots=True)
class LaunchJob:
    """The workers to start on this host, of all hosts of a job."""

    command: Sequence[str]
    workers: int  # on each host
    hosts: int = 1
    host: int = 0
    address: str = "127.0.0.1"
    port: int | None = None  # None for a free one, on one host

    @property
    def size(self) -> int:
        """The workers of all hosts."""
        return self.workers * self.hosts


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended: the exit status, and the worker that failed first."""

    status: int
    rank: int | None = None
    reason: str = ""


@dataclass(eq=False)
class Attempt:
    """The running workers of one attempt."""

    job: LaunchJob
    number: int
    out: TextIO
    err: TextIO
    processes: dict[int, subprocess.Popen[str]] = field(default_factory=dict)
    readers: list[threading.Thread] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)  # whole lines

    def start(self) -> None:
        """Start every worker of this host."""
        port = self.job.port or free_port()
        for local in range(self.job.workers):
            rank = self.job.host * self.job.workers + local
            started = subprocess.Popen(
                self.job.command,
                env={**os.environ, **variables(self.job, local, port, self.number)},
                stdin=None if rank == 0 else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
            )
            self.processes[rank] = started
            assert started.stdout is not None and started.stderr is not None
            for source, sink in ((started.stdout, self.out), (started.stderr, self.err)):
                reader = threading.Thread(target=self._pass_on, args=(rank, source, sink))
                reader.start()
                self.readers.append(reader)

    def _pass_on(self, rank: int, source: IO[str], sink: TextIO) -> None:
        """Copy a worker's lines, with its rank before each."""
        for line in source:
            with self.lock:
                sink.write(f"[{rank}] {line}" if line.endswith("\n") else f"[{rank}] {line}\n")
                sink.flush()

    def wait(self) -> Ended:
        """Wait until all have ended; when one fails, the others get a little time, then end."""
        first: tuple[int, int] | None = None
        deadline = float("inf")
        while alive := [p for p in self.processes.values() if p.poll() is None]:
            if first is None and (first := self._failed()) is not None:
                deadline = time.monotonic() + GRACE
            if time.monotonic() > deadline:
                self._stop(alive)
                break
            time.sleep(POLL)
        first = first or self._failed()
        for reader in self.readers:
            reader.join(GRACE)
        if first is None:
            return Ended(0)
        rank, code = first
        if code < 0:
            return Ended(128 - code, rank, f"was killed by {signal.Signals(-code).name}")
        return Ended(code, rank, f"exited with status {code}")

    def _failed(self) -> tuple[int, int] | None:
        """A worker that failed; one that a signal killed before those that saw it go."""
        codes = {rank: p.poll() for rank, p in self.processes.items()}
        bad = [(rank, code) for rank, code in codes.items() if code]
        return min(bad, key=lambda pair: (pair[1] > 0, pair[0]), default=None)

    def _stop(self, alive: Sequence[subprocess.Popen[str]]) -> None:
        """End workers: by a request, then by force."""
        for process in alive:
            process.terminate()
        end = time.monotonic() + GRACE
        for process in alive:
            try:
                process.wait(max(end - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def interrupt(self) -> None:
        """Pass a keyboard interrupt on, which a terminal sends by itself, and end the rest."""
        alive = [p for p in self.processes.values() if p.poll() is None]
        for process in alive:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
        end = time.monotonic() + GRACE
        while time.monotonic() < end and any(p.poll() is None for p in alive):
            time.sleep(POLL)
        self._stop([p for p in alive if p.poll() is None])


def launch(
    job: LaunchJob, restarts: int = 0, out: TextIO | None = None, err: TextIO | None = None
) -> Ended:
    """Run a job to its end; a failed attempt is started again up to so many times."""
    out, err = out or sys.stdout, err or sys.stderr
    for number in range(restarts + 1):
        attempt = Attempt(job, number, out, err)
        try:
            attempt.start()
            ended = attempt.wait()
        except BaseException:
            attempt.interrupt()
            raise
        if ended.status == 0 or number == restarts:
            break
        left = restarts - number
        print(
            f"worker {ended.rank} {ended.reason}: all workers start again, {left} "
            f"restart{'s' if left > 1 else ''} left",
            file=err,
            flush=True,
        )
    return ended


def variables(job: LaunchJob, local: int, port: int, attempt: int) -> Mapping[str, str]:
    """The environment of a worker: torchrun's variables, and its share of the cores."""
    cores = max(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1, 1)
    threads = str(max(cores // job.workers, 1))
    return {
        "RANK": str(job.host * job.workers + local),
        "WORLD_SIZE": str(job.size),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(job.workers),
        "GROUP_RANK": str(job.host),
        "MASTER_ADDR": job.address,
        "MASTER_PORT": str(port),
        "JAX_COORDINATOR_ADDRESS": f"{job.address}:{port + 1}",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "PYTHONUNBUFFERED": "1",
        "WEFT_THREADS": os.environ.get("WEFT_THREADS", threads),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads),
    }


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
