"""Gathers of single elements: vectors of indices, and vector gathers."""

from __future__ import annotations

from collections.abc import Sequence

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import module_text
from weft.emit.llvm.writer.elements import address, bits_of, bytes_of
from weft.emit.llvm.writer.nest import (
    function,
    lines,
    moved,
    plus,
    pointers,
    vectors_and_rest,
)
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.ir.types import DTYPES, DType
from weft.kernels.kernel import Operand
from weft.kernels.nest.loop_dims import LoopDim
from weft.records import dataclass

_LANES = 16


@dataclass(frozen=True, slots=True)
class IndexedDim:
    """A dim of the operand that is indexed."""

    step: int  # stride of the dim in the operand
    limit: int  # largest valid index
    at: int  # position in the index vector


def gathers_elements(dims: Sequence[LoopDim], size: int) -> bool:
    """Whether contiguous results are elements at contiguous index vectors."""
    return bool(dims) and dims[-1].steps[1] != 0 and dims[-1].steps[2] == 1 and size <= 8


def gather_elements(
    name: str,
    dims: Sequence[LoopDim],
    operands: tuple[Operand, Operand, Operand],
    pointed: Sequence[IndexedDim],
) -> Emitted:
    """The function; dims have strides in the operand, the indices and the result."""
    size = bytes_of(operands[2])
    tasks = lines(dims, 2 * size + 8)
    code = function(name)
    buffers = pointers(code, 3)
    bits = DTYPES[f"ui{8 * size}"]
    far = operands[0].size >= 2**31
    with tasks.each(code) as (offsets, begin, end):
        for width, index in vectors_and_rest(code, begin, end, _LANES):
            v = Vectors(code, width)
            here = moved(code, offsets, index, tasks.line.steps)
            source = address(code, buffers[0], here[0], bits_of(operands[2]))
            places = _places(v, buffers[1], here[1], operands[1], tasks.line, pointed, far)
            found = storage.gather(v, source, places, bits)
            storage.store(v, found, buffers[2], here[2], bits)
    return Emitted(module_text(code), (tasks.phase(name),))


def _places(
    v: Vectors,
    indices: str,
    offset: str,
    operand: Operand,
    line: LoopDim,
    pointed: Sequence[IndexedDim],
    far: bool,
) -> Vector:
    """Element offsets from the batch's first element: i32 unless they may exceed it."""
    kind = "i64" if far or v.width == 1 else "i32"
    # Relative to the batch's first element, whose address is a scalar: 32-bit gathers take half of
    # the registers of 64-bit ones.
    total = v.mul(v.lanes(kind), v.constant(line.steps[0], kind))
    for one in pointed:
        held = _read(v, indices, plus(v.code, offset, one.at), operand.dtype, line.steps[1])
        index = _clamped(v, held, operand.dtype, one.limit, kind)
        total = v.add(total, v.mul(index, v.constant(one.step, kind)))
    return total


def _read(v: Vectors, base: str, offset: str, dtype: DType, step: int) -> Vector:
    if step == 1 or v.width == 1:
        (held,) = storage.load(v, base, offset, dtype)
        return held
    at = v.mul(v.lanes(), v.constant(step, "i64"))
    (held,) = storage.gather(v, base, v.add(v.splat(Vector(offset, "i64")), at), dtype)
    return held


def _clamped(v: Vectors, index: Vector, dtype: DType, limit: int, kind: str) -> Vector:
    """Indices clamped to 0..limit, in a type that can represent it."""
    signed = dtype.kind == "int"
    if index.bits < 32:
        index, signed = v.cast("sext" if signed else "zext", index, "i32"), True
    if index.bits == 32 and limit >= 2**31:
        index, signed = v.cast("sext" if signed else "zext", index, "i64"), True
    if signed:
        index = v.intrinsic("smax", index, v.constant(0, index.kind))
    # Unsigned, after negative ones have become 0: right for indices of either kind.
    index = v.intrinsic("umin", index, v.constant(limit, index.kind))
    if index.kind == kind:
        return index
    return v.cast("zext" if kind == "i64" else "trunc", index, kind)
