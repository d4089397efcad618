"""Which of several ways is the fastest: measured in turns, and remembered by machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from weft.cache.choices import Choice, remember, remembered

_HOPELESS = 2.0  # times the best one, after two rounds: such a candidate is measured no more
_CLEARLY = 0.97  # of the first one's time: who takes more than that has not beaten it
_AGREE = 1.15  # times the least time: a second one below that confirms it
_ROUNDS, _TWICE = 7, 2
_MORE = 8  # times that a candidate may be measured again until two of its times agree
_AT_LEAST = 3  # candidates that are measured twice, however long they take

Measure: TypeAlias = Callable[[str], float]  # runs a candidate once, and gives seconds


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured for a class of shapes: the least seconds of candidates, in their order."""

    best: str
    seconds: dict[str, float]
    tried: tuple[str, ...]  # all candidates, those included for which there was no time
    busy: bool = False  # so that nothing could be found out

    def best_of(self, can_be_had: Callable[[str], bool]) -> str | None:
        """The fastest of those that can be had here; the first one, if none is clearly faster."""
        left = {name: took for name, took in self.seconds.items() if can_be_had(name)}
        return preferred(left) if left else None


def known(kind: str, machine: str, shape_class: str, *, counted: bool = True) -> Measured | None:
    """What an earlier run on a machine has measured; `counted` if a miss is worth telling."""
    return _read(remembered(kind, machine, shape_class, counted=counted))


def tune(
    kind: str,
    machine: str,
    shape_class: str,
    candidates: Sequence[str],
    ready: Callable[[], Measure],
    budget: float = math.inf,
) -> Measured:
    """The least seconds of candidates, from an earlier run on this machine or measured now.

    What `ready` makes runs a candidate once and gives seconds. What was not there when the others
    were measured may be faster than they: then all are measured again. What a busy machine gives
    is not remembered, and then the first candidate is the one.
    """
    assert candidates, "one of none cannot be chosen"
    if len(candidates) == 1:
        return Measured(candidates[0], {}, tuple(candidates))
    before = known(kind, machine, shape_class)
    if before is not None and {*candidates} <= {*before.tried}:
        return before
    measure = ready()
    times = timed(candidates, measure, budget=budget)
    for _ in range(_MORE):
        seconds = {name: min(times[name]) for name in candidates if name in times}
        best = preferred(seconds)
        unsettled = [name for name in (candidates[0], best) if not is_settled(times[name])]
        if not unsettled:
            break
        for name in unsettled:
            times[name].append(measure(name))
    else:
        return Measured(candidates[0], {}, tuple(candidates), busy=True)
    made = Measured(best, seconds, tuple(candidates))
    told: Choice = {"best": best, "seconds": {**seconds}, "tried": [*candidates]}
    remember(kind, machine, shape_class, told)
    return made


def is_settled(times: Sequence[float]) -> bool:
    """Whether the two least times agree: on a busy machine hardly any two do."""
    least, *others = sorted(times)
    return bool(others) and others[0] <= _AGREE * least


def preferred(seconds: Mapping[str, float]) -> str:
    """The fastest, or the first one where that is nearly as fast: noise must not decide."""
    first, best = next(iter(seconds)), min(seconds, key=lambda name: seconds[name])
    return best if seconds[best] < _CLEARLY * seconds[first] else first


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

    The rounds go over all candidates, each time in another order, so that a moment in which the
    machine is busy meets all of them. When the budget is spent, in seconds, nothing more is
    measured; the first few candidates are, twice, in any case.
    """
    end = time.perf_counter() + budget
    found: dict[str, list[float]] = {}
    going = list(candidates)
    for n in range(rounds):
        for name in going:
            if (n < _TWICE and name in candidates[:_AT_LEAST]) or time.perf_counter() < end:
                found.setdefault(name, []).append(measure(name))
        if n + 1 >= _TWICE:
            least = min(map(min, found.values()))
            going = [name for name in going if min(found.get(name, [0.0])) <= _HOPELESS * least]
        going = going[1:] + going[:1]
    return found


def _read(choice: Choice | None) -> Measured | None:
    """What was remembered; None if there is nothing, or nothing that can be understood."""
    if not isinstance(choice, dict):
        return None
    seconds, tried = choice.get("seconds"), choice.get("tried")
    if not isinstance(seconds, dict) or not isinstance(tried, list) or not seconds:
        return None
    times = {name: float(t) for name, t in seconds.items() if isinstance(t, int | float)}
    if len(times) < len(seconds):
        return None
    return Measured(preferred(times), times, tuple(map(str, tried)))
