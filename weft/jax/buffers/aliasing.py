"""Arrays of the host that become buffers without a copy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from weft.ir.types import Array
from weft.jax.native.bridge import STATE
from weft.jax.native.handles import Handles


class _Now(threading.local):
    """What is taken over without a copy, by whoever puts it onto a device."""

    array: Array | None = None


NOW = _Now()
_ALIASING = STATE["aliasing"]


@contextmanager
def aliased(handles: Handles, array: Array) -> Iterator[None]:
    """Have this array, which is dense and nobody changes, put onto a device without a copy."""
    state = handles.native.state
    NOW.array = array
    state[_ALIASING] += 1
    try:
        yield
    finally:
        state[_ALIASING] -= 1
        NOW.array = None
