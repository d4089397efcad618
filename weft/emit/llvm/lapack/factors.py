"""Factorizations by LAPACK: Cholesky, LU, QR and their relatives."""

from __future__ import annotations

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.lapack.matrices import (
    BLOCK,
    LapackMatrices,
    hessenberg_work,
    refuses_lapack,
)
from weft.emit.llvm.writer.nest import plus, times
from weft.emit.llvm.writer.vector import Vector
from weft.kernels.single_node import SingleNode
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.linalg import Cholesky


def cholesky(kernel: SingleNode) -> Emitted:
    """The factor of every matrix; NaN if it is not positive definite."""
    k = LapackMatrices(kernel, 1)
    assert isinstance(kernel.op, Cholesky)
    lower, size, code, one = kernel.op.lower, k.rows, k.code, k.one

    def body() -> None:
        copy = k.take(k.matrix())
        fine = k.call("potrf", "L" if lower else "U", size, copy, size)
        none, zero = (one.constant(x, k.real) for x in (float("nan"), 0.0))
        # The last element of the diagonal is NaN if there was one in the triangle.
        (last, *_) = k.get(copy, str(size * size - 1), k.parts)
        fine = code.let(f"and i1 {fine}, {one.compare('ord', last, last).text}")
        nothing = (none, zero)[: k.parts]
        with code.loop(0, size) as down, code.loop(0, size) as across:
            place = plus(code, times(code, across.index, size), down.index)
            how = "sge" if lower else "sle"
            inside = Vector(code.let(f"icmp {how} i64 {down.index}, {across.index}"), "i1")
            found = k.get(copy, place, k.parts)
            held = [
                one.select(Vector(fine, "i1"), a, b) for a, b in zip(found, nothing, strict=True)
            ]
            target = plus(code, times(code, down.index, size), across.index)
            k.put(k.at(1), target, tuple([one.select(inside, x, zero) for x in held]))

    return k.emit(body)


def lu(kernel: SingleNode) -> Emitted:
    """L and U, the pivots, and the permutation, counted from 0."""
    k = LapackMatrices(kernel, 1)
    code, one = k.code, k.one

    def body() -> None:
        copy, pivots = k.take(k.matrix()), k.integers(k.least)
        k.call("getrf", k.rows, k.columns, copy, k.rows, pivots)
        k.give(copy, 1)
        swaps, order = k.at(2), k.at(3)
        with code.loop(0, k.rows) as loop:
            number = Vector(code.let(f"trunc i64 {loop.index} to i32"), "i32")
            one.store(number, one.at(order, loop.index, "i32"))
        with code.loop(0, k.least) as loop:
            pivot = _narrowed(k, pivots, loop.index)
            pivot = Vector(code.let(f"sub i32 {pivot.text}, 1"), "i32")
            one.store(pivot, one.at(swaps, loop.index, "i32"))
            other = code.let(f"sext i32 {pivot.text} to i64")
            places = [one.at(order, at, "i32") for at in (loop.index, other)]
            a, b = (one.load(place, "i32") for place in places)
            one.store(b, places[0])
            one.store(a, places[1])

    return k.emit(body)


def qr(kernel: SingleNode) -> Emitted:
    """R and the reflectors of Q, and their factors."""
    k = LapackMatrices(kernel, 1)

    def body() -> None:
        copy, taus, count = k.take(k.matrix()), k.area(k.least), BLOCK * k.columns
        k.call("geqrf", k.rows, k.columns, copy, k.rows, taus, k.area(count), count)
        k.give(copy, 1)
        k.give_line(taus, 2)

    return k.emit(body)


def refuses_product(kernel: SingleNode) -> str | None:
    """Why a product of reflectors is unsupported."""
    rows, columns = kernel.operands[0].shape[-2:]
    return refuses_lapack(kernel) or ("more columns than rows" if columns > rows else None)


def householder_product(kernel: SingleNode) -> Emitted:
    """The first columns of the product of reflectors."""
    k = LapackMatrices(kernel, 1)

    def body() -> None:
        copy, taus, count = k.take(k.matrix()), k.take_line(1), BLOCK * k.columns
        name = "ungqr" if k.is_complex else "orgqr"
        sizes = (k.rows, k.columns, kernel.operands[1].shape[-1])
        k.call(name, *sizes, copy, k.rows, taus, k.area(count), count)
        k.give(copy, 2)

    return k.emit(body)


def pivoted_qr(kernel: SingleNode) -> Emitted:
    """QR with column pivoting: R and reflectors, the pivots, counted from 1, and the factors."""
    k = LapackMatrices(kernel, 2)
    code, one, integer = k.code, k.one, k.integer

    def body() -> None:
        copy, taus, pivots = k.take(k.matrix()), k.area(k.least), k.integers(k.columns)
        leading, given = k.at(1), list[str | int]()
        with code.loop(0, k.columns) as loop:
            first = one.load(one.at(leading, loop.index, "i32"), "i32")
            wide = first if integer == "i32" else one.cast("sext", first, "i64")
            one.store(wide, one.at(pivots, loop.index, integer))
        count = (BLOCK + 2) * (k.columns + 1)
        given = [k.area(count), count, *([k.reals(2 * k.columns)] if k.is_complex else [])]
        k.call("geqp3", k.rows, k.columns, copy, k.rows, pivots, taus, *given)
        k.give(copy, 2)
        k.give_line(taus, 4)
        order = k.at(3)
        with code.loop(0, k.columns) as loop:
            one.store(_narrowed(k, pivots, loop.index), one.at(order, loop.index, "i32"))

    return k.emit(body)


def hessenberg(kernel: SingleNode) -> Emitted:
    """The Hessenberg form with the reflectors below it, and their factors."""
    k = LapackMatrices(kernel, 3)
    size = k.rows

    def body() -> None:
        copy, taus, count = k.take(k.matrix()), k.area(size - 1), hessenberg_work(size)
        k.call("gehrd", size, 1, size, copy, size, taus, k.area(count), count)
        k.give(copy, 1)
        k.give_line(taus, 2)

    return k.emit(body)


def tridiagonal(kernel: SingleNode) -> Emitted:
    """The tridiagonal form: reflectors, the diagonal, the one beside it, and the factors."""
    k = LapackMatrices(kernel, 1)
    assert isinstance(kernel.op, CustomCall)
    triangle, size = "L" if kernel.op.config.get("lower", 1) else "U", k.rows

    def body() -> None:
        copy, count = k.take(k.matrix()), BLOCK * size
        diagonal, beside, taus = k.reals(size), k.reals(size - 1), k.area(size - 1)
        name = "hetrd" if k.is_complex else "sytrd"
        places = (diagonal, beside, taus, k.area(count), count)
        k.call(name, triangle, size, copy, size, *places)
        k.give(copy, 1)
        for n, area in enumerate((diagonal, beside, taus), 2):
            k.give_line(area, n)

    return k.emit(body)


def _narrowed(k: LapackMatrices, integers: str, index: str) -> Vector:
    """One of the library's integers as an i32."""
    held = k.one.load(k.one.at(integers, index, k.integer), k.integer)
    return held if k.integer == "i32" else k.one.cast("trunc", held, "i32")
