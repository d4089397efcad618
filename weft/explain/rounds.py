"""Loops whose rounds are independent but for sums, as micro-batches are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

from weft.cost.trips import trips
from weft.explain.findings import SendWarning, line_text
from weft.explain.state import CARRIES
from weft.ir.location import Location
from weft.ir.module import Module, Node, Region, Value, walk
from weft.ir.types import TensorType
from weft.ir.uses import free_variables
from weft.ops.control import Call, While
from weft.ops.elementwise.pointwise import Add
from weft.ops.scatter import Scatter
from weft.ops.slicing import DynamicUpdateSlice
from weft.records import dataclass

_WAITS = 0.1  # the share of a step from which waiting in a loop is worth a warning
# The dependence of a value on earlier rounds: none, a carried sum, or any.
Past: TypeAlias = Literal["nothing", "anything"] | int


@dataclass(frozen=True, slots=True)
class Rounds:
    """A loop that fewer rounds on larger batches could replace."""

    loc: Location
    count: int
    lines: frozenset[object]  # of its ops


def independent_rounds(module: Module) -> Iterator[Rounds]:
    """Loops that add up what their rounds compute, or put it side by side."""
    for function in module.functions.values():
        for node in walk(function.body):
            count = trips(node) if isinstance(node.op, While) else None
            if count is None or count < 2 or not _only_adds(module, node):
                continue
            yield Rounds(node.loc, count, frozenset(_lines(module, node.regions[1])) - {None})


def small_rounds(
    module: Module, waits: Sequence[tuple[object, int, float]]
) -> Iterator[SendWarning]:
    """Loops over micro-batches that mostly wait.

    `waits` are lines of collectives, how often they run, and the share of a step that compute waits
    for them.
    """
    for rounds in independent_rounds(module):
        share = sum(
            waited for line, times, waited in waits
            if line in rounds.lines and times >= rounds.count
        )  # fmt: skip
        if share > _WAITS:
            yield SendWarning(
                "micro-batches",
                f"{line_text(rounds.loc)}: the {rounds.count} rounds of this loop only add up, and "
                f"compute waits for their collectives in {share:.0%} of the step: fewer rounds of "
                "larger batches send less often, and memory has room for them",
                rounds.loc,
            )


def _lines(module: Module, body: Region) -> Iterator[object]:
    for node in walk(body):
        yield node.loc.line
        if isinstance(node.op, Call):
            yield from _lines(module, module.function(node.op.callee).body)


def _only_adds(module: Module, loop: Node) -> bool:
    """Whether every carried value is an invariant, a number, or a sum of what rounds compute."""
    body, sums = loop.regions[1], 0
    past: list[Past] = []
    for n, (before, after) in enumerate(zip(body.args, body.results, strict=True)):
        is_sum = before is not after and isinstance(before.type, TensorType) and before.type.rank
        past.append(n if is_sum else "nothing")
        sums += bool(is_sum)
    kept = _flow(module, body, past)
    return sums > 0 and all(k == p for k, p in zip(kept, past, strict=True))


def _flow(module: Module, body: Region, args: Sequence[Past]) -> list[Past]:
    """The dependence of a block's results on earlier rounds, by that of its arguments."""
    past: dict[Value, Past] = dict(zip(body.args, args, strict=True))
    for node in body.nodes:
        held = [past.get(value, "nothing") for value in node.operands]
        free = free_variables(node) if node.regions else ()
        held += [past.get(value, "nothing") for value in free]
        if all(p == "nothing" for p in held):
            continue
        if isinstance(node.op, Call):
            made = _flow(module, module.function(node.op.callee).body, held[: len(node.operands)])
        else:
            made = [_changed(node, held)] * len(node.results)
        past.update(zip(node.results, made, strict=True))
    return [past.get(value, "nothing") for value in body.results]


def _changed(node: Node, held: Sequence[Past]) -> Past:
    sums = [p for p in held if p != "nothing"]
    if len(sums) == 1:
        is_updated = isinstance(node.op, DynamicUpdateSlice | Scatter) and held[0] != "nothing"
        if isinstance(node.op, Add) or is_updated or node.op.name in CARRIES:
            return sums[0]
    return "anything"
