"""Slots that Python fills: a function each, which takes the arguments and fills in the answer."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from weft.jax.abi import Api
from weft.jax.handles import FOR_EVER, UNIMPLEMENTED, Handles, Refused

Slot = Callable[[Handles, Any], None]
SLOTS: dict[str, Slot] = {}
_THUNK = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def slot(name: str) -> Callable[[Slot], Slot]:
    """Have a function fill a slot."""

    def note(function: Slot) -> Slot:
        SLOTS[name] = function
        return function

    return note


def thunk(api: Api, name: str, handles: Handles) -> int:
    """The address of what native code calls for a slot."""
    function = SLOTS.get(name) or _missing(name)
    take = api.args(name).from_address
    write = ctypes.c_size_t.from_address

    def call(args: int, answer: int) -> None:
        try:
            function(handles, take(args))
            error = 0
        except BaseException as raised:  # noqa: BLE001  # whatever it is, it becomes JAX's error
            error = handles.error(raised)
        write(answer).value = error

    made = _THUNK(call)
    FOR_EVER.append(made)
    return ctypes.cast(made, ctypes.c_void_p).value or 0


def _missing(name: str) -> Slot:
    def refuse(handles: Handles, args: Any) -> None:
        raise Refused(UNIMPLEMENTED, f"weft has no PJRT_{name}")

    return refuse
