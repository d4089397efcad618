"""Runs kernels by the target's runtime, on poisoned outputs, and compares with the reference."""

from __future__ import annotations

from typing import Any

import numpy as np

from weft.array.torch_memory import torch_memory
from weft.emit.triton.runtime.commands import GraphCommands
from weft.emit.triton.runtime.load import load_parts
from weft.emit.triton.schedule import schedule_of
from weft.emit.triton.target import Triton
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Contract, Kernel
from weft.run.parts import parts_of

POISON = 77


def kernels_of(program: Any) -> list[Any]:
    return [part.group.kernel for part in parts_of(program) if part.group is not None]


def values(kernel: Kernel, seed: int = 0) -> list[Any]:
    """Positive floats, so that no root or logarithm is NaN; small integers."""
    rng = np.random.default_rng(seed)
    made = []
    for operand in kernel.operands:
        if operand.output:
            continue
        if operand.dtype.kind == "bool":
            made.append(rng.random(operand.shape) < 0.5)
        elif operand.dtype.is_integer:
            made.append(rng.integers(0, 5, operand.shape).astype(operand.dtype.numpy))
        else:
            made.append((rng.random(operand.shape) + 0.1).astype(operand.dtype.numpy))
    return made


def launched(kernel: Any, arrays: list[Any], device: str, poison: int = POISON) -> list[Any]:
    """The outputs of one launch."""
    memory = torch_memory(device)
    given = iter(arrays)
    buffers = [
        memory.place(
            np.full(o.shape, poison, o.dtype.numpy) if o.output else np.asarray(next(given))
        )
        for o in kernel.operands
    ]
    queue = GraphCommands(memory)
    (loaded,) = load_parts([kernel], memory.device)
    queue.kernel(loaded, [memory.address(buffer) for buffer in buffers])
    queue.run()
    outputs = [n for n, o in enumerate(kernel.operands) if o.output]
    return [buffers[n].numpy() for n in outputs]


def check(kernel: Kernel, device: str) -> None:
    """Compare a launch with the reference semantics of kernels."""
    assert Triton().unsupported_kernel(kernel) is None
    assert kernel.schedule == schedule_of(kernel)
    arrays = values(kernel)
    made, expected = launched(kernel, arrays, device), interpret(kernel, arrays)
    outputs = [o for o in kernel.operands if o.output]
    for operand, one, other in zip(outputs, made, expected, strict=True):
        wide = np.asarray(other, np.float64)
        scale = float(np.abs(wide).max(initial=1e-6))
        error = float(np.abs(np.asarray(one, np.float64) - wide).max(initial=0)) / scale
        narrow = operand.dtype.is_float and operand.dtype.bits < 32
        inexact = narrow or any(o.dtype.name == "bf16" for o in kernel.operands)
        tf32 = any(isinstance(s, Contract) and s.tf32 for s in kernel.steps)
        limit = 2**-7 if inexact else 2**-9 if tf32 else 2e-6
        assert error <= limit, (kernel.name, error)
