"""Arguments and results of a JAX function: their types, names, and numpy representations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.array import Array, converted
from weft.array.exchange import in_native_order
from weft.array.host import copied
from weft.capture.captured import Leaf
from weft.errors import WeftError

# Array classes that JAX types by shape and dtype alone: the abstract value is cached for these.
_PLAIN = {Array, np.ndarray}
_TYPES: dict[tuple[object, ...], Any] = {}
_MOST_TYPES = 1 << 14


def type_of_value(value: Any) -> Any:
    """JAX's abstract value of an array of any kind, a scalar, or a shape with a dtype."""
    import jax

    if type(value) not in _PLAIN:
        return jax.api_util.shaped_abstractify(value)
    if not value.dtype.isnative:
        value = jax.ShapeDtypeStruct(value.shape, in_native_order(value.dtype))
    # x64 is in the key: without it JAX types an f64 array as f32.
    key = (value.shape, value.dtype, jax.config.jax_enable_x64)
    abstract = _TYPES.get(key)
    if abstract is None:
        if len(_TYPES) >= _MOST_TYPES:
            _TYPES.clear()
        abstract = _TYPES[key] = jax.api_util.shaped_abstractify(value)
    return abstract


def leaf_of(value: Any, name: str, donated: bool = False) -> Leaf:
    """The leaf of an argument; an error if it is not an array."""
    if getattr(getattr(value, "dtype", None), "kind", "") in ("T", "U"):
        raise WeftError(
            f"argument {name} is an array of strings, which cannot be computed with",
            help="give the program numbers in the place of strings",
        )
    try:
        type = type_of_value(value)
    except TypeError:
        if isinstance(value, np.ndarray):
            raise WeftError(
                f"argument {name} is an array of {value.dtype}, an unsupported element type",
                help=f"convert it first, as with {name}.astype(numpy.float32)",
            ) from None
        raise WeftError(
            f"argument {name} is {_kind(value)}, which is not an array",
            help="pass arrays and scalars, in tuples, lists, dicts and other pytrees; "
            "name other arguments in static_argnums",
        ) from None
    sharding = own_sharding(value)
    return Leaf(name, type.shape, type.dtype, bool(type.weak_type), donated, sharding)


def result_of(type: Any, name: str) -> Leaf:
    """A leaf of a function's results."""
    return Leaf(name, type.shape, type.dtype, bool(getattr(type, "weak_type", False)))


def own_sharding(value: Any) -> object:
    """The sharding of an array over a mesh; None for an array on one device."""
    sharding = getattr(value, "sharding", None)
    mesh = getattr(sharding, "mesh", None)
    return sharding if mesh is not None and getattr(mesh, "size", 1) > 1 else None


def _kind(value: object) -> str:
    return f"{type(value).__name__} {value!r}"[:80]


def argument_names(
    fn: Callable[..., Any], positions: Sequence[int], paths: Sequence[tuple[Any, Any]]
) -> list[str]:
    """`params['w']` for each leaf, by the names of the function's parameters."""
    import jax

    parameters = [parameter.name for parameter in positional_parameters(fn)]
    names: list[str] = []
    for path, _ in paths:
        if path[0].idx == 1:
            head = path[1].key
        else:
            position = positions[path[1].idx]
            head = parameters[position] if position < len(parameters) else f"args[{position}]"
        names.append(f"{head}{jax.tree_util.keystr(path[2:])}")
    return names


def positional_parameters(fn: Callable[..., Any]) -> list[inspect.Parameter]:
    """The positional parameters of a function, if it has a signature."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p for p in parameters if p.kind in kinds]


def to_physical(value: Any, leaf: Leaf) -> Any:
    """A value as the array that the program takes, with JAX's checks.

    Arrays of Weft and JAX are immutable and are not copied; others are, since execution is
    asynchronous and the caller may write to them after the call returns.
    """
    if leaf.holds_keys:
        import jax

        return np.asarray(jax.random.key_data(value))
    if isinstance(value, Array):
        if value.dtype == leaf.dtype:
            return value
        return converted(value, leaf.dtype)
    array = np.asarray(value)
    if array.dtype == leaf.dtype:
        return copied(array) if array.flags.writeable else array
    result = array.astype(leaf.dtype)
    # numpy wraps around without a word; JAX raises.
    if isinstance(value, int) and int(result) != value:
        raise OverflowError(f"argument {leaf.name}: {value} does not fit into {leaf.dtype}")
    return result


def is_changed(leaf: Leaf) -> bool:
    """Whether `from_physical` changes a result."""
    return leaf.holds_keys or leaf.dtype.names == ("float0",)


def from_physical(array: Any, leaf: Leaf) -> Any:
    """A result in the caller's type: integers become typed random keys again."""
    if not leaf.holds_keys:
        # The tangent type of integers is float0; in a program it is represented by booleans.
        return np.zeros(leaf.shape, leaf.dtype) if leaf.dtype.names == ("float0",) else array
    import jax

    return jax.random.wrap_key_data(np.asarray(array), impl=leaf.dtype._impl)
