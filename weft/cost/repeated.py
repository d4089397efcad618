"""Repeated layers of an unrolled program, and the program with fewer of them.

A model of 32 equal layers is 32 times the same nodes, forwards, backwards and in the optimizer.
Costs grow linearly with the layers: those of all follow from programs with one and with two.
Layers are found as a period in the list of nodes, without names of arguments, which files of
StableHLO may lack; `weft.planner.repeats` finds them by these names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from weft.ir.module import Function, Module, Node, Region, Value
from weft.ir.uses import free_variables
from weft.ops.control import Call
from weft.records import dataclass

_LEAST = 5  # repetitions of a run; fewer are not worth the trouble
_PERIODS = 24  # the candidates of periods that are tried
_SHARE = 0.3  # of a function's nodes that its runs must cover


@dataclass(frozen=True, slots=True)
class RepeatedRun:
    """A run of nodes that repeats: its first node, its period, and its repetitions."""

    start: int
    period: int
    count: int
    first: int = 0  # the first repetition that is cut

    @property
    def stop(self) -> int:
        """The end of the last whole repetition."""
        return self.start + self.period * self.count

    def repetition(self, position: int) -> int | None:
        """The repetition of a node, if it is in the run."""
        inside = self.start <= position < self.stop
        return (position - self.start) // self.period if inside else None


@dataclass(frozen=True, slots=True)
class Repeated:
    """A program with repeated layers: its runs in the main function."""

    module: Module
    runs: tuple[RepeatedRun, ...]

    @property
    def count(self) -> int:
        """The repetitions that all runs have."""
        return min(run.count for run in self.runs)

    def with_layers(self, kept: int) -> Module:
        """The program with so many repetitions of each run; the others are cut out."""
        return _Cut(self, self.count - kept).module()


def repeated_layer_runs(module: Module) -> Repeated | None:
    """The repeated layers of a program's main function; None if there are none worth cutting."""
    main = module.functions.get("main")
    if main is None or module.tables:
        return None
    candidates = _runs(_numbered(module, main))
    if not candidates:
        return None
    # The runs of one stack of layers have the same count, but for one at their ends.
    counts = Counter[int]()
    for run in candidates:
        for near in (run.count - 1, run.count, run.count + 1):
            counts[near] += run.period * run.count
    most = max(counts, key=lambda count: (counts[count], count))
    runs = tuple(run for run in candidates if abs(run.count - most) <= 1)
    covered = sum(run.period * run.count for run in runs)
    if covered < _SHARE * len(main.body.nodes):
        return None
    return Repeated(module, runs)


def _numbered(module: Module, main: Function) -> npt.NDArray[np.int64]:
    """A number for each node: equal ones for nodes that differ in their operands only."""
    keys = _Keys(module)
    attrs = main.arg_attrs or ((),) * len(main.body.args)
    outside = dict(zip(main.body.args, attrs, strict=True))
    numbers: list[int] = []
    for node in main.body.nodes:
        attributes = tuple([outside.get(value) for value in node.operands])
        numbers.append(keys.number((keys.node(node), attributes)))
    return np.array(numbers, np.int64)


class _Keys:
    """Equality keys of nodes and functions: what they compute, whatever their operands."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self.numbers: dict[Hashable, int] = {}
        self.functions: dict[str, int] = {}

    def number(self, key: Hashable) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def node(self, node: Node) -> Hashable:
        op: Hashable = node.op
        if isinstance(node.op, Call):
            op = ("call", self.function(node.op.callee))
        regions = tuple([self.region(region) for region in node.regions])
        return op, node.operand_types, node.types, node.attrs, regions

    def region(self, region: Region) -> int:
        places: dict[Value, int] = {value: n for n, value in enumerate(region.args)}
        listed: list[Hashable] = []
        for node in region.nodes:
            listed.append((self.node(node), tuple([places.get(v, -1) for v in node.operands])))
            for value in node.results:
                places[value] = len(places)
        results = tuple([places.get(v, -1) for v in region.results])
        types = tuple([value.type for value in region.args])
        return self.number(("region", tuple(listed), results, types))

    def function(self, name: str) -> int:
        if name not in self.functions:
            self.functions[name] = -1  # recursion
            body = self.module.functions[name]
            key = ("function", self.region(body.body), body.arg_attrs, body.res_attrs)
            self.functions[name] = self.number(key)
        return self.functions[name]


def _runs(numbers: npt.NDArray[np.int64]) -> list[RepeatedRun]:
    """Disjoint runs, in order; those that cover most nodes are chosen first."""
    candidates: list[RepeatedRun] = []
    for period in _periods(numbers):
        # A run is a stretch in which every node equals the one a period before it.
        same = np.concatenate(([False], numbers[period:] == numbers[:-period], [False]))
        edges = np.flatnonzero(same[1:] != same[:-1])
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            count = int(end - begin) // period + 1
            if count >= _LEAST:
                candidates.append(RepeatedRun(int(begin), period, count))
    repeated_runs: list[RepeatedRun] = []
    for run in sorted(candidates, key=lambda r: (-r.period * r.count, r.period)):
        if all(run.stop <= other.start or other.stop <= run.start for other in repeated_runs):
            repeated_runs.append(run)
    return sorted(repeated_runs, key=lambda r: r.start)


def _periods(numbers: npt.NDArray[np.int64]) -> list[int]:
    """The most frequent distances between equal nodes."""
    order = np.lexsort((np.arange(len(numbers)), numbers))
    listed = numbers[order]
    gaps = np.diff(order)[listed[1:] == listed[:-1]]
    distances, counts = np.unique(gaps, return_counts=True)
    # By the nodes that a period may cover: layers are long, and ops inside of them repeat too.
    weight = counts * distances
    best = np.argsort(-weight, kind="stable")[:_PERIODS]
    return [int(distances[n]) for n in best if counts[n] >= _LEAST - 1]


class _Cut:
    """Cuts the same number of repetitions out of every run."""

    def __init__(self, repeated: Repeated, cut: int) -> None:
        self.whole, self.cut = repeated.module, cut
        self.main = repeated.module.function("main")
        self.nodes = self.main.body.nodes
        self.places = {v: n for n, node in enumerate(self.nodes) for v in node.results}
        self.runs = self._aligned(repeated.runs)

    def module(self) -> Module:
        """The program without the repetitions, and without arguments that only they read."""
        became: dict[Value, Value] = {}
        nodes: list[Node] = []
        for position, node in enumerate(self.nodes):
            if self._is_cut(position):
                continue
            operands = tuple([self._kept_value(v, position) for v in node.operands])
            operands = tuple([became.get(v, v) for v in operands])
            if operands != node.operands:
                assert not node.regions or not any(v in became for v in free_variables(node)), (
                    "captured"
                )
                rebuilt = node.rebuilt(operands, node.regions)
                became.update(zip(node.results, rebuilt.results, strict=True))
                node = rebuilt
            nodes.append(node)
        return self._with(nodes, became)

    def _with(self, nodes: list[Node], became: dict[Value, Value]) -> Module:
        body, main = self.main.body, self.main
        read = {v for node in nodes for v in (*node.operands, *free_variables(node))}
        results = [
            n for n, v in enumerate(body.results) if not self._is_cut(self.places.get(v, -1))
        ]
        read |= {body.results[n] for n in results}
        args = [n for n, value in enumerate(body.args) if value in read]
        arguments = tuple([body.args[n] for n in args])
        outputs = tuple([became.get(body.results[n], body.results[n]) for n in results])
        locs = tuple([body.arg_locs[n] for n in args])
        region = Region(arguments, nodes, outputs, body.loc, locs)
        function = main.restricted(region, args, results)
        return self.whole.with_functions({**self.whole.functions, main.name: function})

    def _run(self, position: int) -> RepeatedRun | None:
        return next((run for run in self.runs if run.start <= position < run.stop), None)

    def _is_cut(self, position: int) -> bool:
        run = self._run(position)
        if run is None:
            return False
        repetition = (position - run.start) // run.period
        return run.first <= repetition < run.first + self.cut

    def _kept_value(self, value: Value, reader: int) -> Value:
        """The value itself, or the one in its place in a repetition that is kept."""
        position = self.places.get(value, -1)
        if not self._is_cut(position):
            return value
        run = self._run(position)
        assert run is not None
        repetition = (position - run.start) // run.period
        kept = run.first - 1
        if run.start <= reader < run.stop:  # the distance in a run stays
            kept = max(0, min(kept, repetition - self.cut))
        moved = position - (repetition - kept) * run.period
        return self.nodes[moved].results[value.index]

    def _aligned(self, runs: Sequence[RepeatedRun]) -> tuple[RepeatedRun, ...]:
        """The runs with the repetitions to cut: those of the same layers in all of them."""
        aligned: list[RepeatedRun] = []
        for run in runs:
            first = (run.count - self.cut) // 2
            for other in reversed(aligned):
                found = self._first_like(run, other)
                if found is not None:
                    first = found
                    break
            first = max(1, min(first, run.count - self.cut))
            aligned.append(replace(run, first=min(first, run.count - self.cut)))
        return tuple(aligned)

    def _first_like(self, run: RepeatedRun, other: RepeatedRun) -> int | None:
        """The first repetition to cut so that it reads those that are cut of another run."""
        pairs: Counter[tuple[int, int]] = Counter()
        for position in range(run.start, run.stop):
            for value in self.nodes[position].operands:
                there = other.repetition(self.places.get(value, -1))
                if there is not None:
                    pairs[(position - run.start) // run.period, there] += 1
        if len(pairs) < self.cut:
            return None
        # A forward run pairs its layer n with n + shift of another, a backward one with total - n.
        forwards = Counter[int]()
        backwards = Counter[int]()
        for (here, there), count in pairs.items():
            forwards[here - there] += count
            backwards[here + there] += count
        (shift, direct), (total, mirrored) = (
            max(found.items(), key=lambda item: item[1]) for found in (forwards, backwards)
        )
        if direct >= mirrored:
            return other.first + shift
        return total - other.first - self.cut + 1
