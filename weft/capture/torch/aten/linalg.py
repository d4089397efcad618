"""Factorizations of matrices and triangular systems."""

from __future__ import annotations

import numpy as np

from weft.capture.torch.aten.indexing import gather
from weft.capture.torch.build import (
    AtenLowering,
    Build,
    LoweredResults,
    dtype_of,
    shape_of,
    type_of,
)
from weft.ir.module import Region, Value
from weft.ir.types import I32, I64, TensorType
from weft.ops.control import While
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.custom_calls.declaration import config_text
from weft.ops.elementwise.pointwise import Add, Subtract
from weft.ops.linalg import Cholesky, TriangularSolve


def cholesky(
    b: Build, a: Value, *, upper: bool = False, check_errors: bool = False
) -> LoweredResults:
    """The Cholesky factors; NaN and an info of 1 where a matrix is not positive definite."""
    factor = b.op(Cholesky(lower=not upper), a)
    if 1 not in b.used:
        return factor, None
    # Of a matrix that is not positive definite the whole triangle is NaN: its first element tells.
    first = factor
    rank = len(shape_of(a))
    for dim in (rank - 2, rank - 1):
        first = b.slice(first, dim, 0, min(1, shape_of(a)[dim]))
    if type_of(first).size == 0:
        return factor, b.splat(0, TensorType(shape_of(a)[:-2], I32))
    return factor, b.convert(b.reshape(b.is_nan(first), shape_of(a)[:-2]), I32)


def solve_triangular(
    b: Build, a: Value, x: Value, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Value:
    """The solution of triangular systems."""
    batch = np.broadcast_shapes(shape_of(a)[:-2], shape_of(x)[:-2])
    a, x = (b.broadcast(v, (*batch, *shape_of(v)[-2:])) for v in (a, x))
    return b.op(TriangularSolve(left, not upper, unitriangular, "NO_TRANSPOSE"), a, x)


# LU


def _factored(b: Build, a: Value) -> tuple[Value, Value, Value]:
    """L and U in one matrix, row exchanges, and the permutation; indices from 0."""
    sizes = shape_of(a)
    *batch, rows, columns = sizes
    pivots = TensorType((*batch, min(rows, columns)), I32)
    outs = (type_of(a), pivots, TensorType((*batch, rows), I32))
    made = b.all(CustomCall("weft.lu", outs), a)
    return made[0], made[1], made[2]


def lu_factor(
    b: Build, a: Value, *, pivot: bool = True, check_errors: bool = False
) -> LoweredResults:
    """L and U in one matrix, row exchanges from 1, and the first zero pivot from 1."""
    _with_pivots(b, pivot)
    made, pivots, _ = _factored(b, a)
    pivots = b.op(Add(), pivots, b.like(pivots, 1))
    return made, pivots, _first_zero(b, made) if 2 in b.used else None


def _first_zero(b: Build, packed: Value) -> Value:
    """The number of the first 0 on the diagonal, from 1; 0 if there is none."""
    sizes = shape_of(packed)
    rows, columns = (b.iota(len(sizes) - n, sizes) for n in (2, 1))
    is_zero = b.compare("EQ", packed, b.like(packed, 0))
    zeros = b.select(b.compare("EQ", rows, columns), is_zero, b.like(is_zero, False))
    none = 1 << 30
    number = b.select(zeros, b.op(Add(), rows, b.like(rows, 1)), b.like(rows, none))
    first = b.reduce(number, (len(sizes) - 2, len(sizes) - 1), "min", none)
    first = b.select(b.compare("EQ", first, b.like(first, none)), b.like(first, 0), first)
    return b.convert(first, I32)


def lu(b: Build, a: Value, *, pivot: bool = True) -> LoweredResults:
    """P, L and U."""
    _with_pivots(b, pivot)
    packed, _, order = _factored(b, a)
    *batch, rows, columns = shape_of(a)
    inner, rank = min(rows, columns), len(batch) + 2
    square = (*batch, rows, rows)
    spread = b.spread(b.convert(order, I64), square, [*range(len(batch)), rank - 1])
    # P[i, j] is 1 where row j of L U is row i = order[j] of the matrix.
    moves = b.convert(b.compare("EQ", spread, b.iota(rank - 2, square)), dtype_of(a))
    lower = _triangle(b, b.crop(packed, (*batch, rows, inner)), "GT")
    eye = _triangle(b, b.like(lower, 1), "EQ")
    upper = _triangle(b, b.crop(packed, (*batch, inner, columns)), "LE")
    return moves, b.op(Add(), lower, eye), upper


def _triangle(b: Build, a: Value, direction: str) -> Value:
    """The elements whose row compares so with their column; 0 elsewhere."""
    sizes = shape_of(a)
    rows, columns = (b.iota(len(sizes) - n, sizes) for n in (2, 1))
    return b.select(b.compare(direction, rows, columns), a, b.like(a, 0))


def _with_pivots(b: Build, pivot: bool) -> None:
    if not pivot:
        raise b.refuse("has no lowering with pivot=False", "use pivot=True")


def lu_solve(
    b: Build, factors: Value, pivots: Value, x: Value, *, left: bool = True, adjoint: bool = False
) -> Value:
    """The solution of systems whose matrices have these factors."""
    batch = np.broadcast_shapes(shape_of(factors)[:-2], shape_of(x)[:-2])
    factors, x = (b.broadcast(v, (*batch, *shape_of(v)[-2:])) for v in (factors, x))
    pivots = b.broadcast(pivots, (*batch, shape_of(pivots)[-1]))
    kind = "ADJOINT" if adjoint else "NO_TRANSPOSE"
    # A = P L U. Its adjoint is U' L' P', so the three parts come in the other order.
    lower = TriangularSolve(left, True, True, kind)
    upper = TriangularSolve(left, False, False, kind)
    if left != adjoint:
        x = _permuted(b, x, pivots, left, undo=False)
        return b.op(upper, factors, b.op(lower, factors, x))
    x = b.op(lower, factors, b.op(upper, factors, x))
    return _permuted(b, x, pivots, left, undo=True)


def _permuted(b: Build, x: Value, pivots: Value, left: bool, undo: bool) -> Value:
    """Rows, or columns, exchanged as the pivots say, or as they were before."""
    order = _permutation(b, pivots, undo)
    rank = len(shape_of(x))
    dim = rank - 2 if left else rank - 1
    dims = [*range(rank - 2), dim]
    return gather(b, x, dim, b.spread(order, shape_of(x), dims))


def _permutation(b: Build, pivots: Value, undo: bool) -> Value:
    """The rows in the order of exchanges from 1: an exchange for each step of a loop."""
    sizes = shape_of(pivots)
    count, dim = sizes[-1], len(sizes) - 1
    order, step = b.iota(dim, sizes), b.splat(0, TensorType((), I64))
    # LAPACK's pivots: step n exchanges row n with row pivots[n], counted from 1.
    swaps = b.op(Subtract(), b.convert(pivots, I64), b.like(order, 1))
    types = (type_of(step), type_of(order), type_of(swaps))
    number, held, theirs = args = tuple([Value(t, None, n) for n, t in enumerate(types)])
    inner = Build()
    index = inner.iota(dim, sizes)
    n = inner.broadcast(inner.reshape(number, (1,) * len(sizes)), sizes)
    if undo:
        n = inner.op(Subtract(), inner.like(n, count - 1), n)
    here = inner.compare("EQ", index, n)

    def at(value: Value, where: Value) -> Value:
        # One element, read by a masked sum, which any split of the batch keeps on its device.
        one = inner.reduce(inner.select(where, value, inner.like(value, 0)), (dim,), "add", 0)
        return inner.spread(one, sizes, range(dim))

    there = inner.compare("EQ", index, at(theirs, here))
    swapped = inner.select(here, at(held, there), inner.select(there, at(held, here), held))
    following = inner.op(Add(), number, inner.like(number, 1))
    body = Region(args, inner.nodes, (following, swapped, theirs))
    first = tuple([Value(t, None, n) for n, t in enumerate(types)])
    test = Build()
    goes_on = test.compare("LT", first[0], test.like(first[0], count))
    condition = Region(first, test.nodes, (goes_on,))
    return b.all(While(), step, order, swaps, regions=(condition, body))[1]


def lu_unpack(
    b: Build, packed: Value, pivots: Value, unpack_data: bool = True, unpack_pivots: bool = True
) -> LoweredResults:
    """P, L and U of the factors in one matrix and the row exchanges."""
    moves_type, lower_type, upper_type = b.outs
    assert moves_type is not None and lower_type is not None and upper_type is not None
    moves, lower, upper = (b.splat(0, type) for type in (moves_type, lower_type, upper_type))
    if unpack_pivots and moves_type.size:
        *batch, rows, _ = moves_type.sizes
        count = shape_of(pivots)[-1]
        # Rows behind the last exchange stay where they are.
        own = b.iota(len(batch), (*batch, rows), I32)
        own = b.op(Add(), own, b.like(own, 1))
        pivots = b.join([pivots, b.slice(own, len(batch), count, rows)], len(batch))
        order = _permutation(b, pivots, undo=False)
        spread = b.spread(order, moves_type.sizes, [*range(len(batch)), len(batch) + 1])
        is_there = b.compare("EQ", spread, b.iota(len(batch), moves_type.sizes))
        moves = b.convert(is_there, moves_type.dtype)
    if unpack_data:
        strict = _triangle(b, b.crop(packed, lower_type.sizes), "GT")
        lower = b.op(Add(), strict, _triangle(b, b.like(strict, 1), "EQ"))
        upper = _triangle(b, b.crop(packed, upper_type.sizes), "LE")
    return moves, lower, upper


# Orthogonal factors


def geqrf(b: Build, a: Value) -> LoweredResults:
    """R in the upper triangle with Householder's vectors below it, and their factors."""
    factors = b.outs[1]
    assert factors is not None, "factors have a type"
    made = b.all(CustomCall("weft.qr", (type_of(a), factors)), a)
    return made[0], made[1]


def householder_product(b: Build, reflectors: Value, factors: Value) -> Value:
    """The first columns of the product of Householder's reflections."""
    call = CustomCall("weft.householder_product", (type_of(reflectors),))
    return b.op(call, reflectors, factors)


def qr(b: Build, a: Value, mode: str = "reduced") -> LoweredResults:
    """Q and R, by Householder's reflections."""
    *batch, rows, columns = shape_of(a)
    inner = min(rows, columns)
    taus = type_of(a).with_shape((*batch, inner))
    # As LAPACK's geqrf: R in the upper triangle, Householder's vectors below it.
    packed, factors = b.all(CustomCall("weft.qr", (type_of(a), taus)), a)
    height = rows if mode == "complete" else inner
    upper = _triangle(b, b.crop(packed, (*batch, height, columns)), "LE")
    if mode == "r":
        return b.splat(0, b.out), upper
    wide = (*batch, rows, height)
    if height > columns:
        packed = b.pad(packed, [0] * len(wide), [*[0] * (len(wide) - 1), height - columns])
    reflectors = b.crop(packed, wide)
    call = CustomCall("weft.householder_product", (type_of(reflectors),))
    return b.op(call, reflectors, factors), upper


def svd(
    b: Build,
    a: Value,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *,
    driver: str | None = None,
) -> LoweredResults:
    """Left vectors, singular values and right vectors."""
    left, values, right = b.outs
    assert left is not None and values is not None and right is not None, "three tensors"
    config = config_text(vectors=compute_uv, full_matrices=full_matrices and compute_uv)
    outs = (values, left, right) if compute_uv else (values,)
    made = b.all(CustomCall("weft.svd", outs, backend_config=config), a)
    if not compute_uv:
        return b.splat(0, left), made[0], b.splat(0, right)
    return made[1], made[0], made[2]


def eigh(b: Build, a: Value, uplo: str = "L", compute_v: bool = True) -> LoweredResults:
    """Eigenvalues of Hermitian matrices, in ascending order, and their vectors."""
    values = b.out
    config = config_text(lower=uplo.upper() == "L")
    made = b.all(CustomCall("weft.eigh", (type_of(a), values), backend_config=config), a)
    vectors = b.outs[1]
    assert vectors is not None, "vectors have a type"
    return made[1], made[0] if compute_v else b.splat(0, vectors)


def eig(b: Build, a: Value) -> LoweredResults:
    """Eigenvalues and right eigenvectors."""
    values, vectors = b.outs
    assert values is not None and vectors is not None, "two tensors"
    config = config_text(left=False, right=True)
    made = b.all(CustomCall("weft.eig", (values, vectors), backend_config=config), a)
    return made[0], made[1]


def eigenvalues(b: Build, a: Value) -> Value:
    """Eigenvalues alone."""
    config = config_text(left=False, right=False)
    return b.op(CustomCall("weft.eig", (b.out,), backend_config=config), a)


LOWERINGS: dict[str, AtenLowering] = {
    "aten._linalg_eigh.default": eigh,
    "aten._linalg_svd.default": svd,
    "aten._linalg_eigvals.default": eigenvalues,
    "aten.geqrf.default": geqrf,
    "aten.linalg_cholesky_ex.default": cholesky,
    "aten.linalg_eig.default": eig,
    "aten.linalg_eigvals.default": eigenvalues,
    "aten.linalg_householder_product.default": householder_product,
    "aten.linalg_lu.default": lu,
    "aten.linalg_lu_factor_ex.default": lu_factor,
    "aten.linalg_lu_solve.default": lu_solve,
    "aten.linalg_qr.default": qr,
    "aten.linalg_solve_triangular.default": solve_triangular,
    "aten.lu_unpack.default": lu_unpack,
}
