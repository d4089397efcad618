"""Fourier transforms, the Cholesky decomposition and triangular systems."""

from __future__ import annotations

import math
from typing import Annotated, Any

import numpy as np

from weft.ir.attrs import enum
from weft.ir.check import one_of, require
from weft.ir.op import Op, op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import DTYPES, Array, Dim, DType, TensorType, Type, Types, dtype_of
from weft.ir.work import Work, elements, moved

FftType = Annotated[str, enum("fft_type", "FFT", "IFFT", "RFFT", "IRFFT")]
TransposeKind = Annotated[str, enum("transpose", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")]


def wide_dtype(dtype: DType) -> np.dtype[Any]:
    """The numpy type in which linear algebra is computed before it is rounded once."""
    return np.dtype(np.complex128 if dtype.is_complex else np.float64)


@op("stablehlo.fft")
class Fft(Op):
    """The discrete Fourier transform over the last dims, forward or back, complex or real."""

    fft_type: FftType
    fft_length: tuple[int, ...]
    assembly = "$operands, type = $fft_type, length = $fft_length : $signature"

    def infer(self, operand: Type) -> Type:
        kinds = "float" if self.fft_type == "RFFT" else "complex"
        matrix = one_of(self.name, 0, operand, kinds)
        count = len(self.fft_length)
        require(
            1 <= count <= 3 and count <= matrix.rank,
            f"{self.name}: {count} lengths for {matrix}",
            "transform 1, 2 or 3 of the operand's last dims",
        )
        require(
            self.fft_type != "RFFT" or matrix.dtype.name in ("f32", "f64"),
            f"{self.name}: operand 0 is {matrix}",
            "a real transform takes f32 or f64; convert the operand",
        )
        expected: list[Dim] = list(self.fft_length)
        if self.fft_type == "IRFFT":
            nothing = self.fft_length[-1] == 0  # JAX returns one element here, too
            expected[-1] = matrix.shape[-1] if nothing else rfft_length(self.fft_length[-1])
        require(
            [*matrix.shape[-count:]] == expected,
            f"{self.name}: operand 0 is {matrix}, but fft_length is {[*self.fft_length]}",
            f"the operand's last dims must be {expected}",
        )
        match self.fft_type:
            case "RFFT":
                shape = (*matrix.shape[:-1], rfft_length(self.fft_length[-1]))
                return TensorType(shape, DTYPES[f"complex<{matrix.dtype.name}>"])
            case "IRFFT":
                return TensorType((*matrix.shape[:-1], self.fft_length[-1]), matrix.dtype.real)
        return matrix

    def rule(self, operand: TensorType) -> Rule:
        out = self.infer(operand)
        assert isinstance(out, TensorType)
        builder = RuleBuilder((operand,), (out,))
        first = operand.rank - len(self.fft_length)
        for dim, size in enumerate(operand.bounds):
            # A real transform halves its last dim, whose shards then do not correspond.
            differs = size != out.bounds[dim]
            role = "pass" if dim < first else "whole"
            builder.factor((dim,), (dim,), size, role, blocked=differs)  # type: ignore[arg-type]
        return builder.build()

    def reference(self, operand: Array) -> Array:
        out = self.infer(TensorType(operand.shape, dtype_of(operand.dtype)))
        assert isinstance(out, TensorType)
        if out.size == 0:
            return np.empty(out.sizes, out.dtype.numpy)
        axes = tuple(range(operand.ndim - len(self.fft_length), operand.ndim))
        wide = operand.astype(wide_dtype(dtype_of(operand.dtype)))
        with np.errstate(all="ignore"):
            result: Array
            match self.fft_type:
                case "FFT":
                    result = np.fft.fftn(wide, axes=axes)
                case "IFFT":
                    result = np.fft.ifftn(wide, axes=axes)
                case "RFFT":
                    result = np.fft.rfftn(wide, axes=axes)
                case _:
                    result = np.fft.irfftn(wide, s=self.fft_length, axes=axes)
            return result.astype(out.dtype.numpy)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        """Cooley and Tukey's 5 n log n; half of it where one side is real."""
        points = math.prod(self.fft_length)
        transforms = max(map(elements, (*operands, *results))) // points if points else 0
        flops = int(5 * points * math.log2(points)) * transforms if points else 0
        is_real = self.fft_type in ("RFFT", "IRFFT")
        return Work(flops=flops // 2 if is_real else flops, bytes=moved(*operands, *results))


def rfft_length(size: int) -> int:
    """The number of independent elements of a real transform of that size."""
    return size // 2 + 1 if size else 0


def _square(name: str, index: int, type: Type) -> TensorType:
    checked = one_of(name, index, type, "float complex")
    require(
        checked.rank >= 2 and checked.shape[-1] == checked.shape[-2],
        f"{name}: operand {index} is {checked}",
        "its last two dims must be those of a square matrix",
    )
    return checked


@op("stablehlo.cholesky")
class Cholesky(Op):
    """a = out @ adjoint(out) with out lower triangular, or a = adjoint(out) @ out with it upper.

    Only that triangle of `a` is read; the other one of the result is zero. Where `a` is not
    positive definite, the triangle is NaN.
    """

    lower: bool = False
    assembly = "$operands, lower = $lower : $same"

    def infer(self, a: Type) -> Type:
        return _square(self.name, 0, a)

    def rule(self, a: TensorType) -> Rule:
        builder = RuleBuilder((a,), (a,))
        return builder.pointwise(
            a.bounds, lambda dim: "pass" if dim < a.rank - 2 else "whole"
        ).build()

    def reference(self, a: Array) -> Array:
        wide = a.astype(wide_dtype(dtype_of(a.dtype)))
        if not self.lower:
            wide = adjoint(wide)
        lower = np.zeros_like(wide)
        for index in np.ndindex(*a.shape[:-2]):
            lower[index] = cholesky_lower(wide[index])
        with np.errstate(all="ignore"):
            return (lower if self.lower else adjoint(lower)).astype(a.dtype)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        size = _size(operands[0])
        flops = elements(operands[0]) * size // 3 * _weight(operands[0])
        roots = elements(operands[0]) // max(size, 1)
        return Work(flops=flops, transcendentals=roots, bytes=moved(*operands, *results))


def adjoint(matrices: Array) -> Array:
    """The conjugate transpose of the last two dims."""
    return np.conj(np.swapaxes(matrices, -1, -2))


def cholesky_lower(matrix: Array) -> Array:
    """The lower Cholesky factor of one matrix's lower triangle; NaN if not positive definite."""
    size = matrix.shape[0]
    factor = np.zeros_like(matrix)
    with np.errstate(all="ignore"):
        for n in range(size):
            row = factor[n, :n]
            pivot = matrix[n, n].real - np.sum((row * np.conj(row)).real)
            # Not `<= 0`: a NaN is not positive definite, either.
            if not pivot > 0:
                return np.tril(np.full_like(matrix, np.nan))
            factor[n, n] = np.sqrt(pivot)
            below = matrix[n + 1 :, n] - factor[n + 1 :, :n] @ np.conj(row)
            factor[n + 1 :, n] = below / factor[n, n]
    return factor


@op("stablehlo.triangular_solve")
class TriangularSolve(Op):
    """out with op(a) @ out = b, or out @ op(a) = b; op may transpose; one triangle of a is read."""

    left_side: bool
    lower: bool
    unit_diagonal: bool  # the diagonal of `a` counts as ones, and is not read
    transpose_a: TransposeKind

    def infer(self, a: Type, b: Type) -> Type:
        matrix = _square(self.name, 0, a)
        rhs = one_of(self.name, 1, b, "float complex")
        require(
            rhs.dtype is matrix.dtype and rhs.rank == matrix.rank,
            f"{self.name}: operand 0 is {matrix}, but operand 1 is {rhs}",
            "they must have one element type and one rank",
        )
        require(
            rhs.shape[:-2] == matrix.shape[:-2],
            f"{self.name}: operand 0 is {matrix}, but operand 1 is {rhs}",
            "their batch dims, all but the last two, must be equal",
        )
        dim = rhs.rank - (2 if self.left_side else 1)
        require(
            rhs.shape[dim] == matrix.shape[-1],
            f"{self.name}: sizes differ: operand 0 dim {matrix.rank - 1} is {matrix.shape[-1]}, "
            f"operand 1 dim {dim} is {rhs.shape[dim]}",
            "reshape or transpose an operand so the sizes agree",
        )
        return rhs

    def rule(self, a: TensorType, b: TensorType) -> Rule:
        builder = RuleBuilder((a, b), (b,))
        rows, columns = a.rank - 2, a.rank - 1
        for dim in range(rows):
            builder.factor((dim, dim), (dim,), a.bounds[dim])
        size, rest = a.bounds[rows], b.bounds[columns if self.left_side else rows]
        # As in Shardy, the two dims of `a` are factors of their own, though of one size.
        is_transposed = self.transpose_a != "NO_TRANSPOSE"
        if self.left_side:
            free, summed = (columns, rows) if is_transposed else (rows, columns)
            builder.factor((free, rows), (None,), size, "whole")
            builder.factor((None, columns), (columns,), rest, "whole")
            builder.factor((summed, None), (rows,), size, "whole")
        else:
            free, summed = (rows, columns) if is_transposed else (columns, rows)
            builder.factor((None, rows), (rows,), rest, "whole")
            builder.factor((free, columns), (None,), size, "whole")
            builder.factor((summed, None), (columns,), size, "whole")
        return builder.build()

    def reference(self, a: Array, b: Array) -> Array:
        matrix = a.astype(wide_dtype(dtype_of(a.dtype)))
        rhs = b.astype(wide_dtype(dtype_of(b.dtype)))
        matrix = np.tril(matrix) if self.lower else np.triu(matrix)
        lower = self.lower
        if self.unit_diagonal:
            diagonal = np.arange(a.shape[-1])
            matrix[..., diagonal, diagonal] = 1
        if self.transpose_a == "ADJOINT":
            matrix = np.conj(matrix)
        if (self.transpose_a != "NO_TRANSPOSE") is self.left_side:
            matrix, lower = np.swapaxes(matrix, -1, -2), not lower
        if not self.left_side:  # x @ a = b is transpose(a) @ transpose(x) = transpose(b)
            rhs = np.swapaxes(rhs, -1, -2)
        solved = substitute(matrix, rhs, lower)
        with np.errstate(all="ignore"):
            return (solved if self.left_side else np.swapaxes(solved, -1, -2)).astype(b.dtype)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        flops = elements(operands[1]) * _size(operands[0]) * _weight(operands[0])
        return Work(flops=flops, bytes=moved(*operands, *results))


def substitute(matrix: Array, array: Array, lower: bool) -> Array:
    """Solve triangular systems row by row, from the row that has one unknown."""
    size = matrix.shape[-1]
    solved = np.zeros_like(array)
    with np.errstate(all="ignore"):
        for n in range(size) if lower else reversed(range(size)):
            known = slice(0, n) if lower else slice(n + 1, size)
            sums = np.matmul(matrix[..., n : n + 1, known], solved[..., known, :])
            rest = array[..., n : n + 1, :] - sums
            solved[..., n : n + 1, :] = rest / matrix[..., n : n + 1, n : n + 1]
    return solved


def _size(type: Type) -> int:
    return type.bounds[-1] if isinstance(type, TensorType) else 0


def _weight(type: Type) -> int:
    """The number of real flops per flop on this element type."""
    return 4 if isinstance(type, TensorType) and type.dtype.is_complex else 1


OPS: tuple[type[Op], ...] = (Fft, Cholesky, TriangularSolve)
