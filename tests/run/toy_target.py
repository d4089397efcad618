"""A target without a compiler: its kernels are interpreted."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.ir.op import Op
from weft.ir.types import DType
from weft.kernels.group import Launch
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Kernel, Operand, Schedule
from weft.kernels.text import kernel_text
from weft.ops import OPS
from weft.target import Cell, Limits, Options


class ToyCommands:
    """Kernels that are interpreted one after another on the memory at their operands' addresses."""

    def __init__(self) -> None:
        self.listed: list[tuple[Kernel, int]] = []
        self.addresses: list[int] = []
        self.made: Any = None

    def kernel(self, loaded: Kernel, operands: Sequence[int]) -> int:
        start = len(self.addresses)
        self.listed.append((loaded, start))
        self.addresses += operands
        return start

    @property
    def pointers(self) -> Any:
        if self.made is None:
            self.made = np.array(self.addresses, np.uint64)
        return self.made

    def run(self) -> None:
        for kernel, start in self.listed:
            arrays = [
                _at(int(self.pointers[start + n]), operand)
                for n, operand in enumerate(kernel.operands)
            ]
            pairs = [*zip(kernel.operands, arrays, strict=True)]
            made = interpret(kernel, [a for o, a in pairs if not o.output])
            for out, result in zip([a for o, a in pairs if o.output], made, strict=True):
                out[...] = result

    def repeat(self, work: ToyCommands, verdict: int, moves: int, limit: int) -> int:
        for count in range(limit):
            self.run()
            if not ctypes.c_uint8.from_address(verdict).value:
                return count
            work.run()
            place = moves + 8
            for _ in range(ctypes.c_int64.from_address(moves).value):
                place = _moved(place)
        return limit


def _moved(place: int) -> int:
    """Let a value that is carried change places; where what is said of the next one begins."""
    word = ctypes.c_int64
    levels, buffers, number = (word * 3).from_address(place)
    now = (word * levels).from_address(place + 24)
    rooms = (word * buffers).from_address(place + 24 + 8 * levels)
    counts = (word * (levels + 1)).from_address(place + 24 + 8 * (levels + buffers))
    place_ = place + 24 + 8 * (2 * levels + buffers + 1)
    now[:] = [rooms[number], *now[:-1]]
    following = (number + 1) % buffers
    word.from_address(place + 16).value = following
    for address, count in zip([*now, rooms[following]], counts, strict=True):
        for operand in (word * count).from_address(place_):
            word.from_address(operand).value = address
        place_ += 8 * count
    return place_


def _at(address: int, operand: Operand) -> Any:
    if not operand.nbytes:
        return np.empty(operand.shape, operand.dtype.numpy)
    assert address, "an operand has no address"
    raw = (ctypes.c_uint8 * operand.nbytes).from_address(address)
    return np.ndarray(operand.shape, operand.dtype.numpy, raw)


class ToyTarget:
    """Kernels of few steps, which are not compiled."""

    name = "toy"
    table = dict.fromkeys(OPS, Cell("emitted", "loops"))
    forms = {"contract": "txt"}
    identity = None
    limits = Limits(
        steps=3, near=64, chain=2, choices=2, row=64, rows=2, saved=1, lines=1, cut=1, block=(1, 1)
    )

    def __init__(self, options: Options | None = None) -> None:
        self.options = options or Options()

    def can(self, op: Op, given: tuple[DType, ...], made: tuple[DType, ...]) -> str | None:
        return None

    def takes(self, kernel: Launch) -> str | None:
        return None if isinstance(kernel, Kernel) else "only loops are interpreted"

    def schedule(self, kernel: Kernel) -> Schedule:
        return Schedule("in_order", tuple(range(len(kernel.factors))))

    def candidates(self, kernel: Launch) -> None:
        return None

    def text(self, kernel: Launch, form: str = "contract") -> str:
        return kernel_text(kernel)

    def remember(self, kernels: Sequence[Launch], name: str) -> None:
        raise AssertionError("it has no identity: nothing is remembered")

    recall = remember

    def load(self, kernels: Sequence[Kernel]) -> Sequence[Kernel]:
        return kernels

    def commands(self) -> ToyCommands:
        return ToyCommands()

    def with_options(self, options: Options) -> ToyTarget:
        return ToyTarget(options)
