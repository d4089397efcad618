"""Zero-copy buffers: of host arrays, and of another package's memory on a device."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weft.array.memory import DeviceBuffer
from weft.ir.types import Array
from weft.jax.native.handles import Handles
from weft.jax.native.state import PluginState


class _Now(threading.local):
    """Thread-local: the host array to alias in the next transfer, or what it stands for."""

    array: Array | None = None
    buffer: DeviceBuffer | None = None
    pointed: Any = None  # the piece whose address JAX was given last


NOW = _Now()
_ALIASING = PluginState.aliasing.word


@contextmanager
def aliased(handles: Handles, array: Array, buffer: DeviceBuffer | None = None) -> Iterator[None]:
    """Alias this immutable array, or a buffer for it, when it is put onto a device in this context.

    JAX puts arrays of the host only: a buffer is put by an array of its shape and type.
    """
    state = handles.native.state
    NOW.array, NOW.buffer = array, buffer
    state[_ALIASING] += 1
    try:
        yield
    finally:
        state[_ALIASING] -= 1
        NOW.array = NOW.buffer = None
