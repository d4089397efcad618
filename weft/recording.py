"""Recordings: measured events of one process, appended to a file of JSON lines while it runs.

`weft profile` names a folder in WEFT_PROFILE for the processes that it starts; without it nothing
is recorded. Times are nanoseconds of the monotonic clock, which the processes of a host share.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path
from typing import Any, TypeAlias

from weft.errors import WeftError
from weft.native.forks import after_fork
from weft.records import dataclass

FOLDER = "WEFT_PROFILE"  # set by `weft profile` alone
EVENTS = 2_000_000  # the most events of a process; later runs are counted only
FLUSH_NS = 500_000_000  # between two writes: a killed process loses no more
ItemSpan: TypeAlias = tuple[int, int, int]  # the number of an item, its begin and end


class Recorder:
    """Appends the events of this process to its file."""

    def __init__(self, folder: Path, clock: Callable[[], int] = time.perf_counter_ns) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{host_name()}-{os.getpid()}.jsonl"
        self.clock, self.pid = clock, os.getpid()
        self.lock = threading.Lock()
        self.waiting: list[str] = []
        self.written = clock()
        self.programs = self.events = self.dropped = 0
        self.threads: dict[int, int] = {}  # numbers by identity
        self.add("process", process_facts(clock))

    def add(self, kind: str, value: object) -> None:
        """Append a line; lines are written twice a second."""
        if os.getpid() != self.pid:  # a forked child's: the file is its parent's
            return
        with self.lock:
            self.waiting.append(json.dumps([kind, value], separators=(",", ":")))
            now = self.clock()
            if now - self.written > FLUSH_NS or kind != "run":
                self._write(now)

    def _write(self, now: int) -> None:
        self.written = now
        text, self.waiting = "\n".join(self.waiting) + "\n", []
        with self.path.open("a", encoding="utf-8") as file:
            file.write(text)

    def program(self, facts: Mapping[str, Any]) -> int:
        """Note a loaded program; returns its number."""
        with self.lock:
            number, self.programs = self.programs, self.programs + 1
        self.add("program", {"number": number, **facts})
        return number

    def run(
        self, program: int, count: int, begin: int, end: int, spans: Sequence[ItemSpan]
    ) -> None:
        """Note a run of a program, and the events in it."""
        self.events += len(spans) + 1
        if self.events > EVENTS:
            self.dropped += 1
            return
        thread = self.threads.setdefault(threading.get_ident(), len(self.threads))
        flat = [number for span in spans for number in span]
        self.add("run", [program, count, thread, begin, end, flat])

    def zone(self, program: str, stage: str, begin: int, end: int) -> None:
        """Note a stage of the compiler."""
        self.add("zone", [program, stage, begin, end])

    def close(self) -> None:
        """Write what is left."""
        if os.getpid() == self.pid:
            self.add("end", {"time": self.clock(), "dropped": self.dropped})


def host_name() -> str:
    """The name of this host."""
    return os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "host")


def process_facts(clock: Callable[[], int]) -> dict[str, Any]:
    """The metadata of this process and its host."""
    numbers = {name: os.environ.get(name, "") for name in ("RANK", "TORCHELASTIC_RESTART_COUNT")}
    rank, attempt = [int(text) if text.isdecimal() else 0 for text in numbers.values()]
    boot = ""
    with suppress(OSError):  # another system than Linux
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return {
        "time": clock(),
        "wall": time.time_ns(),
        "rank": rank,
        "attempt": attempt,
        "pid": os.getpid(),
        "host": host_name(),
        "boot": boot,
        "cores": os.cpu_count(),
        "system": " ".join(os.uname()[0:5:2]) if hasattr(os, "uname") else sys.platform,
        "python": sys.version.partition(" ")[0],
        "command": sys.argv,
    }


_MADE: list[Recorder] = []  # of this process: at most one
_making = threading.Lock()
after_fork(_MADE.clear)


def recorder() -> Recorder | None:
    """The recorder of this process; None unless `weft profile` has started it."""
    if _MADE:
        return _MADE[0]
    folder = os.environ.get(FOLDER)
    if not folder:
        return None
    with _making:
        if not _MADE:
            _MADE.append(Recorder(Path(folder)))
            atexit.register(_MADE[0].close)
        return _MADE[0]


@contextmanager
def recording_to(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Record the programs that this process loads in the block, and all their runs."""
    with _making:
        if _MADE:
            raise WeftError("this process is profiled already", help="profile one thing at a time")
        _MADE.append(Recorder(Path(folder)))
    try:
        yield
    finally:
        _MADE.pop().close()


@dataclass(slots=True)
class Recording:
    """The file of one process, read back."""

    process: Mapping[str, Any]
    programs: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    predicted: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    runs: list[RecordedRun] = field(default_factory=list)
    zones: list[tuple[str, str, int, int]] = field(default_factory=list)
    clock: Mapping[str, Any] | None = None  # its offset from worker 0
    end: Mapping[str, Any] | None = None  # None if the process was killed

    @property
    def rank(self) -> int:
        """The number of the worker."""
        return int(self.process["rank"])


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run of a program: when, in which thread, and its spans."""

    program: int
    count: int
    thread: int
    begin: int
    end: int
    flat: Sequence[int]

    def spans(self) -> Iterator[ItemSpan]:
        """The events, by the number of their item."""
        numbers = iter(self.flat)
        return zip(numbers, numbers, numbers, strict=True)


def read_recordings(folder: Path) -> list[Recording]:
    """The recordings in a folder, by attempt and worker."""
    found = [read_recording(path) for path in sorted(folder.glob("*.jsonl"))]
    made = [one for one in found if one is not None]
    return sorted(made, key=lambda one: (one.process["attempt"], one.rank, one.process["time"]))


def read_recording(path: Path) -> Recording | None:
    """The recording of one process; None if it was killed before the first line."""
    recording: Recording | None = None
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            kind, value = json.loads(line)
        except ValueError:  # cut off when the process was killed
            break
        if kind == "process":
            recording = Recording(value)
        elif recording is not None:
            _take(recording, kind, value)
    return recording


def _take(recording: Recording, kind: str, value: Any) -> None:
    match kind:
        case "program":
            recording.programs[value["number"]] = value
        case "predicted":
            number = value["program"]
            recording.predicted[number] = value
            if value["name"] and number in recording.programs:
                recording.programs[number] = {**recording.programs[number], "name": value["name"]}
        case "run":
            recording.runs.append(RecordedRun(*value))
        case "zone":
            recording.zones.append((value[0], value[1], value[2], value[3]))
        case "clock":
            recording.clock = value
        case "end":
            recording.end = value
