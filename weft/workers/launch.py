"""The launcher: starts the workers of one host, passes their output on, and ends them together."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import TextIO, TypeAlias

from weft.errors import WeftError
from weft.records import dataclass
from weft.workers.failure import ERROR_FILE, FailureNote, read_note, root_cause
from weft.workers.forked import (
    CAN_FORK,
    ForkedWorker,
    end_with_parent,
    fork_workers,
    held_signals,
    release_signals,
)
from weft.workers.in_ray import RayGang, RayOptions, RayWorker
from weft.workers.launch_store import LaunchStore
from weft.workers.own_folder import OwnFolder

GRACE = 10.0  # seconds for the others to see a failure, and again to end when asked
POLL = 0.05
QUIET = 1.0  # seconds without a line after which output that is still open is not awaited
WorkerProcess: TypeAlias = "subprocess.Popen[str] | ForkedWorker | RayWorker"


@dataclass(frozen=True, slots=True)
class LaunchJob:
    """The workers to start on this host, of all hosts of a job."""

    command: Sequence[str]  # a script and its arguments, or -m and a module
    workers: int  # on each host
    hosts: int = 1
    host: int = 0
    address: str = "127.0.0.1"
    port: int | None = None  # None for a free one, on one host
    forks: bool = CAN_FORK  # else every worker is a new interpreter
    ray: RayOptions | None = None  # in a Ray cluster, wherever that has room for them

    @property
    def size(self) -> int:
        """The workers of all hosts."""
        return self.workers * self.hosts

    @property
    def ranks(self) -> range:
        """The workers of this host."""
        return range(self.host * self.workers, (self.host + 1) * self.workers)


@dataclass(frozen=True, slots=True)
class JobExit:
    """How a job ended: the exit status, and the worker whose failure ended all others."""

    status: int
    rank: int | None = None
    reason: str = ""
    error: str = ""  # its own, or that of the worker that waited for it


@dataclass(eq=False)
class Attempt:
    """The running workers of one attempt."""

    job: LaunchJob
    number: int
    out: TextIO
    err: TextIO
    processes: dict[int, WorkerProcess] = field(default_factory=dict)
    readers: list[threading.Thread] = field(default_factory=list)
    stopped: set[int] = field(default_factory=set)  # workers that the launcher itself ended
    folder: OwnFolder = field(default_factory=partial(OwnFolder, "weft-launch-"))
    lock: threading.Lock = field(default_factory=threading.Lock)  # whole lines
    heard: float = 0.0  # when the last line came
    is_unread: bool = False  # whether the reader of the output has closed it
    is_lossy: bool = False  # whether output could not be written
    gang: RayGang | None = None  # of workers in a Ray cluster
    store: LaunchStore | None = None  # of workers that are all on this host

    @property
    def notes(self) -> Path:
        """The folder of the workers' failure notes."""
        return self.folder.path

    def start(self) -> None:
        """Start every worker of this host, or of a Ray cluster."""
        if self.job.ray is None:
            with held_signals():  # workers that are started by halves could not be ended
                self._start_here()
        else:
            self.gang = RayGang(self.job.ray, self.job.workers)
            cores = max(int(self.job.ray.cpus), 1)
            own = partial(variables, attempt=self.number, size=self.job.size, threads=cores)
            self.processes.update(self.gang.start(self.job.command, own, self.notes))
        for rank, started in self.processes.items():
            assert started.stdout is not None and started.stderr is not None
            for source, sink in ((started.stdout, self.out), (started.stderr, self.err)):
                copy = (rank, source, sink)
                reader = threading.Thread(target=self._pass_on, args=copy, daemon=True)
                reader.start()
                self.readers.append(reader)

    def _start_here(self) -> None:
        job, port = self.job, self.job.port or free_port()
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        environment = partial(
            variables,
            there=job.workers,
            host=job.host,
            address=job.address,
            port=port,
            attempt=self.number,
            size=job.size,
            threads=max(cores // job.workers, 1),
        )
        environments = {
            rank: {**environment(rank, local), ERROR_FILE: str(self.notes / f"{rank}.json")}
            for local, rank in enumerate(job.ranks)
        }
        if CAN_FORK and job.hosts == 1:
            try:
                self.store = LaunchStore(self.notes)
            except OSError as error:  # a file system without sockets
                print(f"worker 0 serves the key-value store: {error}", file=self.err, flush=True)
        start = fork_workers if job.forks else spawn_workers
        try:
            self.processes.update(start(job.command, environments))
        except OSError as error:
            raise WeftError(
                f"{job.workers} workers cannot be started: {error.strerror}",
                help="start fewer, or raise the limit: `ulimit -a` lists them",
            ) from None

    def _pass_on(self, rank: int, source: Iterable[str], sink: TextIO) -> None:
        """Copy a worker's lines, with its rank before each."""
        for line in source:
            if self.is_unread:  # read on: a worker must not wait for its reader until it is ended
                continue
            try:
                with self.lock:
                    end = "" if line.endswith("\n") else "\n"
                    sink.write(f"[{rank}] {line}{end}")
                    sink.flush()
                    self.heard = time.monotonic()
            except BrokenPipeError:
                self.is_unread = True
            except OSError as error:  # a full disk: read on, as the worker would wait for ever
                if not self.is_lossy:
                    self.is_lossy = True
                    with suppress(OSError):
                        lost = f"lines of the workers are lost: {error.strerror}"
                        print(lost, file=self.err, flush=True)

    def wait(self) -> JobExit:
        """Wait until all have ended; when one fails, the others get a little time, then end."""
        first: int | None = None
        deadline = float("inf")
        while alive := self._alive():
            if self.is_unread:
                raise BrokenPipeError("the reader of the output is gone, as `head` is")
            if first is None and (first := self._failed()) is not None:
                deadline = time.monotonic() + GRACE
            if time.monotonic() > deadline:
                self._stop(alive)
                break
            time.sleep(POLL)
        first = self._failed() if first is None else first
        self._finish_output()
        return JobExit(0) if first is None else self._explained(first)

    def _finish_output(self) -> None:
        """Wait for lines that are on their way.

        A process that a worker has left behind may hold the output open for as long as it runs.
        """
        self.heard = time.monotonic()
        while any(reader.is_alive() for reader in self.readers):
            # A held lock: the line is there, and its reader is slow.
            if not self.lock.locked() and time.monotonic() - self.heard > QUIET:
                return
            time.sleep(POLL / 5)

    def _failed(self) -> int | None:
        """A worker that failed; one that a signal killed before those that saw it go."""
        codes = {rank: p.poll() for rank, p in self.processes.items()}
        # Signals have negative codes and come first: a killed worker is the cause, exits of others
        # follow from it.
        bad = [(0 if code < 0 else 1, rank) for rank, code in codes.items() if code]
        # One that has written its note may not end: its threads go on.
        bad += [(2, rank) for rank, code in codes.items() if code is None and self._note(rank)]
        return min(bad)[1] if bad else None

    def _note(self, rank: int) -> FailureNote | None:
        return read_note(self.notes / f"{rank}.json")

    def _explained(self, first: int) -> JobExit:
        """The worker that is to blame for the first failure that was seen, and how it ended."""
        found = {rank: self._note(rank) for rank in self.processes}
        notes = {rank: note for rank, note in found.items() if note is not None}
        code = self.processes[first].wait()
        # A worker that a signal killed wrote no note, and is the cause itself.
        rank = root_cause(first, notes)
        waited = next((note for note in notes.values() if note.blames == rank), None)
        note = notes.get(rank, waited)
        # As a shell reports a process that a signal has ended, but for those of the launcher.
        status = 1 if first in self.stopped else code if code > 0 else 128 - code
        return JobExit(status, rank, self._reason(rank), "" if note is None else note.error)

    def _reason(self, rank: int) -> str:
        if rank not in self.processes:
            return "of another host is lost"
        if rank in self.stopped and (note := self._note(rank)) and note.blames is None:
            return "failed, and did not end"
        if rank in self.stopped:
            return "hung: it did not reach the collective that the others waited in"
        code = self.processes[rank].wait()
        if code < 0:
            known = {int(each): each.name for each in signal.Signals}
            return f"was killed by {known.get(-code, f'signal {-code}')}"
        return f"exited with status {code}" + ("" if code else ", before the others")

    def _stop(self, alive: Sequence[int]) -> None:
        """End workers: by a request, then by force."""
        self.stopped |= {*alive}
        for rank in alive:
            self.processes[rank].terminate()
            # One that is stopped (SIGSTOP) does not see the request until it goes on.
            with suppress(ProcessLookupError):
                self.processes[rank].send_signal(signal.SIGCONT)
        # One deadline for all of them together.
        end = time.monotonic() + GRACE
        for rank in alive:
            process = self.processes[rank]
            try:
                process.wait(max(end - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        """Remove the files of this attempt, and return the resources of a cluster."""
        for process in self.processes.values():
            if isinstance(process, ForkedWorker):
                process.reap_server()
        if self.store is not None:
            self.store.close()
        self.folder.remove()
        if self.gang is not None:
            self.gang.close()

    def interrupt(self) -> None:
        """Pass a keyboard interrupt on, which a terminal sends by itself, and end the rest.

        Another request to end ends them at once.
        """
        try:
            for process in self.processes.values():
                with suppress(ProcessLookupError):
                    process.send_signal(signal.SIGINT)
            end = time.monotonic() + GRACE
            while time.monotonic() < end and self._alive():
                time.sleep(POLL)
            self._stop(self._alive())
            self._finish_output()
        except BaseException:
            for rank in self._alive():
                self.processes[rank].kill()
            raise

    def _alive(self) -> list[int]:
        return [rank for rank, process in self.processes.items() if process.poll() is None]


def spawn_workers(
    command: Sequence[str], environments: Mapping[int, Mapping[str, str]]
) -> dict[int, subprocess.Popen[str]]:
    """Start a new interpreter for each worker."""
    return {
        rank: subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, **environment},
            stdin=None if rank == 0 else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            preexec_fn=_begin if os.name == "posix" else None,
        )
        for rank, environment in environments.items()
    }


def _begin() -> None:
    """Have the kernel kill this worker when the launcher was killed; signals reach it from now."""
    if sys.platform == "linux":
        end_with_parent(signal.SIGKILL)
    release_signals()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Requests to end, as of `kill` or Slurm, end the workers first, like a keyboard interrupt."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    asked = [signal.SIGTERM, signal.SIGHUP] if os.name == "posix" else [signal.SIGTERM]
    is_main = threading.current_thread() is threading.main_thread()
    before = {one: signal.signal(one, end) for one in asked} if is_main else {}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def launch(
    job: LaunchJob,
    restarts: int = 0,
    fewest: int | None = None,
    out: TextIO | None = None,
    err: TextIO | None = None,
) -> JobExit:
    """Run a job to its end; a failed attempt is started again up to so many times.

    With `fewest`, each restart has the next smaller number of workers that divides the last one.
    """
    with _ended_by_signals():
        return _attempts(job, restarts, fewest, out or sys.stdout, err or sys.stderr)


def _attempts(
    job: LaunchJob, restarts: int, fewest: int | None, out: TextIO, err: TextIO
) -> JobExit:
    for number in range(restarts + 1):
        attempt = Attempt(job, number, out, err)
        try:
            attempt.start()
            ended = attempt.wait()
        except BaseException:
            attempt.interrupt()
            raise
        finally:
            attempt.close()
        if ended.status == 0 or number == restarts:
            break
        left = restarts - number - 1
        workers = smaller(job.workers, fewest or job.workers)
        few = "1 worker starts" if workers == 1 else f"{workers} workers start"
        some = "all workers start" if workers == job.workers else few
        job = replace(job, workers=workers)
        print(
            f"worker {ended.rank} {ended.reason}: {some} again, {left} "
            f"restart{'' if left == 1 else 's'} left",
            file=err,
            flush=True,
        )
    return ended


def smaller(workers: int, fewest: int) -> int:
    """The next smaller number of workers that share the same devices evenly, if not too few."""
    divisors = [n for n in range(fewest, workers) if workers % n == 0]
    return divisors[-1] if divisors else workers


def variables(
    rank: int,
    local: int,
    there: int,
    host: int,
    address: str,
    port: int,
    *,
    attempt: int,
    size: int,
    threads: int,
) -> Mapping[str, str]:
    """The environment of a worker: torchrun's variables, and its share of the cores.

    It is one of `there` workers of its host, and has so many `threads`.
    """
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local),
        "LOCAL_WORLD_SIZE": str(there),
        "GROUP_RANK": str(host),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "JAX_COORDINATOR_ADDRESS": f"{address}:{port + 1}",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "PYTHONUNBUFFERED": "1",
        "WEFT_THREADS": os.environ.get("WEFT_THREADS", str(threads)),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
    }


def free_port() -> int:
    """A free TCP port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
