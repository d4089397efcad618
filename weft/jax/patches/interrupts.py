"""Deferred signals: a Ctrl-C inside of Weft must not leave state half-updated.

Python runs signal handlers between any two bytecodes of the main thread, and they may raise:
KeyboardInterrupt, or any other exception. Inside of Weft a signal is queued instead, and handled
when control returns to the user's program. The main thread is there only briefly; while it waits
for threads that compile or compute, it behaves as with JAX's own devices. A user callback may take
long: a second signal is handled inside of it. A native loop may run on and on: it has signals
handled now and then, and ends if a handler raises.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from weft.jax.native.state import PluginState
from weft.native.cpython import pointer_to
from weft.patches import replace_in_jax

_DEPTH, _REMEMBERED, _ACT = (
    PluginState.depth.word,
    PluginState.remembered.word,
    PluginState.act.word,
)
_NAMES = "SIGINT SIGTERM SIGALRM SIGUSR1 SIGUSR2 SIGHUP SIGQUIT SIGVTALRM SIGPROF SIGCHLD".split()
_WATCHED = tuple([int(getattr(signal, name)) for name in _NAMES if hasattr(signal, name)])
_NO_SIGNAL = 0  # the number that what a handler has raised is queued under
SignalHandler = Callable[[int, FrameType | None], Any]

# The C function behind `signal.signal`, without its slow enum lookup.
_handler_of: Callable[[int], Any] = getattr(
    sys.modules.get("_signal"), "getsignal", signal.getsignal
)


class LoopInterrupted(Exception):
    """The error of a program's results if a signal ended a native loop."""

    def __init__(self, raised: BaseException) -> None:
        super().__init__(f"the handler of a signal raised {type(raised).__name__} during a loop")


class DeferredHandler:
    """The handler that Python calls; it defers to the user's handler."""

    def __init__(self, shield: SignalDeferral, handler: SignalHandler) -> None:
        self.shield, self.__wrapped__ = shield, handler

    def __call__(self, number: int, frame: FrameType | None) -> Any:
        """Handle the signal, or queue it inside of Weft."""
        if self.shield.takes(number, self.__wrapped__):
            return None
        return self.__wrapped__(number, frame)


class SignalDeferral:
    """Defers signal handlers while the main thread is inside of Weft."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self._deferring: list[Any] = []  # original handlers by signal, once deferred
        self._waiting: dict[int, SignalHandler] = {}  # queued signals by number
        self._calling: list[int] = []  # nesting depth of user callbacks inside of Weft
        self._act = self.act
        state[_ACT] = pointer_to(self._act)

    def raise_up(self) -> None:
        """Install deferring handlers over the program's current ones; cheap if done."""
        # Programs may install handlers at any time (pytest and Jupyter do): look again at every
        # call.
        if [*map(_handler_of, _WATCHED)] != self._deferring and self.is_inside():
            for number in _WATCHED:
                handler = _handler_of(number)
                if callable(handler) and not isinstance(handler, DeferredHandler):
                    signal.signal(number, DeferredHandler(self, handler))
            self._deferring = [*map(_handler_of, _WATCHED)]

    def is_inside(self) -> bool:
        """Whether this is the main thread, which handles signals, inside of Weft."""
        here = threading.get_ident() == threading.main_thread().ident
        return here and bool(self.state[_DEPTH])

    def takes(self, number: int, handler: SignalHandler) -> bool:
        """Queue a signal inside of Weft, unless it is repeated during a user callback."""
        depth = self.state[_DEPTH]
        if not depth or (depth in self._calling[-1:] and self._dequeue(number)):
            return False
        self._waiting.setdefault(number, handler)
        self.state[_REMEMBERED] = 1
        return True

    def _dequeue(self, number: int) -> SignalHandler | None:
        """Dequeue a signal; returns its handler."""
        handler = self._waiting.pop(number, None)
        self.state[_REMEMBERED] = int(bool(self._waiting))
        return handler

    def act(self) -> None:
        """Handle queued signals, on the main thread."""
        while self._waiting and not self.state[_DEPTH]:
            number = next(iter(self._waiting))
            handler = self._dequeue(number)
            assert handler is not None, "only the main thread takes it"
            handler(number, sys._getframe().f_back)

    def handle_in_loop(self) -> None:
        """Handle queued signals while a native loop runs; `LoopInterrupted` if a handler raises.

        What it raises is queued in turn: the user gets it outside of Weft.
        """
        if not self.is_inside():
            return
        depth = self.state[_DEPTH]
        try:
            # As if outside of Weft, so that handlers run; the loop holds no state that they could
            # see.
            self.state[_DEPTH] = 0
            self.act()
        except BaseException as raised:  # noqa: BLE001  # raised again outside
            self._waiting[_NO_SIGNAL] = partial(_raise, raised)
            raise LoopInterrupted(raised) from None
        finally:
            self.state[_DEPTH] = depth
            self.state[_REMEMBERED] = int(bool(self._waiting))

    @contextmanager
    def lowered(self) -> Iterator[None]:
        """Let a second signal through during a user callback."""
        if not self.is_inside():
            yield
            return
        self._calling.append(self.state[_DEPTH])
        try:
            yield
        finally:
            self._calling.pop()


def _raise(raised: BaseException, number: int, frame: FrameType | None) -> None:
    raise raised


LONG = 3600.0  # seconds; longer than any compilation
_held: list[tuple[float, Any]] = []  # modules whose compilation was interrupted, and when


def hold_interrupted() -> None:
    """Keep modules alive that JAX continues to compile after an interrupt.

    JAX compiles in a separate thread that reads the module until it is done; an interrupted waiter
    would free the module under it.
    """
    replace_in_jax("jax._src.compiler:backend_compile_and_load", _holding)


def _holding(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def compile(backend: Any, module: Any, *more: Any, **named: Any) -> Any:
        from jax.errors import JaxRuntimeError

        try:
            return theirs(backend, module, *more, **named)
        except JaxRuntimeError:  # finished
            raise
        except BaseException:
            now = time.monotonic()
            _held[:] = [*(kept for kept in _held if now - kept[0] < LONG), (now, module)]
            raise

    return compile
