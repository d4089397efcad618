"""Kernels run on numpy arrays, and compared with what they mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.tolerance import assert_close
from weft.emit.llvm.emit import emit
from weft.emit.llvm.emitted import symbol
from weft.emit.llvm.jit.engine import LoadedKernel, LoadedPhase, load
from weft.emit.llvm.jit.linking import Linked
from weft.emit.llvm.jit.machine_code import compile_text
from weft.emit.llvm.jit.processor import Processor
from weft.emit.llvm.pool.commands import CommandList
from weft.ir.types import Array
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Kernel


def launch(
    kernel: Kernel, arrays: Sequence[Array], processor: Processor | None = None
) -> tuple[Array, ...]:
    """The outputs of a kernel, 0 where nothing is stored; no element beyond their ends changes."""
    (loaded,) = load([emit(kernel)]) if processor is None else [made_for(processor, kernel)]
    given = iter(arrays)
    buffers: list[Array] = []
    for operand in kernel.operands:
        held = np.zeros(operand.size + 2, operand.dtype.numpy)  # one more at either end
        if not operand.output:
            held[1:-1] = np.ravel(next(given))
        buffers.append(held)
    commands = CommandList()
    commands.kernel(loaded, [b.ctypes.data + b.itemsize for b in buffers])
    commands.run()
    pairs = [(o, b) for o, b in zip(kernel.operands, buffers, strict=True) if o.output]
    for _, buffer in pairs:
        assert not buffer[[0, -1]].any(), "written outside of an operand"
    return tuple([b[1:-1].reshape(o.shape) for o, b in pairs])


def made_for(processor: Processor, kernel: Kernel) -> LoadedKernel:
    """A kernel made for another processor, all instructions of which this one has."""
    emitted = emit(kernel, processor)
    code = Linked([compile_text(emitted.text, processor)])
    addresses = code.addresses([symbol(p.function, emitted.text) for p in emitted.phases])
    pairs = zip(addresses, emitted.phases, strict=True)
    phases = tuple([LoadedPhase(at, p.tasks, p.chunk) for at, p in pairs])
    return LoadedKernel(phases, emitted.scratch, emitted.shared, code)


def check(
    kernel: Kernel, arrays: Sequence[Array], length: int = 1, processor: Processor | None = None
) -> tuple[Array, ...]:
    """Run a kernel and compare it with its interpretation."""
    made, expected = launch(kernel, arrays, processor), interpret(kernel, arrays)
    for a, b in zip(made, expected, strict=True):
        assert_close(a, b, length, kernel.name)
    return made
