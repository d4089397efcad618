"""A loop: commands that run again and again until a test says no.

After every round, values that are carried change places. What says so is an array of numbers: how
many values there are, and for each of them a `Rotation`, followed by

    now       for each level, where what is read there is: on level 1 what was on level 0 a round
              before, and so on
    places    where it is written to
    counts    how many operands read it on each level, and how many write it
    operands  where the pointers to these are, in the same order
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from weft.emit.llvm.pool.run_commands import run
from weft.emit.llvm.pool.state import CommandHead, PoolState
from weft.native.function import native
from weft.native.memory import Items, Member, Pointer, Struct, i8, i32

RunFunction: TypeAlias = Callable[[Pointer, Pointer], i32]


class Rotation(Struct):
    """A value that changes places: for how many rounds it is read, and in how many places it is."""

    levels: Member[int]
    buffers: Member[int]
    next: Member[int]  # the place that the next round writes to, by number


@native
def repeat(
    pool: PoolState,
    test: CommandHead,
    body: CommandHead,
    verdict: Items[i8],
    moves: Items[int],
    limit: int,
) -> int:
    """Run the test, and while its verdict is not 0, the body; how many rounds there were.

    -1 if there was no memory. After `limit` rounds the test is left to the next call.
    """
    rounds = 0
    while rounds < limit:
        if run(pool, test) != 0:
            return -1
        if verdict[0] == 0:
            return rounds
        if run(pool, body) != 0:
            return -1
        at = moves.after(1)
        for _ in range(moves[0]):
            at = move(at)
        rounds += 1
    return rounds


@native
def move(at: Items[int]) -> Items[int]:
    """Let one value change places; where what is said of the next one begins."""
    value = Rotation(at)
    levels = value.levels
    buffers = value.buffers
    now = at.after(Rotation.SIZE // 8)
    places = now.after(levels)
    counts = places.after(buffers)
    operands = counts.after(levels + 1)
    level = levels - 1
    while level > 0:
        now[level] = now[level - 1]
        level -= 1
    now[0] = places[value.next]
    following = value.next + 1
    if following == buffers:
        following = 0
    value.next = following
    for number in range(levels + 1):
        place = places[following]
        if number < levels:
            place = now[number]
        count = counts[number]
        for n in range(count):
            Items[int](operands[n])[0] = place
        operands = operands.after(count)
    return operands
