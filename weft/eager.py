"""Eager ops on arrays: each is a one-op program, compiled once."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from weft.array import Array
from weft.capture import source_of
from weft.capture.jax.inline import function_of, is_traced
from weft.capture.options import CallOptions
from weft.compiled import Compiled, CompileOptions
from weft.compiled import compile as weft_compile
from weft.errors import WeftError
from weft.ir.types import TensorType
from weft.mesh import Mesh, P, Sharding, as_sharding

_MOST = 1 << 12
_ARRAYS = (Array, np.ndarray)


def compute(name: str, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """One op by its name in jax.numpy: arrays, and numbers next to them, are operands.

    All other arguments are static, such as the axes of a sum, and the exponent of a power, which
    JAX expands into products if it is static.
    """
    if name == "reshard":
        return reshard(*args)
    if name == "gather":
        return gather(*args)
    fixed = {n: _hashable(v) for n, v in enumerate(args) if _is_fixed(name, n, v, args)}
    named = {key: _hashable(v) for key, v in sorted(options.items()) if not _is_array(v)}
    operands = [v for n, v in enumerate(args) if n not in fixed]
    arrays = {key: v for key, v in options.items() if _is_array(v)}
    try:  # 2 and 2.0 are equal, but give other types
        kinds = (*map(type, fixed.values()), *map(type, named.values()))
        program = _program(name, tuple(fixed.items()), tuple(named.items()), kinds)
    except TypeError as error:
        raise WeftError(
            f"{name}: an argument is not hashable: {error}",
            help="pass axes and shapes as numbers and tuples",
        ) from None
    return program(*operands, **arrays)


def reshard(array: Array, sharding: Any, mesh: Mesh) -> Array:
    """The same value with another sharding, sent between the processes that hold its shards."""
    if mesh != array.mesh:
        raise WeftError(
            f"an array on several processes cannot move from the mesh {array.mesh} to {mesh}",
            help="give a sharding on the mesh of the array, or have the program replicate it",
        )
    wanted = as_sharding(P() if sharding is None else sharding, array.ndim, mesh)
    (made,) = _resharding((_move(array, wanted),), mesh)(array)
    assert type(made) is Array
    return made


def gather(*arrays: Array) -> list[Array]:
    """The same values on every device, by one program for all arrays of a mesh."""
    mesh = arrays[0].mesh
    moves = [_move(array, as_sharding(P(), array.ndim, mesh)) for array in arrays]
    made: list[Array] = [*_resharding(tuple(moves), mesh)(*arrays)]
    return made


_Move: TypeAlias = tuple[TensorType, Sharding, Sharding]  # from one sharding to another


def _move(array: Array, wanted: Sharding) -> _Move:
    return TensorType(array.shape, array.element_type), array.sharding, wanted


@lru_cache(maxsize=_MOST)
def _resharding(moves: tuple[_Move, ...], mesh: Mesh) -> Compiled:
    """The program that returns its arguments with other shardings."""
    types = [str(type_) for type_, _, _ in moves]
    names = [f"%a{n}" for n in range(len(moves))]
    attributes = [
        [f"{{sdy.sharding = {replace(s, mesh='mesh')}}}" for s in both] for _, *both in moves
    ]
    parameters = [
        f"{n}: {t} {given}" for n, t, (given, _) in zip(names, types, attributes, strict=True)
    ]
    results = [f"{t} {wanted}" for t, (_, wanted) in zip(types, attributes, strict=True)]
    text = f"""module @reshard {{
  sdy.mesh @mesh = {mesh}
  func.func @main({", ".join(parameters)}) -> ({", ".join(results)}) {{
    return {", ".join(names)} : {", ".join(types)}
  }}
}}"""
    return weft_compile(text)


@lru_cache(maxsize=_MOST)
def _program(
    name: str,
    fixed: tuple[tuple[int, Any], ...],
    named: tuple[tuple[str, Any], ...],
    kinds: tuple[type, ...],
) -> Compiled:
    known = dict(fixed)

    def operate(*given: Any, **arrays: Any) -> Any:
        rest = iter(given)
        count = len(given) + len(known)
        args = [known[n] if n in known else next(rest) for n in range(count)]
        return function_of(name)(*args, **dict(named), **arrays)

    operate.__name__ = name
    # Results of padded shards are padded alike, so no sharding is named for them.
    # Programs of single operators are small, and none is dropped.
    options = CompileOptions(
        1, None, None, True, None, True, False, programs=sys.maxsize, pads="inferred"
    )
    return Compiled(source_of(operate, CallOptions()), options)


def _is_array(value: Any) -> bool:
    return isinstance(value, _ARRAYS) or is_traced([value])


def _is_fixed(name: str, place: int, value: Any, args: tuple[Any, ...]) -> bool:
    """Whether an argument is static, not an operand."""
    if _is_array(value) or isinstance(value, np.generic):
        return False
    if name in _OPERATORS and len(args) > 1:
        return name == "power" and place == 1 and isinstance(value, int)
    return name not in _TAKES_NUMBERS


_OPERATORS = {
    *"add subtract multiply true_divide floor_divide remainder divmod power matmul".split(),
    *"bitwise_and bitwise_or bitwise_xor left_shift right_shift".split(),
    *"less less_equal greater greater_equal equal not_equal".split(),
    *"divide maximum minimum fmax fmin arctan2 hypot logaddexp copysign fmod mod".split(),
}
_TAKES_NUMBERS = {"clip"}


def _hashable(value: Any) -> Any:
    """An option as part of a cache key: lists as tuples, dtypes by name."""
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return value
