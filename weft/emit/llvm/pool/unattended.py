"""Kernels that native code runs by itself, without Python."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Unattended:
    """Commands as native code runs them in its own thread, without Python."""

    run: int  # the address of a function; it takes the next two, and answers 0 if all went well
    state: int
    commands: int
    pointers: int  # where the addresses of all operands are
    keep: object  # what must live as long as they may run
