"""Matrix decompositions as custom calls: batch dims may be split, matrices are whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from weft.ir.check import require
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import DTYPES, I32, Array, DType, TensorType, Type, Types
from weft.ir.work import Work, elements, moved
from weft.ops.custom_calls.declaration import CallResults, CallUse, Config, KnownCall, by_batch
from weft.ops.numerics.factorize import (
    hessenberg,
    householder_product,
    lu,
    pivoted_qr,
    qr,
    tridiagonal,
)
from weft.ops.numerics.schur import schur
from weft.ops.numerics.spectral import eig, eigh, svd
from weft.ops.numerics.tridiagonal import tridiagonal_solve

_DTYPES = ("f32", "f64", "complex<f32>", "complex<f64>")
Shapes: TypeAlias = Callable[[Config, TensorType], Types]


# Types, inferred from the (first) matrix


def _typed(shapes: Shapes, *, square: bool = False) -> Callable[..., None]:
    """Refuse operands that are not matrices, and results that do not follow from them."""

    def check(name: str, config: Config, operands: Types, results: Types) -> None:
        require(len(operands) == 1, f"{name} takes one operand", "give it the matrices")
        _follows(name, results, shapes(config, _matrix(name, operands[0], square)))

    return check


def _matrix(name: str, type: Type, square: bool = False) -> TensorType:
    is_matrix = isinstance(type, TensorType) and type.rank >= 2 and type.is_static
    require(is_matrix, f"{name}: operand 0 is {type}", "it must be a matrix, or a stack of them")
    assert isinstance(type, TensorType)
    known = type.dtype.name in _DTYPES
    require(known, f"{name}: operand 0 is {type}", f"its elements must be {', '.join(_DTYPES)}")
    if square:
        rows, columns = type.sizes[-2:]
        require(rows == columns, f"{name}: operand 0 is {type}", "the matrices must be square")
    return type


def _follows(name: str, results: Types, expected: Types) -> None:
    given, right = (", ".join(map(str, types)) for types in (results, expected))
    require(
        results == expected,
        f"{name}: the result types are {given}, but {right} follow from the operands",
        "correct the types, or the operands",
    )


def _shaped(type: TensorType, *shape: int, dtype: DType | None = None) -> TensorType:
    """A result with these dims after the batch dims."""
    return TensorType((*type.shape[:-2], *shape), dtype or type.dtype)


def _complex(dtype: DType) -> DType:
    return dtype if dtype.is_complex else DTYPES[f"complex<{dtype.name}>"]


def _eig_types(config: Config, a: TensorType) -> Types:
    size, dtype = a.sizes[-1], _complex(a.dtype)
    vectors = _shaped(a, size, size, dtype=dtype)
    count = config.get("left", 0) + config.get("right", 0)
    return (_shaped(a, size, dtype=dtype), *[vectors] * count)


def _eigh_check(name: str, config: Config, operands: Types, results: Types) -> None:
    require(len(operands) == 1, f"{name} takes one operand", "give it the matrices")
    a = _matrix(name, operands[0], square=True)
    kept = _requested_count(name, config, results, 1, a.sizes[-1])
    expected = (_shaped(a, a.sizes[-1], kept), _shaped(a, kept, dtype=a.dtype.real))
    _follows(name, results, expected)


def _svd_check(name: str, config: Config, operands: Types, results: Types) -> None:
    require(len(operands) == 1, f"{name} takes one operand", "give it the matrices")
    a = _matrix(name, operands[0])
    rows, columns = a.sizes[-2:]
    count = _requested_count(name, config, results, 0, min(rows, columns))
    is_full = config.get("full_matrices", 0)
    expected: Types = (_shaped(a, count, dtype=a.dtype.real),)
    if config.get("vectors", 0):
        expected += (_shaped(a, rows, rows if is_full else count),)
        expected += (_shaped(a, columns if is_full else count, columns),)
    _follows(name, results, expected)


def _requested_count(name: str, config: Config, results: Types, index: int, most: int) -> int:
    """The number of requested values, from the type of that result."""
    values = results[index] if index < len(results) else None
    asked = values.bounds[-1] if isinstance(values, TensorType) and values.rank else 0
    fits = 0 <= config.get("first", 0) <= most - asked
    require(fits, f"{name}: {asked} of {most} values from {config.get('first', 0)} on", "ask less")
    return asked


def _square_types(config: Config, a: TensorType) -> Types:
    return (a, a) if config.get("vectors", 0) else (a,)


def _tridiagonal_types(config: Config, a: TensorType) -> Types:
    size, real = a.sizes[-1], a.dtype.real
    require(size > 0, f"weft.tridiagonal: operand 0 is {a}", "give it a matrix that is not empty")
    beside = _shaped(a, size - 1, dtype=real)
    return a, _shaped(a, size, dtype=real), beside, _shaped(a, size - 1)


def _lu_types(config: Config, a: TensorType) -> Types:
    rows, columns = a.sizes[-2:]
    return a, _shaped(a, min(rows, columns), dtype=I32), _shaped(a, rows, dtype=I32)


def _qr_types(config: Config, a: TensorType) -> Types:
    return a, _shaped(a, min(a.sizes[-2:]))


def _hessenberg_types(config: Config, a: TensorType) -> Types:
    require(a.sizes[-1] > 0, f"weft.hessenberg: operand 0 is {a}", "give it one that is not empty")
    return a, _shaped(a, a.sizes[-1] - 1)


def _householder_check(name: str, config: Config, operands: Types, results: Types) -> None:
    require(len(operands) == 2, f"{name} takes two operands", "reflectors and their factors")
    a, taus = _matrix(name, operands[0]), operands[1]
    count = taus.bounds[-1] if isinstance(taus, TensorType) and taus.rank else 0
    require(
        taus == _shaped(a, count) and count <= min(a.sizes[-2:]),
        f"{name}: operand 0 is {a}, but operand 1 is {taus}",
        "give at most one factor for each column",
    )
    _follows(name, results, (a,))


def _pivoted_check(name: str, config: Config, operands: Types, results: Types) -> None:
    require(len(operands) == 2, f"{name} takes two operands", "matrices and columns to come first")
    a = _matrix(name, operands[0])
    order = _shaped(a, a.sizes[-1], dtype=I32)
    require(operands[1] == order, f"{name}: operand 1 is {operands[1]}", f"it must be {order}")
    _follows(name, results, (a, order, _shaped(a, min(a.sizes[-2:]))))


def _tridiagonal_solve_check(name: str, config: Config, operands: Types, results: Types) -> None:
    require(len(operands) == 4, f"{name} takes four operands", "three diagonals and right sides")
    right = _matrix(name, operands[3])
    diagonal = TensorType(right.shape[:-1], right.dtype)
    given = ", ".join(map(str, operands[:3]))
    fits = operands[:3] == (diagonal,) * 3
    require(fits, f"{name}: the diagonals are {given}", f"each must be {diagonal}")
    _follows(name, results, (right,))


def _tridiagonal_solve_rule(operands: Types, results: Types) -> Rule:
    """Batches, and the columns of the right sides; the diagonals must be whole."""
    builder = RuleBuilder(operands, results)
    *batch, rows, columns = results[0].bounds if isinstance(results[0], TensorType) else ()
    for dim, size in enumerate(batch):
        builder.factor([dim] * 4, [dim], size)
    builder.factor([len(batch)] * 4, [len(batch)], rows, "whole")
    return builder.factor([None, None, None, len(batch) + 1], [len(batch) + 1], columns).build()


# Meaning


def _eig(site: CallUse, a: Array) -> CallResults:
    values, vectors = _eigenvectors(a)
    outputs = [values]
    if site.config.get("left"):
        outputs.append(_left_eigenvectors(a, values))
    if site.config.get("right"):
        outputs.append(vectors)
    return tuple(x.astype(_dtype(t)) for x, t in zip(outputs, site.outs, strict=True))


def _finite(a: Array) -> tuple[Array, Array]:
    """The matrices with those that hold NaN or infinity replaced by zeros, and a mask of these."""
    # LAPACK may not return for NaN or infinity, or numpy raises for the whole stack.
    bad = np.asarray(~np.isfinite(a).all(axis=(-2, -1)))
    return np.where(bad[..., None, None], a.dtype.type(0), a), bad


def _eigenvectors(a: Array) -> tuple[Array, Array]:
    a, bad = _finite(a)
    values, vectors = eig(a)
    values, vectors = values + 0j, vectors + 0j
    values[bad], vectors[bad] = np.nan, np.nan
    return values, vectors


def _left_eigenvectors(a: Array, values: Array) -> Array:
    """The left eigenvectors, in the order of the values: the right ones of the adjoint."""
    theirs, vectors = _eigenvectors(np.conj(np.swapaxes(a, -1, -2)))
    left = np.empty_like(vectors)
    for index in np.ndindex(*a.shape[:-2]):
        # The adjoint's eigenvalues are the conjugates, in an order of their own: each is paired
        # with the nearest one that is left.
        apart = np.abs(np.conj(theirs[index])[None, :] - values[index][:, None])  # [ours, theirs]
        apart = np.where(np.isnan(apart), np.inf, apart)
        for n in range(a.shape[-1]):
            nearest = int(np.argmin(apart[n]))
            left[index][:, n] = vectors[index][:, nearest]
            apart[:, nearest] = np.inf
    return left


def _eigh(site: CallUse, a: Array) -> CallResults:
    lower = bool(site.config.get("lower", 1))
    a, bad = _finite(a)
    values, vectors = eigh(a, lower)
    values[bad], vectors[bad] = np.nan, np.nan
    kept = _slice(site, 1)
    return vectors[..., kept], values[..., kept]


def _svd(site: CallUse, a: Array) -> CallResults:
    vectors, full = bool(site.config.get("vectors")), bool(site.config.get("full_matrices"))
    a, bad = _finite(a)
    parts = svd(a, full, vectors)
    for part in parts:
        part[bad] = np.nan
    subset = _slice(site, 0)
    if not vectors:
        return (parts[0][..., subset],)
    left, values, right = parts
    if full:
        return values, left, right
    return values[..., subset], left[..., subset], right[..., subset, :]


def _slice(site: CallUse, index: int) -> slice:
    """The slice of requested values."""
    type, first = site.outs[index], site.config.get("first", 0)
    assert isinstance(type, TensorType)
    return slice(first, first + type.sizes[-1])


def _dtype(type: Type) -> np.dtype[np.generic]:
    assert isinstance(type, TensorType)
    return type.dtype.numpy


def _schur(site: CallUse, a: Array) -> CallResults:
    form, vectors = schur(a)
    return (form, vectors) if site.config.get("vectors") else (form,)


# Work: approximate flops per element of the matrix and row


def _cubic(factor: float) -> Callable[[Config, Types, Types], Work]:
    def work(config: Config, operands: Types, results: Types) -> Work:
        first = operands[0]
        size = min(first.bounds[-2:]) if isinstance(first, TensorType) else 0
        weight = 4 if isinstance(first, TensorType) and first.dtype.is_complex else 1
        flops = int(factor * elements(first) * size) * weight
        return Work(flops=flops, bytes=moved(*operands, *results))

    return work


def _linear(config: Config, operands: Types, results: Types) -> Work:
    """Elimination and back substitution: a dozen operations for each element of the solution."""
    return Work(flops=12 * elements(results[0]), bytes=moved(*operands, *results))


def _call(
    check: Callable[..., None], reference: Callable[..., CallResults], work: float
) -> KnownCall:
    return KnownCall(check, reference, by_batch(2), _cubic(work), batched=True, pure=True)


CALLS: dict[str, KnownCall] = {
    "weft.eig": _call(_typed(_eig_types, square=True), _eig, 25),
    "weft.eigh": _call(_eigh_check, _eigh, 9),
    "weft.svd": _call(_svd_check, _svd, 20),
    "weft.schur": _call(_typed(_square_types, square=True), _schur, 25),
    "weft.lu": _call(_typed(_lu_types), lambda site, a: lu(a), 2 / 3),
    "weft.qr": _call(_typed(_qr_types), lambda site, a: qr(a), 4 / 3),
    "weft.pivoted_qr": _call(_pivoted_check, lambda site, a, first: pivoted_qr(a, first), 4 / 3),
    "weft.householder_product": _call(
        _householder_check, lambda site, a, taus: (householder_product(a, taus),), 4 / 3
    ),
    "weft.hessenberg": _call(
        _typed(_hessenberg_types, square=True), lambda site, a: hessenberg(a), 10 / 3
    ),
    "weft.tridiagonal": _call(
        _typed(_tridiagonal_types, square=True),
        lambda site, a: tridiagonal(a, bool(site.config.get("lower", 1))),
        4 / 3,
    ),
    "weft.tridiagonal_solve": KnownCall(
        _tridiagonal_solve_check,
        lambda site, *parts: (
            tridiagonal_solve(*parts, perturb=bool(site.config.get("perturb_singular"))),
        ),
        _tridiagonal_solve_rule,
        _linear,
        batched=True,
        pure=True,
    ),
}
# XLA's names for two of them; their rules are Shardy's, in `rules`.
CALLS |= {
    "Qr": replace(CALLS["weft.qr"], rule=None),
    "ProductOfElementaryHouseholderReflectors": replace(
        CALLS["weft.householder_product"], rule=None
    ),
}
