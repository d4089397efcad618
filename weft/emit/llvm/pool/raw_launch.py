"""Raw launch handles: kernels that native code runs without Python."""

from __future__ import annotations

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class RawLaunch:
    """Handles for native code to run commands in its own thread, without Python."""

    run: int  # function address; takes state and commands, returns 0 on success
    state: int
    commands: int
    pointers: int  # address of the operand table
    keep: object  # keeps the code and its memory alive
    short_run: int = 0  # address of the state of short runs, if loops may take too long for one
