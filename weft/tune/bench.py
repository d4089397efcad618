"""Timing of candidate kernels, on synthetic operands."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from weft.ir.types import Array
from weft.kernels.kernel import Contract, Kernel, Operand
from weft.target import Commands, Runtime

_SHORT = 1e-3  # seconds; shorter runs are repeated
_LONG_ENOUGH = 8e-3  # seconds of repeated runs on a device
_IDLE, _LOADED = 0.03, 0.15  # seconds: a device that was idle so long is loaded so long first
_ALIGNED = 128
_DRAWN = 4093  # random numbers drawn, then tiled
_SPREAD = 192 << 20  # bytes of operand sets on a device: more than its caches hold
_SETS = 16
_COMPARED = 1 << 18  # elements of an output that are compared
_POISON = 77  # in outputs before a run: elements that a candidate does not write differ
_TOLERANCE = 2.0**-6  # of the largest element: candidates round differently


class Bench:
    """Candidates loaded on common operands."""

    def __init__(self, kernel: Kernel, candidates: Mapping[str, Kernel], runtime: Runtime) -> None:
        self.kernel, self.runtime = kernel, runtime
        signed = any(isinstance(step, Contract) for step in kernel.steps)
        arrays = [_made_up(operand, signed) for operand in kernel.operands]
        self._sets = [self._place_arrays(arrays) for _ in range(self._count())]
        self._commands: dict[str, Commands] = {}
        self._expected: list[Array] | None = None
        self._ended = 0.0  # when a device was last timed
        if candidates:
            self.load(candidates)

    def _count(self) -> int:
        """The number of operand sets: several on a device, so that none is in a cache."""
        if self.runtime.stream is None:
            return 1
        nbytes = sum([operand.nbytes for operand in self.kernel.operands])
        return max(1, min(_SETS, _SPREAD // max(1, nbytes)))

    def _place_arrays(self, arrays: Sequence[Array]) -> list[Any]:
        return [self.runtime.memory.place(array) for array in arrays]

    def load(self, candidates: Mapping[str, Kernel]) -> None:
        """Load candidates."""
        runtime = self.runtime
        for name, loaded in zip(candidates, runtime.load([*candidates.values()]), strict=True):
            commands = runtime.commands()
            for buffers in self._sets:
                commands.kernel(loaded, [runtime.memory.address(buffer) for buffer in buffers])
            self._commands[name] = commands

    def mismatch(self, name: str) -> str | None:
        """How a candidate's outputs differ from those of the first one; None if they do not."""
        outputs = self._outputs(name)
        if self._expected is None:
            self._expected = outputs
        for one, other in zip(outputs, self._expected, strict=True):
            scale = float(np.abs(other[np.isfinite(other)]).max(initial=1e-30))
            with np.errstate(invalid="ignore"):
                apart = np.where(one == other, 0.0, np.abs(one - other)) / scale
            apart = np.where(np.isnan(one) & np.isnan(other), 0.0, apart)
            if not (apart <= _TOLERANCE).all():
                return f"a result differs by {np.nan_to_num(apart, nan=np.inf).max():.2g}"
        return None

    def _outputs(self, name: str) -> list[Array]:
        """Elements of the outputs of one run, on poisoned memory."""
        memory, buffers = self.runtime.memory, self._sets[0]
        operands = [(o, b) for o, b in zip(self.kernel.operands, buffers, strict=True) if o.output]
        for operand, buffer in operands:
            memory.copy(np.full(operand.shape, _POISON, operand.dtype.numpy), buffer)
        self._commands[name].run()
        outputs = []
        for _, buffer in operands:
            whole = (buffer if isinstance(buffer, np.ndarray) else buffer.numpy()).reshape(-1)
            # A stride that shares no factor with the sizes of tiles.
            stride = max(1, whole.size // _COMPARED) | 1
            outputs.append(whole[::stride].astype(np.float64))
        return outputs

    def seconds(self, name: str) -> float:
        """The time of one run, after a warm-up that fills caches and wakes threads."""
        took = self._run(name, 1)
        if self.runtime.stream is not None:
            return self._sustained(name)
        if took > 20 * _SHORT:  # only warm runs count
            return took
        return self._run(name, max(1, int(_SHORT / max(took, 1e-6))))

    def _sustained(self, name: str) -> float:
        """The time on a device under load: a rested one runs faster, until its power limit."""
        took = self._run(name, 1)  # the run before captured a graph
        if time.perf_counter() - self._ended > _IDLE:
            self._run(name, max(1, int(_LOADED / max(took, 1e-6))))
        took = self._run(name, max(1, int(_LONG_ENOUGH / max(took, 1e-6))))
        self._ended = time.perf_counter()
        return took / len(self._sets)

    def _run(self, name: str, count: int) -> float:
        """The mean time of so many runs back to back."""
        commands, stream = self._commands[name], self.runtime.stream
        began = time.perf_counter()
        for _ in range(count):
            commands.run()
        if stream is not None:
            stream.synchronize()
        return (time.perf_counter() - began) / count


def _made_up(operand: Operand, signed: bool) -> Array:
    """Normal numbers, positive unless `signed`; integers, which may be indices, are 0."""
    memory = np.zeros(operand.nbytes + _ALIGNED, np.uint8)
    begin = -memory.ctypes.data % _ALIGNED
    array = memory[begin : begin + operand.nbytes].view(operand.dtype.numpy)
    if not operand.output and (operand.dtype.is_float or operand.dtype.bits == 8):
        drawn = np.random.default_rng(0).standard_normal(_DRAWN)
        scale = 1.0 if operand.dtype.is_float else 8.0
        drawn = drawn if signed else np.abs(drawn)
        array[...] = np.resize((scale * drawn).astype(array.dtype), array.shape)
    return array
