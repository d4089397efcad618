"""Checks a memory plan by running a program in it, with a mark for each value instead of numbers.

Every byte of a device's memory holds the mark of the value that was written to it last. A node may
run only if each byte of its operands still holds their marks.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count

import numpy as np

from weft.ir.module import Module, Node, Region, Value
from weft.ops.control import AsyncDone, AsyncStart, Call, Case, If, While
from weft.ops.shape import Constant
from weft.ops.sharding import Computation
from weft.optimize.lifetimes import RENAMED, donation, leaves
from weft.optimize.memory_plan import MemoryPlan

Place = tuple[int, int]  # offset and size
Places = dict[Value, list[Place]]


_NESTED = (While, If, Case, Call, Computation)


class Memory:
    """A device's bytes."""

    def __init__(self, module: Module, size: int) -> None:
        self.module = module
        self.bytes = np.zeros(size, np.int64)
        self.marks = count(1)

    def write(self, places: list[Place]) -> list[int]:
        """Fill places with new marks."""
        made = []
        for offset, size in places:
            made.append(next(self.marks))
            self.bytes[offset : offset + size] = made[-1]
        return made

    def copy(self, marks: list[int], places: list[Place]) -> None:
        """Fill places with marks that there are."""
        for mark, (offset, size) in zip(marks, places, strict=True):
            self.bytes[offset : offset + size] = mark

    def holds(self, places: list[Place], marks: list[int]) -> bool:
        """Whether every byte of these places is as it was written."""
        return all(
            bool((self.bytes[offset : offset + size] == mark).all())
            for (offset, size), mark in zip(places, marks, strict=True)
        )


def check_plan(module: Module, plan: MemoryPlan) -> None:
    """Run a function in its planned memory."""
    memory = Memory(module, plan.peak)
    body = plan.function.body
    places = _places(plan, 0, {})
    marks = {v: memory.write(places[v]) for v in body.args}
    run = _Run(memory, plan, 0, places, marks)
    run.nodes(body)
    run.check(body.results, "the end")
    for index, value in enumerate(body.args):
        free, output = donation(plan.function, index)
        if not free:
            run.check((value,), "the end, where the caller still reads it")
        elif output is not None and output not in plan.copies:
            assert places[value] == places[body.results[output]], f"{value} is to hold a result"


def _places(plan: MemoryPlan, base: int, around: Mapping[Value, list[Place]]) -> Places:
    """Where the values of a plan are; a tuple's parts in the order of their buffers."""
    found: Places = {}
    for buffer in plan.buffers:
        for value in dict.fromkeys(buffer.values):
            if buffer.begin < len(plan.nodes) or value not in found:
                found.setdefault(value, []).append((base + buffer.offset, buffer.size))
    return {**around, **found}


class _Run:
    """One region that runs."""

    def __init__(
        self,
        memory: Memory,
        plan: MemoryPlan,
        base: int,
        places: Places,
        marks: dict[Value, list[int]],
    ) -> None:
        self.memory = memory
        self.plan = plan
        self.base = base
        self.places = places
        self.marks = marks
        self.inner = {b.begin: b for b in plan.buffers if b.kind == "inner"}
        self.flying: dict[Value, Node] = {}

    def check(self, values: tuple[Value, ...], where: object) -> None:
        """Every value is still what it was."""
        for value in values:
            assert self.memory.holds(self.places[value], self.marks[value]), f"{value} at {where}"

    def nodes(self, region: Region) -> None:
        """Run a region's nodes."""
        for node in region.nodes:
            if isinstance(node.op, Constant) and not node.op.value.is_splat:
                self.marks[node.results[0]] = self.memory.write(self.places[node.results[0]])
        for at, node in enumerate(region.nodes):
            self.check(node.operands, node)
            if isinstance(node.op, _NESTED):
                self.nested(node, at)
                continue
            if isinstance(node.op, AsyncStart):
                self.flying[node.results[0]] = node
            if isinstance(node.op, AsyncDone):
                self.check(self.flying[node.operands[0]].operands, f"{node}, in flight")
                held = iter(self.marks[node.operands[0]])
                for value in node.results:
                    self.marks[value] = [next(held) for _ in leaves(value.type)]
            elif isinstance(node.op, RENAMED):
                for value, operand in zip(node.results, node.operands, strict=True):
                    self.marks[value] = self.marks[operand]
                    self.places.setdefault(value, self.places[operand])
            elif not isinstance(node.op, Constant) or node.op.value.is_splat:
                for value in node.results:
                    self.marks[value] = self.memory.write(self.places[value])
            self.check(node.results, node)

    def nested(self, node: Node, at: int) -> None:
        """Run what is inside a node."""
        regions = list(node.regions)
        given: list[Value] = list(node.operands)
        if isinstance(node.op, Call):
            regions = [self.memory.module.function(node.op.callee).body]
        buffer = self.inner.get(at)
        plans = buffer.inner if buffer else (None,) * len(regions)
        base = self.base + (buffer.offset if buffer else 0)
        if isinstance(node.op, While):
            for value, operand in zip(node.results, node.operands, strict=True):
                self.memory.copy(self.marks[operand], self.places[value])
                self.marks[value] = self.marks[operand]
            given = list(node.results)
        rounds = 2 if isinstance(node.op, While) else 1
        for _ in range(rounds):
            for number, (region, plan) in enumerate(zip(regions, plans, strict=True)):
                hands_on = not (isinstance(node.op, While) and number == 0)
                self.region(node, region, plan, base, given, hands_on)
        self.check(node.results, node)

    def region(
        self,
        node: Node,
        region: Region,
        plan: MemoryPlan | None,
        base: int,
        given: list[Value],
        hands_on: bool,
    ) -> None:
        """Run a region of a node, its results in the places of the node's."""
        if plan is None:  # it needs no bytes of its own: plan it again to see where its values are
            from weft.optimize.plan_memory import _Planner

            planner = _Planner(self.memory.module)
            carries = isinstance(node.op, While) and hands_on
            plan = planner.inner(self.plan.function, region, carries=carries, gives=hands_on)
        places = _places(plan, base, self.places)
        for row in plan.outside:
            home = given[row.index] if row.place == "argument" else node.results[row.index]
            places.setdefault(row.value, []).append(self.places[home][row.leaf])
        marks = dict(self.marks)
        for value, outer in zip(region.args, given, strict=False):
            marks[value] = self.marks[outer]
        run = _Run(self.memory, plan, base, places, marks)
        run.nodes(region)
        run.check(region.results, "the end of a region")
        if hands_on:
            for value, result in zip(node.results, region.results, strict=True):
                self.memory.copy(run.marks[result], self.places[value])
                self.marks[value] = run.marks[result]
