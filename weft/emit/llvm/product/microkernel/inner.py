"""The microkernel for few rows or columns: lanes along K (dot products).

    block[i][j] = sum over k of lhs[i, k] * rhs[j, k]

Both sides are loaded as vectors in place; lanes are summed at the end. Nothing is packed: each
element is read once from memory, which is the bottleneck.
"""

from __future__ import annotations

from weft.emit.llvm.product.microkernel.microkernel import MULTIPLY, PARAMS, RegisterBlock
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import times
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.types import DType


def inner_microkernel(block: RegisterBlock) -> Writer:
    """The function of a block; byte strides lead from row to row and from column to column."""
    code = Writer(block.name, PARAMS, internal=True)
    code.header += " noinline nounwind"
    v = Vectors(code, block.width)
    lhs = _lines(code, "%lhs", "%lhs_stride", block.rows)
    rhs = _lines(code, "%rhs", "%rhs_stride", block.vectors)
    zero = Vector("zeroinitializer" if v.width > 1 else _zero(block.kind), block.kind, v.width)
    rest = code.let(f"urem i64 %k, {v.width}")
    whole = code.let(f"sub nsw i64 %k, {rest}")
    carried = [(zero.type, zero.text)] * (block.rows * block.vectors)
    with code.loop(0, whole, v.width, carried) as loop:
        loop.carry(*_step(v, block, lhs, rhs, loop.index, loop.carried, None))
    sums = loop.carried
    if v.width > 1:
        # Without a branch: if there is no rest, the mask is empty and nothing is read.
        sums = tuple(_step(v, block, lhs, rhs, whole, sums, v.first(rest)))
    _finish(v, block, sums)
    return code


def _zero(kind: str) -> str:
    return "0.0" if kind in ("float", "double") else "0"


def _lines(code: Writer, base: str, stride: str, count: int) -> list[str]:
    """Line addresses, opaque to LLVM, whose own address arithmetic costs more."""
    addresses = []
    for n in range(count):
        at = code.let(f"getelementptr i8, ptr {base}, i64 {times(code, stride, n)}")
        addresses.append(code.let(f'call ptr asm "", "=r,0"(ptr {at})'))
    return addresses


def _step(
    v: Vectors,
    block: RegisterBlock,
    lhs: list[str],
    rhs: list[str],
    at: str,
    sums: tuple[str, ...],
    mask: Vector | None,
) -> list[str]:
    """The sums with one more vector of products each."""
    rows = [_read(v, line, at, block, block.lhs_stored, mask) for line in lhs]
    columns = [_read(v, line, at, block, block.stored, mask) for line in rhs]
    multiply = MULTIPLY[block.multiply]
    updated = []
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            old = Vector(sums[i * block.vectors + j], block.kind, v.width)
            updated.append(multiply(v, row, column, old).text)
    return updated


def _read(
    v: Vectors, line: str, at: str, block: RegisterBlock, stored: DType | None, mask: Vector | None
) -> Vector:
    if stored is not None:
        return storage.load(v, line, at, stored, mask)[0]
    address = v.at(line, at, block.kind)
    return v.load(address, block.kind) if mask is None else v.load_masked(address, mask, block.kind)


def _finish(v: Vectors, block: RegisterBlock, sums: tuple[str, ...]) -> None:
    """Sum the lanes, and store."""
    code, one = v.code, Vectors(v.code, 1)
    for i in range(block.rows):
        row = code.let(f"getelementptr i8, ptr %out, i64 {times(code, '%out_stride', i)}")
        for j in range(block.vectors):
            total = v.total_sum(Vector(sums[i * block.vectors + j], block.kind, v.width))
            # Stored and never added: a block of this kind has all of its part of K (`_block_k`).
            one.store(total, one.at(row, j, block.kind))
