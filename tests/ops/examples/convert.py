"""Examples of ops that change the element type, or how exactly it is held."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import dtypes, seeds, shapes
from tests.ops.example import Example
from tests.ops.examples.pointwise import INFINITE, NAMES, drawn, numbers
from weft.ir.op import Op
from weft.ir.types import TensorType
from weft.ops.elementwise.convert import Complex, Convert, Imag, Real, ReducePrecision


@composite
def parts(draw: DrawFn) -> Example:
    shape, dtype = draw(shapes()), draw(dtypes(("f32", "f64")))
    arrays = (numbers(shape, dtype, draw(seeds), special=True) for _ in range(2))
    return Example(Complex(), tuple(arrays))


@composite
def convert(draw: DrawFn) -> Example:
    shape = draw(shapes())
    source, target = draw(dtypes(NAMES)), draw(dtypes(NAMES))
    special = target.name in INFINITE or not (target.is_float or target.is_complex)
    held = numbers(shape, source, draw(seeds), special=special)
    return Example(Convert(TensorType(shape, target)), (held,))


@composite
def reduce_precision(draw: DrawFn) -> Example:
    shape, dtype = draw(shapes()), draw(dtypes(INFINITE))
    op = ReducePrecision(draw(st.integers(1, 12)), draw(st.integers(1, 53)))
    return Example(op, (numbers(shape, dtype, draw(seeds), special=True),))


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    Real: drawn(Real),
    Imag: drawn(Imag),
    Complex: parts(),
    Convert: convert(),
    ReducePrecision: reduce_precision(),
}
