"""Slots needed once a program compiles: the compiler and its runtime, imported lazily.

`jax.devices()` does not need them, and their import takes longer than everything else.
"""

from __future__ import annotations

from weft.array.stream import around_calls
from weft.emit.llvm.flow.interrupts import listen
from weft.jax.buffers import buffers, events, transfers
from weft.jax.patches.interrupts import SignalDeferral
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


def connect(shield: SignalDeferral) -> None:
    """Allow a second signal through while a program calls a user's function, any during loops."""
    around_calls(shield.lowered)
    listen(shield.handle_in_loop)
