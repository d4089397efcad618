"""Short runs: kernels that run under Python's lock, and whose loops may not take long there."""

from __future__ import annotations

from weft.native.memory import Member, Pointer, Struct


class ShortRun(Struct):
    """The state of the one short run of a process; the thread that starts it holds the GIL."""

    thread: Member[Pointer]  # where it runs, null if there is none
    unfinished: Member[int]  # whether a loop ended because it took too long
