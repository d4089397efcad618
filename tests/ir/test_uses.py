"""What nodes and regions read."""

from __future__ import annotations

from weft.ir.module import Region, Value, apply
from weft.ir.types import BOOL, tensor
from weft.ir.uses import free_variables, last_reads
from weft.ops.control import If
from weft.ops.elementwise.pointwise import Add, Multiply

X = tensor(2)


def test_free_variables_are_the_outer_values_that_regions_read():
    flag, x, y, z = Value(tensor(dtype=BOOL)), Value(X), Value(X), Value(X)
    inner = apply(Add(), x, y)
    nested = apply(
        If(), flag, regions=(Region((), [inner], (inner.results[0],)), Region((), [], (z,)))
    )
    added = apply(Multiply(), nested.results[0], x)
    outer = apply(
        If(), flag, regions=(Region((), [nested, added], added.results), Region((), [], (y,)))
    )
    assert free_variables(inner) == ()
    assert free_variables(nested) == (x, y, z)
    assert free_variables(outer) == (flag, x, y, z)
    assert last_reads(Region((flag, x, y, z), [inner, outer], outer.results)) == dict.fromkeys(
        (flag, x, y, z, inner.results[0], nested.results[0], added.results[0]), 1
    )
