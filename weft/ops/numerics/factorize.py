"""Decompositions of matrices that numpy lacks, with LAPACK's signs, orders and storage.

Every function takes stacks of matrices: all dims but the last two (or one) are batch dims.
A reflector is H = I - tau v v^H with v = (1, ...); the tail of v is stored in place of the zeros
that it creates.
"""

from __future__ import annotations

import math

import numpy as np

from weft.ir.types import Array


def lu(matrices: Array) -> tuple[Array, Array, Array]:
    """L and U in one matrix, the pivots (row k was swapped with row pivots[k]), the permutation.

    Pivots and permutation count rows from 0, as JAX does and LAPACK does not.
    """
    rows, columns = matrices.shape[-2:]
    batch = matrices.shape[:-2]
    a = _stacked(matrices, 2).copy()
    every = np.arange(len(a))
    pivots = np.zeros((len(a), min(rows, columns)), np.int32)
    order = np.tile(np.arange(rows, dtype=np.int32), (len(a), 1))
    for k in range(min(rows, columns)):
        best = k + np.argmax(_size(a[:, k:, k]), axis=1)
        pivots[:, k] = best
        for swapped in (a, order):
            held = swapped[every, best].copy()
            swapped[every, best] = swapped[:, k]
            swapped[:, k] = held
        pivot = a[:, k, k]
        # A zero pivot is the largest of its column: the elements below it are 0 already.
        a[:, k + 1 :, k] /= np.where(pivot == 0, 1, pivot)[:, None]
        a[:, k + 1 :, k + 1 :] -= a[:, k + 1 :, k, None] * a[:, k, None, k + 1 :]
    return (
        a.reshape(matrices.shape),
        pivots.reshape(*batch, min(rows, columns)),
        order.reshape(*batch, rows),
    )


def _stacked(arrays: Array, dims: int) -> Array:
    """Arrays with their batch dims flattened; -1 would be ambiguous for arrays without elements."""
    batch, kept = arrays.shape[:-dims], arrays.shape[-dims:]
    return arrays.reshape(math.prod(batch), *kept)


def _size(numbers: Array) -> Array:
    """The magnitude for pivoting: |re| + |im|; a NaN wins."""
    return np.asarray(np.abs(numbers.real) + np.abs(numbers.imag))


def qr(matrices: Array) -> tuple[Array, Array]:
    """R in the upper triangle, the reflectors of Q below it, and their factors."""
    raw, taus = np.linalg.qr(matrices, mode="raw")
    return np.swapaxes(raw, -1, -2), taus


def householder_product(reflectors: Array, taus: Array) -> Array:
    """The first columns of the product of reflectors: Q of a QR decomposition."""
    rows, columns = reflectors.shape[-2:]
    product = np.broadcast_to(np.eye(rows, columns, dtype=reflectors.dtype), reflectors.shape)
    product = product.copy()
    # From the last one: rows before k are still those of the identity.
    for k in reversed(range(taus.shape[-1])):
        v = _stored(reflectors[..., k:, k])
        _reflect_left(product[..., k:, :], v, taus[..., k])
    return product


def pivoted_qr(matrices: Array, leading: Array) -> tuple[Array, Array, Array]:
    """QR with column pivoting, so that R's diagonal decreases; and the pivots, counted from 1.

    Columns that are not 0 in `leading` (LAPACK's JPVT) come first, in their order.
    """
    rows, columns = matrices.shape[-2:]
    a = _stacked(matrices, 2).copy()
    first = _stacked(leading, 1)
    order = np.zeros(first.shape, leading.dtype)
    taus = np.zeros((len(a), min(rows, columns)), a.dtype)
    for n, matrix in enumerate(a):
        fixed = np.flatnonzero(first[n])
        kept = np.concatenate([fixed, np.setdiff1d(np.arange(columns), fixed)])
        matrix[:] = matrix[:, kept]
        order[n] = kept + 1
        _pivoted(matrix, order[n], taus[n], len(fixed))
    batch = matrices.shape[:-2]
    return (
        a.reshape(matrices.shape),
        order.reshape(leading.shape),
        taus.reshape(*batch, taus.shape[-1]),
    )


def _pivoted(a: Array, order: Array, taus: Array, fixed: int) -> None:
    for k in range(len(taus)):
        if k >= fixed:
            # The norms of the remaining parts of the columns, computed anew: LAPACK downdates those
            # of the last step, which cancels and needs a correction.
            chosen = k + int(np.argmax(np.linalg.norm(a[k:, k:], axis=0)))
            a[:, [k, chosen]] = a[:, [chosen, k]]
            order[[k, chosen]] = order[[chosen, k]]
        taus[k] = _make_reflector(a[k:, k])
        v = _stored(a[k:, k])
        # R = H^H A: LAPACK's taus are those of H, and Q is the product of the H.
        _reflect_left(a[k:, k + 1 :], v, np.conj(taus[k]))


def hessenberg(matrices: Array) -> tuple[Array, Array]:
    """The upper Hessenberg form, with the reflectors below the subdiagonal, and their factors."""
    size = matrices.shape[-1]
    a = _stacked(matrices, 2).copy()
    taus = np.zeros((len(a), max(size - 1, 0)), a.dtype)
    for k in range(size - 1):
        taus[:, k] = _make_reflector(a[:, k + 1 :, k])
        v = _stored(a[:, k + 1 :, k])
        # A similarity, H^H A H, of the rows and columns after k: earlier zeros are left alone.
        _reflect_right(a[:, :, k + 1 :], v, taus[:, k])
        _reflect_left(a[:, k + 1 :, k + 1 :], v, np.conj(taus[:, k]))
    return a.reshape(matrices.shape), taus.reshape(*matrices.shape[:-2], max(size - 1, 0))


def tridiagonal(matrices: Array, lower: bool) -> tuple[Array, Array, Array, Array]:
    """The tridiagonal form of a Hermitian matrix: reflectors, diagonal, off-diagonal, and factors.

    Only one triangle is read, and written.
    """
    size = matrices.shape[-1]
    a = _stacked(matrices, 2).copy()
    real = a.real.dtype
    diagonal, beside = np.zeros((len(a), size), real), np.zeros((len(a), size - 1), real)
    taus = np.zeros((len(a), size - 1), a.dtype)
    # The upper triangle, read from its end, is a lower one; a view, so that `a` is written to.
    turned = a if lower else a[:, ::-1, ::-1]
    places = range(size - 1) if lower else range(size - 2, -1, -1)
    triangle = np.tril(turned)
    whole = triangle + np.conj(np.swapaxes(np.tril(triangle, -1), -1, -2))
    steps = np.arange(size)
    whole[:, steps, steps] = whole[:, steps, steps].real  # as that of a Hermitian matrix is
    for k, place in enumerate(places):
        column = turned[:, k + 1 :, k]
        taus[:, place] = tau = _make_reflector(whole[:, k + 1 :, k])
        column[:] = whole[:, k + 1 :, k]
        beside[:, place] = column[:, 0].real
        _reflect_both(whole[:, k + 1 :, k + 1 :], _stored(column), tau)
    found = np.diagonal(whole, axis1=-2, axis2=-1).real
    diagonal[:] = found if lower else found[:, ::-1]
    turned[:, steps, steps] = found
    batch = matrices.shape[:-2]
    shaped = [x.reshape(*batch, *x.shape[1:]) for x in (a, diagonal, beside, taus)]
    return shaped[0], shaped[1], shaped[2], shaped[3]


# Reflectors


def _make_reflector(columns: Array) -> Array:
    """Turn columns into (beta, v...) in place, for H^H column = (beta, 0...); the factors."""
    alpha, rest = columns[..., 0], columns[..., 1:]
    # beta has the sign opposite to alpha's, so that alpha - beta does not cancel. Where there is
    # nothing to make zero, H is the identity: tau is 0.
    norm = np.linalg.norm(rest, axis=-1)
    idle = (norm == 0) & (alpha.imag == 0)
    length = np.hypot(np.abs(alpha), norm)
    beta = np.where(idle, alpha.real, np.where(alpha.real > 0, -length, length))
    scale = np.where(idle, 1, alpha - beta)
    tau = np.where(idle, 0, (beta - alpha) / np.where(beta == 0, 1, beta))
    columns[..., 1:] /= scale[..., None]
    columns[..., 0] = beta
    return tau.astype(columns.dtype)


def _stored(columns: Array) -> Array:
    """v = (1, ...), from where it is stored."""
    v = columns.copy()
    v[..., 0] = 1
    return v


def _reflect_left(matrices: Array, v: Array, tau: Array) -> None:
    """H @ matrices, in place."""
    along = np.matmul(np.conj(v)[..., None, :], matrices)
    matrices -= np.asarray(tau)[..., None, None] * v[..., :, None] * along


def _reflect_right(matrices: Array, v: Array, tau: Array) -> None:
    """matrices @ H, in place."""
    along = np.matmul(matrices, v[..., :, None])
    matrices -= np.asarray(tau)[..., None, None] * along * np.conj(v)[..., None, :]


def _reflect_both(matrices: Array, v: Array, tau: Array) -> None:
    """H^H @ matrices @ H, in place, of Hermitian matrices."""
    _reflect_left(matrices, v, np.conj(tau))
    _reflect_right(matrices, v, tau)
