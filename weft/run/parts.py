"""Profiling: the kernels and host nodes of a run, with their times."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from weft.array.stacked import Stacked
from weft.executable.items import Done, Host, Launch, Move
from weft.ir.module import Node
from weft.kernels.group import Group
from weft.records import dataclass
from weft.run.bind import all_codes, loaded_kernels
from weft.run.code import SlotStep, SlotValues
from weft.run.execute import run
from weft.run.local import LocalProgram
from weft.run.separate import SeparateKernel, SeparateTarget
from weft.target import Addresses

ROUNDS = 7  # odd: one of them is the median


@dataclass(frozen=True, slots=True)
class Part:
    """A kernel with its nodes, or a host node; seconds and launches of one run."""

    node: Node
    group: Group | None
    runs: int = 1  # more inside a loop
    seconds: float | None = None


def parts_of(program: LocalProgram) -> list[Part]:
    """The parts of a program, each once."""
    return [Part(node_of(item), group_of(item)) for item, _ in _items(program)]


def measured_parts(program: LocalProgram, arguments: Sequence[Any]) -> tuple[list[Part], float]:
    """The parts with their times in the median of several runs, and that run's total.

    Every kernel is a separate native call here, which adds some microseconds.
    """
    clock = _Clock()
    calls = program.calls
    runtime = (
        None if calls is None else SeparateTarget(program.target or calls.target, clock.launch)
    )
    timed = _TimedProgram(program.tiled, program.plan, program.host, runtime=runtime)
    items = _items(timed)
    for code in all_codes(timed.code):
        code.steps = [
            clock.around(step, id(unit)) if isinstance(unit, Host | Done | Move) else step
            for step, unit in zip(code.steps, code.units, strict=True)
        ]
    rounds: list[tuple[float, dict[int, list[float]]]] = []
    for _ in range(1 + ROUNDS):
        clock.times = defaultdict(list)
        for result in run(timed, *arguments):
            result.wait()
        rounds.append((timed.seconds, clock.times))
    # The first run warms up. Of the others, report the median run: its parts add up to its total.
    whole, times = sorted(rounds[1:], key=lambda one: one[0])[ROUNDS // 2]
    alike = Counter(key for _, key in items)  # several launches may share a kernel
    parts = [
        Part(
            node_of(item),
            group_of(item),
            len(times[key]) // alike[key],
            sum(times[key]) / alike[key],
        )
        for item, key in items
    ]
    return parts, whole


class _TimedProgram(LocalProgram):
    """A program that records the time of its latest run, without argument conversion."""

    seconds = 0.0

    def __call__(self, *stacks: Stacked | None) -> tuple[Stacked, ...]:
        begin = time.perf_counter()
        results = super().__call__(*stacks)
        self.seconds = time.perf_counter() - begin
        return results


def _items(program: LocalProgram) -> list[tuple[Launch | Host, int]]:
    """Every launch and host node, with its timing key."""
    launches: list[tuple[Launch | Host, int]] = [
        (launch, id(loaded.own if isinstance(loaded, SeparateKernel) else loaded))
        for launch, loaded in (loaded_kernels(program.calls) if program.calls else ())
    ]
    return launches + [(host, id(host)) for host in hosts_of(program)]


def hosts_of(program: LocalProgram) -> list[Host]:
    """The host nodes."""
    units = [unit for code in all_codes(program.code) for unit in code.units]
    # Results that alias operands are views, and take no time.
    return [u for u in units if isinstance(u, Host) and not u.traits.shares]


def group_of(item: Launch | Host) -> Group | None:
    """The nodes of a launch."""
    return item.group if isinstance(item, Launch) else None


def node_of(item: Launch | Host) -> Node:
    """The host node, or a launch's last node."""
    assert item.node is not None, "a program that was compiled here knows its nodes"
    return item.node


class _Clock:
    """Times of the current run, by key."""

    def __init__(self) -> None:
        self.times: defaultdict[int, list[float]] = defaultdict(list)

    def time(self, key: int, run: Callable[[], None]) -> None:
        begin = time.perf_counter()
        run()
        self.times[key].append(time.perf_counter() - begin)

    def launch(self, loaded: SeparateKernel, _: Addresses, run: Callable[[], None]) -> None:
        """Time a launch."""
        self.time(id(loaded.own), run)

    def around(self, step: SlotStep, key: int) -> SlotStep:
        """A timed step."""

        def timed(slots: SlotValues) -> None:
            self.time(key, lambda: step(slots))

        return timed
