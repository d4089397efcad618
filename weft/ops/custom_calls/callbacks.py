"""Host callbacks: calls from a program into Python functions of its process."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from weft.errors import Unsupported, WeftError
from weft.ir.check import require
from weft.ir.module import Module, Node
from weft.ir.rebuild import rewrite
from weft.ir.types import Array, TensorType, TokenType, Type, Types
from weft.ops.custom_calls.declaration import (
    CallResults,
    CallUse,
    Config,
    KnownCall,
    config_of,
    config_text,
)
from weft.records import dataclass

HOST_CALL = "weft.host_call"
HOST_CALL_ON_PIECES = "weft.host_call_on_pieces"  # each device calls with its local shards
INSPECT = "weft.inspect_sharding"  # a compile-time call with the sharding of its operand
_numbers = itertools.count(1)


class NamedCustomCall(Protocol):
    """A custom call."""

    @property
    def call_target_name(self) -> str: ...
    @property
    def has_side_effect(self) -> bool: ...
    @property
    def backend_config(self) -> str | None: ...


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class HostFunction:
    """A Python function of arrays that programs of this process call by its id."""

    call: Callable[..., Any]
    number: int = field(default_factory=lambda: next(_numbers))

    def __post_init__(self) -> None:
        _FUNCTIONS[self.number] = self


# Weak: a program holds references to its functions, and ids die with them.
_FUNCTIONS: weakref.WeakValueDictionary[int, HostFunction] = weakref.WeakValueDictionary()


def calls_python(op: object) -> bool:
    """Whether an op calls a Python function of the process."""
    return getattr(op, "call_target_name", None) in CALLS


def has_calls(module: Module) -> bool:
    """Whether a program has custom calls of Python or library functions."""
    return any(hasattr(node.op, "call_target_name") for node in module.nodes())


def host_functions(module: Module) -> tuple[HostFunction, ...]:
    """The Python functions that a program of this process calls, in order."""
    functions: dict[int, HostFunction] = {}
    for node in module.nodes():
        if calls_python(node.op):
            number = config_of(node.op.backend_config)["function"]  # type: ignore[attr-defined]
            functions[number] = host_function(number)
    return tuple(functions.values())


def bind_functions(module: Module, numbers: Mapping[int, int]) -> Module:
    """The program with its callbacks bound to ids of this process, by their indices in it."""

    def bound(node: Node) -> Node | None:
        """callback(id of another process) -> callback(id at its index)."""
        if not calls_python(node.op):
            return None
        config = config_of(node.op.backend_config)  # type: ignore[attr-defined]
        number = numbers[config["index"]]
        if config["function"] == number:
            return None
        text = config_text(function=number, index=config["index"], once=bool(config["once"]))
        op = node.op.replace(backend_config=text)
        return Node(op, node.operands, node.types, node.regions, node.attrs, node.loc)

    return rewrite(module, bound)


def host_function(number: int) -> HostFunction:
    """The Python function of an id."""
    if found := _FUNCTIONS.get(number):
        return found
    raise Unsupported(
        f"the program calls Python function {number}, which is not in this process",
        help="run the program where it was captured; its text does not hold Python functions",
    )


def _check(name: str, config: Config, operands: Types, results: Types) -> None:
    require("function" in config, f"{name} names no function", "give backend_config a function")
    token_operands, token_results = (
        [isinstance(t, TokenType) for t in types] for types in (operands, results)
    )
    require(
        token_operands[:1] == [True] == token_results[:1]
        if any((*token_operands, *token_results))
        else True,
        f"{name} takes {sum(token_operands)} tokens and gives {sum(token_results)}",
        "an ordered call takes a token before all others, and gives one",
    )
    require(
        not any((*token_operands[1:], *token_results[1:])),
        f"{name} has several tokens",
        "one is enough",
    )


def _reference(site: CallUse, *values: Any) -> CallResults:
    """Call the function; a call with global values runs once for all devices."""
    number = site.config["function"]
    ordered = bool(site.outs) and isinstance(site.outs[0], TokenType)
    arguments, outs = (values[1:], site.outs[1:]) if ordered else (values, site.outs)
    first = (None,) if ordered else ()
    if site.run is None or not site.config.get("once"):
        return (*first, *_called(number, arguments, outs))
    # The n-th call of every device takes the n-th answer: the first device to come calls the
    # function.
    answers = site.run.channel(("host call", number))
    request = site.run.channel(("host call", number, site.run.device))
    request.append(())
    if len(request) > len(answers):
        answers.append(_called(number, arguments, outs))
    return (*first, *answers[len(request) - 1])


def direct_call(op: NamedCustomCall, outs: Types) -> Callable[..., CallResults] | None:
    """The call of a function that runs once for all devices, without an evaluation; else None."""
    if not called_once(op):
        return None
    number = config_of(op.backend_config)["function"]
    if bool(outs) and isinstance(outs[0], TokenType):
        rest = outs[1:]
        return lambda _, *values: (None, *_called(number, values, rest))
    return lambda *values: _called(number, values, outs)


def _called(number: int, arguments: tuple[Array, ...], outs: Types) -> CallResults:
    results = host_function(number).call(*arguments)
    # In the words of jaxlib, which users of JAX know.
    if len(results) != len(outs):
        raise WeftError(
            "Mismatched number of outputs from callback. "
            f"Expected: {len(outs)}, Actual: {len(results)}",
            help="return values of the result types",
        )
    return tuple(map(_result, range(len(outs)), results, outs))


def _result(index: int, value: Any, type: Type) -> Array:
    assert isinstance(type, TensorType)
    array = np.asarray(value)
    dtype = type.dtype.numpy
    if array.shape != type.sizes or array.dtype != dtype:
        same = array.shape == type.sizes
        wanted, found = (dtype, array.dtype) if same else (type.sizes, array.shape)
        raise WeftError(
            f"Incorrect output {'dtype' if same else 'shape'} for return value #{index}: "
            f"Expected: {wanted}, Actual: {found}; the Python function gave "
            f"{array.dtype}{list(array.shape)} as result {index}, but {type} is expected",
            help="return arrays of the shapes and element types that were promised",
        )
    return array


def called_once(op: object) -> bool:
    """Whether one call of a Python function is for all devices."""
    return calls_python(op) and bool(config_of(op.backend_config).get("once"))  # type: ignore[attr-defined]


def called_by_each(op: NamedCustomCall) -> bool:
    """Whether every device calls a Python function separately, for its side effect."""
    is_ours = op.call_target_name in CALLS and op.has_side_effect
    return is_ours and not config_of(op.backend_config).get("once")


CALLS: dict[str, KnownCall] = {
    HOST_CALL: KnownCall(_check, _reference),
    HOST_CALL_ON_PIECES: KnownCall(_check, _reference),
}
