"""What fills the slots that are asked for once a program computes: the compiler and its runtime.

`jax.devices()` does not need it, and it takes longer to import than all the rest.
"""

from __future__ import annotations

from weft.array.stream import around_calls
from weft.jax.buffers import buffers, events, transfers
from weft.jax.patches.interrupts import Shield
from weft.jax.programs import executables, executing
from weft.jax.questions import extensions, facts

SLOTS = (
    *buffers.SLOTS,
    *events.SLOTS,
    *transfers.SLOTS,
    *executables.SLOTS,
    *executing.SLOTS,
    *extensions.SLOTS,
    *facts.SLOTS,
)


def connect(shield: Shield) -> None:
    """Let a second signal through while a program calls a function of the user's."""
    around_calls(shield.lowered)
