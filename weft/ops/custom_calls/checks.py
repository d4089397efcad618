"""Checks: the assertions of StableHLO's tests, and their tolerances."""

from __future__ import annotations

from typing import Annotated, ClassVar

import numpy as np

from weft.errors import WeftError
from weft.ir.attrs import Codec
from weft.ir.check import require, same_type
from weft.ir.dense import Dense, scalar_text
from weft.ir.op import Evaluation, Op, RegionCall, Steps, op
from weft.ir.rule import Rule
from weft.ir.types import Array, Type, Types, type_of
from weft.ir.work import Work, moved
from weft.ops.control import opaque

FLOAT64 = Codec(lambda text: float(text.partition(":")[0]), lambda value: f"{value!r} : f64")


def ulps(actual: Array, expected: Array) -> Array:
    """The elementwise distance of two float arrays in units in the last place."""
    width = actual.dtype.itemsize
    bits = np.dtype(f"i{width}")

    def order(a: Array) -> Array:
        # Distances of f64 reach 2^64: Python's integers.
        raw = np.ascontiguousarray(a).view(bits).astype(object if width == 8 else np.int64)
        # Sign and magnitude as one order, in which both zeros are 0.
        floor = -(1 << (8 * width - 1))
        return np.asarray(np.where(raw < 0, floor - raw, raw))

    return np.asarray(np.abs(order(actual) - order(expected)))


def expect_equal(actual: Array, expected: Array) -> None:
    """Refuse arrays that differ in any element; NaN equals NaN, and -0.0 is 0.0."""
    same = (actual == expected) | (_nan(actual) & _nan(expected))
    _report("is not equal", actual, expected, same)


def expect_close(actual: Array, expected: Array, min_ulp: int = 0, max_ulp: int = 3) -> None:
    """Refuse floats whose distance in ulps is outside the bounds."""
    if actual.dtype.kind == "c":
        width = np.dtype(f"f{actual.dtype.itemsize // 2}")
        parts = [np.ascontiguousarray(a).reshape(-1).view(width) for a in (actual, expected)]
        return expect_close(parts[0], parts[1], min_ulp, max_ulp)
    if not _is_float(actual):
        return expect_equal(actual, expected)
    distance = ulps(actual, expected)
    near = (distance >= min_ulp) & (distance <= max_ulp)
    same = (actual == expected) & (min_ulp == 0)
    good = near | same | (_nan(actual) & _nan(expected))
    return _report(f"is more than {max_ulp} ulp off", actual, expected, good)


def expect_almost_equal(actual: Array, expected: Array, tolerance: float = 1e-4) -> None:
    """Refuse numbers further apart than the tolerance, which is relative above 1."""
    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    a, e = actual.astype(wide), expected.astype(wide)
    near = np.abs(a - e) <= tolerance * np.maximum(1.0, np.abs(e))
    good = near | (a == e) | (_nan(a) & _nan(e))
    _report(f"differs by more than {tolerance}", actual, expected, good)


def _is_float(array: Array) -> bool:
    return type_of(array).dtype.is_float


def _nan(array: Array) -> Array:
    if array.dtype.kind == "c":
        return np.asarray(np.isnan(array))
    return np.asarray(np.isnan(array)) if _is_float(array) else np.zeros(array.shape, bool)


def _report(what: str, actual: Array, expected: Array, good: Array) -> None:
    bad = np.argwhere(~np.asarray(good))
    if not len(bad):
        return
    place = tuple(int(i) for i in bad[0])
    dtype = type_of(actual).dtype
    shown = (scalar_text(np.asarray(x)[place], dtype) for x in (actual, expected))
    where = f"element {list(place)}" if place else "the value"
    raise WeftError(
        f"check failed: {where} {what}: {next(shown)}, expected {next(shown)} "
        f"({len(bad)} of {good.size} elements differ)",
        help="the program's result differs from the expected value",
    )


class Check(Op):
    """An assertion about a value."""

    __slots__ = ()
    pure = False
    arity: ClassVar[int] = 2

    def infer(self, *operands: Type) -> Types:
        require(
            len(operands) == self.arity,
            f"{self.name}: takes {self.arity} operands, {len(operands)} given",
            "give what is to be checked and what is expected",
        )
        value = getattr(self, "value", None)
        same_type(self.name, *operands, *([value.type] if isinstance(value, Dense) else []))
        return ()

    def rule(self, *operands: Type) -> Rule:
        return opaque(operands, ())

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*operands))


@op("check.expect_eq")
class ExpectEq(Check):
    """Both operands are equal."""

    def reference(self, actual: Array, expected: Array) -> tuple[()]:
        expect_equal(actual, expected)
        return ()


@op("check.expect_eq_const")
class ExpectEqConst(Check):
    """The operand equals a constant."""

    value: Dense
    arity = 1

    def reference(self, actual: Array) -> tuple[()]:
        expect_equal(actual, self.value.array)
        return ()


@op("check.expect_almost_eq")
class ExpectAlmostEq(Check):
    """Both operands are equal within a tolerance."""

    tolerance: Annotated[float, FLOAT64] | None = None

    def reference(self, actual: Array, expected: Array) -> tuple[()]:
        expect_almost_equal(actual, expected, self.tolerance or 1e-4)
        return ()


@op("check.expect_almost_eq_const")
class ExpectAlmostEqConst(Check):
    """The operand equals a constant within a tolerance."""

    value: Dense
    tolerance: Annotated[float, FLOAT64] | None = None
    arity = 1

    def reference(self, actual: Array) -> tuple[()]:
        expect_almost_equal(actual, self.value.array, self.tolerance or 1e-4)
        return ()


@op("check.expect_close")
class ExpectClose(Check):
    """Both operands are equal within a few ulps."""

    max_ulp_difference: int = 3
    min_ulp_difference: int = 0

    def reference(self, actual: Array, expected: Array) -> tuple[()]:
        expect_close(actual, expected, self.min_ulp_difference, self.max_ulp_difference)
        return ()


@op("check.expect_close_const")
class ExpectCloseConst(Check):
    """The operand equals a constant within a few ulps."""

    value: Dense
    max_ulp_difference: int = 3
    min_ulp_difference: int = 0
    arity = 1

    def reference(self, actual: Array) -> tuple[()]:
        expect_close(actual, self.value.array, self.min_ulp_difference, self.max_ulp_difference)
        return ()


@op("check.expect_serialized_eq")
class ExpectSerializedEq(Check):
    """The operand equals a probe's recorded value."""

    probe_id: str
    iter: int = 0
    arity = 1
    control = True

    def reference(self, value: Array, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        yield from ()
        seen = run.channel(("probe", self.probe_id))
        if not 0 <= self.iter < len(seen):
            raise WeftError(
                f"check failed: probe {self.probe_id!r} has seen {len(seen)} values, "
                f"none with the number {self.iter}",
                help="name a probe that runs before the check",
            )
        expect_equal(value, seen[self.iter][0])
        return ()


OPS: tuple[type[Op], ...] = (
    ExpectEq,
    ExpectEqConst,
    ExpectAlmostEq,
    ExpectAlmostEqConst,
    ExpectClose,
    ExpectCloseConst,
    ExpectSerializedEq,
)
