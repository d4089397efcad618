"""Emitters of elementwise ops, by the kind of their operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from weft.emit.llvm.writer.storage import Held, wrap
from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.errors import Unsupported
from weft.ir.op import Op
from weft.ir.types import DType
from weft.ops.elementwise.approximate import is_approximate
from weft.records import dataclass

Emitter: TypeAlias = Callable[[Vectors, Op, list[Held], Sequence[DType], DType], Held]
OnVectors: TypeAlias = Callable[..., Vector]  # (v, *vectors) -> vector
OnIntegers: TypeAlias = Callable[..., Vector]  # (v, type of the operands, *vectors) -> vector
OnPairs: TypeAlias = Callable[..., Held]  # (v, *pairs) -> pair, or one vector

_COARSE = "bf16"  # types for which coarse functions are accurate enough
_POWERS = "f8E8M0FNU"  # powers of two without sign or zero: scales without arithmetic


@dataclass(frozen=True, slots=True)
class Emit:
    """The emitter of an op, and why some types are unsupported: the reason, or None."""

    emit: Emitter
    refuses: Callable[[Sequence[DType], DType], str | None] = lambda arg_dtypes, dtype: None

    def __call__(
        self, v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], dtype: DType
    ) -> Held:
        if reason := self.refuses(arg_dtypes, dtype):
            raise refused(op, reason)
        return self.emit(v, op, args, arg_dtypes, dtype)


def by_kind(
    *,
    real: OnVectors | None = None,
    coarse: OnVectors | None = None,
    tolerant: OnVectors | None = None,
    complex: OnPairs | None = None,
    integer: OnIntegers | None = None,
    boolean: OnVectors | None = None,
) -> Emit:
    """An emitter with one vector function for each kind of operand.

    `coarse` is a cheaper function for bf16, `tolerant` one for f32 that may be approximate, by
    default the same.
    """
    kinds = {"float": real, "int": integer, "uint": integer, "bool": boolean, "complex": complex}

    def refuses(arg_dtypes: Sequence[DType], result_dtype: DType) -> str | None:
        dtype = arg_dtypes[0]
        known = kinds.get(dtype.kind) is not None and dtype.name != _POWERS
        return None if known else f"of {dtype}"

    def emit(
        v: Vectors, op: Op, args: list[Held], arg_dtypes: Sequence[DType], result_dtype: DType
    ) -> Held:
        dtype = arg_dtypes[0]
        firsts = [arg[0] for arg in args]
        if complex is not None and dtype.is_complex:
            return complex(v, *args)
        if integer is not None and dtype.is_integer:
            return (wrap(v, integer(v, dtype, *firsts), dtype),)
        if boolean is not None and dtype.kind == "bool":
            return (boolean(v, *firsts),)
        assert real is not None
        if coarse is not None and dtype.name == _COARSE and v.code.excess_precision:
            return (coarse(v, *firsts),)
        cheaper = tolerant or coarse
        if cheaper is not None and dtype.name == "f32" and is_approximate(op):
            return (cheaper(v, *firsts),)
        return (real(v, *firsts),)

    return Emit(emit, refuses)


def refused(op: Op, why: str) -> Unsupported:
    """The error for an op without an emitter."""
    return Unsupported(
        f"{op.name}: no kernel for CPUs computes it ({why})",
        help="run it outside of kernels, where it is computed with numpy",
    )
