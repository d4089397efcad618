"""Multi-process JAX, which is not supported yet."""

from __future__ import annotations

from weft.errors import Unsupported


def check_alone() -> None:
    """Raise if `jax.distributed.initialize` has more than one process."""
    from jax._src import distributed

    count = distributed.global_state.num_processes or 1
    if distributed.global_state.client is not None and count > 1:
        raise Unsupported(
            f"jax.distributed with {count} processes: all of Weft's devices are in one",
            help="leave jax.distributed.initialize out, and set WEFT_DEVICES to the devices of all",
        )
