"""Contractions: dot_general and its older forms."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from weft.ir.attrs import Codec, array_of, enum, struct
from weft.ir.check import dims_in_range, require, tensor_type
from weft.ir.op import Op, op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import Array, DType, Shape, TensorType, Type, Types, dtype_of
from weft.ir.work import Work, moved
from weft.ops.combiners import in_dtype
from weft.records import dataclass


def precisions(dialect: str) -> Codec:
    """`[#stablehlo<precision DEFAULT>, ...]`; an empty list reads as None."""
    listed = array_of(enum("precision", "DEFAULT", "HIGH", "HIGHEST", dialect=dialect))
    return Codec(lambda text: listed.read(text) or None, listed.write)


Precision = Annotated[tuple[str, ...], precisions("stablehlo")]


@dataclass(frozen=True, slots=True)
class DotDims:
    """The batch and contracting dims of a dot."""

    lhs_batching_dimensions: tuple[int, ...] = ()
    rhs_batching_dimensions: tuple[int, ...] = ()
    lhs_contracting_dimensions: tuple[int, ...] = ()
    rhs_contracting_dimensions: tuple[int, ...] = ()

    @property
    def batch(self) -> tuple[tuple[int, int], ...]:
        """Pairs of dims that both operands and the result share."""
        return tuple(zip(self.lhs_batching_dimensions, self.rhs_batching_dimensions, strict=True))

    @property
    def contract(self) -> tuple[tuple[int, int], ...]:
        """Pairs of dims that are summed over."""
        return tuple(
            zip(self.lhs_contracting_dimensions, self.rhs_contracting_dimensions, strict=True)
        )

    def lhs_free(self, rank: int) -> list[int]:
        """The dims of the left operand that only it and the result have."""
        used = {*self.lhs_batching_dimensions, *self.lhs_contracting_dimensions}
        return [d for d in range(rank) if d not in used]

    def rhs_free(self, rank: int) -> list[int]:
        """The dims of the right operand that only it and the result have."""
        used = {*self.rhs_batching_dimensions, *self.rhs_contracting_dimensions}
        return [d for d in range(rank) if d not in used]

    def check(self, name: str, lhs: TensorType, rhs: TensorType) -> None:
        """Refuse dims that the operands do not have, or whose sizes differ."""
        for what in ("batching", "contracting"):
            left, right = (getattr(self, f"{side}_{what}_dimensions") for side in ("lhs", "rhs"))
            require(
                len(left) == len(right),
                f"{name}: {len(left)} lhs_{what}_dimensions, but {len(right)} of rhs",
                "name the dims in pairs",
            )
        left = self.lhs_batching_dimensions + self.lhs_contracting_dimensions
        right = self.rhs_batching_dimensions + self.rhs_contracting_dimensions
        dims_in_range(name, "the lhs batching and contracting dims", left, lhs.rank)
        dims_in_range(name, "the rhs batching and contracting dims", right, rhs.rank)
        for a, b in zip(left, right, strict=True):
            same_size(name, lhs, a, rhs, b)


DotDimensionNumbers = Annotated[DotDims, struct("stablehlo.dot")(DotDims)]


@dataclass(frozen=True, slots=True)
class DotAlgorithm:
    """The requested algorithm of a dot; the exact reference ignores it."""

    lhs_precision_type: str
    rhs_precision_type: str
    accumulation_type: str
    lhs_component_count: int  # parts that an operand is decomposed into
    rhs_component_count: int
    num_primitive_operations: int  # dots of these parts
    allow_imprecise_accumulation: bool


Algorithm = Annotated[DotAlgorithm, struct("stablehlo.dot_algorithm")(DotAlgorithm)]


def same_size(name: str, lhs: TensorType, a: int, rhs: TensorType, b: int) -> None:
    """Refuse two paired dims of different sizes."""
    require(
        lhs.shape[a] == rhs.shape[b],
        f"{name}: sizes differ: operand 0 dim {a} is {lhs.shape[a]}, "
        f"operand 1 dim {b} is {rhs.shape[b]}",
        "reshape or transpose an operand so the sizes agree",
    )


def expect_shape(name: str, out: TensorType, shape: Shape) -> TensorType:
    """The declared result type, which must have that shape."""
    expected = out.with_shape(shape)
    require(
        out is expected,
        f"{name}: the result is {out}, but {expected} follows from the operands",
        "correct the type of the result",
    )
    return out


def check_precision(name: str, precision: tuple[str, ...] | None) -> None:
    """Refuse a list of precisions that names more than the two operands."""
    require(
        precision is None or len(precision) <= 2,
        f"{name}: precision_config has {len(precision or ())} entries",
        "give one for each of the two operands",
    )


def allows_tf32(op: Op) -> bool:
    """Whether a program lets f32 operands of a product be rounded to TF32.

    It does by precision HIGH, which JAX calls `high` or `tensorfloat32`, or by an algorithm of that
    type. The default is exact, unlike that of XLA on GPUs.
    """
    algorithm: DotAlgorithm | None = getattr(op, "algorithm", None)
    if algorithm is not None:
        return {algorithm.lhs_precision_type, algorithm.rhs_precision_type} == {"tf32"}
    chosen = {*(getattr(op, "precision_config", None) or ())}
    return "HIGH" in chosen and "HIGHEST" not in chosen


def wide(*dtypes: DType) -> np.dtype[Any]:
    """The numpy type in which sums of products accumulate before they are rounded once."""
    kinds = {d.kind for d in dtypes}
    if "complex" in kinds:
        return np.dtype(np.complex128)
    # i64 wraps modulo 2^64: narrower integers are right modulo their own width.
    return np.dtype(np.float64 if "float" in kinds else np.int64)


def narrow(sums: Array, out: DType) -> Array:
    """Sums in the result's type: integers wrap, floats round, booleans are ored."""
    if out.kind == "bool":
        return np.asarray(sums != 0)
    if np.iscomplexobj(sums) and not out.is_complex:
        sums = sums.real
    with np.errstate(all="ignore"):
        return np.asarray(sums).astype(out.numpy)


def dot(lhs: Array, rhs: Array, dims: DotDims, out: DType) -> Array:
    """The dot of two arrays: batch dims, free dims of the left, then of the right."""
    left, right = dims.lhs_free(lhs.ndim), dims.rhs_free(rhs.ndim)
    batch = [lhs.shape[d] for d in dims.lhs_batching_dimensions]
    rows = [lhs.shape[d] for d in left]
    columns = [rhs.shape[d] for d in right]
    summed = math.prod(lhs.shape[d] for d in dims.lhs_contracting_dimensions)
    a = lhs.transpose(
        *dims.lhs_batching_dimensions, *left, *dims.lhs_contracting_dimensions
    ).reshape(math.prod(batch), math.prod(rows), summed)  # [batch, rows, k]
    b = rhs.transpose(
        *dims.rhs_batching_dimensions, *dims.rhs_contracting_dimensions, *right
    ).reshape(math.prod(batch), summed, math.prod(columns))  # [batch, k, columns]
    if not dims.lhs_contracting_dimensions:  # no sum: zeros keep their signs
        held = wide(out, dtype_of(a.dtype), dtype_of(b.dtype))
        one_type = is_short(lhs, rhs, summed, out)
        with np.errstate(all="ignore"):
            sums = a * b if one_type else a.astype(held) * b.astype(held)
    else:
        sums = short_sums(a, b) if is_short(lhs, rhs, summed, out) else long_sums(a, b, out)
    return narrow(sums.reshape((*batch, *rows, *columns)), out)


# Sums of up to this many products accumulate one by one in the result's own type, as the
# specification writes them, so that they round like other implementations that follow it.
SHORT = 16


def is_short(lhs: Array, rhs: Array, summed: int, out: DType) -> bool:
    """Whether sums accumulate in the common type of operands and result."""
    one_type = lhs.dtype == rhs.dtype == out.numpy
    return one_type and summed <= SHORT and out.real.name in ("f32", "f64")


def short_sums(a: Array, b: Array) -> Array:
    """Matrix products with every product and every sum rounded."""
    sums = np.zeros((a.shape[0], a.shape[1], b.shape[2]), a.dtype)
    with np.errstate(all="ignore"):
        for k in range(a.shape[2]):
            sums = sums + a[:, :, k, None] * b[:, k, None, :]
    return sums


def long_sums(a: Array, b: Array, out: DType) -> Array:
    """Matrix products in the wide type."""
    held = wide(out, dtype_of(a.dtype), dtype_of(b.dtype))
    with np.errstate(all="ignore"):
        return np.asarray(np.matmul(a.astype(held), b.astype(held)))


def dot_work(points: int, operands: Types, results: Types) -> Work:
    """Two flops per point; eight for a complex multiply-add."""
    is_complex = any(isinstance(t, TensorType) and t.dtype.is_complex for t in operands)
    return Work(flops=points * (8 if is_complex else 2), bytes=moved(*operands, *results))


@op("stablehlo.dot_general")
class DotGeneral(Op):
    """out[b.., i.., j..] = sum over k.. of lhs[b.., i.., k..] * rhs[b.., k.., j..]."""

    dot_dimension_numbers: DotDimensionNumbers
    out: TensorType
    precision_config: Precision | None = None
    algorithm: Algorithm | None = None
    assembly = (
        "$operands[[, batching_dims = $batching]], contracting_dims = $contracting"
        "[[, precision = $precision_config]][[, algorithm = $how]] : $signature"
    )

    @property
    def batching(self) -> str | None:
        """The batch dims as text, None if there are none."""
        dims = self.dot_dimension_numbers
        if not dims.lhs_batching_dimensions:
            return None
        return f"{[*dims.lhs_batching_dimensions]} x {[*dims.rhs_batching_dimensions]}"

    @property
    def contracting(self) -> str:
        """The contracting dims as text."""
        dims = self.dot_dimension_numbers
        return f"{[*dims.lhs_contracting_dimensions]} x {[*dims.rhs_contracting_dimensions]}"

    @property
    def how(self) -> str | None:
        """The algorithm as text."""
        if self.algorithm is None:
            return None
        written = struct("stablehlo.dot_algorithm")(DotAlgorithm).write(self.algorithm)
        return written.removeprefix("#stablehlo.dot_algorithm")

    def infer(self, lhs: Type, rhs: Type) -> Type:
        left, right = tensor_type(self.name, 0, lhs), tensor_type(self.name, 1, rhs)
        dims = self.dot_dimension_numbers
        dims.check(self.name, left, right)
        check_precision(self.name, self.precision_config)
        if self.algorithm is not None:
            self.check_algorithm(self.algorithm)
        shape = (
            *(left.shape[d] for d in dims.lhs_batching_dimensions),
            *(left.shape[d] for d in dims.lhs_free(left.rank)),
            *(right.shape[d] for d in dims.rhs_free(right.rank)),
        )
        return expect_shape(self.name, self.out, shape)

    def check_algorithm(self, algorithm: DotAlgorithm) -> None:
        """Refuse an algorithm without components, or together with a precision."""
        require(
            set(self.precision_config or ()) <= {"DEFAULT"},
            f"{self.name}: algorithm and precision_config {list(self.precision_config or ())}",
            "leave the precision DEFAULT where an algorithm is given",
        )
        counts = (
            algorithm.lhs_component_count,
            algorithm.rhs_component_count,
            algorithm.num_primitive_operations,
        )
        require(
            min(counts) > 0,
            f"{self.name}: the algorithm's counts are {list(counts)}",
            "each must be at least 1",
        )

    def rule(self, lhs: TensorType, rhs: TensorType) -> Rule:
        dims = self.dot_dimension_numbers
        # In Shardy's order: dims of the result first, contracting dims last.
        pairs: list[tuple[int | None, int | None]] = [*dims.batch]
        pairs += [(a, None) for a in dims.lhs_free(lhs.rank)]
        pairs += [(None, b) for b in dims.rhs_free(rhs.rank)]
        builder = RuleBuilder((lhs, rhs), (self.out,))
        for position, pair in enumerate(pairs):
            builder.factor(pair, (position,), self.out.bounds[position])
        for a, b in dims.contract:
            combine = in_dtype("add", self.out.dtype)
            builder.factor((a, b), (None,), lhs.bounds[a], "reduction", combine=combine)
        return builder.build()

    def reference(self, lhs: Array, rhs: Array) -> Array:
        return dot(lhs, rhs, self.dot_dimension_numbers, self.out.dtype)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        lhs, out = operands[0], results[0]
        assert isinstance(lhs, TensorType) and isinstance(out, TensorType)
        dims = self.dot_dimension_numbers
        summed = math.prod(lhs.bounds[d] for d in dims.lhs_contracting_dimensions)
        return dot_work(out.size * summed, operands, results)


@op("stablehlo.dot")
class Dot(Op):
    """out = lhs @ rhs, for vectors and matrices."""

    out: TensorType
    precision_config: Precision | None = None
    assembly = "$operands[[, precision = $precision_config]] : $signature"

    def dims(self, rank: int) -> DotDims:
        """The dims of the equivalent dot_general."""
        return DotDims((), (), (rank - 1,), (0,))

    def infer(self, lhs: Type, rhs: Type) -> Type:
        left, right = tensor_type(self.name, 0, lhs), tensor_type(self.name, 1, rhs)
        for index, type in enumerate((left, right)):
            require(
                type.rank in (1, 2),
                f"{self.name}: operand {index} is {type}",
                "it takes vectors and matrices; use dot_general for more dims",
            )
        check_precision(self.name, self.precision_config)
        self.dims(left.rank).check(self.name, left, right)
        return expect_shape(self.name, self.out, left.shape[:-1] + right.shape[1:])

    def rule(self, lhs: TensorType, rhs: TensorType) -> Rule:
        return DotGeneral(self.dims(lhs.rank), self.out).rule(lhs, rhs)

    def reference(self, lhs: Array, rhs: Array) -> Array:
        return dot(lhs, rhs, self.dims(lhs.ndim), self.out.dtype)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        lhs, out = operands[0], results[0]
        assert isinstance(lhs, TensorType) and isinstance(out, TensorType)
        return dot_work(out.size * lhs.bounds[-1], operands, results)


OPS: tuple[type[Op], ...] = (DotGeneral, Dot)
