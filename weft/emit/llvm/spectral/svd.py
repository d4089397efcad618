"""Singular values and vectors: one matrix a task, by one-sided Jacobi rotations of rows.

The columns of a matrix, or its rows if these are fewer, are rotated in pairs until they are
orthogonal: their lengths are the singular values, their directions the vectors of one side, and the
rotations, accumulated, those of the other. The pairs of a round are disjoint, as the games of a
tournament, so that their scalar products are independent, and their angles computed in vectors.
"""

from __future__ import annotations

import math

from weft.emit.llvm.emitted import Emitted
from weft.emit.llvm.lapack.matrices import refuses_lapack
from weft.emit.llvm.spectral.completion import Completion
from weft.emit.llvm.spectral.rows import (
    NONE,
    PaddedRows,
    Scratch,
    is_finite,
    largest,
    power_of_two,
    rank_of,
)
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.nest import function, matrices, plus, pointers, times
from weft.emit.llvm.writer.vector import BITS, Vector, Vectors
from weft.kernels.single_node import SingleNode
from weft.ops.custom_calls.custom import CustomCall

MOST = {"float": 96, "double": 48}  # singular values: LAPACK is faster for larger matrices
_LONGEST = 1024  # elements of a vector
# The same without vectors, which LAPACK's bidiagonal form needs only half of its work for.
_MOST_ALONE, _LONGEST_ALONE = {"float": 24, "double": 10}, 256
_SWEEPS = 40  # over all pairs: five to eight are usual
_UNIT = {"float": 2.0**-24, "double": 2.0**-53}
_STEEP = {"float": 2.0**13, "double": 2.0**28}  # slopes beside whose squares 1 is negligible


def refuses_svd(kernel: SingleNode) -> str | None:
    """Why this kernel is unsupported."""
    matrix = kernel.operands[0]
    if matrix.dtype.is_complex:
        return f"of {matrix.dtype}"
    assert isinstance(kernel.op, CustomCall)
    most, longest = MOST[storage.register_kind(matrix.dtype)], _LONGEST
    if not kernel.op.config.get("vectors", 0) and refuses_lapack(kernel) is None:
        most, longest = _MOST_ALONE[storage.register_kind(matrix.dtype)], _LONGEST_ALONE
    if min(matrix.shape[-2:]) > most or max(matrix.shape[-2:]) > longest:
        return f"LAPACK is faster for more than {most} values, or vectors of over {longest}"
    return None if all(o.size for o in kernel.operands) else "it has no elements"


def svd(kernel: SingleNode) -> Emitted:
    """The singular values of every matrix, in descending order, and its vectors if requested."""
    return _Svd(kernel).emit()


class _Svd:
    """The function, and the areas of its scratch memory."""

    def __init__(self, kernel: SingleNode) -> None:
        op, matrix = kernel.op, kernel.operands[0]
        assert isinstance(op, CustomCall)
        self.first = op.config.get("first", 0)
        self.value_count = kernel.outputs[0].shape[-1]
        self.vectors = bool(op.config.get("vectors", 0))
        self.height, self.length = matrix.shape[-2:]
        self.tall = self.height >= self.length
        self.count, self.long = sorted(matrix.shape[-2:])
        self.full = self.vectors and bool(op.config.get("full_matrices", 0))
        self.kind = storage.register_kind(matrix.dtype)
        cost = 12 * self.count**2 * self.long + 1200 * self.count**2
        self.tasks = matrices(kernel, cost)
        self.code: Writer = function(kernel.name)
        self.buffers = pointers(self.code, len(kernel.operands))
        self.one = Vectors(self.code, 1)
        self._areas()
        self.bad = self.code.let("alloca i1, align 1")
        self.rotated = self.code.let("alloca i1, align 1")
        self.offsets: list[str] = []

    def _areas(self) -> None:
        kind, scratch = self.kind, Scratch(self.code)
        self.players = self.count + self.count % 2  # an odd one plays against zeros
        self.games = self.players // 2
        self.rows = PaddedRows(self.code, self.long, kind)
        self.turns = PaddedRows(self.code, self.count, kind)
        rows = max(self.players, self.long if self.full else 0)
        self.matrix = scratch.area(rows * self.rows.stride, kind)
        self.rotations = scratch.area(self.players * self.turns.stride, kind)
        self.lanes = min(512 // BITS[kind], 1 << max(self.games - 1, 0).bit_length())
        padded = -(-self.games // self.lanes) * self.lanes
        names = ("norms", "products", "left", "right", "sines", "halves", "left_at", "right_at")
        kinds = (kind,) * 6 + ("i64",) * 2
        counts = (self.players,) + (padded,) * 7
        self.area = {
            name: scratch.area(count, kind)
            for name, kind, count in zip(names, kinds, counts, strict=True)
        }
        self.keys = scratch.area(self.players, "double")
        self.completion = Completion(self.code, self.rows, scratch, rows)
        self.padded, self.scratch = padded, scratch

    def emit(self) -> Emitted:
        """The function and its tasks."""
        code, one = self.code, self.one
        with self.tasks.each(code) as (offsets, _, _):
            self.offsets = offsets
            most = largest(code, self.height * self.length, self._input, self.kind)
            scale, inverse = power_of_two(code, most, self.kind)
            fine = is_finite(code, most, self.kind)
            self._flag(self.bad, "true")
            with code.when(fine):
                self._copy(inverse)
                self._iterate()
                self._lengths()
                if self.vectors:
                    self.completion.clear(self.count, self.long if self.full else self.count)
                    self.completion.complete(self.matrix, self.long if self.full else self.count)
            bad = code.let(f"load i1, ptr {self.bad}, align 1")
            self._write(one.cast("fpext", scale, "double"), code.let(f"xor i1 {bad}, true"))
        return Emitted(
            module_text(code), (self.tasks.phase(code.name),), scratch=self.scratch.nbytes
        )

    # Elements

    def _flag(self, cell: str, value: str) -> None:
        self.code.do(f"store i1 {value}, ptr {cell}, align 1")

    def _input(self, v: Vectors, index: str) -> Vector:
        at = plus(self.code, self.offsets[0], index)
        return v.load(v.at(self.buffers[0], at, self.kind), self.kind)

    def _at(self, name: str, index: str) -> str:
        kind = "i64" if name.endswith("_at") else self.kind
        return self.one.at(self.area[name], index, kind)

    def _number(self, name: str, index: str) -> Vector:
        kind = "i64" if name.endswith("_at") else self.kind
        return self.one.load(self._at(name, index), kind)

    def _copy(self, inverse: Vector) -> None:
        """The vectors to rotate, scaled, and the identity for their rotations."""
        code, one = self.code, self.one
        self.rows.clear(self.matrix, self.players)
        with code.loop(0, self.height) as down, code.loop(0, self.length) as across:
            at = plus(code, times(code, down.index, self.length), across.index)
            row, column = (down.index, across.index)[:: -1 if self.tall else 1]
            target = one.at(self.rows.row(self.matrix, row), column, self.kind)
            one.store(one.mul(self._input(one, at), inverse), target)
        if self.vectors:
            self.turns.clear(self.rotations, self.players)
            with code.loop(0, self.count) as loop:
                row = self.turns.row(self.rotations, loop.index)
                one.store(one.constant(1.0, self.kind), one.at(row, loop.index, self.kind))

    # Rotations

    def _iterate(self) -> None:
        """Sweeps over all pairs, until one rotates none."""
        code = self.code
        head, done = code.fresh("sweep"), code.fresh("swept")
        before, place = code.block, 0
        code.do(f"br label %{head}")
        code.start(head)
        count = f"%{code.fresh('count')}"
        place = len(code.lines)
        # The phi needs the block and the count at the end of a sweep: it is filled in below.
        code.lines.append("")
        self._flag(self.rotated, "false")
        with code.loop(0, self.players) as loop:
            row = self.rows.row(self.matrix, loop.index)
            self.one.store(self.rows.dot(row, row), self._at("norms", loop.index))
        with code.loop(0, self.players - 1) as loop:
            self._round(loop.index)
        following = plus(code, count, 1)
        code.lines[place] = f"  {count} = phi i64 [0, %{before}], [{following}, %{code.block}]"
        rotated = code.let(f"load i1, ptr {self.rotated}, align 1")
        # Pairs that still rotate in the last sweep have not converged.
        self._flag(self.bad, rotated)
        some = code.let(f"icmp slt i64 {following}, {_SWEEPS}")
        again = code.let(f"and i1 {rotated}, {some}")
        code.do(f"br i1 {again}, label %{head}, label %{done}")
        code.start(done)

    def _round(self, number: str) -> None:
        """Disjoint pairs: the scalar products of all, their angles, and the rotations."""
        code, one = self.code, self.one
        with code.loop(0, self.games) as game:
            pair = self._pair(number, game.index)
            rows = [self.rows.row(self.matrix, at) for at in pair]
            one.store(self.rows.dot(*rows), self._at("products", game.index))
            for name, at in zip(("left", "right"), pair, strict=True):
                one.store(self._number("norms", at), self._at(name, game.index))
                one.store(Vector(at, "i64"), self._at(f"{name}_at", game.index))
        with code.when(self._angles()):
            self._flag(self.rotated, "true")
            with code.loop(0, self.games) as game:
                self._turn(game.index)

    def _pair(self, number: str, game: str) -> tuple[str, str]:
        """The players of a game in a round: the last one stays, the others move around a circle."""
        code, others = self.code, self.players - 1
        ends = []
        for start in (
            plus(code, number, game),
            code.let(f"sub nsw i64 {plus(code, number, others)}, {game}"),
        ):
            past = code.let(f"icmp sge i64 {start}, {others}")
            back = code.let(f"sub nsw i64 {start}, {others}")
            ends.append(code.let(f"select i1 {past}, i64 {back}, i64 {start}"))
        is_first = code.let(f"icmp eq i64 {game}, 0")
        return ends[0], code.let(f"select i1 {is_first}, i64 {others}, i64 {ends[1]}")

    def _angles(self) -> str:
        """Sines, tangents of half angles and new lengths of pairs; whether any rotates."""
        code, v = self.code, Vectors(self.code, self.lanes)
        with code.loop(0, self.padded, self.lanes, carried=[("i1", "false")]) as loop:
            a, b, ab = (
                v.load(self._at(name, loop.index), self.kind)
                for name in ("left", "right", "products")
            )
            turns, tangent = self._tangents(v, a, b, ab, loop.index)
            one = v.constant(1.0, self.kind)
            cosine = v.div(one, v.intrinsic("sqrt", v.fma(tangent, tangent, one)))
            change = v.mul(tangent, ab)
            sine = v.mul(cosine, tangent)
            for name, vector in (
                ("sines", sine),
                # tan(angle / 2): rows are turned as x - s (y + h x), which loses less than c x - s
                # y when the angle is small.
                ("halves", v.div(sine, v.add(cosine, one))),
                ("left", v.sub(a, change)),
                ("right", v.add(b, change)),
            ):
                v.store(vector, self._at(name, loop.index))
            some = v.total("or", turns).text
            loop.carry(code.let(f"or i1 {loop.carried[0]}, {some}"))
        return loop.carried[0]

    def _tangents(
        self, v: Vectors, a: Vector, b: Vector, ab: Vector, index: str
    ) -> tuple[Vector, Vector]:
        """Which pairs are not orthogonal yet, and the tangents of the angles that make them so."""
        kind = self.kind
        # The rounding error of a scalar product of `long` terms, in the mean: below it a pair
        # counts as orthogonal, or sweeps would go on turning by noise.
        tolerance = _UNIT[kind] * max(4.0, math.sqrt(self.long))
        # Two roots, not the root of a * b: that product may overflow or vanish.
        lengths = v.mul(v.intrinsic("sqrt", a), v.intrinsic("sqrt", b))
        apart = v.compare(
            "ogt", v.intrinsic("fabs", ab), v.mul(lengths, v.constant(tolerance, kind))
        )
        none = v.constant(NONE[kind], kind)
        for length in (a, b):
            apart = v.binary("and", apart, v.compare("ogt", length, none))
        games = v.splat(Vector(str(self.games), "i64"))
        number = v.add(v.splat(Vector(index, "i64")), v.lanes())
        apart = v.binary("and", apart, v.compare("slt", number, games))
        one, zero = v.constant(1.0, kind), v.constant(0.0, kind)
        twice = v.select(apart, v.add(ab, ab), one)
        slope = v.div(v.sub(b, a), twice)
        size = v.intrinsic("fabs", slope)
        # There slope^2 + 1 is slope^2, which might overflow.
        steep = v.compare("ogt", size, v.constant(_STEEP[kind], kind))
        root = v.select(steep, size, v.intrinsic("sqrt", v.fma(slope, slope, one)))
        # The smaller of the two roots of t^2 + 2 slope t - 1: rotations of at most 45 degrees
        # converge.
        tangent = v.div(v.intrinsic("copysign", one, slope), v.add(size, root))
        return apart, v.select(apart, tangent, zero)

    def _turn(self, game: str) -> None:
        """Rotate a pair, unless it is orthogonal."""
        code, one = self.code, self.one
        sine = self._number("sines", game)
        turns = one.compare("une", sine, one.constant(0.0, self.kind)).text
        with code.when(turns):
            half = self._number("halves", game)
            pair = [self._number(f"{name}_at", game).text for name in ("left", "right")]
            for name, at in zip(("left", "right"), pair, strict=True):
                one.store(self._number(name, game), self._at("norms", at))
            sets = [(self.rows, self.matrix)]
            if self.vectors:
                sets.append((self.turns, self.rotations))
            for rows, matrix in sets:
                one_row, other = (rows.row(matrix, at) for at in pair)
                rows.turn(one_row, other, half, sine)

    # Results

    def _lengths(self) -> None:
        """Singular values as doubles, and rows of unit length where these are not 0."""
        code, one = self.code, self.one
        with code.loop(0, self.count) as loop:
            row = self.rows.row(self.matrix, loop.index)
            square = self.rows.dot(row, row)
            some = one.compare("ogt", square, one.constant(NONE[self.kind], self.kind))
            length = one.intrinsic("sqrt", one.cast("fpext", square, "double"))
            one.store(length, one.at(self.keys, loop.index, "double"))
            by = one.select(some, length, one.constant(1.0, "double"))
            inverse = one.div(one.constant(1.0, "double"), by)
            zero = one.constant(0.0, "double")
            factor = one.cast("fptrunc", one.select(some, inverse, zero), self.kind)
            self.rows.scaled(row, factor)
            self.completion.mark(loop.index, some)

    def _write(self, scale: Vector, fine: str) -> None:
        """The requested values and vectors in order; NaN where there are none."""
        code, one = self.code, self.one
        good, none = Vector(fine, "i1"), one.constant(float("nan"), self.kind)
        with code.loop(0, self.count) as loop:
            ranked = rank_of(code, self.keys, self.count, loop.index, descending=True)
            place = code.let(f"select i1 {fine}, i64 {ranked}, i64 {loop.index}")
            target = code.let(f"sub nsw i64 {place}, {self.first}")
            with code.when(code.let(f"icmp ult i64 {target}, {self.value_count}")):
                key = one.load(one.at(self.keys, loop.index, "double"), "double")
                value = one.cast("fptrunc", one.mul(key, scale), self.kind)
                at = one.at(self.buffers[1], plus(code, self.offsets[1], target), self.kind)
                one.store(one.select(good, value, none), at)
                if self.vectors:
                    row = self.rows.row(self.matrix, loop.index)
                    turn = self.turns.row(self.rotations, loop.index)
                    pair = (row, turn) if self.tall else (turn, row)
                    for side, source in enumerate(pair):
                        self._write_vector(side, source, target, good)
        if self.full:
            side = 0 if self.tall else 1
            with code.loop(self.count, self.long) as loop:
                row = self.rows.row(self.matrix, loop.index)
                self._write_vector(side, row, loop.index, good)

    def _write_vector(self, side: int, source: str, target: str, good: Vector) -> None:
        """One column of the left vectors (side 0), or one row of the right ones."""
        code, one = self.code, self.one
        none = one.constant(float("nan"), self.kind)
        length = self.height if side == 0 else self.length
        columns = (self.height if self.full else self.value_count) if side == 0 else self.length
        begin = plus(
            code, self.offsets[2 + side], target if side == 0 else times(code, target, columns)
        )
        with code.loop(0, length) as loop:
            found = one.load(one.at(source, loop.index, self.kind), self.kind)
            step = times(code, loop.index, columns) if side == 0 else loop.index
            to = one.at(self.buffers[2 + side], plus(code, begin, step), self.kind)
            one.store(one.select(good, found, none), to)
