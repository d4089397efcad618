"""Eigenvalues and singular values by LAPACK: Hermitian and general matrices, the Schur form."""

from __future__ import annotations

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.lapack.matrices import BLOCK, LapackMatrices, hessenberg_work
from weft.emit.llvm.writer.nest import plus, times
from weft.emit.llvm.writer.vector import Vector
from weft.kernels.single_node import SingleNode
from weft.ops.custom_calls.custom import CustomCall


def eigh(kernel: SingleNode) -> Emitted:
    """The requested eigenvectors and eigenvalues of Hermitian matrices, in ascending order."""
    k, config = LapackMatrices(kernel, 9), _config(kernel)
    size, first = k.rows, config.get("first", 0)
    triangle = "L" if config.get("lower", 1) else "U"
    copy, values = k.matrix(), k.reals(size)

    def compute() -> str:
        k.take(copy)
        whole = size**2 + (2 + BLOCK) * size if k.is_complex else 2 * size**2 + 66 * size + 1
        given: list[str | int] = [k.area(whole), whole]
        if k.is_complex:
            real = 1 + 5 * size + 2 * size**2
            given += [k.reals(real), real]
        given += [k.integers(3 + 5 * size), 3 + 5 * size]
        name = "heevd" if k.is_complex else "syevd"
        return k.call(name, "V", triangle, size, copy, size, values, *given)

    def give() -> None:
        k.give(copy, 1, first)
        k.give_line(values, 2, first)

    return k.emit(lambda: k.if_finite(compute, give))


def svd(kernel: SingleNode) -> Emitted:
    """The requested singular values, in descending order, and their vectors if these are, too."""
    k, config = LapackMatrices(kernel, 20), _config(kernel)
    rows, columns, least, most = k.rows, k.columns, k.least, k.most
    vectors, full = bool(config.get("vectors", 0)), bool(config.get("full_matrices", 0))
    first = config.get("first", 0)
    values = k.reals(least)
    wide, tall = (rows, columns) if full else (least, least)
    left, right = (k.area(rows * wide), k.area(tall * columns)) if vectors else (k.area(1),) * 2

    def compute() -> str:
        job = "N" if not vectors else "A" if full else "S"
        work = (1 if k.is_complex else 4) * least**2 + 7 * least + most + BLOCK * (rows + columns)
        given: list[str | int] = [k.area(work), work]
        if k.is_complex:
            given.append(k.reals(max(5 * least, 2 * most + 2 * least + 1) * least + 7 * least))
        sides = (left, rows, right, tall if vectors else 1)
        matrix = (rows, columns, k.take(k.matrix()), rows)
        return k.call("gesdd", job, *matrix, values, *sides, *given, k.integers(8 * least))

    def give() -> None:
        k.give_line(values, 1, first)
        if vectors:
            k.give(left, 2, 0 if full else first)
            k.give(right, 3, 0 if full else first, tall)

    return k.emit(lambda: k.if_finite(compute, give))


def eig(kernel: SingleNode) -> Emitted:
    """The eigenvalues, and the left and right eigenvectors if requested."""
    k, config = LapackMatrices(kernel, 25), _config(kernel)
    size = k.rows
    sides = [bool(config.get(side, 0)) for side in ("left", "right")]
    vectors = [k.area(size**2 if wanted else 1) for wanted in sides]
    values = [k.area(size) for _ in range(1 if k.is_complex else 2)]

    def compute() -> str:
        work = hessenberg_work(size)
        jobs = ["V" if wanted else "N" for wanted in sides]
        given: list[str | int] = [k.area(work), work]
        if k.is_complex:
            given.append(k.reals(2 * size))
        places = [x for side in vectors for x in (side, size)]
        return k.call("geev", *jobs, size, k.take(k.matrix()), size, *values, *places, *given)

    def give() -> None:
        _give_values(k, values)
        wanted = [area for area, is_wanted in zip(vectors, sides, strict=True) if is_wanted]
        for n, area in enumerate(wanted, 2):
            if k.is_complex:
                k.give(area, n)
            else:
                _give_pairs(k, area, values[1], n)

    return k.emit(lambda: k.if_finite(compute, give))


def schur(kernel: SingleNode) -> Emitted:
    """The Schur form, and the vectors if requested."""
    k = LapackMatrices(kernel, 25)
    size, vectors = k.rows, bool(_config(kernel).get("vectors", 0))
    copy, basis = k.matrix(), k.area(size**2 if vectors else 1)

    def compute() -> str:
        k.take(copy)
        work = hessenberg_work(size)
        values = [k.area(size) for _ in range(1 if k.is_complex else 2)]
        given: list[str | int] = [k.area(work), work]
        if k.is_complex:
            given.append(k.reals(size))
        # No order of the eigenvalues is asked for: the function that selects them is not called.
        places: list[str | int] = ["null", size, copy, size, k.integers(1), *values, basis, size]
        job = "V" if vectors else "N"
        return k.call("gees", job, "N", *places, *given, k.integers(size))

    def give() -> None:
        k.give(copy, 1)
        if vectors:
            k.give(basis, 2)

    return k.emit(lambda: k.if_finite(compute, give))


def _config(kernel: SingleNode) -> dict[str, int]:
    assert isinstance(kernel.op, CustomCall)
    return dict(kernel.op.config)


def _give_values(k: LapackMatrices, values: list[str]) -> None:
    """Eigenvalues, whose real and imaginary parts may lie in areas of their own."""
    if k.is_complex:
        k.give_line(values[0], 1)
        return
    with k.code.loop(0, k.rows) as loop:
        parts = tuple([k.get(area, loop.index)[0] for area in values])
        k.put(k.at(1), loop.index, parts)


def _give_pairs(k: LapackMatrices, area: str, imaginary: str, result: int) -> None:
    """Complex vectors of a real matrix: columns n and n + 1 are the parts of those of a pair."""
    code, one, size = k.code, k.one, k.rows
    zero = one.constant(0.0, k.real)
    with code.loop(0, size) as across:
        (part,) = k.get(imaginary, across.index)
        is_first, is_second = (one.compare(how, part, zero).text for how in ("ogt", "olt"))
        before = code.let(f"sub nsw i64 {across.index}, 1")
        real = code.let(f"select i1 {is_second}, i64 {before}, i64 {across.index}")
        after = code.let(
            f"select i1 {is_first}, i64 {plus(code, across.index, 1)}, i64 {across.index}"
        )
        is_pair = Vector(code.let(f"or i1 {is_first}, {is_second}"), "i1")
        with code.loop(0, size) as down:
            column = [plus(code, times(code, n, size), down.index) for n in (real, after)]
            (x,), (y,) = (k.get(area, place) for place in column)
            y = one.select(Vector(is_second, "i1"), one.neg(y), y)
            y = one.select(is_pair, y, zero)
            k.put(k.at(result), plus(code, times(code, down.index, size), across.index), (x, y))
