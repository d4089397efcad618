"""What fills the slots that are asked for once a program computes: the compiler and its runtime.

`jax.devices()` does not need it, and it takes longer to import than all the rest.
"""

from __future__ import annotations

from weft.array.stream import around_calls
from weft.jax import buffers, events, executables, executing, extensions, facts, transfers
from weft.jax.interrupts import Shield

PARTS = (buffers, events, executables, executing, extensions, facts, transfers)


def connect(shield: Shield) -> None:
    """Let a second signal through while a program calls a function of the user's."""
    around_calls(shield.lowered)
