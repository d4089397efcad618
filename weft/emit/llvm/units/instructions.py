"""Instructions of one step on one vector register, by the unit that prices them."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.op import Op
from weft.ir.types import DType
from weft.kernels.kernel import Apply, Choose, Fill, Load, Pick, Position, Reduce, Step, Store

# Of one register, relative to a tanh, to a division, and to an addition; measured on 32-bit floats.
_FUNCTIONS: Mapping[str, float] = {
    "exponential": 0.6, "exponential_minus_one": 0.7, "log": 1.0, "log_plus_one": 1.4, "tanh": 1.0,
    "logistic": 0.85, "sine": 0.9, "cosine": 0.9, "tan": 1.2, "power": 4.3, "atan2": 1.0,
    "cbrt": 2.6, "erf": 1.1, "erfc": 2.0, "erf_inv": 2.0, "lgamma": 6.0, "digamma": 4.0,
}  # fmt: skip
_DIVISIONS: Mapping[str, float] = {"divide": 1.0, "sqrt": 1.8, "rsqrt": 2.8, "remainder": 4.7}
# NaNs and the sign of zero: a comparison, a selection and a minimum.
_EXTREMES, _EXTREME = ("maximum", "minimum", "max", "min"), 4.0
_SMALL: Mapping[type[Step], float] = {Choose: 1.0, Pick: 4.0, Position: 2.0, Fill: 0.0}


def instructions_of(step: Step) -> tuple[str, float]:
    """The unit of a step's instructions, and how many it takes for a register of its type."""
    if isinstance(step, Apply):
        return _applied(step.op, step.dtype)
    if isinstance(step, Load | Store):
        return "register", 1.0 + len(step.guards)
    if isinstance(step, Reduce):
        return "register", (_EXTREME if step.how in _EXTREMES else 1.0) * _wide(step.dtype)
    return "register", _SMALL.get(type(step), 1.0)


def _applied(op: Op, dtype: DType) -> tuple[str, float]:
    name, wide = op.name.rpartition(".")[2], _wide(dtype)
    if name in _FUNCTIONS:
        # Twice the degree of a polynomial, and half the lanes; a power of f64 has longer sums.
        return "function", _FUNCTIONS[name] * (wide**1.5)
    if name in _DIVISIONS:
        return "division", _DIVISIONS[name] * (wide**1.5)
    return "register", (_EXTREME if name in _EXTREMES else 1.0) * wide


def _wide(dtype: DType) -> float:
    """Registers of a type for one of 32-bit elements."""
    return max(1.0, dtype.real.bits / 32)
