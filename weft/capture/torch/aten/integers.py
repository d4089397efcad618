"""Integers: common divisors."""

from __future__ import annotations

from weft.capture.torch.build import AtenLowering, Build, shape_of, type_of
from weft.ir.module import Region, Value
from weft.ops.control import While
from weft.ops.elementwise.pointwise import Abs, Remainder


def gcd(b: Build, x: Value, y: Value) -> Value:
    """The greatest common divisor, by Euclid's algorithm on all elements at once."""
    pair = b.operands(x, y, dtype=b.out.dtype)
    if b.out.dtype.kind == "int":
        pair = tuple([b.op(Abs(), each) for each in pair])
    types = [type_of(each) for each in pair]
    first = tuple([Value(t, None, n) for n, t in enumerate(types)])
    test = Build()
    rest = test.compare("NE", first[1], test.like(first[1], 0))
    again = test.reduce(rest, range(len(shape_of(rest))), "or", False)
    condition = Region(first, test.nodes, (again,))
    inner = Build()
    large, small = args = tuple([Value(t, None, n) for n, t in enumerate(types)])
    # Pairs that are done stay as they are until all are; their divisor is 1, since x % 0 has no
    # meaning.
    is_done = inner.compare("EQ", small, inner.like(small, 0))
    divisor = inner.select(is_done, inner.like(small, 1), small)
    left = inner.select(is_done, small, inner.op(Remainder(), large, divisor))
    body = Region(args, inner.nodes, (inner.select(is_done, large, small), left))
    return b.all(While(), *pair, regions=(condition, body))[0]


LOWERINGS: dict[str, AtenLowering] = {"aten.gcd.default": gcd}
