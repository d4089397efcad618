"""Short runs: kernels that run under the GIL, and whose loops give up if they take too long."""

from __future__ import annotations

from weft.native.memory import Member, Pointer, Struct

UNFINISHED, LATE = 1, 2  # why a short run did not finish: its work, or that of another process


class ShortRun(Struct):
    """The state of the one short run of a process; the thread that starts it holds the GIL."""

    thread: Member[Pointer]  # the thread that runs it; null without a run
    unfinished: Member[int]  # 0 if it has finished, else why not
    limit: Member[int]  # nanoseconds after its first check for which a loop may go on
