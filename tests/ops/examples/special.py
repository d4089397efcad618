"""Examples of CHLO's elementwise ops."""

from __future__ import annotations

import numpy as np
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import array, dtypes, seeds, shapes
from tests.ops.example import Example
from tests.ops.examples.pointwise import INFINITE, drawn, names, numbers
from weft.ir.dense import Dense
from weft.ir.op import Op
from weft.ir.types import DTYPES
from weft.ops.elementwise import special
from weft.ops.elementwise.pointwise import Pointwise
from weft.ops.elementwise.special import (
    ChloConstant,
    ConstantLike,
    IsInf,
    IsNegInf,
    IsPosInf,
    Mulhi,
    NextAfter,
)


@composite
def constant(draw: DrawFn) -> Example:
    return Example(ChloConstant(Dense(array(draw(shapes()), draw(dtypes()), draw(seeds)))), ())


@composite
def constant_like(draw: DrawFn) -> Example:
    value = array((), draw(dtypes()), draw(seeds))
    like = numbers(draw(shapes()), draw(dtypes()), draw(seeds))
    return Example(ConstantLike(Dense(np.asarray(value))), (like,))


@composite
def away_from_roots(draw: DrawFn, op: type[Pointwise]) -> Example:
    """Fractions in narrow types, to which approximations with an absolute error round well."""
    shape, dtype = draw(shapes()), draw(dtypes(("bf16", "f16")))
    arrays = [np.abs(numbers(shape, dtype, draw(seeds))) + dtype.numpy.type(1.25)] * op.arity
    return Example(op(), tuple(arrays))


_WIDE = ("f32", "f64", "bf16", "f16")
_LONG = tuple(name for name in names("int uint") if DTYPES[name].bits >= 8)
_ROUGH = (  # XLA rounds these to so many digits after the point
    special.BesselI1e,
    special.Digamma,
    special.Erfc,
    special.Lgamma,
    special.Polygamma,
    special.Zeta,
)

EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    op: drawn(op, tuple(n for n in _WIDE + names("complex") if DTYPES[n].kind in op.kinds.split()))
    for op in special.OPS
    if issubclass(op, Pointwise) and op is not Mulhi
}
EXAMPLES |= {op: away_from_roots(op) for op in _ROUGH}
EXAMPLES |= {op: drawn(op, INFINITE) for op in (IsInf, IsNegInf, IsPosInf)}
EXAMPLES |= {
    ChloConstant: constant(),
    ConstantLike: constant_like(),
    Mulhi: drawn(Mulhi, _LONG),
    NextAfter: drawn(NextAfter, _WIDE, special=False, nonzero=True),
}
