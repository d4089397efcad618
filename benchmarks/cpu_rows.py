"""What the CPU benchmarks have in common: a row of a table, and races that are fair.

A benchmark is a module with `rows(quick)`, which gives a `Row` for every case as it is measured.
The sides of a race take turns, round by round, so that whatever else the machine does hits all of
them alike. `race` runs functions of this process; `Runner` is a side in a process of its own, so
that thread pools do not get into each other's way. Where others work on the machine, too,
`use_busy` has all timed in seconds of the processor, of all threads, not by the wall clock.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "busy": time.process_time}
REST = 0.04  # seconds in which the threads of the side before stop looking for work
_chosen = "wall"


def use_busy() -> None:
    """Time in seconds of the processor from now on."""
    global _chosen
    _chosen = "busy"


def is_busy() -> bool:
    """Whether times are seconds of the processor."""
    return _chosen == "busy"


@dataclass(frozen=True, slots=True)
class Row:
    """One case: the seconds of Weft and of its peers, and what is asked of their ratio."""

    table: str  # the title of the table that it belongs to
    case: str  # what ran: "softmax bf16"
    shape: str  # on what: "1M", "4096x1024x1024", "8 devices"
    weft: float  # seconds, the median
    peers: Mapping[str, float] = field(default_factory=dict)  # the same of each peer
    goal: float = 1.0  # the least that the best peer's time over Weft's has to be
    goals: Mapping[str, float] = field(default_factory=dict)  # where it is another one for a peer
    bytes: float = 0.0  # that must be moved at least: shown as a rate if given
    flops: float = 0.0  # that must be done: shown as a rate if given
    note: str = ""
    unit: str = "s"  # what the numbers are: seconds, or bytes ("B")

    @property
    def ratio(self) -> float:
        """The best peer's time over Weft's; NaN if it has no peer."""
        return min(self.peers.values(), default=float("nan")) / self.weft

    @property
    def met(self) -> bool:
        """Whether the goals are reached."""
        wanted = {name: self.goals.get(name, self.goal) for name in self.peers}
        return all(self.peers[name] / self.weft >= goal for name, goal in wanted.items())


def race(
    sides: Mapping[str, Callable[[], object]], rounds: int = 9, seconds: float = 0.05
) -> dict[str, float]:
    """The median seconds of one call of each side; the sides take turns.

    A turn is as many calls as take about `seconds`, after a rest and a call that is not counted:
    threads of other pools look for more work for a while, and would take the processor away.
    """
    calls = {name: _calls(run, seconds) for name, run in sides.items()}
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, run in sides.items():
            time.sleep(REST)
            run()
            taken[name].append(timed(run, calls[name]))
    return {name: statistics.median(times) for name, times in taken.items()}


def timed(run: Callable[[], object], calls: int, clock: str | None = None) -> float:
    """Seconds of a call: the mean of some in a row."""
    now = CLOCKS[clock or _chosen]
    begin = now()
    for _ in range(calls):
        run()
    return (now() - begin) / calls


def _calls(run: Callable[[], object], seconds: float) -> int:
    """How many calls take about so long; running them warms up."""
    run()
    calls = 1
    # The first calls are slower than the rest: one of them says too little of a short one.
    while (once := timed(run, calls, "wall")) * calls < seconds / 8:
        calls *= 4
    return max(1, round(seconds / once))


class Ended(SystemExit):
    """A side's process has ended before its time."""

    def __init__(self, told: str, tree: Path) -> None:
        super().__init__(told)
        self.tree = tree


class Runner:
    """A side in a process of its own.

    `maker` names a function, such as "benchmarks.cpu_steps:jax_side". Called with `given` there, it
    returns the function to be timed, and facts (numbers, texts) about it: (run, facts). A function
    that times itself returns seconds by name, and has the fact `times_itself`. The packages `weft`,
    `tests` and `benchmarks` are those of `tree`.
    """

    def __init__(
        self, maker: str, given: Sequence[Any], env: Mapping[str, str] = {}, tree: Path = ROOT
    ) -> None:
        self.seconds, self.tree = 0.05, tree
        script = str(Path(__file__).resolve())
        line = [sys.executable, script, str(tree), maker, json.dumps(list(given))]
        self.process = subprocess.Popen(
            line,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": str(tree)} | dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.facts: dict[str, Any] = self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            raise Ended(f"{self.process.args!r} has ended", self.tree)
        return json.loads(line)

    def turn(self) -> Any:
        """The seconds of one call, the mean of a few; by name where the function times itself."""
        assert self.process.stdin is not None
        print(self.seconds, _chosen, file=self.process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def race_runners(sides: Mapping[str, Runner], rounds: int = 7) -> dict[str, float]:
    """The median seconds of one call of each side; the sides take turns."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            taken[name].append(side.turn())
    return {name: statistics.median(times) for name, times in taken.items()}


def _serve(maker: str, given: Sequence[Any]) -> None:
    """The other process: make a side, then answer every line with the seconds of a call."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # whatever is printed must not spoil the answers
        module, _, name = maker.partition(":")
        run, facts = getattr(importlib.import_module(module), name)(*given)
        calls: dict[str, int] = {}
        print(json.dumps(facts), file=answers, flush=True)
        for line in sys.stdin:
            seconds, clock = line.split()
            if facts.get("times_itself"):
                print(json.dumps(run()), file=answers, flush=True)
                continue
            if seconds not in calls:
                calls[seconds] = _calls(run, float(seconds))
            timed(run, 1 + calls[seconds] // 4)  # caches and clock rate after the others' turn
            print(timed(run, calls[seconds], clock), file=answers, flush=True)


if __name__ == "__main__":
    # `sides` is this folder's whatever the tree is; all other packages are the tree's.
    sys.path[:1] = [sys.argv[1]]
    sys.path.append(str(Path(__file__).resolve().parent))
    _serve(sys.argv[2], json.loads(sys.argv[3]))
