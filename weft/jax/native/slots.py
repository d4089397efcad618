"""Slots that Python fills: a function each, which takes the arguments and fills in the answer."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any

from weft.ir.gc_pause import importing
from weft.jax.abi import Api
from weft.jax.native.handles import IMMORTAL, UNIMPLEMENTED, Handles, PjrtError
from weft.native.cpython import pointer_to

SlotFunction = Callable[[Handles, Any], None]


def thunk(api: Api, name: str, handles: Handles, function: SlotFunction | None) -> int:
    """The address of the Python function that native code calls for a slot.

    Without a function, it is looked up at the first call. Exceptions become JAX's errors, and the
    bridge raises an interrupt again.
    """
    take = api.args(name).from_address
    interrupted, raise_up = handles.interrupted, handles.shield.raise_up

    def call(args: int) -> int:
        nonlocal function
        try:
            raise_up()
            if function is None:
                function = _late(name, handles)
            function(handles, take(args))
        except KeyboardInterrupt:
            return interrupted
        except BaseException as raised:  # noqa: BLE001  # whatever it is, it becomes JAX's error
            return handles.error(raised)
        return 0

    IMMORTAL.append(call)
    return pointer_to(call)


_LOCK = threading.RLock()
_PARTS = "weft.jax.parts"  # by name: its modules import this one
_loaded: dict[str, SlotFunction] = {}


def _late(name: str, handles: Handles) -> SlotFunction:
    """The function of a slot that JAX needs only when a program runs."""
    with _LOCK:
        if not _loaded:
            # Not at startup: these modules import the compiler, which listing devices does not
            # need.
            with importing():
                parts = importlib.import_module(_PARTS)
            parts.connect(handles.shield)
            _loaded.update(parts.SLOTS)
    return _loaded.get(name) or _missing(name)


def _missing(name: str) -> SlotFunction:
    def refuse(handles: Handles, args: Any) -> None:
        raise PjrtError(UNIMPLEMENTED, f"weft has no PJRT_{name}")

    return refuse
