"""Functions of jax.numpy, jax.scipy and their neighbours, with the types that each can take."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

from tests.jax.side_by_side import Case

_KINDS = {
    "b": ("bool",),
    "i": ("int8", "int16", "int32", "int64"),
    "u": ("uint8", "uint16", "uint32", "uint64"),
    "h": ("float16", "bfloat16"),
    "f": ("float32", "float64"),
    "c": ("complex64", "complex128"),
}
ALL, NUMBERS, REALS, FLOATS, WIDE = "biuhfc", "iuhfc", "iuhf", "hf", "f"


@dataclass(frozen=True, slots=True)
class Row:
    """A function, the kinds of types it takes, and the shapes of its arguments."""

    name: str
    function: Callable[..., Any]
    kinds: str
    shapes: tuple[tuple[int, ...], ...] = ((3, 4),)

    @property
    def types(self) -> list[str]:
        """The types that it takes."""
        return [name for kind in self.kinds for name in _KINDS[kind]]

    def case(self, dtype: str) -> Case:
        """The function with arguments of a type."""
        make = partial(_arguments, self.shapes, dtype)
        return Case(f"{self.name} {dtype}", self.function, make)


def all_cases(rows: Sequence[Row]) -> Iterator[Case]:
    """Every function with every type."""
    for row in rows:
        yield from map(row.case, row.types)


def some_cases(rows: Sequence[Row]) -> Iterator[Case]:
    """Every other function, each with another type."""
    for number, row in enumerate(rows[::2]):
        yield row.case(row.types[number % len(row.types)])


def _arguments(shapes: Sequence[tuple[int, ...]], dtype: str) -> list[Any]:
    rng = np.random.default_rng(0)
    return [_array(rng, shape, np.dtype(getattr(ml_dtypes, dtype, dtype))) for shape in shapes]


def _array(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Numbers between -3 and 3, among them zeros and equal ones."""
    low = 0 if dtype.kind in "bu" else -3
    made = rng.integers(low, 4, shape) if dtype.kind in "biu" else rng.uniform(-3, 3, shape)
    if dtype.kind == "c":
        made = made + 1j * rng.uniform(-3, 3, shape)
    return np.asarray(made).astype(dtype)


def _named(space: Any, names: str, kinds: str, *shapes: tuple[int, ...]) -> list[Row]:
    """Functions of a module, by name."""
    prefix = space.__name__
    return [
        Row(f"{prefix}.{name}", getattr(space, name), kinds, shapes or ((3, 4),))
        for name in names.split()
    ]


def _row(name: str, kinds: str, function: Callable[..., Any], *shapes: tuple[int, ...]) -> Row:
    return Row(name, function, kinds, shapes or ((4, 5),))


def elementwise() -> list[Row]:
    """Functions of each element."""
    pair = (3, 4), (4,)
    return [
        *_named(jnp, "abs negative square exp sqrt sin cos tanh reciprocal conj", "ifc"),
        *_named(jnp, "real imag angle isfinite isnan sign nan_to_num logical_not", NUMBERS),
        *_named(jnp, "expm1 log1p arctan arcsinh sinh log10 exp2 sinc", "fc"),
        *_named(jnp, "floor ceil trunc rint cbrt deg2rad signbit i0 frexp modf", FLOATS),
        *_named(jnp, "invert bitwise_count", "iu"),
        *_named(jnp, "add multiply divide equal not_equal logical_xor isclose", NUMBERS, *pair),
        *_named(jnp, "subtract power", "fc", *pair),
        *_named(jnp, "floor_divide mod fmod maximum fmin less greater_equal", REALS, *pair),
        *_named(jnp, "arctan2 hypot logaddexp copysign nextafter heaviside", FLOATS, *pair),
        *_named(jnp, "bitwise_and bitwise_xor left_shift right_shift gcd lcm", "iu", *pair),
        _row("clip", REALS, lambda a: jnp.clip(a, 1, 2)),
        _row("select", ALL, lambda a, b: jnp.select([a.real > 0, b.real > 1], [a, b]), *pair),
    ]


def reductions() -> list[Row]:
    """Functions along dims."""
    of_any = "sum prod all any count_nonzero cumsum cumprod"
    ordered = "max min argmax argmin ptp median nanargmin nanmax"
    means = "mean var std nanmean nanstd nansum nancumprod"
    return [
        *[_along(name, ALL if name in ("all", "any") else NUMBERS) for name in of_any.split()],
        *[_along(name, REALS) for name in ordered.split()],
        *[_along(name, "fc") for name in means.split()],
        _row("quantile", WIDE, lambda a: jnp.quantile(a, jnp.array([0.1, 0.77]), axis=1)),
        _row("histogram", WIDE, lambda a: jnp.histogram(a, bins=4)),
        _row("cov", WIDE, jnp.cov),
        _row("logsumexp", FLOATS, lambda a: jax.nn.logsumexp(a, axis=1)),
        _row("cumlogsumexp", WIDE, lambda a: lax.cumlogsumexp(a, axis=1, reverse=True)),
        _row("cummax", REALS, lambda a: lax.cummax(a, axis=0)),
        _row("associative_scan", "fc", lambda a: lax.associative_scan(jnp.multiply, a)),
        _row("reduce_window", FLOATS, _pooled, (6, 7)),
        _row("select_and_scatter", WIDE, jax.grad(lambda a: _pooled(a).sum()), (6, 7)),
        _row("sum of nothing", NUMBERS, lambda a: jnp.sum(a, 0), (0, 3)),
    ]


def _along(name: str, kinds: str) -> Row:
    function = getattr(jnp, name)
    return Row(f"{name} along 1", lambda a: function(a, axis=1), kinds, ((4, 5),))


def _pooled(a: Any) -> Any:
    return lax.reduce_window(a, -jnp.inf, lax.max, (2, 2), (1, 2), "SAME")


def sorting() -> list[Row]:
    """Sorts, searches and sets."""
    line = (9,)
    return [
        _row("sort", ALL, lambda a: jnp.sort(a, axis=0)),
        _row("sort down", ALL, lambda a: jnp.sort(a, descending=True)),
        _row("argsort", ALL, lambda a: jnp.argsort(a, axis=1)),
        _row("lexsort", REALS, lambda a, b: jnp.lexsort((a, b)), line, line),
        _row("two keys", REALS, lambda a, b: lax.sort((a, b), num_keys=2), line, line),
        _row("with NaN", FLOATS, lambda a: jnp.sort(jnp.where(a > 1, jnp.nan, a))),
        _row("top_k", REALS, lambda a: lax.top_k(a, 3)),
        _row("approx_max_k", WIDE, lambda a: lax.approx_max_k(a, 2)),
        _row("partition", REALS, lambda a: jnp.partition(a, 2)[..., 2]),
        _row("searchsorted", REALS, lambda a, b: jnp.searchsorted(jnp.sort(a), b), line, line),
        _row("unique", REALS, lambda a: jnp.unique(a, size=9, return_inverse=True), line),
        _row("isin", NUMBERS, jnp.isin, (4, 5), line),
        _row("nonzero", ALL, lambda a: jnp.nonzero(a, size=9)),
        _row("setdiff1d", REALS, lambda a, b: jnp.setdiff1d(a, b, size=4), line, line),
        _row("bincount", "u", lambda a: jnp.bincount(a, length=5), line),
    ]


def shapes_and_places() -> list[Row]:
    """What moves, picks and writes elements."""
    picked = jnp.array([0, 2, 2, 7])
    modes = [
        _row(f"scatter {how} {mode}", NUMBERS, partial(_written, how, mode))
        for how in ("set", "add", "multiply")
        for mode in ("drop", "clip", "fill")
    ]
    pads = [
        _row(f"pad {mode}", ALL, partial(_padded, mode))
        for mode in ("constant", "edge", "reflect", "symmetric", "wrap")
    ]
    return [
        *_named(jnp, "transpose flip tril diag rot90 ravel atleast_3d diagonal", ALL),
        _row("roll", ALL, lambda a: jnp.roll(a, (1, 2), (0, 1))),
        _row("tile", ALL, lambda a: jnp.tile(a, (2, 1, 2))),
        _row("repeat", ALL, lambda a: jnp.repeat(a, 3, 0)),
        _row("concatenate", ALL, lambda a, b: jnp.concatenate([a, b]), (2, 3), (4, 3)),
        _row("take with fill", ALL, lambda a: jnp.take(a, picked, axis=1, mode="fill")),
        _row("take with wrap", ALL, lambda a: jnp.take(a, picked, axis=1, mode="wrap")),
        _row("take_along_axis", REALS, lambda a: jnp.take_along_axis(a, jnp.argsort(a, 1), 1)),
        _row("slices", ALL, lambda a: a[::2, ::-1]),
        _row("masked", ALL, lambda a: a[np.array([True, False, True, True])]),
        _row("points", ALL, lambda a: a[jnp.array([[0], [2]]), jnp.array([1, 4])]),
        _row("dynamic", ALL, lambda a: lax.dynamic_slice(a, (jnp.int32(9), jnp.int32(1)), (2, 2))),
        _row("bits", "iuhf", lambda a: lax.bitcast_convert_type(a, jnp.uint8)),
        _row("to bfloat16", NUMBERS, lambda a: a.real.astype(jnp.bfloat16)),
        _row("to int4 and back", "iu", lambda a: a.astype(jnp.int4).astype(jnp.int8)),
        _row("to float8", FLOATS, lambda a: a.astype(jnp.float8_e4m3fn).astype(a.dtype)),
        *pads,
        *modes,
    ]


def _padded(mode: str, a: Any) -> Any:
    return jnp.pad(a, ((1, 2), (2, 1)), mode=mode)


def _written(how: str, mode: str, a: Any) -> Any:
    places = a.at[jnp.array([0, 2, 2, 7])]
    return getattr(places, how)(jnp.ones(5, a.dtype) * 2, mode=mode)


def products() -> list[Row]:
    """Products, convolutions and transforms."""
    image, weights = (2, 4, 6, 7), (6, 2, 3, 3)
    return [
        *_named(jnp, "dot matmul", NUMBERS, (4, 5), (5, 3)),
        *_named(jnp, "inner vecdot", NUMBERS, (4, 5), (4, 5)),
        *_named(jnp, "outer convolve kron", NUMBERS, (5,), (3,)),
        _row("einsum", NUMBERS, lambda a, b: jnp.einsum("ij,kj->ik", a, b), (4, 5), (2, 5)),
        _row("conv", "ihfc", _convolved, image, weights),
        *_named(jnp.fft, "fft ifft fft2 ifftn hfft irfft", "fc", (4, 6)),
        *_named(jnp.fft, "rfft ihfft rfftn", WIDE, (4, 6)),
        *_named(jax.scipy.fft, "dct idct", WIDE, (4, 6)),
        _row("fft of 9", "fc", lambda a: jnp.fft.fft(a, n=9, axis=0, norm="ortho"), (4, 6)),
    ]


def _convolved(image: Any, weights: Any) -> Any:
    return lax.conv_general_dilated(
        image, weights, (1, 2), "SAME", rhs_dilation=(2, 1), feature_group_count=2
    )


def decompositions() -> list[Row]:
    """What makes up a matrix again, so that signs do not matter."""
    square, tall = (4, 4), (5, 3)
    return [
        _row("inv", "fc", lambda a: jnp.linalg.inv(_regular(a)), square),
        _row("slogdet", "fc", lambda a: jnp.linalg.slogdet(_regular(a)), square),
        _row("solve", "fc", lambda a, b: jnp.linalg.solve(_regular(a), b), square, (4, 2)),
        _row("cholesky", "fc", lambda a: jnp.linalg.cholesky(_positive(a)), square),
        _row("qr", "fc", lambda a: jnp.matmul(*jnp.linalg.qr(a)), tall),
        _row("svdvals", "fc", jnp.linalg.svdvals, tall),
        _row("pinv", "fc", jnp.linalg.pinv, tall),
        _row("eigvalsh", "fc", lambda a: jnp.linalg.eigvalsh(_positive(a)), square),
        _row("eigvals", "fc", lambda a: jnp.sort(jnp.abs(jnp.linalg.eigvals(a))), square),
        _row("expm", "fc", lambda a: jax.scipy.linalg.expm(a / 4), square),
        _row("lu", "fc", jax.scipy.linalg.lu, square),
        _row("triangular", "fc", _solved, square, (4, 2)),
    ]


def _regular(a: Any) -> Any:
    return a + 8 * jnp.eye(4, dtype=a.dtype)


def _positive(a: Any) -> Any:
    return _regular(a @ a.conj().T)


def _solved(a: Any, b: Any) -> Any:
    return jax.scipy.linalg.solve_triangular(_regular(a), b, lower=True, trans=2)


def special() -> list[Row]:
    """Special functions, distributions, random numbers and layers."""
    functions, layers = jax.scipy.special, jax.nn
    return [
        *_named(functions, "erf erfc gammaln digamma i0e i1 expit entr ndtr", WIDE),
        _row("erfinv", WIDE, lambda a: functions.erfinv(a / 4)),
        _row("gammainc", WIDE, lambda a: functions.gammainc(jnp.abs(a) + 1, a * a)),
        _row("betainc", WIDE, lambda a: functions.betainc(a * a + 1, a * a + 2, 0.3)),
        _row("zeta", WIDE, lambda a: functions.zeta(a * a + 1.5, 2.0)),
        _row("norm.logcdf", WIDE, jax.scipy.stats.norm.logcdf),
        _row("gamma.logpdf", WIDE, lambda a: jax.scipy.stats.gamma.logpdf(a * a, 2.0)),
        *_named(layers, "gelu silu softplus elu log_softmax glu relu6 mish", FLOATS),
        _row("grad of softmax", WIDE, jax.grad(lambda a: (layers.softmax(a) * a).sum())),
        _row("attention", FLOATS, _attended, (2, 5, 2, 8)),
        _row("resize", WIDE, lambda a: jax.image.resize(a, (7, 3), "cubic")),
        *[_row(f"random {impl}", WIDE, partial(_drawn, impl)) for impl in _KEYS],
    ]


def _attended(a: Any) -> Any:
    made = jax.nn.dot_product_attention(a, a, a)
    # JAX's scores are of 32 bits, even those of arguments of 64.
    return made.astype(jnp.float32) if made.dtype == jnp.float64 else made


_KEYS = ("threefry2x32", "rbg", "unsafe_rbg")


def _drawn(impl: str, a: Any) -> Any:
    """Random numbers of several distributions."""
    keys = jax.random.split(jax.random.key(42, impl=impl), 7)
    return (
        jax.random.normal(keys[0], a.shape, a.dtype),
        jax.random.gamma(keys[1], 1.7, a.shape, a.dtype),
        jax.random.randint(keys[2], a.shape, -5, 1000),
        jax.random.permutation(keys[3], 20),
        jax.random.categorical(keys[4], a),
        jax.random.bits(keys[5], (7,), jnp.uint8),
        jax.random.key_data(jax.random.fold_in(keys[6], 3)),
    )


def flow() -> list[Row]:
    """Loops and branches."""
    return [
        _row("while", WIDE, jax.vmap(partial(lax.while_loop, lambda c: c < 9, _grow)), (5,)),
        _row("fori", WIDE, lambda a: lax.fori_loop(0, a.size, lambda i, c: c * 0.9 + i, a)),
        _row("scan", WIDE, lambda a: lax.scan(lambda c, x: (c + x, c * x), a[0], a, reverse=True)),
        _row("grad of scan", WIDE, jax.grad(_scanned)),
        _row("switch", REALS, jax.vmap(_switched), (5,)),
        _row("cond", WIDE, lambda a: lax.cond(a.sum() > 0, jnp.sin, jnp.cos, a)),
        _row("map", WIDE, lambda a: lax.map(lambda x: jnp.outer(x, x), a, batch_size=3)),
        _row("hessian", WIDE, jax.hessian(lambda a: jnp.sum(jnp.sin(a) * a[0])), (4,)),
    ]


def _grow(carry: Any) -> Any:
    return jnp.abs(carry) * 1.5 + 0.3


def _scanned(a: Any) -> Any:
    return lax.scan(lambda c, x: (jnp.sin(c + x), c), a[0], a)[1].sum()


def _switched(x: Any) -> Any:
    branches = (lambda y: y, lambda y: y + y, lambda y: y * y)
    return lax.switch(x.astype(jnp.int32), branches, x)
