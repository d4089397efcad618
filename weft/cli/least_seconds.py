"""The least seconds of calls and of launches."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from weft.kernels.group import AnyKernel
from weft.target import Commands

_REPEATS = 16  # launches in one queue: the call of the queue does not count
_SMALL = 1 << 18  # bytes
_ALIGNED = 64  # bytes
_LEAST_ROUNDS = 5


def launch_seconds(queue: Commands, kernel: AnyKernel, loaded: object, seconds: float) -> float:
    """Seconds of a launch of a kernel, many of them in one empty queue, on small numbers."""
    buffers, numbers = [], np.random.default_rng(0)
    for operand in kernel.operands:
        whole = np.zeros(operand.nbytes + _ALIGNED, np.uint8)
        begin = -whole.ctypes.data % _ALIGNED
        buffers.append(whole[begin : begin + operand.nbytes])
        # A sort of equal numbers is no sort, and denormal products take much longer.
        if operand.dtype.is_float:
            drawn = numbers.uniform(0.999, 1.001, operand.size)
            buffers[-1].view(operand.dtype.numpy)[:] = drawn.astype(operand.dtype.numpy)
    # Few launches where they are long: others interrupt long queues more often.
    repeats = _REPEATS if sum(operand.nbytes for operand in kernel.operands) < _SMALL else 1
    for _ in range(repeats):
        queue.kernel(loaded, [buffer.ctypes.data for buffer in buffers])
    return least(queue.run, seconds) / repeats


def least(call: Callable[[], object], seconds: float) -> float:
    """The least seconds of a call; a busy computer makes all but the least longer."""
    call()
    fastest, end, rounds = float("inf"), time.perf_counter() + seconds, 0
    while rounds < _LEAST_ROUNDS or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        fastest, rounds = min(fastest, time.perf_counter() - began), rounds + 1
    return fastest
