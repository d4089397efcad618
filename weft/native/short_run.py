"""Short runs: kernels that run under the GIL, and whose loops give up if they take too long."""

from __future__ import annotations

from weft.native.memory import Member, Pointer, Struct


class ShortRun(Struct):
    """The state of the one short run of a process; the thread that starts it holds the GIL."""

    thread: Member[Pointer]  # the thread that runs it; null without a run
    unfinished: Member[int]  # whether a loop ended because it took too long
    limit: Member[int]  # nanoseconds after its first check for which a loop may go on
