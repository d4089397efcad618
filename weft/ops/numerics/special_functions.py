"""Special functions as XLA and CHLO compute them, in f32 or f64, with numpy alone.

These are the usual approximations (Cephes' rational and Chebyshev ones, Giles' inverse of erf,
Lanczos' gamma). Using the same ones, not more exact ones, makes results agree with other compilers
within a few units in the last place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from weft.ir.types import Array

Coefficients = Sequence[float]


def _like(x: Array, value: float) -> Array:
    """A constant in the type of x."""
    return np.asarray(value, x.dtype)


def _rounded(function: Callable[[Array], Array], x: Array) -> Array:
    """An elementary function of x, computed in f64 and rounded once."""
    return np.asarray(function(x.astype(np.float64))).astype(x.dtype)


def _polynomial(x: Array, coefficients: Coefficients) -> Array:
    """Horner's scheme in the type of x, the highest power first."""
    total = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        total = total * x + _like(x, coefficient)
    return total


def _chebyshev(x: Array, coefficients: Coefficients) -> Array:
    """Clenshaw's scheme in the type of x, the highest term first."""
    before, last, now = (np.zeros_like(x) for _ in range(3))
    for coefficient in coefficients:
        before, last = last, now
        now = x * last - before + _like(x, coefficient)
    return (now - before) * _like(x, 0.5)


# The error function and related functions

# fmt: off
# erf(x) / x on [-4, 4] as a rational function of x^2: Eigen's, which XLA uses.
_ERF_TOP_32 = (
    -2.72614237e-10, 2.77068146e-08, -2.10102394e-06, -5.69250624e-05,
    -7.34990637e-04, -2.954600e-03, -0.0160960332,
)
_ERF_BOTTOM_32 = (-1.45660715e-05, -2.13374049e-04, -0.00168282702, -0.00737332925, -0.0142647391)
# Cephes in f32: erf(x) / x in x^2 below 1; exp(x^2) |x| erfc(x) in 1 / x^2 up to 2, and beyond.
_ERFC_CENTRE_32 = (
    7.85386146e-05, -8.0101937e-04, 0.00518832775, -0.0268538129, 0.112835854, -0.37612626,
    1.12837911,
)
_ERFC_MIDDLE_32 = (
    2.326820e-02, -0.138703942, 0.368742466, -0.582473278, 0.621000468, -0.494451523,
    3.404880e-01, -0.274112701, 0.563825965,
)
_ERFC_FAR_32 = (
    -10.477664, 1.297720e01, -7.49551868, 2.92101908, -1.01526523, 0.42184633, -0.282076746,
    0.564189494,
)
# Cephes in f64: erf(x) / x in x^2 below 1; exp(x^2) erfc(x) in |x| up to 8, and beyond.
_ERF_TOP_64 = (
    9.6049737398705161, 90.026019720384269, 2232.0053459468431, 7003.3251411280507,
    55592.301301039493,
)
_ERF_BOTTOM_64 = (
    1.0, 33.561714164750313, 521.35794978015269, 4594.3238297098014, 22629.000061389095,
    49267.394260863592,
)
_ERFC_MIDDLE_TOP_64 = (
    2.4619698147353052e-10, 0.56418956483106886, 7.4632105644226989, 48.637197098568137,
    196.5208329560771, 526.44519499547732, 934.52852717195765, 1027.5518868951572,
    557.53533536939938,
)
_ERFC_MIDDLE_BOTTOM_64 = (
    1.0, 13.228195115474499, 86.707214088598973, 354.93777888781989, 975.70850174320549,
    1823.9091668790973, 2246.3376081871097, 1656.6630919416134, 557.53534081772773,
)
_ERFC_FAR_TOP_64 = (
    0.56418958354775506, 1.275366707599781, 5.0190504225118051, 6.160210979930536,
    7.4097426995044895, 2.9788666537210022,
)
_ERFC_FAR_BOTTOM_64 = (
    1.0, 2.2605286322011726, 9.3960352493800147, 12.048953980809666, 17.081445074756591,
    9.6089680906328585, 3.3690764510008151,
)
# Giles (2012): erf_inv(x) / x in w = -log(1 - x^2), and in its root for the tail.
ERF_INV_CENTRE_32 = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 2.1858087e-04,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)
ERF_INV_TAIL_32 = (
    -2.00214257e-04, 1.00950558e-04, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)
# Cephes: Chebyshev series of exp(-x) I1(x) / x up to 8, and of exp(-x) sqrt(x) I1(x) beyond.
I1E_NEAR_64 = (
    2.7779141127610464e-18, -2.111421214358166e-17, 1.5536319577362005e-16,
    -1.1055969477353862e-15, 7.600684294735408e-15, -5.042185504727912e-14, 3.223793365945575e-13,
    -1.9839743977649436e-12, 1.1736186298890901e-11, -6.663489723502027e-11,
    3.625590281552117e-10, -1.8872497517228294e-09, 9.381537386495773e-09, -4.445059128796328e-08,
    2.0032947535521353e-07, -8.568720264695455e-07, 3.4702513081376785e-06,
    -1.3273163656039436e-05, 4.781565107550054e-05, -0.00016176081582589674,
    0.0005122859561685758, -0.0015135724506312532, 0.004156422944312888, -0.010564084894626197,
    0.024726449030626516, -0.05294598120809499, 0.1026436586898471, -0.17641651835783406,
    0.25258718644363365,
)
I1E_FAR_64 = (
    7.517296310842105e-18, 4.414348323071708e-18, -4.6503053684893586e-17, -3.209525921993424e-17,
    2.96262899764595e-16, 3.3082023109209285e-16, -1.8803547755107825e-15,
    -3.8144030724370075e-15, 1.0420276984128802e-14, 4.272440016711951e-14,
    -2.1015418427726643e-14, -4.0835511110921974e-13, -7.198551776245908e-13,
    2.0356285441470896e-12, 1.4125807436613782e-11, 3.2526035830154884e-11,
    -1.8974958123505413e-11, -5.589743462196584e-10, -3.835380385964237e-09,
    -2.6314688468895196e-08, -2.512236237870209e-07, -3.882564808877691e-06,
    -0.00011058893876262371, -0.009761097491361469, 0.7785762350182801,
)
I1E_NEAR_32 = (
    9.38153732e-09, -4.44505908e-08, 2.00329481e-07, -8.56872e-07, 3.47025139e-06,
    -1.32731639e-05, 4.78156508e-05, -0.000161760821, 0.000512286, -0.00151357241, 0.0041564228,
    -0.0105640851, 0.0247264486, -0.0529459827, 0.102643661, -0.176416516, 0.252587199,
)
I1E_FAR_32 = (
    -3.83538046e-09, -2.63146891e-08, -2.51223611e-07, -3.88256467e-06, -0.000110588939,
    -0.00976109784, 0.778576254,
)
ERF_INV_CENTRE_64 = (
    -3.64441206401782e-21, -1.6850591381820166e-19, 1.28584807152564e-18, 1.1157877678025181e-17,
    -1.333171662854621e-16, 2.0972767875968562e-17, 6.637638134358324e-15, -4.054566272975207e-14,
    -8.151934197605472e-14, 2.6335093153082323e-12, -1.2975133253453532e-11,
    -5.415412054294628e-11, 1.0512122733215323e-09, -4.112633980346984e-09,
    -2.9070369957882005e-08, 4.2347877827932404e-07, -1.3654692000834679e-06,
    -1.3882523362786469e-05, 0.00018673420803405714, -0.000740702534166267, -0.006033670871430149,
    0.24015818242558962, 1.6536545626831027,
)
ERF_INV_SHOULDER_64 = (
    2.2137376921775787e-09, 9.075656193888539e-08, -2.7517406297064545e-07,
    1.8239629214389228e-08, 1.5027403968909828e-06, -4.013867526981546e-06,
    2.9234449089955446e-06, 1.2475304481671779e-05, -4.7318229009055734e-05,
    6.828485145957318e-05, 2.4031110387097894e-05, -0.0003550375203628475, 0.0009532893797373805,
    -0.0016882755560235047, 0.002491442096107851, -0.003751208507569241, 0.005370914553590064,
    1.0052589676941592, 3.0838856104922208,
)
ERF_INV_TAIL_64 = (
    -2.7109920616438573e-11, -2.555641816996525e-10, 1.5076572693500548e-09,
    -3.789465440126737e-09, 7.61570120807834e-09, -1.496002662714924e-08, 2.914795345090108e-08,
    -6.771199775845234e-08, 2.2900482228026655e-07, -9.9298272942317e-07, 4.526062597223154e-06,
    -1.968177810553167e-05, 7.599527703001776e-05, -0.00021503011930044477,
    -0.00013871931833623122, 1.0103004648645344, 4.849906401408584,
)
# fmt: on


def erf(x: Array) -> Array:
    """The error function."""
    if x.dtype == np.float32:
        # The approximation holds up to 4, where erf rounds to 1; the ratio may be one unit beyond
        # 1.
        near = np.clip(x, _like(x, -4), _like(x, 4))
        square = near * near
        ratio = near * _polynomial(square, _ERF_TOP_32) / _polynomial(square, _ERF_BOTTOM_32)
        return np.clip(ratio, _like(x, -1), _like(x, 1))
    return np.where(np.abs(x) < 1, _erf_near_64(x), 1 - _erfc_far_64(x))


def _erf_near_64(x: Array) -> Array:
    square = x * x
    return x * _polynomial(square, _ERF_TOP_64) / _polynomial(square, _ERF_BOTTOM_64)


def erfc(x: Array) -> Array:
    """1 - erf(x)."""
    if x.dtype == np.float32:
        near = 1 - x * _polynomial(x * x, _ERFC_CENTRE_32)
        return np.where(np.abs(x) < 1, near, _erfc_far_32(x))
    return np.where(np.abs(x) < 1, 1 - _erf_near_64(x), _erfc_far_64(x))


def _erfc_far_32(x: Array) -> Array:
    size, square = np.abs(x), -(x * x)
    inverse = 1 / (x * x)
    middle, far = _polynomial(inverse, _ERFC_MIDDLE_32), _polynomial(inverse, _ERFC_FAR_32)
    found = _rounded(np.exp, square) * (1 / size) * np.where(size < 2, middle, far)
    # -log of the largest f32: beyond it XLA returns 0, though exp has subnormals left.
    found = np.where(square < _like(x, -88.7228394), _like(x, 0), found)
    return np.where(x < 0, 2 - found, found)


def _erfc_far_64(x: Array) -> Array:
    size, square = np.abs(x), -(x * x)
    decay = np.exp(square)
    middle = decay * _polynomial(size, _ERFC_MIDDLE_TOP_64)
    middle = middle / _polynomial(size, _ERFC_MIDDLE_BOTTOM_64)
    far = decay * _polynomial(size, _ERFC_FAR_TOP_64) / _polynomial(size, _ERFC_FAR_BOTTOM_64)
    found = np.where(size < 8, middle, far)
    # The same for f64.
    found = np.where(square < -709.78271289338397, 0.0, found)
    return np.where(x < 0, 2 - found, found)


def erf_inv(x: Array) -> Array:
    """The number whose error function is x."""
    # Giles' w = -log(1 - x^2). Polynomials in w, and in its root for the tails, give erf_inv(x) /
    # x.
    depth = -_rounded(np.log1p, x * -x)
    if x.dtype == np.float32:
        centre = _polynomial(depth - _like(x, 2.5), ERF_INV_CENTRE_32)
        tail = _polynomial(np.sqrt(depth) - _like(x, 3), ERF_INV_TAIL_32)
        quotient = np.where(depth < 5, centre, tail)
    else:
        root = np.sqrt(depth)
        centre = _polynomial(depth - 3.125, ERF_INV_CENTRE_64)
        shoulder = _polynomial(root - 3.25, ERF_INV_SHOULDER_64)
        tail = _polynomial(root - 5, ERF_INV_TAIL_64)
        quotient = np.where(depth < 6.25, centre, np.where(depth < 16, shoulder, tail))
    return np.where(np.abs(x) == 1, x * _like(x, np.inf), quotient * x)


def bessel_i1e(x: Array) -> Array:
    """exp(-|x|) times the modified Bessel function of the first kind and order 1."""
    single = x.dtype == np.float32
    size = np.abs(x)
    near = size * _chebyshev(_like(x, 0.5) * size - 2, I1E_NEAR_32 if single else I1E_NEAR_64)
    far = _chebyshev(32 / size - 2, I1E_FAR_32 if single else I1E_FAR_64)
    return np.sign(x) * np.where(size <= 8, near, far / np.sqrt(size))


# The gamma function and related functions

# Godfrey's coefficients for g = 7 and nine terms.
LANCZOS = (
    676.5203681218851,
    -1259.1392167224028,
    771.32342877765313,
    -176.61502916214059,
    12.507343278686905,
    -0.13857109526572012,
    9.9843695780195716e-6,
    1.5056327351493116e-7,
)
LANCZOS_BASE = 0.99999999999980993
LANCZOS_SHIFT = 7.0  # Lanczos' g; the sums below begin half a step later


def _mirrored(x: Array) -> Array:
    """x - 1, or -x where x < 1/2: the reflection formula gives the rest."""
    return np.where(x < _like(x, 0.5), -x, x - 1)


def _log_shifted(z: Array) -> Array:
    """log(z + g + 1/2)."""
    return _like(z, math.log(LANCZOS_SHIFT + 0.5)) + _rounded(
        np.log1p, z / _like(z, LANCZOS_SHIFT + 0.5)
    )


def lgamma(x: Array) -> Array:
    """log|gamma(x)|."""
    z = _mirrored(x)
    series = np.full_like(x, LANCZOS_BASE)
    for k, coefficient in enumerate(LANCZOS, 1):
        series = series + _like(x, coefficient) / (z + k)
    shifted = _log_shifted(z)
    # (z + 1/2) log(t) - t, written as XLA does so that the first product does not overflow.
    body = (z + _like(x, 0.5) - (_like(x, LANCZOS_SHIFT + 0.5) + z) / shifted) * shifted
    log_gamma = _like(x, math.log(math.sqrt(2 * math.pi))) + body + _rounded(np.log, series)
    # |sin(pi x)| has the period 1: the distance from the nearest integer is exact, and small.
    fraction = np.abs(x - np.rint(x))
    sine = _rounded(np.log, _rounded(np.sin, _like(x, math.pi) * fraction))
    # At 0, -1, ... the log of the sine is -inf: it alone decides, whatever the other terms are.
    reflected = np.where(np.isfinite(sine), _like(x, math.log(math.pi)) - sine - log_gamma, -sine)
    log_gamma = np.where(x < _like(x, 0.5), reflected, log_gamma)
    return np.where(np.isinf(x), _like(x, np.inf), log_gamma)


def digamma(x: Array) -> Array:
    """The derivative of lgamma; NaN at 0, -1, -2, ..."""
    z = _mirrored(x)
    # The derivative of lgamma's form, log(t) + top / bottom - g / t, where top is that of the
    # series.
    top, bottom = np.zeros_like(x), np.full_like(x, LANCZOS_BASE)
    for k, coefficient in enumerate(LANCZOS, 1):
        top = top - _like(x, coefficient) / ((z + k) * (z + k))
        bottom = bottom + _like(x, coefficient) / (z + k)
    body = (
        _log_shifted(z)
        + top / bottom
        - _like(x, LANCZOS_SHIFT) / (_like(x, LANCZOS_SHIFT + 0.5) + z)
    )
    pi = _like(x, math.pi)
    angle = pi * (x - np.rint(x))
    reflected = body - pi * _rounded(np.cos, angle) / _rounded(np.sin, angle)
    found = np.where(x < _like(x, 0.5), reflected, body)
    return np.where((x <= 0) & (x == np.floor(x)), _like(x, np.nan), found)


def polygamma(n: Array, x: Array) -> Array:
    """The n-th derivative of digamma."""
    n, x = np.broadcast_arrays(n, x)
    # (-1)^(n + 1) n! zeta(n + 1, x)
    sign = n % 2 * 2 - 1
    scale = _rounded(np.exp, lgamma(n + 1))
    found = np.where(n == 0, digamma(x), sign * scale * zeta(n + 1, x))
    return np.where((n < 0) | (n != np.floor(n)), _like(x, np.nan), found)


ZETA_TERMS = 12  # of the sum, and then of the Euler-Maclaurin formula


@cache
def euler_maclaurin() -> tuple[float, ...]:
    """B(2k) / (2k)! for k = 1, 2, ..: every second coefficient of x / (exp(x) - 1)."""
    from fractions import Fraction  # imported here: it imports decimal

    series = [Fraction(1)]
    for n in range(1, 2 * ZETA_TERMS + 1):
        terms = [c / math.factorial(n + 1 - k) for k, c in enumerate(series)]
        series.append(-sum(terms, Fraction(0)))
    return tuple(map(float, series[2::2]))


def zeta(x: Array, q: Array) -> Array:
    """Hurwitz's zeta function: the sum of (q + k)^-x over k = 0, 1, ..."""
    dtype = x.dtype
    x, q = np.broadcast_arrays(x.astype(np.float64), q.astype(np.float64))
    count = np.maximum(np.floor(-q) + 1, 0)  # of the terms with negative q + k
    first = q + count
    # Their sum, from the far end on, is a difference of two such functions.
    ends = 1 - np.where(count > 0, np.stack([first, q]), 0.0)
    parity = np.where(x % 2 == 0, 1.0, -1.0)
    total = _zeta(x, first) + parity * (_zeta(x, ends[0]) - _zeta(x, ends[1]))
    # At a pole even powers grow to inf from both sides, and odd ones have no limit; other powers of
    # negative numbers are not real.
    pole = (q <= 0) & (q == np.floor(q))
    total = np.where(pole, np.where(x % 2 == 0, np.inf, np.nan), total)
    total = np.where((q <= 0) & (x != np.floor(x)), np.nan, total)
    total = np.where(np.isnan(x) | np.isnan(q) | (x < 1), np.nan, total)
    return np.where(x == 1, np.inf, total).astype(dtype)


def _zeta(x: Array, q: Array) -> Array:
    """Zeta for x > 1 and q > 0, by the Euler-Maclaurin formula after the first terms."""
    terms = [np.power(q + k, -x) for k in range(ZETA_TERMS)]
    start = q + ZETA_TERMS
    power = np.power(start, -x)
    terms += [start * power / (x - 1), power / 2]
    factor = x * power / start
    for k, coefficient in enumerate(euler_maclaurin()):
        terms.append(coefficient * factor)
        factor = factor * ((x + 2 * k + 1) / start) * ((x + 2 * k + 2) / start)
    # The smallest terms first, to keep their digits. Where the power underflowed, what is
    # multiplied with it may be infinite: such terms are 0.
    total = np.zeros(x.shape)
    for term in reversed(terms):
        total = total + np.where(np.isnan(term) & (power == 0), 0, term)
    return total
