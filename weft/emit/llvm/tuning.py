"""Tuning: of several ways to do one thing, the one that is fastest here, measured once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TypeVar

from weft.cache.choices import remember, remembered
from weft.emit.llvm.machine_code import host
from weft.emit.llvm.thread_count import thread_count

T = TypeVar("T")

_HOPELESS = 2.0  # times the best one, after two rounds: such a candidate is measured no more


def machine_name() -> str:
    """What measurements depend on: the processor and the number of threads."""
    features = hashlib.sha256(host().features.encode()).hexdigest()[:8]
    return f"{host().cpu} ({features}), threads: {thread_count()}"


def tune(
    kind: str,
    shape_class: str,
    candidates: Mapping[str, T],
    measure: Callable[[T], float],
    rounds: int = 7,
) -> str:
    """The name of the fastest candidate, from an earlier run on this machine or measured now.

    `measure` runs a candidate once and gives seconds. The rounds go over all candidates, each time
    in another order, so that a moment in which the machine is busy meets all of them; the least
    time of each counts.
    """
    assert candidates, "one of none cannot be chosen"
    machine = machine_name()
    known = remembered(kind, machine, shape_class) if len(candidates) > 1 else None
    if isinstance(known, dict) and known.get("best") in candidates:
        # What was not there when the others were measured may be faster than they.
        measured = known.get("seconds")
        if isinstance(measured, dict) and candidates.keys() <= measured.keys():
            return str(known["best"])
    best, seconds = fastest(candidates, measure, rounds)
    if len(candidates) > 1:
        remember(kind, machine, shape_class, {"best": best, "seconds": {**seconds}})
    return best


def fastest(
    candidates: Mapping[str, T], measure: Callable[[T], float], rounds: int = 7
) -> tuple[str, dict[str, float]]:
    """The name of the fastest candidate, and the least seconds of each."""
    if len(candidates) == 1:
        return next(iter(candidates)), {}
    seconds = {name: measure(candidate) for name, candidate in candidates.items()}
    going = list(candidates)
    for _ in range(1, rounds):
        going = going[1:] + going[:1]
        for name in going:
            seconds[name] = min(seconds[name], measure(candidates[name]))
        least = min(seconds.values())
        going = [name for name in going if seconds[name] <= _HOPELESS * least]
    return min(candidates, key=lambda name: seconds[name]), seconds
