"""Collectives matched across workers: the same one in the same run of the same program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any, TypeAlias

from weft.recording import ItemSpan, RecordedRun, Recording
from weft.records import dataclass

MatchKey: TypeAlias = tuple[Any, ...]
Occurrence: TypeAlias = tuple[int, int]  # an item, and how often it ran before in its run


@dataclass(slots=True)
class MatchedCollective:
    """One execution of a collective: its begin and end on each worker's own clock."""

    number: int
    name: str
    spans: dict[int, tuple[int, int]] = field(default_factory=dict)  # by recording


@dataclass(frozen=True, slots=True)
class MeasuredSpan:
    """An item that ran; of an asynchronous collective, from its start to the end of its wait."""

    item: int
    begin: int
    end: int
    exposed: int  # nanoseconds that the compute stream waits
    waits: int  # when it begins to wait
    nth: int = 0  # executions of the item before, in the same run


def measured_spans(run: RecordedRun, items: Sequence[dict[str, Any]]) -> Iterator[MeasuredSpan]:
    """The events of a run: starts of collectives are joined with their waits."""
    flights: dict[int, list[ItemSpan]] = {}
    seen: Counter[int] = Counter()
    for item, begin, end in run.spans():
        kind = items[item]["kind"]
        if kind == "start":
            flights.setdefault(item, []).append((item, begin, end))
            continue
        first, exposed = begin, end - begin
        if kind == "done":
            item = items[item]["start"]
            if not flights.get(item):
                continue
            # First in, first out: a loop may start an item again before its done. The start itself
            # occupies the compute stream, too.
            _, first, sent = flights[item].pop(0)
            exposed += sent - first
        elif kind != "collective":
            exposed = 0
        yield MeasuredSpan(item, first, end, exposed, begin, seen[item])
        seen[item] += 1


def is_collective(row: dict[str, Any]) -> bool:
    """Whether an item communicates."""
    return row["kind"] in ("collective", "start")


def match_collectives(
    recordings: Sequence[Recording],
) -> tuple[list[MatchedCollective], dict[MatchKey, MatchedCollective]]:
    """All matched collectives, and those of each worker by recording, program, run and item."""
    by_key: dict[MatchKey, MatchedCollective] = {}
    by_place: dict[MatchKey, MatchedCollective] = {}
    for place, one in enumerate(recordings):
        ordinals = _ordinals(one)
        for run in one.runs:
            program = one.programs[run.program]
            items = program["items"]
            for span in measured_spans(run, items):
                row = items[span.item]
                if not is_collective(row) or len(row["meets"]) <= len(program["devices"]):
                    continue  # its devices are all here
                attempt, ordinal = one.process["attempt"], ordinals[run.program]
                occurrence = (run.count, span.item, span.nth, *row["meets"])
                key = (attempt, program["digest"], ordinal, *occurrence)
                matched = by_key.get(key)
                if matched is None:
                    matched = by_key[key] = MatchedCollective(len(by_key) + 1, row["name"])
                matched.spans[place] = (span.begin, span.end)
                by_place[place, run.program, run.count, span.item, span.nth] = matched
    return [*by_key.values()], by_place


def _ordinals(one: Recording) -> dict[int, int]:
    """The number of each program among equal ones: workers load theirs in the same order."""
    seen: Counter[str] = Counter()
    ordinals: dict[int, int] = {}
    for number in sorted(one.programs):
        digest = one.programs[number]["digest"]
        ordinals[number], seen[digest] = seen[digest], seen[digest] + 1
    return ordinals


def straggler_waits(
    collectives: Iterable[MatchedCollective], offsets: Sequence[int]
) -> Counter[int]:
    """Nanoseconds that others waited in collectives, by straggler: the one that entered last."""
    waited: Counter[int] = Counter()
    for collective in collectives:
        if len(collective.spans) < 2:
            continue
        begins = {place: begin + offsets[place] for place, (begin, _) in collective.spans.items()}
        last = max(begins, key=lambda place: begins[place])
        waited[last] += sum(begins[last] - begin for begin in begins.values())
    return waited
