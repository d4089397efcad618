"""A native loop: launch queues of test and body, and rotating buffers of carried values.

The table of buffers is an array of words: the number of values, and for each a `Rotation`,
followed by

    now       the address read at each level: level 1 is level 0 of the previous round, and so on
    places    the addresses written, in turn
    counts    the number of operands that read each level, and of those that write
    operands  the addresses of these operands' pointers, in the same order
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
    """A carried value: the number of rounds it is read for, and its number of buffers."""

    levels: Member[int]
    buffers: Member[int]
    next: Member[int]  # the buffer that the next round writes


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
    # The limit bounds the time without Python: signal handlers run between two calls.
    while rounds < limit:
        if run(pool, test) != 0:
            return -1
        # Written by the test's last kernel in this very call; no order is needed beyond the
        # launch's own.
        if verdict[0] == 0:
            return rounds
        # The test comes first, as in StableHLO's while: a loop may have no round at all.
        if run(pool, body) != 0:
            return -1
        # The first word is the number of values; their entries have different lengths, so `move`
        # returns where the next one begins.
        at = moves.after(1)
        for _ in range(moves[0]):
            at = move(at)
        rounds += 1
    return rounds


@native
def move(at: Items[int]) -> Items[int]:
    """Rotate the buffers of one value; the table entry of the next one."""
    value = Rotation(at)
    levels = value.levels
    buffers = value.buffers
    now = at.after(Rotation.SIZE // 8)
    places = now.after(levels)
    counts = places.after(buffers)
    operands = counts.after(levels + 1)
    # Backwards, since level n takes what level n - 1 was before this round.
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
        # The operands behind the last level are those that write: they get the buffer of the next
        # round.
        place = places[following]
        if number < levels:
            place = now[number]
        count = counts[number]
        for n in range(count):
            Items[int](operands[n])[0] = place
        operands = operands.after(count)
    return operands
