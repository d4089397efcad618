"""Examples of elementwise functions: roots, powers of e, logarithms, angles."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import dtypes, seeds, shapes
from tests.ops.example import Example
from tests.ops.examples.pointwise import drawn, numbers
from weft.ir.op import Op
from weft.ops.elementwise import transcendental
from weft.ops.elementwise.pointwise import Pointwise

# What an f8 float holds of a logarithm depends on who rounds; the wider ones are the test.
_NAMES = ("f32", "f64", "bf16", "f16", "f8E5M2", "complex<f32>", "complex<f64>")
ACCURACIES = (
    None,
    "#stablehlo.result_accuracy<mode = #stablehlo.result_accuracy_mode<HIGHEST>>",
    "#stablehlo.result_accuracy<ulps = 10, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>",
)


@composite
def function(draw: DrawFn, op: type[Pointwise]) -> Example:
    shape, dtype = draw(shapes()), draw(dtypes(_NAMES))
    made = op(result_accuracy=draw(st.sampled_from(ACCURACIES)))  # type: ignore[call-arg]
    return Example(made, (numbers(shape, dtype, draw(seeds), special=draw(st.booleans())),))


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    op: function(op)
    for op in transcendental.OPS
    if issubclass(op, Pointwise) and op is not transcendental.Atan2
}
EXAMPLES[transcendental.Atan2] = drawn(transcendental.Atan2, _NAMES[:-2])
