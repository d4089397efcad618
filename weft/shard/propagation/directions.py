"""Allowed propagation directions of a node, round by round (Shardy's op priority)."""

from __future__ import annotations

from functools import lru_cache

from weft.ir.module import Node, Region, Value
from weft.ir.rule import Rule
from weft.ops.distributed.sharding import PropagationBarrier
from weft.ops.shape import BroadcastInDim, Reshape, Transpose
from weft.ops.slicing import DynamicSlice, DynamicUpdateSlice
from weft.shard.propagation.factors import BACKWARD, BOTH, FORWARD, NONE

ROUNDS = 5  # rounds of op priority
DirectionTable = tuple[tuple[int, ...], ...]  # for each round, for each factor

# By the number in sdy.propagation_barrier.
_BARRIER = {0: NONE, 1: FORWARD, 2: BACKWARD, 3: BOTH}


def directions(node: Node, rule: Rule, elementwise: bool) -> tuple[DirectionTable, DirectionTable]:
    """The directions in every round: if the node is the only user of its operands, and if not."""
    if isinstance(node.op, PropagationBarrier):
        allowed = _BARRIER[node.op.allowed_direction]
        table = ((allowed,) * len(rule.factors),) * ROUNDS
        return table, table
    second = _second_round(node, elementwise)
    broadcast = isinstance(node.op, BroadcastInDim)
    passes = tuple([None if f.blocked else f.role == "pass" for f in rule.factors])
    return _table(passes, second, second, broadcast), _table(passes, NONE, second, broadcast)


def _second_round(node: Node, elementwise: bool) -> int:
    """Whether a node propagates from the second round on: elementwise or data movement."""
    if elementwise or isinstance(node.op, Reshape | Transpose):
        return BOTH
    if isinstance(node.op, DynamicSlice | DynamicUpdateSlice):
        return FORWARD
    return NONE


@lru_cache(maxsize=4096)
def _table(
    passes: tuple[bool | None, ...], first: int, second: int, broadcast: bool
) -> DirectionTable:
    """The table of a rule, by whether each factor passes (None: blocked)."""
    # Shardy's order: data movement whose operand has no other use, then all data movement, then
    # the pass-through factors of every op, then all factors. A broadcast goes only backward until
    # the last round.
    third = BACKWARD if broadcast else BOTH
    rounds: list[tuple[int, ...]] = []
    for n in range(ROUNDS):
        row = []
        for passing in passes:
            allowed = first | (second if n >= 1 else NONE)
            if n >= 3 or (n == 2 and passing):
                allowed |= third
            if n >= 4:
                allowed = BOTH
            row.append(NONE if passing is None else allowed)
        rounds.append(tuple(row))
    return tuple(rounds)


def finds_unread(region: Region, counts: dict[Value, int]) -> bool:
    """Whether some node's results are all unused."""
    for node in region.nodes:
        for value in node.results:
            if value in counts:
                break
        else:
            return True
        for inner in node.regions:
            if finds_unread(inner, counts):
                return True
    return False
