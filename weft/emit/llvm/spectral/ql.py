"""Implicitly shifted QL steps, which diagonalize a symmetric tridiagonal matrix."""

from __future__ import annotations

from weft.emit.llvm.spectral.rows import PaddedRows
from weft.emit.llvm.writer.nest import plus
from weft.emit.llvm.writer.vector import Vector, Vectors

_STEPS = 40  # of an eigenvalue: two or three are usual
_NEGLIGIBLE = {"float": 2.0**-27, "double": 2.0**-53}  # beside its neighbours on the diagonal
_DOUBLES, _INTEGERS = ("c", "s", "g", "p", "failed"), ("m", "i")


class QlSteps:
    """Steps on doubles in memory, the diagonal and those beside it; rows get the rotations."""

    def __init__(self, rows: PaddedRows, matrix: str, diagonal: str, beside: str) -> None:
        self.code, self.rows, self.matrix = rows.code, rows, matrix
        self.diagonal, self.beside = diagonal, beside
        self.size, self.kind = rows.length, rows.kind
        self.one = Vectors(self.code, 1)
        kinds = dict.fromkeys(_DOUBLES, "double") | dict.fromkeys(_INTEGERS, "i64")
        self.cells = {
            name: self.code.let(f"alloca {kind}, align 8", name) for name, kind in kinds.items()
        }

    def begin(self) -> None:
        """Before the first step."""
        self._set("failed", self._number(0.0))

    def converged(self) -> str:
        """Whether all eigenvalues were found, as an i1."""
        return self.one.compare("oeq", self._value("failed"), self._number(0.0)).text

    # Numbers: doubles in cells, and in vectors of them

    def _number(self, value: float) -> Vector:
        return self.one.constant(value, "double")

    def _value(self, cell: str) -> Vector:
        return self.one.load(self.cells[cell], "double")

    def _set(self, cell: str, value: Vector) -> None:
        self.one.store(value, self.cells[cell])

    def _whole(self, cell: str) -> str:
        return self.code.let(f"load i64, ptr {self.cells[cell]}, align 8")

    def _set_whole(self, cell: str, value: str) -> None:
        self.code.do(f"store i64 {value}, ptr {self.cells[cell]}, align 8")

    def _at(self, area: str, index: str) -> Vector:
        return self.one.load(self.one.at(area, index, "double"), "double")

    def _put(self, value: Vector, area: str, index: str) -> None:
        self.one.store(value, self.one.at(area, index, "double"))

    def _narrow(self, value: Vector) -> Vector:
        return self.one.cast("fptrunc", value, self.kind)

    # QL steps

    def find(self, l: str) -> None:  # noqa: E741  # as it is called everywhere
        """Iterate until an eigenvalue is separated from those after it."""
        code = self.code
        again, after = (code.fresh(name) for name in ("again", "found"))
        before = code.block
        code.do(f"br label %{again}")
        code.start(again)
        count = f"%{code.fresh('tries')}"
        place = len(code.lines)
        code.lines.append("")
        self._block_end(l)
        m = self._whole("m")
        more = code.let(f"icmp ne i64 {m}, {l}")
        work = code.fresh("step")
        code.do(f"br i1 {more}, label %{work}, label %{after}")
        code.start(work)
        self._step(l, m)
        following = plus(code, count, 1)
        some = code.let(f"icmp slt i64 {following}, {_STEPS}")
        failed = code.fresh("failed")
        code.lines[place] = f"  {count} = phi i64 [0, %{before}], [{following}, %{code.block}]"
        code.do(f"br i1 {some}, label %{again}, label %{failed}")
        code.start(failed)
        self._set("failed", self._number(1.0))
        code.do(f"br label %{after}")
        code.start(after)

    def _block_end(self, l: str) -> None:  # noqa: E741
        """The first place from l on after which the matrix falls apart, to cell m."""
        code, one = self.code, self.one
        head, body, done = (code.fresh(name) for name in ("head", "body", "done"))
        self._set_whole("m", l)
        code.do(f"br label %{head}")
        code.start(head)
        m = self._whole("m")
        inside = code.let(f"icmp slt i64 {m}, {self.size - 1}")
        code.do(f"br i1 {inside}, label %{body}, label %{done}")
        code.start(body)
        following = plus(code, m, 1)
        sizes = [
            one.intrinsic("fabs", self._at(area, at))
            for area, at in (
                (self.diagonal, m),
                (self.diagonal, following),
                (self.beside, m),
            )
        ]
        limit = one.mul(one.add(*sizes[:2]), self._number(_NEGLIGIBLE[self.kind]))
        large = one.compare("ogt", sizes[2], limit).text
        advanced = code.let(f"select i1 {large}, i64 {following}, i64 {m}")
        self._set_whole("m", advanced)
        code.do(f"br i1 {large}, label %{head}, label %{done}")
        code.start(done)

    def _step(self, l: str, m: str) -> None:  # noqa: E741
        """One QL step of the block from l to m, with Wilkinson's shift."""
        code, one = self.code, self.one
        first, beside = self._at(self.diagonal, l), self._at(self.beside, l)
        second = self._at(self.diagonal, plus(code, l, 1))
        ratio = one.div(one.sub(second, first), one.mul(beside, self._number(2.0)))
        length = one.intrinsic("sqrt", one.fma(ratio, ratio, self._number(1.0)))
        below = one.add(ratio, one.intrinsic("copysign", length, ratio))
        shifted = one.sub(self._at(self.diagonal, m), first)
        self._set("g", one.add(shifted, one.div(beside, below)))
        for name, value in (("s", 1.0), ("c", 1.0), ("p", 0.0)):
            self._set(name, self._number(value))
        head, body, done, whole, after = (
            code.fresh(name) for name in ("chase", "rotate", "stopped", "whole", "after")
        )
        self._set_whole("i", code.let(f"sub nsw i64 {m}, 1"))
        code.do(f"br label %{head}")
        code.start(head)
        i = self._whole("i")
        inside = code.let(f"icmp sge i64 {i}, {l}")
        code.do(f"br i1 {inside}, label %{body}, label %{whole}")
        code.start(body)
        self._chase(i, done)
        self._set_whole("i", code.let(f"sub nsw i64 {i}, 1"))
        code.do(f"br label %{head}")
        code.start(done)  # the bulge vanished: the block falls apart at i + 1
        above = plus(code, i, 1)
        self._put(one.sub(self._at(self.diagonal, above), self._value("p")), self.diagonal, above)
        self._put(self._number(0.0), self.beside, m)
        code.do(f"br label %{after}")
        code.start(whole)
        self._put(one.sub(self._at(self.diagonal, l), self._value("p")), self.diagonal, l)
        self._put(self._value("g"), self.beside, l)
        self._put(self._number(0.0), self.beside, m)
        code.do(f"br label %{after}")
        code.start(after)

    def _chase(self, i: str, stopped: str) -> None:
        """Move the bulge up by one row: a rotation of rows i and i + 1."""
        code, one = self.code, self.one
        above = plus(code, i, 1)
        beside = self._at(self.beside, i)
        f, b = (one.mul(self._value(name), beside) for name in ("s", "c"))
        g = self._value("g")
        r = one.intrinsic("sqrt", one.fma(f, f, one.mul(g, g)))
        self._put(r, self.beside, above)
        none, some = one.compare("oeq", r, self._number(0.0)).text, code.fresh("some")
        code.do(f"br i1 {none}, label %{stopped}, label %{some}")
        code.start(some)
        s, c = one.div(f, r), one.div(g, r)
        g = one.sub(self._at(self.diagonal, above), self._value("p"))
        twice = one.mul(self._number(2.0), b)
        r = one.fma(one.sub(self._at(self.diagonal, i), g), s, one.mul(c, twice))
        p = one.mul(s, r)
        self._put(one.add(g, p), self.diagonal, above)
        self._set("g", one.sub(one.mul(c, r), b))
        for name, value in (("s", s), ("c", c), ("p", p)):
            self._set(name, value)
        rows = [self.rows.row(self.matrix, at) for at in (i, above)]
        self.rows.rotate(rows[0], rows[1], self._narrow(c), self._narrow(s))
