"""Arithmetic of complex numbers, held as pairs of vectors."""

from __future__ import annotations

from weft.emit.llvm.math.complex import select_pair
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vector, Vectors


def real(v: Vectors, z: Held) -> Held:
    """The real part."""
    return z[:1]


def imag(v: Vectors, z: Held) -> Held:
    """The imaginary part."""
    return z[1:]


def negate(v: Vectors, z: Held) -> Held:
    """-z."""
    return v.neg(z[0]), v.neg(z[1])


def conjugate(v: Vectors, z: Held) -> Held:
    """z with the other sign of its imaginary part."""
    return z[0], v.neg(z[1])


def add(v: Vectors, a: Held, b: Held) -> Held:
    """a + b."""
    return v.add(a[0], b[0]), v.add(a[1], b[1])


def subtract(v: Vectors, a: Held, b: Held) -> Held:
    """a - b."""
    return v.sub(a[0], b[0]), v.sub(a[1], b[1])


def multiply(v: Vectors, a: Held, b: Held) -> Held:
    """(ac - bd) + (ad + bc)i, each product rounded."""
    # No FMA: one product exact and the other rounded would leave a rounding error in the imaginary
    # part of z times its conjugate, which is 0 here.
    first = v.sub(v.mul(a[0], b[0]), v.mul(a[1], b[1]))
    return first, v.add(v.mul(a[0], b[1]), v.mul(a[1], b[0]))


def square(v: Vectors, z: Held) -> Held:
    """z * z; its real part is never -0."""
    x, y = z
    # x^2 - y^2 as a product: the squares would cancel near |x| = |y|, and overflow before it does.
    first = v.add(v.mul(v.sub(x, y), v.add(x, y)), v.constant(0.0, x.kind))
    product = v.mul(x, y)
    return first, v.add(product, product)


# Lexicographic order

_STRICT = {"GE": "ogt", "GT": "ogt", "LE": "olt", "LT": "olt"}
_LOOSE = {"GE": "oge", "GT": "ogt", "LE": "ole", "LT": "olt"}


def compare(v: Vectors, direction: str, a: Held, b: Held) -> Vector:
    """Lexicographic: by real parts, then by imaginary parts."""
    if direction == "NE":
        differ = [v.compare("une", x, y) for x, y in zip(a, b, strict=True)]
        return v.binary("or", *differ)
    equal = [v.compare("oeq", x, y) for x, y in zip(a, b, strict=True)]
    if direction == "EQ":
        return v.binary("and", *equal)
    first = v.compare(_STRICT[direction], a[0], b[0])
    second = v.compare(_LOOSE[direction], a[1], b[1])
    return v.binary("or", first, v.binary("and", equal[0], second))


def maximum(v: Vectors, a: Held, b: Held) -> Held:
    """The lexicographic maximum."""
    return select_pair(v, compare(v, "GT", a, b), a, b)


def minimum(v: Vectors, a: Held, b: Held) -> Held:
    """The lexicographic minimum."""
    return select_pair(v, compare(v, "LT", a, b), a, b)
