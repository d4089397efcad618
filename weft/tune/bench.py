"""Timing of candidate kernels, on synthetic operands."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from weft.ir.types import Array
from weft.kernels.kernel import Kernel, Operand
from weft.target import Commands, Runtime

_SHORT = 1e-3  # seconds; shorter runs are repeated
_ALIGNED = 128
_DRAWN = 4093  # random numbers drawn, then tiled


class Bench:
    """Candidates loaded on common operands."""

    def __init__(self, kernel: Kernel, candidates: Mapping[str, Kernel], runtime: Runtime) -> None:
        self._arrays = [_made_up(operand) for operand in kernel.operands]
        places = [int(array.ctypes.data) for array in self._arrays]
        self._commands: dict[str, Commands] = {}
        for name, loaded in zip(candidates, runtime.load([*candidates.values()]), strict=True):
            self._commands[name] = runtime.commands()
            self._commands[name].kernel(loaded, places)

    def seconds(self, name: str) -> float:
        """The time of one run, after a warm-up that fills caches and wakes threads."""
        commands = self._commands[name]
        began = time.perf_counter()
        commands.run()
        took = time.perf_counter() - began
        if took > 20 * _SHORT:  # only warm runs count
            return took
        count = max(1, int(_SHORT / max(took, 1e-6)))
        began = time.perf_counter()
        for _ in range(count):
            commands.run()
        return (time.perf_counter() - began) / count


def _made_up(operand: Operand) -> Array:
    """Normal numbers; integers, which may be indices, are 0."""
    memory = np.zeros(operand.nbytes + _ALIGNED, np.uint8)
    begin = -memory.ctypes.data % _ALIGNED
    array = memory[begin : begin + operand.nbytes].view(operand.dtype.numpy)
    if not operand.output and (operand.dtype.is_float or operand.dtype.bits == 8):
        drawn = np.random.default_rng(0).standard_normal(_DRAWN)
        scale = 1.0 if operand.dtype.is_float else 8.0
        array[...] = np.resize((scale * np.abs(drawn)).astype(array.dtype), array.shape)
    return array
