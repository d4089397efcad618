"""Zero-copy buffers of host arrays."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from weft.ir.types import Array
from weft.jax.native.handles import Handles
from weft.jax.native.state import PluginState


class _Now(threading.local):
    """Thread-local: the host array to alias in the next transfer."""

    array: Array | None = None


NOW = _Now()
_ALIASING = PluginState.aliasing.word


@contextmanager
def aliased(handles: Handles, array: Array) -> Iterator[None]:
    """Alias this dense, immutable array when it is put onto a device in this context."""
    state = handles.native.state
    NOW.array = array
    state[_ALIASING] += 1
    try:
        yield
    finally:
        state[_ALIASING] -= 1
        NOW.array = None
