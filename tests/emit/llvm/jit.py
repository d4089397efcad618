"""Elementwise functions written as LLVM text, compiled and called on numpy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from weft.emit.llvm.code import Code, module_text
from weft.emit.llvm.linking import Linked
from weft.emit.llvm.machine_code import compile_text, symbol
from weft.emit.llvm.storage import Held, load, store
from weft.emit.llvm.vector import Vectors
from weft.ir.types import Array, DType

Body = Callable[[Vectors, list[Held]], Held]


class Compiled:
    """A function of arrays of one length, element by element."""

    def __init__(self, body: Body, given: Sequence[DType], made: DType, width: int = 16) -> None:
        self.made = made
        self.text = _text(body, given, made, width)
        self._linked = Linked([compile_text(self.text)])
        (self.address,) = self._linked.addresses([symbol("run", self.text)])
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(self.address)

    def __call__(self, *arrays: Array) -> Array:
        arrays = tuple(np.ascontiguousarray(a) for a in arrays)
        out = np.empty(arrays[0].shape, self.made.numpy)
        self.into(out, *arrays)
        return out

    def into(self, out: Array, *arrays: Array) -> None:
        """The same, written to an array that is there."""
        places = (ctypes.c_void_p * (len(arrays) + 1))(*(a.ctypes.data for a in (*arrays, out)))
        self._call(ctypes.addressof(places), out.size)


def _text(body: Body, given: Sequence[DType], made: DType, width: int) -> str:
    """A loop over whole vectors, then one masked vector for the rest."""
    code = Code("run", ["ptr noalias %places", "i64 %count"])
    v = Vectors(code, width)
    bases = []
    for n in range(len(given) + 1):
        place = code.let(f"getelementptr ptr, ptr %places, i64 {n}")
        bases.append(code.let(f"load ptr, ptr {place}"))
    *inputs, output = bases
    rest = code.let(f"srem i64 %count, {width}")
    whole = code.let(f"sub i64 %count, {rest}")
    with code.loop(0, whole, width) as loop:
        args = [load(v, b, loop.index, t) for b, t in zip(inputs, given, strict=True)]
        store(v, body(v, args), output, loop.index, made)
    if width > 1:
        mask = v.first(rest)
        args = [load(v, b, whole, t, mask) for b, t in zip(inputs, given, strict=True)]
        store(v, body(v, args), output, whole, made, mask)
    return module_text(code)


@cache
def compiled(body: Body, given: tuple[DType, ...], made: DType, width: int = 16) -> Compiled:
    """The same as Compiled, made once."""
    return Compiled(body, given, made, width)
