"""The target of docs/add_a_target.md, with smaller kernels, and loops that it runs by itself."""

from __future__ import annotations

import ctypes
import sys
import types

from tests.pages import A_TARGET, blocks
from weft.target import Limits, SequentialLaunches

page = types.ModuleType("toy_target")
sys.modules[page.__name__] = page  # where its class looks for its types
exec(compile(next(blocks(A_TARGET, "python"))[1], str(A_TARGET), "exec"), vars(page))


class ToyTarget(page.Toy):
    """Kernels of very few steps."""

    limits = Limits(steps=3, near=64, chain=2, row=64, rows=2, saved=1)

    def commands(self) -> Repeating:
        return Repeating(page.launch)


class Repeating(SequentialLaunches):
    """Kernels that can be the test of a loop."""

    def repeat(self, work: SequentialLaunches, verdict: int, moves: int, limit: int) -> int:
        for count in range(limit):
            self.run()
            if not ctypes.c_uint8.from_address(verdict).value:
                return count
            work.run()
            place = moves + 8
            for _ in range(ctypes.c_int64.from_address(moves).value):
                place = _moved(place)
        return limit


def _moved(place: int) -> int:
    """Let a value that is carried change places; where what is said of the next one begins."""
    word = ctypes.c_int64
    levels, buffers, number = (word * 3).from_address(place)
    now = (word * levels).from_address(place + 24)
    rooms = (word * buffers).from_address(place + 24 + 8 * levels)
    counts = (word * (levels + 1)).from_address(place + 24 + 8 * (levels + buffers))
    place_ = place + 24 + 8 * (2 * levels + buffers + 1)
    now[:] = [rooms[number], *now[:-1]]
    following = (number + 1) % buffers
    word.from_address(place + 16).value = following
    for address, count in zip([*now, rooms[following]], counts, strict=True):
        for operand in (word * count).from_address(place_):
            word.from_address(operand).value = address
        place_ += 8 * count
    return place_
