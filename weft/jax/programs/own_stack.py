"""A stack of its own for the compiler: a program may be called from deep inside of another."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from weft.jax.programs.float_mode import ieee_arithmetic

_T = TypeVar("_T")
_SHALLOW = 9  # frames below which a stack is as good as a new one


def on_own_stack(call: Callable[[], _T]) -> _T:
    """The result of a call with IEEE's arithmetic, in a new thread if this stack is in use.

    jaxlib 0.11 and later compile in the thread that calls a program: what is left there of
    Python's recursion limit is the caller's. jaxlib 0.10 has a thread for it, which flushes
    subnormal numbers.
    """
    with ieee_arithmetic():
        return _on_own_stack(call)


def _on_own_stack(call: Callable[[], _T]) -> _T:
    if not _is_deep():
        return call()
    made: list[_T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            made.append(call())
        except BaseException as error:  # noqa: BLE001  # it is raised again where it is waited for
            raised.append(error)

    thread = threading.Thread(target=run, name="weft compile", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no memory for one, or the process ends
        return call()
    thread.join()
    if raised:
        raise raised[0]
    return made[0]


def _is_deep() -> bool:
    frame = sys._getframe()
    for _ in range(_SHALLOW):
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return True
