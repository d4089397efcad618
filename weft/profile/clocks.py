"""Clock offsets of workers: the nanoseconds to add to a worker's clock for that of the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from weft.profile.matching import MatchedCollective
from weft.recording import Recording
from weft.records import dataclass

# Collectives that no worker leaves before all have entered: bounds on clock offsets.
SYNCHRONIZING = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))
Bounds: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """The offset of one worker's clock, its error and where it comes from."""

    nanoseconds: int
    error: float  # of one direction; half of the shortest round trip
    source: str

    def as_json(self) -> dict[str, Any]:
        """The offset as data."""
        return {"offset_ns": self.nanoseconds, "error_ns": self.error, "source": self.source}


def clock_offsets(
    recordings: Sequence[Recording], collectives: Sequence[MatchedCollective]
) -> list[ClockOffset]:
    """The offset of each recording from the first.

    Processes of one boot share the monotonic clock. Others have measured round trips to worker 0;
    else the hosts' wall clocks are compared. Either is moved into what matched collectives allow.
    """
    first = recordings[0].process if recordings else {}
    offsets: list[ClockOffset] = []
    for place, one in enumerate(recordings):
        guess = _estimated(one.process, first, one.clock)
        if guess.source != "same clock":
            guess = _within(guess, _bounds(place, collectives))
        offsets.append(guess)
    return offsets


def _estimated(
    process: Mapping[str, Any], first: Mapping[str, Any], clock: Mapping[str, Any] | None
) -> ClockOffset:
    if process["boot"] and process["boot"] == first["boot"]:
        return ClockOffset(0, 0.0, "same clock")
    if clock is not None:
        return ClockOffset(clock["offset"], clock["error"], "round trips")
    mine, theirs = (int(p["wall"]) - int(p["time"]) for p in (process, first))
    return ClockOffset(mine - theirs, float("nan"), "wall clocks")


def _bounds(place: int, collectives: Sequence[MatchedCollective]) -> Bounds:
    """The least and greatest offset: each of two workers enters a collective before one leaves."""
    least, most = float("-inf"), float("inf")
    for collective in collectives:
        ours, base = collective.spans.get(place), collective.spans.get(0)
        if ours is None or base is None or collective.name not in SYNCHRONIZING:
            continue
        least = max(least, base[0] - ours[1])
        most = min(most, base[1] - ours[0])
    return least, most


def _within(guess: ClockOffset, bounds: Bounds) -> ClockOffset:
    least, most = bounds
    moved = min(max(guess.nanoseconds, least), most)
    if least > most or moved == guess.nanoseconds:  # clocks that drift allow no single offset
        return guess
    return ClockOffset(round(moved), guess.error, f"{guess.source}, moved by collectives")
