"""Signals wait while JAX is inside of Weft: a Ctrl-C must not leave anything half done.

Python calls a program's handlers of signals between any two steps of the main thread, and they may
raise: KeyboardInterrupt, or what the program wants. Inside of Weft a signal is remembered instead,
and handled as soon as JAX is back in the user's program. What the main thread does there takes a
moment; while it waits for other threads, which compile and compute, it is as with JAX's own
devices. A Python function that a program calls may last: a second signal is handled inside of it.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from weft.jax.native.bridge import STATE, pointer_to
from weft.patches import replace_in_jax

_DEPTH, _REMEMBERED, _ACT = STATE["depth"], STATE["remembered"], STATE["act"]
_NAMES = "SIGINT SIGTERM SIGALRM SIGUSR1 SIGUSR2 SIGHUP SIGQUIT SIGVTALRM SIGPROF SIGCHLD".split()
_WATCHED = tuple([int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name)])
SignalHandler = Callable[[int, FrameType | None], Any]

# What Python's own function calls, which then looks long for a name of what it found.
_handler_of: Callable[[int], Any] = getattr(
    sys.modules.get("_signal"), "getsignal", signal.getsignal
)


class Deferred:
    """What Python calls for a signal, in the place of a handler that it calls later."""

    def __init__(self, shield: Shield, handler: SignalHandler) -> None:
        self.shield, self.__wrapped__ = shield, handler

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        """Handle the signal, or remember it inside of Weft."""
        if self.shield.takes(number, self.__wrapped__):
            return None
        return self.__wrapped__(number, frame)


class Shield:
    """Keeps handlers of signals out of Weft."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self._deferring: list[Any] = []  # the handlers that signals have, once they are deferred
        self._waiting: dict[int, SignalHandler] = {}  # by the number of the signal
        self._calling: list[int] = []  # how deep inside of Weft functions of the user's are called
        self._act = self.act
        state[_ACT] = pointer_to(self._act)

    def raise_up(self) -> None:
        """Take the place of the program's handlers, whatever they are now; cheap if it has."""
        if [*map(_handler_of, _WATCHED)] != self._deferring and self.is_inside():
            for number in _WATCHED:
                handler = _handler_of(number)
                if callable(handler) and not isinstance(handler, Deferred):
                    signal.signal(number, Deferred(self, handler))
            self._deferring = [*map(_handler_of, _WATCHED)]

    def is_inside(self) -> bool:
        """Whether this is the main thread, which is where signals are handled, inside of Weft."""
        here = threading.current_thread() is threading.main_thread()
        return here and bool(self.state[_DEPTH])

    def takes(self, number: int, handler: SignalHandler) -> bool:
        """Remember a signal inside of Weft; not if it comes to a function of the user's again."""
        depth = self.state[_DEPTH]
        if not depth or (depth in self._calling[-1:] and self._taken(number)):
            return False
        self._waiting.setdefault(number, handler)
        self.state[_REMEMBERED] = 1
        return True

    def _taken(self, number: int) -> SignalHandler | None:
        """The handler of a signal that was remembered, which it is no longer."""
        handler = self._waiting.pop(number, None)
        self.state[_REMEMBERED] = int(bool(self._waiting))
        return handler

    def act(self) -> None:
        """Handle the signals that were remembered; the main thread does, between two steps."""
        while self._waiting and not self.state[_DEPTH]:
            number = next(iter(self._waiting))
            handler = self._taken(number)
            assert handler is not None, "only the main thread takes it"
            handler(number, sys._getframe().f_back)

    @contextmanager
    def lowered(self) -> Iterator[None]:
        """Let a second signal through while a function of the user's runs."""
        if not self.is_inside():
            yield
            return
        self._calling.append(self.state[_DEPTH])
        try:
            yield
        finally:
            self._calling.pop()


LONG = 3600.0  # seconds that no compilation takes
_held: list[tuple[float, Any]] = []  # programs whose compilation was interrupted, and when


def hold_interrupted() -> None:
    """Have JAX hold the programs that it goes on compiling after an interrupt.

    It compiles in a thread of its own, which reads the program until it is done; whoever waits for
    that lets go of the program when it is interrupted.
    """
    replace_in_jax("jax._src.compiler:backend_compile_and_load", _holding)


def _holding(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def compile(backend: Any, module: Any, *more: Any, **named: Any) -> Any:
        from jax.errors import JaxRuntimeError

        try:
            return theirs(backend, module, *more, **named)
        except JaxRuntimeError:  # it is done
            raise
        except BaseException:
            now = time.monotonic()
            _held[:] = [*(kept for kept in _held if now - kept[0] < LONG), (now, module)]
            raise

    return compile
