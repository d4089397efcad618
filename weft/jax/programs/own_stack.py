"""A fresh stack for the compiler: a program may be compiled from deep inside of another."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from weft.jax.programs.float_mode import ieee_arithmetic

_T = TypeVar("_T")
_SHALLOW = 9  # frames; below it the stack counts as fresh


def on_own_stack(call: Callable[[], _T]) -> _T:
    """The result of a call in IEEE mode, in a new thread if this stack is deep.

    jaxlib 0.11 and later compile on the caller's thread, with whatever is left of Python's
    recursion limit. jaxlib 0.10 has a separate thread, which flushes subnormals.
    """
    with ieee_arithmetic():
        return _on_own_stack(call)


def _on_own_stack(call: Callable[[], _T]) -> _T:
    if not _is_deep():
        return call()
    results: list[_T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001  # re-raised by the waiter
            raised.append(error)

    thread = threading.Thread(target=run, name="weft compile", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # out of memory, or the process exits
        return call()
    thread.join()
    if raised:
        raise raised[0]
    return results[0]


def _is_deep() -> bool:
    frame = sys._getframe()
    for _ in range(_SHALLOW):
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return True
