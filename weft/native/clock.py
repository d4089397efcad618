"""The monotonic clock, as native code reads it."""

from __future__ import annotations

from weft.native.function import native
from weft.native.libc import TimeSpec, clock_gettime

# CLOCK_MONOTONIC on Linux; lowered text gets the target's number instead (`clock_constants`).
CLOCK = 1
_DARWINS_CLOCK = 6
_SECOND = 1_000_000_000  # nanoseconds


def clock_constants(triple: str) -> dict[str, int]:
    """The constants of a target that `now` is lowered with."""
    return {"CLOCK": _DARWINS_CLOCK if "apple" in triple else CLOCK}


@native
def now() -> int:
    """A monotonic time in nanoseconds."""
    time = TimeSpec.new()
    clock_gettime(CLOCK, time)
    return time.seconds * _SECOND + time.nanoseconds
