"""What the kernels of a loop make in turns, and loops that run without Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.array.room import ROOM, address_of
from weft.ir.types import TensorType
from weft.run.code import Code, Item, Slots, Turn
from weft.run.target import Repeats

if TYPE_CHECKING:
    from weft.run.compile import Compiler

AT_ONCE = 1 << 12  # rounds that nothing interrupts


class Turning:
    """What a kernel of the body makes anew in every round, in one buffer or in two by turns."""

    def __init__(self, turn: Turn, loop: Item, compiler: Compiler) -> None:
        launches = compiler.launches
        assert launches is not None, "kernels of a target are launched"
        shape, type = loop.shapes[turn.index], loop.values[turn.index].type
        assert shape is not None and isinstance(type, TensorType), "kernels make tensors"
        self.shape, self.dtype, self.nbytes = shape, type.dtype.numpy, turn.nbytes
        self.slot, self.result, self.count = turn.slot, turn.result, turn.buffers
        self.offsets = turn.places
        self.held = compiler.new()  # the arrays, and their addresses
        self.read = launches.places.get(turn.slot, [])
        self.written = launches.places[turn.result]

    def begin(self, s: Slots) -> None:
        """Have memory for the rounds, and say where the first one writes."""
        held = s[self.held]
        if held is None:
            if self.offsets:
                arrays = [np.ndarray(self.shape, self.dtype, s[0], at) for at in self.offsets]
            else:
                new, size = ROOM.empty, self.nbytes
                arrays = [new(self.shape, self.dtype, size) for _ in range(self.count)]
            held = s[self.held] = [(array, address_of(array)) for array in arrays]
        s[self.result], address = held[0]
        for table, place in self.written:
            s[table][place] = address

    def go_on(self, s: Slots, count: int) -> None:
        """What a round has written is carried now, and the next one writes into the other buffer.

        With one buffer nothing changes after the first round.
        """
        held, last = s[self.held], count % self.count
        s[self.slot], address = held[last]
        for table, place in self.read:
            s[table][place] = address
        s[self.result], address = held[last - 1]
        for table, place in self.written:
            s[table][place] = address

    def end(self, s: Slots, count: int) -> None:
        """What is carried lies in the loop's memory, also where there was no round."""
        array, _ = s[self.held][(count - 1) % self.count if count else 0]
        if not count:
            array[...] = s[self.slot]
        s[self.slot] = array
        if not self.offsets:
            s[self.held] = None


def native_rounds(
    compiler: Compiler, test: Code, work: Code, turns: Sequence[Turning]
) -> Callable[[Slots], int] | None:
    """What runs all rounds of a loop in one call, and says how many there were; None if none can.

    Its test and its body are one call each, and the test's verdict has a fixed place.
    """
    launches = compiler.launches
    if launches is None or not isinstance(launches.target.commands(), Repeats):
        return None
    verdict = launches.arena.get(test.results[0])
    one, other = launches.alone_in(test), launches.alone_in(work)
    if verdict is None or one is None or other is None:
        return None
    held = compiler.new()  # what changes places, and where that is

    def rounds(s: Slots) -> int:
        if s[held] is None:
            s[held] = _moves(s, turns)
        moves, starts = s[held]
        for turn, start in zip(turns, starts, strict=True):
            (_, now), (_, following) = s[turn.held][0], s[turn.held][-1]
            moves[start], moves[start + 1] = now, following
        run: Callable[..., int] = s[one.commands].repeat
        rest = s[other.commands]
        said, where = address_of(s[0]) + verdict, address_of(moves)
        count = last = AT_ONCE
        while last == AT_ONCE:
            last = run(rest, said, where, AT_ONCE)
            count += last
        return count - AT_ONCE

    return rounds


def _moves(s: Slots, turns: Sequence[Turning]) -> tuple[np.ndarray[Any, Any], list[int]]:
    """What changes places after a round, as the target wants it, and where each value begins."""
    listed, starts = [len(turns)], []
    for turn in turns:
        starts.append(len(listed))
        listed += [0, 0, len(turn.read), len(turn.written)]
        for table, place in (*turn.read, *turn.written):
            listed.append(address_of(np.asarray(s[table])) + 8 * place)
    return np.array(listed, np.int64), starts
