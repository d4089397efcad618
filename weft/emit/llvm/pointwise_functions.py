"""Functions that no finite arithmetic gives, element by element."""

from __future__ import annotations

from weft.emit.llvm import math_exponential as exponential
from weft.emit.llvm import math_logarithm as logarithm
from weft.emit.llvm.pointwise_kinds import Emit, by_kind
from weft.ir.op import Op
from weft.ops import transcendental as ops

EMIT: dict[type[Op], Emit] = {
    ops.Exponential: by_kind(real=exponential.exp),
    ops.ExponentialMinusOne: by_kind(real=exponential.expm1),
    ops.Log: by_kind(real=logarithm.log),
    ops.Logistic: by_kind(real=exponential.logistic),
    ops.Rsqrt: by_kind(real=logarithm.rsqrt),
    ops.Sqrt: by_kind(real=logarithm.sqrt),
    ops.Tanh: by_kind(real=exponential.tanh),
}
