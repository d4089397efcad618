"""Measurement of candidates: interleaved, and cached by machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

from weft.cache.choices import Choice, remember, remembered
from weft.records import dataclass

_HOPELESS = 2.0  # of the best time: a slower candidate is dropped after two rounds
CLEARLY = 0.97  # of the first candidate's time: the gain that a winner needs
_AGREE = 1.15  # of the least time: a second time below it confirms it
_ROUNDS, _TWICE = 7, 2
_MORE = 8  # repetitions of a candidate until two of its times agree
_AT_LEAST = 3  # candidates that are always measured twice

Measure: TypeAlias = Callable[[str], float]  # runs a candidate once and returns seconds


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a shape class: the least seconds of candidates, in their order."""

    best: str
    seconds: dict[str, float]
    tried: tuple[str, ...]  # all candidates, also those not timed
    busy: bool = False  # too noisy to decide
    failed: Mapping[str, str] = field(default_factory=dict)  # why candidates cannot run here
    clearly: float = CLEARLY

    def best_of(self, can_be_had: Callable[[str], bool]) -> str | None:
        """The fastest available candidate; the first, if none is clearly faster."""
        left = {name: took for name, took in self.seconds.items() if can_be_had(name)}
        return preferred(left, self.clearly) if left else None


def recall_measurements(
    kind: str, machine: str, shape_class: str, *, counted: bool = True, clearly: float = CLEARLY
) -> Measured | None:
    """The measurements of an earlier run; `counted` records a miss."""
    return _read(remembered(kind, machine, shape_class, counted=counted), clearly)


def tune(
    kind: str,
    machine: str,
    shape_class: str,
    candidates: Sequence[str],
    ready: Callable[[], Measure],
    budget: float = math.inf,
    failed: Mapping[str, str] | None = None,
    clearly: float = CLEARLY,
) -> Measured:
    """The least seconds of candidates, cached for this machine or measured now.

    `ready` builds the function that runs a candidate once and returns seconds: infinite, with a
    reason in `failed`, where it cannot run. A new candidate causes all to be measured again. Noisy
    measurements are not cached; the first candidate is used.
    """
    assert candidates, "one of none cannot be chosen"
    if len(candidates) == 1:
        return Measured(candidates[0], {}, tuple(candidates))
    before = recall_measurements(kind, machine, shape_class, clearly=clearly)
    if before is not None and {*candidates} <= {*before.tried}:
        return before
    measure = ready()
    times = timed(candidates, measure, budget=budget)
    for _ in range(_MORE):
        seconds = {name: min(times[name]) for name in candidates if name in times}
        best = preferred(seconds, clearly)
        unsettled = [name for name in (candidates[0], best) if not is_settled(times[name])]
        if not unsettled:
            break
        for name in unsettled:
            times[name].append(measure(name))
    else:
        return Measured(candidates[0], {}, tuple(candidates), busy=True)
    why = {} if failed is None else dict(failed)
    seconds = {name: took for name, took in seconds.items() if math.isfinite(took)}
    measured = Measured(best, seconds, tuple(candidates), failed=why, clearly=clearly)
    choice: Choice = {"best": best, "seconds": {**seconds}, "tried": [*candidates],
                      "failed": {**why}}  # fmt: skip
    remember(kind, machine, shape_class, choice)
    return measured


def is_settled(times: Sequence[float]) -> bool:
    """Whether the two least times agree: on a busy machine they rarely do."""
    least, *others = sorted(times)
    return bool(others) and others[0] <= _AGREE * least


def preferred(seconds: Mapping[str, float], clearly: float = CLEARLY) -> str:
    """The fastest, or the first one if it is nearly as fast: noise must not decide."""
    first, best = next(iter(seconds)), min(seconds, key=lambda name: seconds[name])
    return best if seconds[best] < clearly * seconds[first] else first


def fastest(
    candidates: Sequence[str], measure: Measure, rounds: int = _ROUNDS
) -> tuple[str, dict[str, float]]:
    """The name of the fastest candidate, and the least seconds of each."""
    seconds = {name: min(times) for name, times in timed(candidates, measure, rounds).items()}
    return min(seconds, key=lambda name: seconds[name]), seconds


def timed(
    candidates: Sequence[str], measure: Measure, rounds: int = _ROUNDS, budget: float = math.inf
) -> dict[str, list[float]]:
    """The seconds of candidates, several times each.

    Rounds interleave all candidates in varying order, so that background load affects all of them.
    Measurement stops when the budget, in seconds, is spent; the first few candidates are always
    measured twice.
    """
    end = time.perf_counter() + budget
    times: dict[str, list[float]] = {}
    going = list(candidates)
    for n in range(rounds):
        for name in going:
            if (n < _TWICE and name in candidates[:_AT_LEAST]) or time.perf_counter() < end:
                times.setdefault(name, []).append(measure(name))
        if n + 1 >= _TWICE:
            least = min(map(min, times.values()))
            going = [name for name in going if min(times.get(name, [0.0])) <= _HOPELESS * least]
        going = going[1:] + going[:1]
    return times


def _read(choice: Choice | None, clearly: float = CLEARLY) -> Measured | None:
    """A cached measurement; None if missing or malformed."""
    if not isinstance(choice, dict):
        return None
    seconds, tried = choice.get("seconds"), choice.get("tried")
    if not isinstance(seconds, dict) or not isinstance(tried, list) or not seconds:
        return None
    times = {name: float(t) for name, t in seconds.items() if isinstance(t, int | float)}
    if len(times) < len(seconds):
        return None
    failed = choice.get("failed")
    why = {n: str(text) for n, text in failed.items()} if isinstance(failed, dict) else {}
    best = preferred(times, clearly)
    return Measured(best, times, tuple(map(str, tried)), failed=why, clearly=clearly)
