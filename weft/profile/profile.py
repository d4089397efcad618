"""Profiles: recordings merged on one clock, as a timeline and as lines beside predicted ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.ir.location import UNKNOWN, Location
from weft.profile.clocks import ClockOffset, clock_offsets
from weft.profile.lines import ProgramProfile, program_profiles
from weft.profile.matching import (
    MatchedCollective,
    MatchKey,
    is_collective,
    match_collectives,
    measured_spans,
    straggler_waits,
)
from weft.recording import RecordedRun, Recording, read_recordings
from weft.records import dataclass
from weft.timeline import Timeline, TimelineEvent


@dataclass(frozen=True, slots=True)
class Profile:
    """A measured run: a timeline of all workers, and the lines of each program."""

    timeline: Timeline
    programs: tuple[ProgramProfile, ...]
    matched: int  # collectives that were found on more than one worker
    waited: Mapping[int, float]  # seconds that others waited in collectives, by straggler
    dropped: int  # runs past the limit of events

    def as_json(self) -> dict[str, Any]:
        """The profile as data."""
        return {
            "seconds": self.timeline.seconds,
            "workers": [*self.timeline.hosts],
            "programs": [program.as_json() for program in self.programs],
            "collectives_matched": self.matched,
            "waited_for": dict(self.waited),
            "dropped_runs": self.dropped,
        }


def profile(*folders: str | os.PathLike[str], name: str = "profile") -> Profile:
    """The profile of recordings in some folders; of several hosts, one folder each."""
    recordings = [one for folder in folders for one in read_recordings(Path(folder))]
    recordings.sort(key=lambda one: (one.process["attempt"], one.rank))
    # Launchers and processes that only import Weft compile and run nothing.
    recordings = [one for one in recordings if one.programs or one.zones]
    if not recordings:
        raise WeftError(
            "no program of Weft was compiled or run, so nothing is measured",
            help="profile a script that calls weft.compile, or JAX with JAX_PLATFORMS=weft",
        )
    collectives, by_place = match_collectives(recordings)
    clocks = clock_offsets(recordings, collectives)
    offsets = [clock.nanoseconds for clock in clocks]
    begin = min(_begin(one) + offset for one, offset in zip(recordings, offsets, strict=True))
    events: list[TimelineEvent] = []
    for place, (one, offset) in enumerate(zip(recordings, offsets, strict=True)):
        events += _Events(place, one, offset - begin, by_place).all()
    events.sort(key=lambda event: event.start)
    seconds = max(event.end for event in events)
    hosts = tuple(map(_host, recordings, clocks))
    waited = straggler_waits(collectives, offsets)
    return Profile(
        Timeline(name, tuple(events), seconds, hosts=hosts),
        program_profiles(recordings),
        sum(len(collective.spans) > 1 for collective in collectives),
        {worker: 1e-9 * nanoseconds for worker, nanoseconds in waited.most_common()},
        sum((one.end or {}).get("dropped", 0) for one in recordings),
    )


def _host(one: Recording, clock: ClockOffset) -> dict[str, Any]:
    """The metadata of a worker."""
    killed = {"killed": True} if one.end is None else {}
    return {**one.process, "clock": clock.as_json(), **killed}


def _begin(one: Recording) -> int:
    """The first event of a process."""
    begins = [run.begin for run in one.runs] + [begin for *_, begin, _ in one.zones]
    return min(begins, default=int(one.process["time"]))


class _Events:
    """The events of one worker, with a shifted clock."""

    def __init__(
        self,
        worker: int,
        recording: Recording,
        shift: int,
        collectives: Mapping[MatchKey, MatchedCollective],
    ) -> None:
        self.worker, self.recording, self.shift = worker, recording, shift
        self.collectives = collectives
        self.lanes: list[int] = []  # ends of the collectives on each communication track
        self.locations: dict[str, Location] = {}

    def all(self) -> Iterator[TimelineEvent]:
        """Stages of the compiler, runs, and the items of runs."""
        for program, stage, begin, end in self.recording.zones:
            track = "compiler passes" if "/" in stage else "compiler"
            name = f"{stage} {program}" if track == "compiler" else stage.partition("/")[2]
            yield self._event(name, "stage", track, begin, end, program=program)
        for run in self.recording.runs:
            yield from self._run(run)

    def _run(self, run: RecordedRun) -> Iterator[TimelineEvent]:
        program = self.recording.programs[run.program]
        ids = {
            "program": f"{program['name']} {program['digest']}",
            "run": run.count,
            "devices": _listed(program["devices"]),
        }
        items = program["items"]
        yield self._event(program["name"], "run", f"runs.{run.thread}", run.begin, run.end, **ids)
        for span in measured_spans(run, items):
            row = items[span.item]
            loc = self._location(row["loc"])
            if not is_collective(row):
                track = f"compute.{run.thread}"
                rest = {"loc": loc, **ids}
                yield self._event(row["name"], row["kind"], track, span.begin, span.end, **rest)
                continue
            met = self.collectives.get((self.worker, run.program, run.count, span.item, span.nth))
            if row["kind"] == "start":  # the end of its wait, on the compute stream
                name, track = f"wait for {row['name']}", f"compute.{run.thread}"
                yield self._event(name, "wait", track, span.waits, span.end, loc=loc, **ids)
            track = self._lane(span.begin, span.end)
            yield self._event(
                row["name"], "collective", track, span.begin, span.end,
                loc=loc, exposed=1e-9 * span.exposed, bytes=row.get("bytes", 0.0),
                over=row.get("over", ""), source="measured",
                match=met.number if met is not None and len(met.spans) > 1 else 0, **ids,
            )  # fmt: skip

    def _lane(self, begin: int, end: int) -> str:
        """A communication track that is free: events of one track must not overlap."""
        for number, busy in enumerate(self.lanes):
            if busy <= begin:
                self.lanes[number] = end
                return f"communication.{number}"
        self.lanes.append(end)
        return f"communication.{len(self.lanes) - 1}"

    def _location(self, text: str) -> Location:
        if not text:
            return UNKNOWN
        return self.locations.setdefault(text, Location(text))

    def _event(
        self, name: str, kind: Any, track: str, begin: int, end: int, **rest: Any
    ) -> TimelineEvent:
        start, duration = 1e-9 * (begin + self.shift), 1e-9 * (end - begin)
        return TimelineEvent(name, kind, track, start, duration, worker=self.worker, **rest)


def _listed(devices: Sequence[int]) -> str:
    """`0-3` or `0, 2`."""
    first, last = devices[0], devices[-1]
    if len(devices) > 2 and [*devices] == [*range(first, last + 1)]:
        return f"{first}-{last}"
    return ", ".join(map(str, devices))
