"""Indices of gathers and scatters relative to a shard's offset."""

from __future__ import annotations

from collections.abc import Sequence

from weft.ir.module import Value
from weft.ir.types import I32, I64, DType
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Clamp, Subtract
from weft.ops.shape import Reshape
from weft.ops.slicing import Concatenate, Slice
from weft.partition.builder import Builder
from weft.partition.site import tensor


def parts(builder: Builder, indices: Value, vector: int) -> list[Value]:
    """The components of the index vectors, each with the vector dim kept."""
    type = tensor(indices.type)
    if vector == type.rank or type.sizes[vector] == 1:
        return [indices]
    components = []
    for n in range(type.sizes[vector]):
        starts = tuple(n if d == vector else 0 for d in range(type.rank))
        ends = tuple(n + 1 if d == vector else s for d, s in enumerate(type.sizes))
        components.append(builder.emit(Slice(starts, ends, (1,) * type.rank), indices))
    return components


def index_vectors(builder: Builder, made: Sequence[Value], vector: int) -> Value:
    """Index vectors from their components."""
    return made[0] if len(made) == 1 else builder.emit(Concatenate(vector), *made)


def without_vector(builder: Builder, part: Value, vector: int) -> Value:
    """One component of the index vectors, without the vector dim."""
    type = tensor(part.type)
    if vector == type.rank:
        return part
    sizes = tuple(s for d, s in enumerate(type.sizes) if d != vector)
    return builder.emit(Reshape(type.with_shape(sizes)), part)


def counting(sizes: Sequence[int], bits: int = 32) -> DType:
    """A signed type for positions in dims of these sizes, and for numbers of that many bits."""
    # 2^30, not 2^31: an index plus an offset, or minus one, stays inside.
    return I32 if max(sizes, default=0) < 2**30 and bits < 64 else I64


def converted(builder: Builder, value: Value, dtype: DType) -> Value:
    """The value in another element type."""
    type = tensor(value.type)
    return value if type.dtype is dtype else builder.emit(Convert(type.with_dtype(dtype)), value)


def clamped(builder: Builder, part: Value, first: int, last: int) -> Value:
    """Indices clamped to first .. last, as far as their type can represent these."""
    type = tensor(part.type)
    is_signed = type.dtype.kind == "int"
    greatest = (1 << (type.dtype.bits - is_signed)) - 1
    least = -greatest - 1 if is_signed else 0
    scalar = type.with_shape(())
    low, high = (builder.splat(n, scalar) for n in (max(first, least), min(last, greatest)))
    return builder.emit(Clamp(), low, part, high)


def shifted(builder: Builder, part: Value, start: Value) -> Value:
    """Indices minus a scalar offset."""
    type = tensor(part.type)
    begin = builder.spread(converted(builder, start, type.dtype), type)
    return builder.emit(Subtract(), part, begin)
