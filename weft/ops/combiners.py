"""Combining ops of reductions, scatters and collectives, and their identity elements."""

from __future__ import annotations

from typing import get_args

from weft.ir.module import Region, Value, apply
from weft.ir.op import Body, Op
from weft.ir.rule import Combine
from weft.ir.types import DType, TensorType
from weft.ops.elementwise.pointwise import Add, And, Maximum, Minimum, Multiply, Or, Xor

COMBINERS: dict[Combine, Op] = {
    "add": Add(),
    "max": Maximum(),
    "min": Minimum(),
    "mul": Multiply(),
    "and": And(),
    "or": Or(),
    "xor": Xor(),
}
assert {*COMBINERS} == {*get_args(Combine)}
# Their StableHLO names, with and without the dialect.
BY_OP: dict[str | None, Combine] = {op.name: combine for combine, op in COMBINERS.items()}
SHORT_NAMES = {combine: op.name.removeprefix("stablehlo.") for combine, op in COMBINERS.items()}
# x combined with x is x: a value that several devices hold may be reduced once for each of them.
IDEMPOTENT: tuple[Combine | None, ...] = ("max", "min", "and", "or")
_ON_BOOLEANS: dict[Combine, Combine] = {"add": "or", "max": "or", "mul": "and", "min": "and"}
_WITHOUT_ZERO = "f8E8M0FNU"  # f8E8M0: powers of two and NaN, without a zero


def combiner(combine: Combine, type: TensorType) -> Region:
    """The region that combines two scalars of that element type."""
    scalar = type.with_shape(())
    args = (Value(scalar, None, 0), Value(scalar, None, 1))
    node = apply(COMBINERS[combine], *args)
    return Region(args, [node], node.results)


def in_dtype(combine: Combine, dtype: DType) -> Combine:
    """The same for elements of a dtype: StableHLO adds booleans by `or`, multiplies by `and`."""
    return _ON_BOOLEANS.get(combine, combine) if dtype.kind == "bool" else combine


def combine_of(body: Body) -> Combine | None:
    """The combining op of partial results, if one plain op serves all results."""
    combines: set[Combine | None] = set()
    for name, type in zip(body.combiners, body.results, strict=False):
        plain = BY_OP.get(name)
        if plain is not None and isinstance(type, TensorType):
            # Partial sums begin with a zero on all devices but one.
            has_zero = plain != "add" or type.dtype.name != _WITHOUT_ZERO
            plain = in_dtype(plain, type.dtype) if has_zero else None
        combines.add(plain)
    return combines.pop() if len(combines) == 1 else None


def identity(combine: Combine, dtype: DType) -> bool | int | float:
    """The identity element of a combining op."""
    match in_dtype(combine, dtype):
        case "mul":
            return 1
        case "and":
            # All bits set.
            return -1 if dtype.kind == "int" else dtype.limits[1]
        case "max":
            return dtype.limits[0]
        case "min":
            return dtype.limits[1]
        case _:
            return False if dtype.kind == "bool" else 0
