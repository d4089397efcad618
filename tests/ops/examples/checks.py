"""Examples of checks: assertions that hold."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.ops.draw import COMMON, array, dtypes, seeds, shapes
from tests.ops.example import Example
from tests.ops.program import Program
from weft.ir.dense import Dense
from weft.ir.op import Op
from weft.ir.types import Array, type_of
from weft.ops.custom_calls import checks

values = st.builds(array, shapes(0, 2), dtypes(COMMON), seeds)
floats = st.builds(array, shapes(0, 2), dtypes(("f32", "f64", "bf16", "complex<f32>")), seeds)

PROBE = """
func.func @main(%0: T) {
  %1 = interpreter.probe %0, probe_id = "here" : T
  "check.expect_serialized_eq"(%1) {probe_id = "here", iter = 0 : i64} : (T) -> ()
  return
}
"""


def _probed(value: Array) -> Example:
    text = PROBE.replace("T", str(type_of(value)))
    return Program.holding(checks.ExpectSerializedEq, text, value)


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    checks.ExpectEq: values.map(lambda a: Example(checks.ExpectEq(), (a, a))),
    checks.ExpectEqConst: values.map(lambda a: Example(checks.ExpectEqConst(Dense(a)), (a,))),
    checks.ExpectAlmostEq: floats.map(lambda a: Example(checks.ExpectAlmostEq(1e-3), (a, a))),
    checks.ExpectAlmostEqConst: floats.map(
        lambda a: Example(checks.ExpectAlmostEqConst(Dense(a)), (a,))
    ),
    checks.ExpectClose: floats.map(lambda a: Example(checks.ExpectClose(1, 0), (a, a))),
    checks.ExpectCloseConst: floats.map(lambda a: Example(checks.ExpectCloseConst(Dense(a)), (a,))),
    checks.ExpectSerializedEq: values.map(_probed),
}
