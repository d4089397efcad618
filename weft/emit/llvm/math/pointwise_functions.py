"""Transcendental functions, elementwise."""

from __future__ import annotations

from weft.emit.llvm.jit.supplied import estimate_rsqrt
from weft.emit.llvm.math import circular, error, exponential, gamma, hyperbolic, logarithm, logistic
from weft.emit.llvm.math import complex as math_complex
from weft.emit.llvm.math import complex_circular as pairs
from weft.emit.llvm.math import complex_inverse as inverses
from weft.emit.llvm.math import pointwise_integer as integers
from weft.emit.llvm.math import power as powers
from weft.emit.llvm.math import zeta as zetas
from weft.emit.llvm.math.pointwise_kinds import Emit, by_kind
from weft.ir.op import Op
from weft.ops.elementwise import pointwise, special
from weft.ops.elementwise import transcendental as ops

EMIT: dict[type[Op], Emit] = {
    pointwise.Power: by_kind(real=powers.power, integer=integers.power, complex=pairs.power),
    pointwise.Remainder: by_kind(real=powers.remainder, integer=integers.remainder),
    ops.Cbrt: by_kind(real=logarithm.cbrt),
    ops.Cosine: by_kind(real=circular.cos, complex=pairs.cosine),
    ops.Exponential: by_kind(
        real=logistic.noted_exp,
        coarse=logistic.noted_coarse_exp,
        complex=math_complex.exponential,
    ),
    ops.ExponentialMinusOne: by_kind(
        real=exponential.expm1, complex=math_complex.exponential_minus_one
    ),
    ops.Log: by_kind(real=logarithm.log, complex=math_complex.logarithm),
    ops.LogPlusOne: by_kind(real=logarithm.log1p, complex=math_complex.logarithm_plus_one),
    ops.Logistic: by_kind(real=logistic.logistic, coarse=logistic.coarse_logistic),
    ops.Rsqrt: by_kind(
        real=logarithm.rsqrt, tolerant=estimate_rsqrt, complex=math_complex.reciprocal_root
    ),
    ops.Sine: by_kind(real=circular.sin, complex=pairs.sine),
    ops.Sqrt: by_kind(real=logarithm.sqrt, complex=math_complex.square_root),
    ops.Tan: by_kind(real=circular.tan, complex=pairs.tan),
    ops.Tanh: by_kind(
        real=logistic.noted_tanh, coarse=logistic.noted_coarse_tanh, complex=pairs.tanh
    ),
    ops.Atan2: by_kind(real=circular.atan2),
    special.Acos: by_kind(real=circular.acos, complex=inverses.acos),
    special.Acosh: by_kind(real=hyperbolic.acosh, complex=inverses.acosh),
    special.Asin: by_kind(real=circular.asin, complex=inverses.asin),
    special.Asinh: by_kind(real=hyperbolic.asinh, complex=inverses.asinh),
    special.Atan: by_kind(real=circular.atan, complex=inverses.atan),
    special.Atanh: by_kind(real=hyperbolic.atanh, complex=inverses.atanh),
    special.Cosh: by_kind(real=exponential.cosh, complex=pairs.cosh),
    special.Sinh: by_kind(real=exponential.sinh, complex=pairs.sinh),
    special.ChloTan: by_kind(real=circular.tan, complex=pairs.tan),
    special.BesselI1e: by_kind(real=gamma.bessel_i1e),
    special.Digamma: by_kind(real=gamma.digamma),
    special.Erf: by_kind(real=error.erf),
    special.ErfInv: by_kind(real=error.erf_inv),
    special.Erfc: by_kind(real=error.erfc),
    special.Lgamma: by_kind(real=gamma.lgamma),
    special.Polygamma: by_kind(real=zetas.polygamma),
    special.Zeta: by_kind(real=zetas.zeta),
}
