"""Transforms of few complex vectors in registers."""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence

from weft.emit.llvm.writer.vector import Vector, Vectors
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class ComplexVector:
    """A vector of complex numbers."""

    real: Vector
    imag: Vector


class Arithmetic:
    """Complex arithmetic on vectors; `sign` is -1 for forward transforms, 1 for inverse ones."""

    def __init__(self, v: Vectors, kind: str, sign: int) -> None:
        self.v, self.kind, self.sign = v, kind, sign

    def add(self, a: ComplexVector, b: ComplexVector) -> ComplexVector:
        """a + b."""
        return ComplexVector(self.v.add(a.real, b.real), self.v.add(a.imag, b.imag))

    def sub(self, a: ComplexVector, b: ComplexVector) -> ComplexVector:
        """a - b."""
        return ComplexVector(self.v.sub(a.real, b.real), self.v.sub(a.imag, b.imag))

    def mul(self, a: ComplexVector, b: ComplexVector) -> ComplexVector:
        """a * b."""
        v = self.v
        real = v.fma(a.real, b.real, v.neg(v.mul(a.imag, b.imag)))
        return ComplexVector(real, v.fma(a.real, b.imag, v.mul(a.imag, b.real)))

    def turn(self, a: ComplexVector) -> ComplexVector:
        """a * sign * i."""
        if self.sign > 0:
            return ComplexVector(self.v.neg(a.imag), a.real)
        return ComplexVector(a.imag, self.v.neg(a.real))

    def scaled(self, a: ComplexVector, factor: float) -> ComplexVector:
        """a * factor."""
        by = self.v.constant(factor, self.kind)
        return ComplexVector(self.v.mul(a.real, by), self.v.mul(a.imag, by))

    def conj(self, a: ComplexVector) -> ComplexVector:
        """The conjugate."""
        return ComplexVector(a.real, self.v.neg(a.imag))

    def times(self, a: ComplexVector, number: complex) -> ComplexVector:
        """a times a constant."""
        return self.mul(a, ComplexVector(*[self.v.constant(x, self.kind) for x in _parts(number)]))

    def root(self, power: int, of: int) -> complex:
        """A power of the root of unity of that order, in this direction."""
        # The exponent is reduced first, so that the angle is below one turn and its error below an
        # ulp.
        return cmath.exp(self.sign * 2j * math.pi * (power % of) / of)

    def transform(self, x: Sequence[ComplexVector]) -> list[ComplexVector]:
        """The transform of a few numbers."""
        match len(x):
            case 2:
                return [self.add(x[0], x[1]), self.sub(x[0], x[1])]
            case 4:
                return self._four(x)
            case 8:
                return self._eight(x)
        return self._odd(x)

    def _four(self, x: Sequence[ComplexVector]) -> list[ComplexVector]:
        even, odd = self.add(x[0], x[2]), self.add(x[1], x[3])
        a, b = self.sub(x[0], x[2]), self.turn(self.sub(x[1], x[3]))
        return [self.add(even, odd), self.add(a, b), self.sub(even, odd), self.sub(a, b)]

    def _eight(self, x: Sequence[ComplexVector]) -> list[ComplexVector]:
        even, odd = self._four(x[::2]), self._four(x[1::2])
        # An eighth turn is (1 + i) / sqrt(2): an addition and a scaling in place of a complex
        # product.
        near = self.scaled(self.add(odd[1], self.turn(odd[1])), math.sqrt(0.5))
        far = self.scaled(self.sub(self.turn(odd[3]), odd[3]), math.sqrt(0.5))
        turned = [odd[0], near, self.turn(odd[2]), far]
        pairs = list(zip(even, turned, strict=True))
        return [*(self.add(a, b) for a, b in pairs), *(self.sub(a, b) for a, b in pairs)]

    def _odd(self, x: Sequence[ComplexVector]) -> list[ComplexVector]:
        """An odd count: sums and differences of opposite inputs share their products."""
        size, half = len(x), len(x) // 2
        sums = [self.add(x[n], x[-n]) for n in range(1, half + 1)]
        apart = [self.turn(self.sub(x[n], x[-n])) for n in range(1, half + 1)]
        first = x[0]
        for pair in sums:
            first = self.add(first, pair)
        outputs = [first] * size
        for k in range(1, half + 1):
            # Outputs k and size - k have the same cosine terms and opposite sine terms: half of the
            # products serve both.
            near, far = x[0], self.scaled(apart[0], math.sin(2 * math.pi * k / size))
            for n in range(1, half + 1):
                # Reduced as an integer, exactly: cos of a large product would be less accurate.
                angle = 2 * math.pi * (k * n % size) / size
                near = self._fused(near, sums[n - 1], math.cos(angle))
                if n > 1:
                    far = self._fused(far, apart[n - 1], math.sin(angle))
            outputs[k], outputs[size - k] = self.add(near, far), self.sub(near, far)
        return outputs

    def _fused(self, a: ComplexVector, b: ComplexVector, factor: float) -> ComplexVector:
        """a + b * factor."""
        by, v = self.v.constant(factor, self.kind), self.v
        return ComplexVector(v.fma(b.real, by, a.real), v.fma(b.imag, by, a.imag))


def _parts(number: complex) -> tuple[float, float]:
    return number.real, number.imag
