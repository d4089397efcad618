"""Native functions as machine code, to be called beside their Python."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.jit.engine import LoadedKernel, load
from weft.emit.llvm.jit.processor import host
from weft.native.function import NativeFunction
from weft.native.memory import as_pointer, c_type, number
from weft.native.text import lowered_text

_HELD: list[LoadedKernel] = []


class Machine:
    """Functions of a text by their names, called with the values that Python calls them with."""

    def __init__(self, text: str, functions: tuple[NativeFunction[..., Any], ...], lib=None):
        (loaded,) = load([Emitted(text, tuple([Phase(f.name, 1) for f in functions]))])
        _HELD.append(loaded)
        self.addresses = {f.name: p.address for f, p in zip(functions, loaded.phases, strict=True)}
        for function in functions:
            setattr(self, function.python.__name__, self._callable(function, lib))

    def _callable(self, function: NativeFunction[..., Any], lib: Any) -> Any:
        given, result = function.signature
        kind = (lib or ctypes.CFUNCTYPE)(c_type(result), *map(c_type, given))
        entry = kind(self.addresses[function.name])

        def call(*args: Any) -> Any:
            answer = entry(*map(number, args))
            return as_pointer(answer, result) if c_type(result) is ctypes.c_size_t else answer

        return call

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


def machine(
    *functions: NativeFunction[..., Any], constants: Mapping[str, int] | None = None
) -> Machine:
    """The machine code of functions, for this processor."""
    return Machine(lowered_text(host().triple, functions, constants), functions)
