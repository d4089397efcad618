"""Calls of an executable: bind arguments to parameters, flatten and check them.

A static argument is part of the program. A call may omit it, or pass it if its value can be
serialized (numbers, strings, bytes, None, tuples of them): a value other than the compiled one is
refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from weft.array import Array, converted
from weft.array.exchange import in_native_order, to_numpy
from weft.array.host import copied
from weft.errors import WeftError
from weft.executable.signature import Parameter, Signature, ValueSpec
from weft.executable.structure import Path, path_text
from weft.ir.types import DType

# Kinds in the order of promotion: a Python scalar may be passed for a type of its kind or a later
# one.
_SCALARS: dict[type, int] = {bool: 0, int: 1, float: 2, complex: 3}
_RANKS = {"bool": 0, "int": 1, "uint": 1, "float": 2, "complex": 3}
_NARROW = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}
FLOAT0 = np.dtype([("float0", np.void, 0)])  # dtype of gradients of integers, without content


def leaves(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The leaves of a call's arguments, in the executable's order."""
    # The usual call, all arguments by position, needs no binding.
    expected = signature.is_positional and len(args) == len(signature.parameters)
    if not expected or (kwargs and not kwargs.keys().isdisjoint(signature.names)):
        args, kwargs = _bound(signature, args, kwargs)
    return signature.takes.flatten((args, kwargs), partial(_path_name, signature))


def arguments(signature: Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The executable's input arrays: Weft's own, or numpy arrays that no caller mutates."""
    values = leaves(signature, args, kwargs)
    narrows = signature.narrows
    return [argument(*pair, narrows) for pair in zip(values, signature.arguments, strict=True)]


def results(signature: Signature, arrays: Sequence[Any]) -> Any:
    """The executable's results in the structure that its function returns."""
    if any(spec.logical == "float0" for spec in signature.results):
        pairs = zip(arrays, signature.results, strict=True)
        arrays = [
            np.zeros(spec.type.sizes, FLOAT0) if spec.logical == "float0" else array
            for array, spec in pairs
        ]
    return signature.gives.unflatten(arrays)


def _path_name(signature: Signature, path: Path) -> str:
    """A path among the arguments as `params['w']`."""
    if len(path) < 2:
        return "the arguments"
    head, step, *rest = path
    # The structure is (positional, keywords): the first step tells which.
    positional = [p for p in signature.parameters if p.how == "position"]
    name = step if head == 1 else positional[step].name or f"argument {step}"
    return f"{name}{path_text(tuple(rest))}"


def _bound(
    signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The bound arguments in the form that the program was compiled for."""
    parameters = signature.parameters
    places = signature.names
    by_name = {places[name]: value for name, value in kwargs.items() if name in places}
    free = [n for n in range(len(parameters)) if n not in by_name]
    dynamic = [n for n in free if parameters[n].how != "static"]
    if len(args) > len(free):
        raise WeftError(
            f"{signature.name} takes {len(parameters)} positional arguments, "
            f"{len(args) + len(by_name)} given",
            help=f"give {_listed(parameters)}",
        )
    # As many values as dynamic parameters: static ones are left out. Else they count, in order.
    filled = dynamic if len(args) == len(dynamic) else free[: len(args)]
    if filled and by_name and max(filled) > min(by_name):
        name = parameters[min(by_name)].name
        raise WeftError(
            f"{signature.name} got {name} by keyword, and later arguments by position",
            help=f"give {_listed(parameters)} in this order, and by name only at the end",
        )
    values = by_name | dict(zip(filled, args, strict=True))
    for n, parameter in enumerate(parameters):
        if parameter.how == "static" and n in values:
            _check_static(parameter, n, values[n])
        elif parameter.how != "static" and n not in values:
            raise WeftError(
                f"{parameter.name or f'argument {n}'} is missing",
                help=f"give {_listed(parameters)}",
            )
    positional = tuple([values[n] for n, p in enumerate(parameters) if p.how == "position"])
    keywords = {name: value for name, value in kwargs.items() if name not in places}
    keywords |= {p.name: values[n] for n, p in enumerate(parameters) if p.how == "keyword"}
    return positional, keywords


def _listed(parameters: Sequence[Parameter]) -> str:
    if not parameters:
        return "no positional arguments"
    names = [p.name or f"argument {n}" for n, p in enumerate(parameters)]
    return ", ".join(
        f"{name} (static)" if p.how == "static" else name
        for name, p in zip(names, parameters, strict=True)
    )


def _check_static(parameter: Parameter, index: int, value: object) -> None:
    name = parameter.name or f"argument {index}"
    if not parameter.is_known:
        raise WeftError(
            f"{name} is static and compiled into the program, which does not store its value",
            help="leave it out of the call",
        )
    # Types too: 1 == 1.0 == True in Python, and each would compile to another program.
    if type(value) is not type(parameter.value) or value != parameter.value:
        raise WeftError(
            f"{name} is static: the program was compiled for {parameter.value!r}, not {value!r}"[
                :300
            ],
            help="leave it out of the call, or compile and save the program for the other value",
        )


def argument(value: Any, spec: ValueSpec, narrows: bool = False) -> Any:
    """One argument as an array of the executable's type; a mismatch is an error with its name."""
    wanted = spec.type.dtype
    if type(value) in _SCALARS:
        return _scalar(value, spec)
    if isinstance(value, Array):
        array: Any = value
    else:
        array = _numpy(value, spec)
    if array.shape != spec.type.sizes:
        raise WeftError(
            f"{spec.name} has the shape {array.shape}, but the program takes {spec.type.sizes}",
            help=f"give an array of shape {spec.type.sizes}, or save the program for this one",
        )
    held = in_native_order(array.dtype)
    if held != wanted.numpy:
        if not narrows or _NARROW.get(held.name) != wanted.numpy.name:
            raise _refuse_type(spec, held, wanted)
        if isinstance(array, Array):
            return converted(array, wanted.numpy)
        return array.astype(wanted.numpy)
    if isinstance(array, Array):
        return array
    # A copy: execution is asynchronous, and the caller may mutate its array meanwhile.
    return copied(array) if array.flags.writeable else array


def _numpy(value: Any, spec: ValueSpec) -> Any:
    if not isinstance(getattr(value, "dtype", np.dtype(bool)), np.dtype) and spec.logical:
        raise WeftError(
            f"{spec.name} holds random keys of JAX, which an executable takes as integers",
            help="give jax.random.key_data(key)",
        )
    try:
        return to_numpy(value)
    except WeftError as error:
        raise WeftError(f"{spec.name}: {error.message}", help=error.help) from None


def _scalar(value: Any, spec: ValueSpec) -> Any:
    """A Python scalar, converted to the program's type if that can represent it."""
    wanted = spec.type.dtype
    if spec.type.rank:
        raise WeftError(
            f"{spec.name} is a number, but the program takes an array of shape {spec.type.sizes}",
            help=f"give an array of shape {spec.type.sizes}",
        )
    if _SCALARS[type(value)] > _RANKS[wanted.kind]:
        raise _refuse_type(spec, type(value).__name__, wanted)
    low, high = wanted.limits
    if wanted.is_integer and not low <= value <= high:
        raise WeftError(
            f"{spec.name}: {value} does not fit into {wanted}",
            help=f"give a number from {low} to {high}",
        )
    try:
        number = float(value) if wanted.is_float else value
        with np.errstate(all="ignore"):
            return np.asarray(number).astype(wanted.numpy)
    except OverflowError:
        raise WeftError(
            f"{spec.name}: an integer of {value.bit_length()} bits does not fit into {wanted}",
            help="give a smaller number",
        ) from None


def _refuse_type(spec: ValueSpec, actual: object, wanted: DType) -> WeftError:
    return WeftError(
        f"{spec.name} holds {actual}, but the program takes {wanted.numpy}",
        help=f"convert it with .astype({wanted.numpy.name!r}), or save the program for this type",
    )
