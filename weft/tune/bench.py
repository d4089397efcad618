"""How long candidates of a kernel take: the kernels themselves, on operands that are made up."""

from __future__ import annotations

import time
from collections.abc import Mapping

import numpy as np

from weft.ir.types import Array
from weft.kernels.kernel import Kernel, Operand
from weft.target import Commands, Runtime

_SHORT = 1e-3  # seconds: what takes less is run several times
_ALIGNED = 128
_DRAWN = 4093  # numbers that are drawn and then repeated


class Bench:
    """Candidates that are ready to run, all of them on the same operands."""

    def __init__(self, kernel: Kernel, candidates: Mapping[str, Kernel], runtime: Runtime) -> None:
        self._arrays = [_made_up(operand) for operand in kernel.operands]
        places = [int(array.ctypes.data) for array in self._arrays]
        self._commands: dict[str, Commands] = {}
        for name, loaded in zip(candidates, runtime.load([*candidates.values()]), strict=True):
            self._commands[name] = runtime.commands()
            self._commands[name].kernel(loaded, places)

    def seconds(self, name: str) -> float:
        """One run, after one that is not counted: caches are filled, and threads awake."""
        commands = self._commands[name]
        began = time.perf_counter()
        commands.run()
        took = time.perf_counter() - began
        if took > 20 * _SHORT:  # what was cold does not matter any more
            return took
        count = max(1, int(_SHORT / max(took, 1e-6)))
        began = time.perf_counter()
        for _ in range(count):
            commands.run()
        return (time.perf_counter() - began) / count


def _made_up(operand: Operand) -> Array:
    """Normal numbers; integers that may be positions are 0."""
    memory = np.zeros(operand.nbytes + _ALIGNED, np.uint8)
    begin = -memory.ctypes.data % _ALIGNED
    array = memory[begin : begin + operand.nbytes].view(operand.dtype.numpy)
    if not operand.output and (operand.dtype.is_float or operand.dtype.bits == 8):
        drawn = np.random.default_rng(0).standard_normal(_DRAWN)
        scale = 1.0 if operand.dtype.is_float else 8.0
        array[...] = np.resize((scale * np.abs(drawn)).astype(array.dtype), array.shape)
    return array
