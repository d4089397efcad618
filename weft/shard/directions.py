"""In which direction shardings may spread through a node, round by round (Shardy's op priority)."""

from __future__ import annotations

from weft.ir.module import Node, Region, Value
from weft.ir.rule import Rule
from weft.ops.shape import BroadcastInDim, Reshape, Transpose
from weft.ops.sharding import PropagationBarrier
from weft.ops.slicing import DynamicSlice, DynamicUpdateSlice
from weft.shard.factors import BACKWARD, BOTH, FORWARD, NONE

ROUNDS = 5  # of op priority
Table = tuple[tuple[int, ...], ...]  # for each round, for each factor

_BARRIER = {0: NONE, 1: FORWARD, 2: BACKWARD, 3: BOTH}


def directions(node: Node, rule: Rule, elementwise: bool) -> tuple[Table, Table]:
    """The directions for every round: where the node alone reads its operands, and elsewhere."""
    if isinstance(node.op, PropagationBarrier):
        allowed = _BARRIER[node.op.allowed_direction]
        table = ((allowed,) * len(rule.factors),) * ROUNDS
        return table, table
    second = _second_round(node, elementwise)
    broadcast = isinstance(node.op, BroadcastInDim)
    return _table(rule, second, second, broadcast), _table(rule, NONE, second, broadcast)


def _second_round(node: Node, elementwise: bool) -> int:
    """Elementwise ops and those that only move elements pass shardings on."""
    if elementwise or isinstance(node.op, Reshape | Transpose):
        return BOTH
    if isinstance(node.op, DynamicSlice | DynamicUpdateSlice):
        return FORWARD
    return NONE


def _table(rule: Rule, first: int, second: int, broadcast: bool) -> Table:
    third = BACKWARD if broadcast else BOTH
    rounds: list[tuple[int, ...]] = []
    for n in range(ROUNDS):
        row = []
        for factor in rule.factors:
            allowed = first | (second if n >= 1 else NONE)
            if n >= 3 or (n == 2 and factor.role == "pass"):
                allowed |= third
            if n >= 4:
                allowed = BOTH
            row.append(NONE if factor.blocked else allowed)
        rounds.append(tuple(row))
    return tuple(rounds)


def use_counts(region: Region) -> dict[Value, int]:
    """How often each value of a function is read, by nodes and by returns."""
    counts: dict[Value, int] = {}
    ahead = [region]
    while ahead:
        now = ahead.pop()
        for node in now.nodes:
            for value in node.operands:
                counts[value] = counts.get(value, 0) + 1
            if node.regions:
                ahead.extend(node.regions)
        for value in now.results:
            counts[value] = counts.get(value, 0) + 1
    return counts


def finds_unread(region: Region, counts: dict[Value, int]) -> bool:
    """Whether some node makes only values that nobody reads."""
    for node in region.nodes:
        results = node.results
        if len(results) == 1 and results[0] in counts:
            continue
        if not any(v in counts for v in results):
            return True
    return any(finds_unread(inner, counts) for node in region.nodes for inner in node.regions)
