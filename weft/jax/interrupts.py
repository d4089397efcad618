"""Interrupts wait while JAX is inside of Weft: a Ctrl-C must not leave anything half done.

Python raises KeyboardInterrupt between any two steps of the main thread. Inside of Weft the signal
is remembered instead, and raised as soon as JAX is back in the user's program. What the main thread
does there takes a moment; while it waits for other threads, which compile and compute, it is as
with JAX's own devices. A program that handles the signal by itself is left alone.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

from weft.jax.native_bridge import STATE

_DEPTH, _REMEMBERED = STATE["depth"], STATE["remembered"]


class Shield:
    """What Python calls for an interrupt, where it would raise one by itself."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def raise_later(self, number: int, frame: FrameType | None) -> None:
        """Remember the interrupt inside of Weft, and raise it elsewhere."""
        if self.state[_DEPTH]:
            self.state[_REMEMBERED] = 1
        else:
            signal.default_int_handler(number, frame)

    def raise_up(self) -> None:
        """Take the place of Python's own function; only the main thread may."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self.raise_later)
