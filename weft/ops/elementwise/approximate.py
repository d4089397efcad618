"""Approximate functions: the names users give, the ops they stand for, and the mark of such an op.

A marked op of f32 may err by 2^-13 of its result, and be 0 where that is subnormal. Targets use
cheaper functions for it if they have some; the reference computes it as any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from weft.errors import WeftError
from weft.ir.op import Op
from weft.ops.elementwise.pointwise import Divide
from weft.ops.elementwise.transcendental import Exponential, Logistic, Rsqrt, Tanh

APPROXIMABLE: Mapping[str, tuple[type[Op], ...]] = MappingProxyType(
    {
        "exp": (Exponential, Logistic, Tanh),  # the others are computed from exponentials
        "rsqrt": (Rsqrt,),
        "reciprocal": (Divide,),  # of 1 by something
    }
)
# 2^-126 and 2^-13, in the words of StableHLO.
TOLERANT = (
    "#stablehlo.result_accuracy<atol = 1.1754943508222875e-38, rtol = 1.220703125e-04, "
    "mode = #stablehlo.result_accuracy_mode<TOLERANCE>>"
)


def is_approximate(op: Op) -> bool:
    """Whether an op is marked: of f32, a cheaper function suffices."""
    return getattr(op, "result_accuracy", None) == TOLERANT


def approximable(names: str | Iterable[str]) -> tuple[str, ...]:
    """The names of an option, once each and in one order; text has commas between them."""
    parts = names.split(",") if isinstance(names, str) else names
    wanted = [name.strip() if isinstance(name, str) else name for name in parts]
    for name in filter(None, wanted):
        if name not in APPROXIMABLE:
            raise WeftError(
                f"no approximate function {name!r}", help=f"expected {', '.join(APPROXIMABLE)}"
            )
    return tuple([name for name in APPROXIMABLE if name in wanted])
