"""Arrays of Weft as values of JAX: entries in the tables that JAX looks types up in."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache, wraps
from typing import Any

from weft.array.array import Array


def make_known_to_jax() -> None:
    """Have JAX, if it was imported, take arrays of Weft's where it takes those of numpy.

    By `__jax_array__` alone only jax.numpy's functions would: jit, grad and lax refuse it.
    """
    if sys.modules.get("jax") is not None:
        _enter()


@cache
def _enter() -> None:
    from jax._src import core, dtypes, pjit
    from jax._src.interpreters import pxla

    def type_of(array: Array) -> Any:
        return core.ShapedArray(array.shape, dtypes.canonicalize_dtype(array.dtype))

    def shard(
        arrays: Sequence[Array], shardings: Any, layouts: Any, copies: Any, **more: Any
    ) -> Any:
        values = [array.to_jax() for array in arrays]
        return pxla.shard_args(shardings, layouts, copies, values, **more)

    meta_type = pjit.convert_to_metaty

    @wraps(meta_type)
    def convert_to_metaty(given: Any) -> Any:
        # jit reads `sharding`, whatever the type of the argument; ours is not JAX's.
        return meta_type(given.to_jax() if type(given) is Array else given)

    core.pytype_aval_mappings[Array] = type_of
    dtypes.register_canonicalize_value_handler(Array, Array.to_jax)
    pxla.shard_arg_handlers[Array] = shard
    pjit.convert_to_metaty = convert_to_metaty
