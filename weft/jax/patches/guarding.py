"""Patches for transfer guards: JAX checks transfers only from devices other than the host."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from weft.jax.native.handles import Native
from weft.jax.native.state import PluginState
from weft.patches import replace_in_jax


def heed_guards(native: Native) -> None:
    """Make device-to-host transfers go through JAX's check while a guard is active.

    Also under an `allow` guard: the copy is cached, so that later transfers are free.
    """
    replace_in_jax("jax._src.config:_update_transfer_guard", partial(_heeding, native=native))


def _heeding(theirs: Callable[..., None], native: Native) -> Callable[..., None]:
    from jax._src.lib import guard_lib

    guarded: set[int] = set()  # guarded thread ids; 0 for all threads

    def heed(state: Any) -> None:
        who = 0 if state is guard_lib.global_state() else threading.get_ident()
        if state.device_to_host is None:
            guarded.discard(who)
        else:
            guarded.add(who)
        native.state[PluginState.guarded.word] = len(guarded)

    def update(state: Any, key: str, level: str | None) -> None:
        theirs(state, key, level)
        heed(state)

    heed(guard_lib.global_state())
    heed(guard_lib.thread_local_state())
    return update
