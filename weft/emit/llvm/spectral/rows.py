"""Matrices in scratch memory with padded rows, and the operations that both algorithms share.

Rows are padded with zeros to whole vectors, so that no loop has a remainder. Matrices are scaled by
a power of two, which makes the sums of squares of their elements safe from overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import plus, times
from weft.emit.llvm.writer.vector import BITS, Vector, Vectors

_REGISTER = 64  # bytes of a vector
_UNROLLED = 8  # vectors of a row up to which its loop is unrolled
_GROUP = 4  # vectors of an iteration of longer rows
_EXPONENT = 0x7FF0000000000000  # of a double
# The squared length of a row of a scaled matrix below which it counts as 0: it is far below a unit
# of the largest element, and sums of squares that small would be of subnormal numbers.
NONE = {"float": 1e-30, "double": 1e-280}
_LARGEST = {"float": 126, "double": 1022}  # exponents of scales, both ways


class PaddedRows:
    """Rows of one length: vectors of them, and loops over these."""

    def __init__(self, code: Writer, length: int, kind: str) -> None:
        self.code, self.kind, self.length = code, kind, length
        most = _REGISTER * 8 // BITS[kind]
        self.width = min(most, 1 << max(length - 1, 0).bit_length())
        count = -(-length // self.width)
        self.count = count if count <= _UNROLLED else -(-count // _GROUP) * _GROUP
        self.stride = self.count * self.width
        self.v = Vectors(code, self.width)
        self.one = Vectors(code, 1)

    def row(self, matrix: str, index: str) -> str:
        """The address of a row of a matrix."""
        return self.one.at(matrix, times(self.code, index, self.stride), self.kind)

    def vector(self, row: str, number: str) -> str:
        """The address of a vector of a row."""
        return self.one.at(row, times(self.code, number, self.width), self.kind)

    def get(self, address: str) -> Vector:
        """Load a vector."""
        return self.v.load(address, self.kind)

    def groups(self) -> Iterator[list[str]]:
        """The numbers of the vectors of a row, some at a time; the caller's body may be a loop."""
        if self.count <= _UNROLLED:
            yield [str(n) for n in range(self.count)]
            return
        with self.code.loop(0, self.count, _GROUP) as loop:
            yield [plus(self.code, loop.index, n) for n in range(_GROUP)]

    def dot(self, a: str, b: str) -> Vector:
        """The scalar product of two rows."""
        accumulators = min(self.count, _GROUP)
        zero = self.v.constant(0.0, self.kind)
        if self.count <= _UNROLLED:
            sums = [zero] * accumulators
            for n in range(self.count):
                x, y = (self.get(self.vector(row, str(n))) for row in (a, b))
                at = n % accumulators
                sums[at] = self.v.mul(x, y) if n < accumulators else self.v.fma(x, y, sums[at])
            return self._total(sums)
        carried = [(zero.type, "zeroinitializer")] * accumulators
        with self.code.loop(0, self.count, _GROUP, carried=carried) as loop:
            totals = []
            for n, text in enumerate(loop.carried):
                place = plus(self.code, loop.index, n)
                x, y = (self.get(self.vector(row, place)) for row in (a, b))
                totals.append(self.v.fma(x, y, Vector(text, self.kind, self.width)).text)
            loop.carry(*totals)
        return self._total([Vector(text, self.kind, self.width) for text in loop.carried])

    def _total(self, sums: Sequence[Vector]) -> Vector:
        while len(sums) > 1:
            pairs = [self.v.add(*sums[n : n + 2]) for n in range(0, len(sums) - 1, 2)]
            sums = [*pairs, *sums[len(sums) & ~1 :]]
        return self.v.total_sum(sums[0])

    def rotate(self, a: str, b: str, cosine: Vector, sine: Vector) -> None:
        """Replace rows (a, b) by (c a - s b, s a + c b)."""
        v = self.v
        c, s = v.splat(cosine), v.splat(sine)
        for group in self.groups():
            for n in group:
                places = [self.vector(row, n) for row in (a, b)]
                x, y = map(self.get, places)
                v.store(v.fma(c, x, v.neg(v.mul(s, y))), places[0])
                v.store(v.fma(s, x, v.mul(c, y)), places[1])

    def turn(self, a: str, b: str, half: Vector, sine: Vector) -> None:
        """The same for angles below 90 degrees, by the tangent of half the angle.

        The cosine is 1 - s t here, which keeps lengths however small the angle is: rounded to 1, it
        would have made every rotation stretch the rows a little.
        """
        v = self.v
        t, s = v.splat(half), v.splat(sine)
        for group in self.groups():
            for n in group:
                places = [self.vector(row, n) for row in (a, b)]
                x, y = map(self.get, places)
                v.store(v.fma(v.neg(s), v.fma(t, x, y), x), places[0])
                v.store(v.fma(s, v.fma(v.neg(t), y, x), y), places[1])

    def scaled(self, row: str, factor: Vector) -> None:
        """Multiply a row by a number."""
        by = self.v.splat(factor)
        for group in self.groups():
            for n in group:
                place = self.vector(row, n)
                self.v.store(self.v.mul(self.get(place), by), place)

    def clear(self, matrix: str, count: int) -> None:
        """Fill rows of a matrix with zeros."""
        zero = self.v.constant(0.0, self.kind)
        with self.code.loop(0, count * self.count) as loop:
            self.v.store(zero, self.vector(matrix, loop.index))


class Scratch:
    """Areas of scratch memory, each aligned to a cache line."""

    def __init__(self, code: Writer) -> None:
        self.code = code
        self.nbytes = 0

    def area(self, count: int, kind: str) -> str:
        """The address of an area of so many elements."""
        begin = self.nbytes
        self.nbytes += -(-count * BITS[kind] // 8 // _REGISTER) * _REGISTER
        return self.code.let(f"getelementptr i8, ptr %scratch, i64 {begin}")


def largest(code: Writer, size: int, element: Callable[[Vectors, str], Vector], kind: str) -> str:
    """The largest magnitude of so many contiguous elements; NaN if there is one."""
    lanes = min(_REGISTER * 8 // BITS[kind], 1 << size.bit_length() - 1)
    whole = size // lanes * lanes
    top = Vectors(code, 1).constant(0.0, kind)
    for width, begin, end in ((lanes, 0, whole), (1, whole, size)):
        v = Vectors(code, width)
        first = v.splat(top)
        with code.loop(begin, end, width, carried=[(first.type, first.text)]) as loop:
            size_of = v.intrinsic("fabs", element(v, loop.index))
            loop.carry(v.maximum(size_of, Vector(loop.carried[0], kind, width)).text)
        top = v.total("fmaximum", Vector(loop.carried[0], kind, width))
    return top.text


def power_of_two(code: Writer, most: str, kind: str) -> tuple[Vector, Vector]:
    """The power of two at or below a finite number, and its inverse, both normal in its type."""
    one = Vectors(code, 1)
    wide = one.cast("fpext", Vector(most, kind), "double")
    bits = one.cast("bitcast", wide, "i64")
    exponent = one.binary("and", bits, one.constant(_EXPONENT, "i64"))
    limit = _LARGEST[kind]
    low, high = ((1023 + n) << 52 for n in (-limit, limit))
    exponent = one.intrinsic("smax", exponent, one.constant(low, "i64"))
    exponent = one.intrinsic("smin", exponent, one.constant(high, "i64"))
    power = one.cast("bitcast", exponent, "double")
    inverse = one.div(one.constant(1.0, "double"), power)
    narrow = [one.cast("fptrunc", x, kind) for x in (power, inverse)]
    return narrow[0], narrow[1]


def is_finite(code: Writer, number: str, kind: str) -> str:
    """Whether a magnitude is finite, as an i1."""
    one = Vectors(code, 1)
    return one.compare("one", Vector(number, kind), one.constant(float("inf"), kind)).text


def rank_of(code: Writer, keys: str, count: int, index: str, *, descending: bool) -> str:
    """The place of one of some doubles among them when they are sorted, stably."""
    one = Vectors(code, 1)
    own = one.load(one.at(keys, index, "double"), "double")
    with code.loop(0, count, carried=[("i64", "0")]) as loop:
        other = one.load(one.at(keys, loop.index, "double"), "double")
        before = one.compare("ogt" if descending else "olt", other, own).text
        equal = one.compare("oeq", other, own).text
        earlier = code.let(f"icmp slt i64 {loop.index}, {index}")
        tied = code.let(f"and i1 {equal}, {earlier}")
        either = code.let(f"or i1 {before}, {tied}")
        loop.carry(plus(code, loop.carried[0], code.let(f"zext i1 {either} to i64")))
    return loop.carried[0]
