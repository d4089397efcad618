"""Elementwise functions written as LLVM text, compiled and called on numpy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from weft.emit.llvm.emitted import symbol
from weft.emit.llvm.jit.linking import Linked
from weft.emit.llvm.jit.machine_code import Compiler
from weft.emit.llvm.jit.processor import Processor, host
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.storage import Held, load, store
from weft.emit.llvm.writer.vector import Vectors
from weft.ir.types import Array, DType

Body = Callable[[Vectors, list[Held]], Held]


class Compiled:
    """A function of arrays of one length, element by element, a vector at a time."""

    def __init__(
        self,
        body: Body,
        given: Sequence[DType],
        made: DType,
        width: int = 16,
        processor: Processor | None = None,
    ) -> None:
        self.made = made
        self.width = width
        self.text = _text(body, given, made, width)
        self._linked = Linked([_compiler(processor or host()).object(self.text)])
        (address,) = self._linked.addresses([symbol("run", self.text)])
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(address)

    def __call__(self, *arrays: Array) -> Array:
        count = len(arrays[0])
        rest = -count % self.width
        padded = [np.concatenate([a, np.zeros(rest, a.dtype)]) for a in arrays]
        out = np.empty(count + rest, self.made.numpy)
        self.into(out, *padded)
        return out[:count]

    def into(self, out: Array, *arrays: Array) -> None:
        """The same, written to an array; its length is a multiple of the vector's."""
        places = (ctypes.c_void_p * (len(arrays) + 1))(*(a.ctypes.data for a in (*arrays, out)))
        self._call(ctypes.addressof(places), out.size)


def _text(body: Body, given: Sequence[DType], made: DType, width: int) -> str:
    code = Writer("run", ["ptr noalias %places", "i64 %count"])
    v = Vectors(code, width)
    bases = []
    for n in range(len(given) + 1):
        place = code.let(f"getelementptr ptr, ptr %places, i64 {n}")
        bases.append(code.let(f"load ptr, ptr {place}"))
    *inputs, output = bases
    with code.loop(0, "%count", width) as loop:
        args = [load(v, b, loop.index, t) for b, t in zip(inputs, given, strict=True)]
        store(v, body(v, args), output, loop.index, made)
    return module_text(code)


@cache
def _compiler(processor: Processor) -> Compiler:
    return Compiler(processor)
