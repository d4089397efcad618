"""Kernels run on numpy arrays, and compared with what they mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.tolerance import assert_close
from weft.emit.llvm.commands import Commands
from weft.emit.llvm.emit import emit
from weft.emit.llvm.engine import load
from weft.ir.types import Array
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Kernel


def launch(kernel: Kernel, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The outputs of a kernel, 0 where nothing is stored; no element beyond their ends changes."""
    (loaded,) = load([emit(kernel)])
    given = iter(arrays)
    buffers: list[Array] = []
    for operand in kernel.operands:
        held = np.zeros(operand.size + 2, operand.dtype.numpy)  # one more at either end
        if not operand.output:
            held[1:-1] = np.ravel(next(given))
        buffers.append(held)
    commands = Commands()
    commands.kernel(loaded, [b.ctypes.data + b.itemsize for b in buffers])
    commands.run()
    pairs = [(o, b) for o, b in zip(kernel.operands, buffers, strict=True) if o.output]
    for _, buffer in pairs:
        assert not buffer[[0, -1]].any(), "written outside of an operand"
    return tuple([b[1:-1].reshape(o.shape) for o, b in pairs])


def check(kernel: Kernel, arrays: Sequence[Array], length: int = 1) -> tuple[Array, ...]:
    """Run a kernel and compare it with its interpretation."""
    made, expected = launch(kernel, arrays), interpret(kernel, arrays)
    for a, b in zip(made, expected, strict=True):
        assert_close(a, b, length, kernel.name)
    return made
