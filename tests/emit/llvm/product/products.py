"""Packed products written by hand, and how they are run and checked."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from tests.emit.llvm.product.emulated_tiles import check_faults, load_tiled
from tests.kernels.building import Building
from tests.tolerance import assert_close
from weft.emit.llvm.jit.processor import host
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.product.blocking.blocking import Chip
from weft.emit.llvm.product.emit import emit_product
from weft.emit.llvm.product.product import supports
from weft.ir.types import DTYPES, F32, Array, DType
from weft.kernels.interpret import interpret
from weft.kernels.kernel import Contract, Kernel

GUARD = 64  # elements around every output that nobody may write


def product(
    dims: tuple[str, str, str],
    sizes: dict[str, int],
    dtype: DType = F32,
    held: DType = F32,
    made: DType | None = None,
) -> tuple[Building, int]:
    """lhs, rhs and result by the names of their dims; a building, and the number of the sum."""
    b = Building(**sizes)
    lhs, rhs, out = dims
    over = "".join(n for n in sizes if n not in out)
    left, right = b.read(lhs, dtype), b.read(rhs, dtype)
    total = b.contract(left, right, over, held)
    if made is not None:
        step = b.steps[total]
        assert isinstance(step, Contract)
        b.steps[total] = replace(step, dtype=made)
    return b, total


def run_kernel(kernel: Kernel, arrays: list[Array], chip: Chip | None = None) -> list[Array]:
    """The outputs of a kernel, with a check that nothing around them was written."""
    assert supports(kernel) is None, supports(kernel)
    loaded = load_tiled(emit_product(kernel, host(), chip))
    inputs = iter([np.ascontiguousarray(a) for a in arrays])
    buffers, outputs = [], []
    for operand in kernel.operands:
        if operand.output:
            whole = np.full(operand.size * operand.dtype.numpy.itemsize + 2 * GUARD, 0xA5, np.uint8)
            outputs.append((operand, whole))
            buffers.append(whole[GUARD:])
        else:
            buffers.append(next(inputs))
    commands = CommandList()
    commands.kernel(loaded, [int(b.ctypes.data) for b in buffers])
    commands.run()
    check_faults()
    for _, whole in outputs:
        assert (whole[:GUARD] == 0xA5).all() and (whole[-GUARD:] == 0xA5).all()
    return [
        whole[GUARD:-GUARD].view(operand.dtype.numpy).reshape(operand.shape)
        for operand, whole in outputs
    ]


def check(
    kernel: Kernel, arrays: list[Array], chip: Chip | None = None, least: float = 0.0
) -> list[Array]:
    """Compare what a kernel gives with what it means."""
    contract = next(s for s in kernel.steps if isinstance(s, Contract))
    length = max(1, math.prod(kernel.factors[f].size for f in contract.over))
    found = run_kernel(kernel, arrays, chip)
    for actual, expected in zip(found, interpret(kernel, arrays), strict=True):
        assert_close(actual, expected, length, f"{kernel.schedule.options}", least)
    return found


NARROW = Chip(16, 16, 32 << 10, 256 << 10)  # a machine of other vectors and registers
MIDDLE = Chip(32, 16, 32 << 10, 256 << 10)
BF16, F16, I8 = DTYPES["bf16"], DTYPES["f16"], DTYPES["i8"]
