"""Matrix tiles where the processor has none: numpy does what their instructions say.

Every instruction in a kernel's text becomes a call of a function here, so that the tiles of a
kernel are tested on any machine with its vectors. What a processor would refuse is a fault:
tiles that are not set up, or whose lines do not fit each other.
"""

from __future__ import annotations

import ctypes
import re
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np

from weft.emit.llvm.emitted import Emitted, symbol
from weft.emit.llvm.jit.engine import LoadedKernel, LoadedPhase, load
from weft.emit.llvm.jit.linking import Linked
from weft.emit.llvm.jit.machine_code import compile_text
from weft.emit.llvm.jit.processor import host
from weft.ir.types import Array

HAVE = host().has("amx-bf16") and host().has("amx-int8")
TILED = replace(host(), features=re.sub(r"[+-](amx-(?:bf16|int8|tile))", r"+\1", host().features))
_SIGNED = {"s": np.int8, "u": np.uint8}
faults: list[str] = []


class _Thread:
    """The tile registers of a thread."""

    def __init__(self) -> None:
        self.shapes: dict[int, tuple[int, int]] | None = None  # lines and bytes of a line
        self.held: dict[int, Array] = {}

    def set_up(self, at: int) -> None:
        """ldtilecfg"""
        told = ctypes.string_at(at, 64)
        assert told[0] == 1, "palette 1 is the only one"
        widths = np.frombuffer(told, np.uint16, 8, 16)
        self.shapes = {n: (told[48 + n], int(width)) for n, width in enumerate(widths) if width}
        assert all(0 < r <= 16 and 0 < w <= 64 for r, w in self.shapes.values()), self.shapes
        self.held = {}

    def give_back(self) -> None:
        """tilerelease"""
        assert self.shapes is not None, "given back twice"
        self.shapes = None

    def shape(self, register: int) -> tuple[int, int]:
        assert self.shapes is not None, "tiles are used before they are set up"
        return self.shapes[register]

    def lines(self, register: int, at: int, stride: int) -> list[Array]:
        """Where the lines of a register are in memory."""
        count, width = self.shape(register)
        kind = ctypes.c_uint8 * width
        return [np.frombuffer(kind.from_address(at + n * stride), np.uint8) for n in range(count)]

    def zero(self, register: int) -> None:
        self.held[register] = np.zeros(self.shape(register), np.uint8)

    def read(self, register: int, at: int, stride: int) -> None:
        self.held[register] = np.stack(self.lines(register, at, stride))

    def write(self, register: int, at: int, stride: int) -> None:
        for line, values in zip(self.lines(register, at, stride), self.held[register], strict=True):
            line[:] = values

    def multiply(self, *registers: int, kinds: tuple[type, type], made: type) -> None:
        """Add to the first register the product of the others, whose cells hold several steps."""
        assert len(set(registers)) == 3, "three registers"
        (m, n), (rows, depth), (lines, columns) = map(self.shape, registers)
        assert rows == m and columns == n and 4 * lines == depth, "tiles do not fit each other"
        sums, *sides = (self.held[r] for r in registers)
        left, right = (s.view(kind) for s, kind in zip(sides, kinds, strict=True))
        group = 4 // left.itemsize
        right = right.reshape(lines, -1, group).transpose(0, 2, 1).reshape(lines * group, -1)
        wide = np.float64 if made is np.float32 else np.int64
        with np.errstate(all="ignore"):
            total = sums.view(made) + left.astype(wide) @ right.astype(wide)
            self.held[registers[0]] = total.astype(made).view(np.uint8)


# By number: what Python keeps for threads that it did not start ends with every call.
_THREADS: defaultdict[int, _Thread] = defaultdict(_Thread)


def _guarded(function: Callable[..., None]) -> Callable[..., None]:
    """A function that keeps what goes wrong in it: its caller is no Python."""

    def called(*given: int) -> None:
        try:
            function(_THREADS[threading.get_ident()], *given)
        except Exception as error:  # noqa: BLE001  # told by `check_faults`
            faults.append(f"{type(error).__name__}: {error}")

    return called


def _instructions() -> dict[str, ctypes._CFuncPtr]:
    one, place = [ctypes.c_int32], [ctypes.c_int32, ctypes.c_uint64, ctypes.c_int64]
    functions: dict[str, tuple[list[type], Callable[..., None]]] = {
        "ldtilecfg": ([ctypes.c_uint64], _Thread.set_up),
        "tilerelease": ([], _Thread.give_back),
        "tilezero": (one, _Thread.zero),
        "tileloadd64": (place, _Thread.read),
        "tilestored64": (place, _Thread.write),
    }
    ways = {"tdpbf16ps": ((ml_dtypes.bfloat16, ml_dtypes.bfloat16), np.float32)}
    ways |= {f"tdpb{a}{b}d": ((_SIGNED[a], _SIGNED[b]), np.int32) for a in "su" for b in "su"}
    for name, (kinds, made) in ways.items():
        functions[name] = (one * 3, partial(_Thread.multiply, kinds=kinds, made=made))
    return {
        name: ctypes.CFUNCTYPE(None, *types)(_guarded(function))
        for name, (types, function) in functions.items()
    }


_INSTRUCTIONS = _instructions()


def emulated_text(text: str) -> str:
    """A text with calls of functions in the place of instructions."""

    def call(found: re.Match[str]) -> str:
        address = ctypes.cast(_INSTRUCTIONS[found[1]], ctypes.c_void_p).value
        given = re.sub(r"\bi8 ", "i32 ", found[2])
        return f"call void inttoptr (i64 {address} to ptr)({given})"

    names = "|".join(_INSTRUCTIONS)
    text = re.sub(rf"^declare void @llvm\.x86\.(?:{names})\(.*\n", "", text, flags=re.M)
    return re.sub(rf"call void @llvm\.x86\.({names})\((.*)\)", call, text)


def load_tiled(emitted: Emitted) -> LoadedKernel:
    """A kernel on tiles, ready to run: on the processor's, or on those of this file."""
    if HAVE or "@llvm.x86.tile" not in emitted.text:
        return load([emitted])[0]
    text = emulated_text(emitted.text)
    code = Linked([compile_text(text)])
    addresses = code.addresses([symbol(p.function, text) for p in emitted.phases])
    pairs = zip(addresses, emitted.phases, strict=True)
    phases = tuple([LoadedPhase(at, p.tasks, p.chunk) for at, p in pairs])
    return LoadedKernel(phases, emitted.scratch, emitted.shared, code)


def check_faults() -> None:
    """Fail with what a processor would have refused."""
    found, faults[:] = list(faults), []
    assert not found, found[0]
