"""Special functions and parts of floats: Cephes' series where PyTorch's own are opaque."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# fmt: off
# Chebyshev series, the highest term first; f32 needs the last terms alone.
# exp(-x) I0(x) on [0, 8] in x / 2 - 2.
_NEAR = (
    -4.4153416464793395e-18, 3.3307945188222384e-17, -2.431279846547955e-16,
    1.715391285555133e-15, -1.1685332877993451e-14, 7.676185498604936e-14, -4.856446783111929e-13,
    2.95505266312964e-12, -1.726826291441556e-11, 9.675809035373237e-11, -5.189795601635263e-10,
    2.6598237246823866e-09, -1.300025009986248e-08, 6.046995022541919e-08, -2.670793853940612e-07,
    1.1173875391201037e-06, -4.4167383584587505e-06, 1.6448448070728896e-05,
    -5.754195010082104e-05, 0.00018850288509584165, -0.0005763755745385824, 0.0016394756169413357,
    -0.004324309995050576, 0.010546460394594998, -0.02373741480589947, 0.04930528423967071,
    -0.09490109704804764, 0.17162090152220877, -0.3046826723431984, 0.6767952744094761,
)
# exp(-x) sqrt(x) I0(x) beyond 8, in 32 / x - 2.
_FAR = (
    -7.233180487874754e-18, -4.830504485944182e-18, 4.46562142029676e-17, 3.461222867697461e-17,
    -2.8276239805165836e-16, -3.425485619677219e-16, 1.7725601330565263e-15,
    3.8116806693526224e-15, -9.554846698828307e-15, -4.150569347287222e-14, 1.54008621752141e-14,
    3.8527783827421426e-13, 7.180124451383666e-13, -1.7941785315068062e-12,
    -1.3215811840447713e-11, -3.1499165279632416e-11, 1.1889147107846439e-11,
    4.94060238822497e-10, 3.3962320257083865e-09, 2.266668990498178e-08, 2.0489185894690638e-07,
    2.8913705208347567e-06, 6.889758346916825e-05, 0.0033691164782556943, 0.8044904110141088,
)
# exp(x^2) erfc(x) as a rational function of x on [1, 8], and beyond.
_ERFCX_TOP = (
    2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687,
    4.86371970985681366614e1, 1.96520832956077098242e2, 5.26445194995477358631e2,
    9.34528527171957607540e2, 1.02755188689515710272e3, 5.57535335369399327526e2,
)
_ERFCX_BOTTOM = (
    1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2,
    9.75708501743205489753e2, 1.82390916687909736289e3, 2.24633760818710981792e3,
    1.65666309194161350182e3, 5.57535340817727675546e2,
)
_ERFCX_FAR_TOP = (
    5.64189583547755073984e-1, 1.27536670759978104416, 5.01905042251180477414,
    6.16021097993053585195, 7.40974269950448939160, 2.97886665372100240670,
)
_ERFCX_FAR_BOTTOM = (
    1.0, 2.26052863220117276590, 9.39603524938001434673, 1.20489539808096656605e1,
    1.70814450747565897222e1, 9.60896809063285878198, 3.36907645100081516050,
)
# fmt: on
_TERMS_32 = (18, 7)  # of the two series, in f32


def _chebyshev(x: Any, coefficients: Sequence[float]) -> Any:
    """Clenshaw's scheme, the highest term first."""
    before = last = now = x * 0
    for coefficient in coefficients:
        before, last = last, now
        now = x * last - before + coefficient
    return (now - before) * 0.5


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Horner's scheme, the highest power first."""
    total = x * 0 + coefficients[0]
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def _wide(x: Any) -> Any:
    """The operand in the float type that functions of it are computed in."""
    import torch

    if not x.dtype.is_floating_point:
        return x.to(torch.get_default_dtype())
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _result(made: Any, x: Any) -> Any:
    return made.to(x.dtype) if x.dtype.is_floating_point else made


def _scaled_i0(x: Any) -> Any:
    import torch

    size = x.abs()
    near, far = _TERMS_32 if x.dtype == torch.float32 else (len(_NEAR), len(_FAR))
    small = _chebyshev(size.clamp(max=8) * 0.5 - 2, _NEAR[-near:])
    # Not below 8 where it is not read: 32 / 0 would be NaN in gradients.
    large = size.clamp(min=8)
    large = _chebyshev(32 / large - 2, _FAR[-far:]) * large.rsqrt()
    return torch.where(size <= 8, small, large)


def i0e(x: Any) -> Any:
    """exp(-|x|) I0(x), the modified Bessel function of order 0."""
    return _result(_scaled_i0(_wide(x)), x)


def i0(x: Any) -> Any:
    """The modified Bessel function of order 0."""
    wide = _wide(x)
    return _result(_scaled_i0(wide) * wide.abs().exp(), x)


def i1(x: Any) -> Any:
    """The modified Bessel function of order 1."""
    import torch

    wide = _wide(x)
    return _result(torch.special.i1e(wide) * wide.abs().exp(), x)


def erfcx(x: Any) -> Any:
    """exp(x^2) erfc(x)."""
    import torch

    wide = _wide(x)
    # f64, also for f32: exp multiplies the rounding of x^2 by x^2.
    held = wide.double()
    middle, large = held.clamp(1, 8), held.clamp(min=8)
    made = _polynomial(middle, _ERFCX_TOP) / _polynomial(middle, _ERFCX_BOTTOM)
    made = torch.where(held < 8, made, _far_erfcx(large))
    low = held.clamp(max=1)
    made = torch.where(held < 1, torch.exp(low * low) * torch.special.erfc(low), made)
    return _result(made.to(wide.dtype), x)


def _far_erfcx(x: Any) -> Any:
    """By a series in 1 / x, whose powers do not overflow."""
    inverse = 1 / x
    top = _polynomial(inverse, _ERFCX_FAR_TOP[::-1])
    return inverse * top / _polynomial(inverse, _ERFCX_FAR_BOTTOM[::-1])


def frexp(x: Any) -> tuple[Any, Any]:
    """Mantissas in [1/2, 1) and exponents of 2."""
    import torch

    wide = _wide(x)
    is_double = wide.dtype == torch.float64
    kind, mantissa, low = (torch.int64, 52, 1022) if is_double else (torch.int32, 23, 126)
    mask = (1 << (11 if is_double else 8)) - 1
    is_small = wide.abs() < 2.0 ** (1 - low)  # subnormal, or next to it
    scaled = torch.where(is_small, wide * 2.0**64, wide)
    bits = scaled.view(kind)
    exponent = ((bits >> mantissa) & mask) - low - torch.where(is_small, 64, 0)
    half = (bits & ~(mask << mantissa)) | (low << mantissa)
    is_kept = (wide == 0) | ~wide.isfinite()
    made = torch.where(is_kept, wide, half.view(wide.dtype))
    return made.to(x.dtype), torch.where(is_kept, 0, exponent).to(torch.int32)


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "frexp.Tensor": frexp,
    "i0": i0,
    "special_erfcx": erfcx,
    "special_i0e": i0e,
    "special_i1": i1,
    "special_modified_bessel_i0": i0,
    "special_modified_bessel_i1": i1,
}
