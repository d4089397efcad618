"""Registration of Weft's arrays in JAX's type tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any

from weft.array.array import Array
from weft.patches import replace_in_jax, table_of_jax


def make_known_to_jax(kind: type[Array] = Array) -> None:
    """Register a class of Weft's arrays with JAX, if it is imported, wherever it takes numpy's.

    `__jax_array__` alone covers only jax.numpy: jit, grad and lax would refuse them.
    """
    if sys.modules.get("jax") is not None:
        _replace()
        _enter(kind)  # type: ignore[arg-type]  # classes are hashable


@cache
def _enter(kind: type[Array]) -> None:
    from jax._src import core, dtypes
    from jax._src.interpreters import pxla

    def type_of(array: Array) -> Any:
        return core.ShapedArray(array.shape, dtypes.canonicalize_dtype(array.dtype))

    def shard(
        arrays: Sequence[Array], shardings: Any, layouts: Any, copies: Any, **more: Any
    ) -> Any:
        values = [array.to_jax() for array in arrays]
        return pxla.shard_args(shardings, layouts, copies, values, **more)

    table_of_jax("jax._src.core:pytype_aval_mappings")[kind] = type_of
    dtypes.register_canonicalize_value_handler(kind, Array.to_jax)
    table_of_jax("jax._src.interpreters.pxla:shard_arg_handlers")[kind] = shard


@cache
def _replace() -> None:
    replace_in_jax("jax._src.pjit:convert_to_metaty", _with_arrays)


def _with_arrays(theirs: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @wraps(theirs)
    def convert_to_metaty(given: Any) -> Any:
        return theirs(given.to_jax() if issubclass(type(given), Array) else given)

    return convert_to_metaty
