"""Timelines: events on streams and links, and memory over time; predicted or measured."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from weft.ir.location import UNKNOWN, Location
from weft.records import dataclass

EventKind: TypeAlias = Literal[
    "product", "attention", "memory", "collective", "wait", "loop", "run", "stage"
]
# Kinds of events that occupy the compute units; a loop's event stands for rounds not drawn.
COMPUTING: tuple[EventKind, ...] = ("product", "attention", "memory")


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """A kernel, a collective or a wait on one track, and how often it runs like this.

    An event of a loop is drawn once, in a round like all that `times` counts. Of a collective,
    `exposed` are the seconds that the compute stream waits for it, and `bytes` what a device sends.
    """

    name: str
    kind: EventKind
    track: str  # a stream, or a stream and the link that it uses
    start: float
    duration: float
    loc: Location = UNKNOWN
    times: int = 1
    exposed: float = 0.0
    bytes: float = 0.0
    over: str = ""  # the axes of a collective, or its group size
    source: str = ""  # where the duration comes from
    flops: float = 0.0  # of products
    ideal: float = 0.0  # seconds of these flops at the machine's full rate
    # Of measured events: the process, its devices, the program's digest, the number of its run, and
    # the number that the events of one collective share on all workers; 0 for no collective.
    worker: int = 0
    devices: str = ""
    program: str = ""
    run: int = 0
    match: int = 0

    @property
    def end(self) -> float:
        """The end of the event."""
        return self.start + self.duration

    @property
    def total(self) -> float:
        """The seconds of all its executions."""
        return self.duration * self.times


@dataclass(frozen=True, slots=True)
class MemoryPoint:
    """The bytes that one device holds from a point in time on."""

    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Events by their start, of one device if predicted, of all workers if measured; and memory."""

    name: str
    events: tuple[TimelineEvent, ...]
    seconds: float
    memory: tuple[MemoryPoint, ...] = ()
    hosts: tuple[Mapping[str, Any], ...] = ()  # of measured ones: metadata of each worker

    @property
    def tracks(self) -> tuple[str, ...]:
        """The names of streams and links, compute first."""
        names = dict.fromkeys(event.track for event in self.events)
        return tuple(sorted(names, key=lambda name: (not name.startswith("compute"), name)))

    def collectives(self) -> tuple[TimelineEvent, ...]:
        """The collectives."""
        return tuple(event for event in self.events if event.kind == "collective")

    def seconds_of(self, *kinds: EventKind) -> float:
        """The seconds of all executions of events of some kinds."""
        return sum(event.total for event in self.events if event.kind in kinds)

    @property
    def exposed(self) -> float:
        """The seconds that compute waits for collectives."""
        return sum(e.exposed * e.times for e in self.events if e.kind == "collective")

    @property
    def peak(self) -> int:
        """The most bytes that a device holds."""
        return max((point.bytes for point in self.memory), default=0)

    def as_chrome(self) -> dict[str, Any]:
        """The timeline in the format of Chrome's trace viewer and of Perfetto."""
        made = {"traceEvents": [*self._chrome_events()], "displayTimeUnit": "ms"}
        return made | ({"metadata": {"workers": [*self.hosts]}} if self.hosts else {})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline as JSON, which ui.perfetto.dev and chrome://tracing open."""
        Path(path).write_text(json.dumps(self.as_chrome()))

    def _chrome_events(self) -> Iterator[dict[str, Any]]:
        numbers = {track: number for number, track in enumerate(self.tracks, 1)}
        shown = {(event.worker, event.track) for event in self.events}
        for worker in sorted({0} | {worker for worker, _ in shown}):
            name = self.name or "weft"
            yield _meta("process_name", worker, 0, f"{name}: worker {worker}" if worker else name)
            for track, number in numbers.items():
                if (worker, track) in shown:
                    yield _meta("thread_name", worker, number, track)
                    yield _meta("thread_sort_index", worker, number, number)
        yield from _flows(self.events, numbers)
        for event in self.events:
            yield {
                "ph": "X",
                "pid": event.worker,
                "tid": numbers[event.track],
                "name": event.name,
                "cat": event.kind,
                "ts": 1e6 * event.start,
                "dur": 1e6 * event.duration,
                "args": _details(event),
            }
        for point in self.memory:
            bytes_held = {"bytes": point.bytes}
            yield {"ph": "C", "pid": 0, "name": "memory", "ts": 1e6 * point.seconds} | {
                "args": bytes_held
            }


def _meta(name: str, worker: int, track: int, value: str | int) -> dict[str, Any]:
    key = "sort_index" if isinstance(value, int) else "name"
    return {"ph": "M", "pid": worker, "tid": track, "name": name, "args": {key: value}}


def _flows(events: Sequence[TimelineEvent], tracks: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Arrows between the events of one collective on all workers, in the order of their starts."""
    matched: dict[int, list[TimelineEvent]] = {}
    for event in events:
        if event.match:
            matched.setdefault(event.match, []).append(event)
    for number, found in matched.items():
        for place, event in enumerate(sorted(found, key=lambda e: e.start) if found[1:] else ()):
            phase = "s" if place == 0 else "f" if place == len(found) - 1 else "t"
            yield {
                "ph": phase,
                "id": number,
                "pid": event.worker,
                "tid": tracks[event.track],
                "name": event.name,
                "cat": "match",
                "ts": 1e6 * event.start,
            } | ({"bp": "e"} if phase == "f" else {})


def _details(event: TimelineEvent) -> dict[str, Any]:
    details: dict[str, Any] = {"line": event.loc.describe()} if event.loc.known else {}
    if event.times != 1:
        details["times"] = event.times
    if event.kind == "collective":
        details |= {"bytes": round(event.bytes), "over": event.over}
        details |= {"exposed us": 1e6 * event.exposed, "source": event.source}
    if event.program or event.devices:
        details |= {"worker": event.worker, "devices": event.devices}
        details |= {"program": event.program, "run": event.run}
    if event.match:
        details["match"] = event.match
    return details
