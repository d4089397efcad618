"""Programs at the edges: odd sizes, every dtype, empty and strided arrays, loops, scatters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

Case = tuple[Callable[..., Any], tuple[Any, ...]]
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
COMPLEX = ("complex64", "complex128")
SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-4, 65504.0, 1e30, -2.5, 0.5, 1.5, 3.0]


def array(shape: Any, dtype: str = "float32", seed: int = 0) -> Any:
    """Random elements of every type."""
    rng = np.random.default_rng(seed + sum(map(ord, dtype)) + len(shape))
    if dtype == "bool":
        return rng.random(shape) < 0.5
    if dtype in INTEGERS:
        bounds = np.iinfo(dtype)
        return rng.integers(bounds.min, bounds.max, shape, dtype, endpoint=True)
    if dtype in COMPLEX:
        return (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
    kind = getattr(ml_dtypes, dtype) if dtype == "bfloat16" else dtype
    return rng.standard_normal(shape).astype(kind)


def small(most: int, *shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(0, most, shape).astype("int32")


def chain(x: Any, y: Any) -> Any:
    made = jnp.where(x > y, x * y, x - y) + jnp.maximum(x, y) * 2 - jnp.minimum(x, 1)
    return made, jnp.abs(x), jnp.sign(x), x == y, x**2, -x


def integer_ops(x: Any, y: Any) -> Any:
    amount = y & 15
    return (
        lax.div(x, y),
        lax.rem(x, y),
        x // y,
        x % y,
        x & y,
        x | y,
        x ^ y,
        ~x,
        lax.shift_left(x, y),
        lax.shift_right_logical(x, y),
        lax.shift_right_arithmetic(x, y),
        lax.shift_left(x, amount),
        lax.population_count(x),
        lax.clz(x),
        x * y,
        x > y,
    )


def complex_ops(x: Any, y: Any) -> Any:
    made = x * y + jnp.conj(x) / (y + 2) - jnp.exp(x * 0.5)
    return made, jnp.abs(x), jnp.angle(x), x.real, y.imag, made.sum(0), x == y, jnp.sqrt(x), x**3


def reductions(x: Any) -> Any:
    wide = x.dtype in (np.bool_,)
    every = [x.max(0), x.min(1), jnp.argmax(x, 0), jnp.argmin(x, 1), x.max(), x.any(0), x.all(1)]
    return every if wide else [*every, x.sum(0), x.sum(1), x.sum(), x[:3, :5].prod(1)]


def functions(x: Any) -> Any:
    positive = jnp.abs(x)
    return (
        jnp.exp(x),
        jnp.log(positive),
        jnp.log1p(positive),
        jnp.expm1(x),
        jnp.tanh(x),
        jnp.sin(x),
        jnp.cos(x),
        jnp.tan(x),
        jnp.arctan(x),
        jnp.arctan2(x, x[::-1]),
        jnp.sqrt(positive),
        lax.rsqrt(positive),
        jnp.cbrt(x),
        jax.nn.sigmoid(x),
        lax.erf(x),
        jnp.floor(x),
        jnp.ceil(x),
        jnp.round(x),
        jnp.trunc(x),
        x / 3,
        1 / x,
        jnp.power(positive, x),
        jnp.sinh(x),
        jnp.cosh(x),
        jnp.isnan(x),
        jnp.isfinite(x),
        jnp.maximum(x, x[::-1]),
        jnp.minimum(x, 0),
        x % 1.5,
        jnp.nextafter(x, x[::-1]) if x.dtype in (np.float32, np.float64) else x,
        jax.nn.gelu(x),
        jax.nn.silu(x),
        jax.nn.softplus(x),
        jnp.hypot(x, x + 1),
        jnp.exp2(x),
    )


def special_functions(x: Any) -> Any:
    positive = jnp.abs(x) + 0.1
    return (
        lax.lgamma(positive),
        lax.digamma(positive),
        lax.erf_inv(jnp.clip(x, -0.9, 0.9)),
        lax.erfc(x),
        jnp.arcsinh(x),
        jnp.arctanh(jnp.clip(x, -0.9, 0.9)),
        jnp.arccosh(positive + 1),
        jnp.arcsin(jnp.clip(x, -1, 1)),
        jnp.arccos(jnp.clip(x, -1, 1)),
        lax.igamma(positive, positive),
        lax.bessel_i1e(x),
        jnp.logaddexp(x, x[::-1]),
        jnp.sinc(x),
        lax.igammac(positive, positive),
    )


def rows(x: Any) -> Any:
    wide = x.astype(jnp.float32)
    normalized = jax.nn.softmax(x), jax.nn.log_softmax(x), jax.nn.logsumexp(x, -1)
    return *normalized, wide.mean(-1), wide.var(-1)


def moved(x: Any) -> Any:
    return (
        x.T,
        x[::-1, ::2],
        jnp.roll(x, 3, 1),
        jnp.concatenate([x, x[:, :1]], 1),
        x[1:-1, 2:9:3],
        lax.pad(x, x.dtype.type(1), ((1, 0, 2), (0, -1, 0))),
        jnp.tile(x, (1, 2)),
        jnp.flip(x),
        x.reshape(-1)[5:],
        jnp.stack([x, x], 1),
        jnp.repeat(x, 2, 0),
        jnp.triu(x),
        jnp.rot90(x),
    )


def indexed(x: Any, t: Any) -> Any:
    return (
        x[t],
        x.at[t].get(mode="fill", fill_value=7),
        jnp.take(x, t, 1, mode="wrap"),
        jnp.take(x, t, 1, mode="clip"),
        x[t, t],
        jnp.take_along_axis(x, t[:, None] % 5, 1),
        lax.dynamic_slice(x, (t[0], t[1]), (2, 3)),
        x[:, t[2]],
        lax.dynamic_update_slice(x, x[2:4, 3:6], (t[3], t[0])),
        x[t[None] % 3, t[:, None] % 3],
    )


def scattered(x: Any, t: Any, u: Any) -> Any:
    at = x.at[t]
    return (
        at.add(u),
        at.set(u[0]),
        at.max(u),
        at.min(u),
        at.mul(u),
        x.at[:, t].add(u.T[: x.shape[0]]),
        x.at[t, t].add(u[:, 0]),
        at.add(u, mode="drop"),
        x.at[2:4, 1:3].set(0),
        x.at[t[0]].add(1),
    )


def sorted_(x: Any) -> Any:
    return (
        jnp.sort(x, 0),
        jnp.argsort(x, 1),
        lax.top_k(x, 3),
        jnp.cumsum(x, 1),
        jnp.cumprod(x[:, :4], 1),
        lax.cummax(x, 0),
        jnp.searchsorted(jnp.sort(x[0]), x[1]),
        lax.sort((x, x * 2), num_keys=1),
        jnp.median(x, 1),
        jnp.unique(x[0].round(), size=4),
    )


def loops(x: Any, n: Any) -> Any:
    def branch(i: Any, y: Any) -> Any:
        return lax.switch(i % 4, [jnp.sin, lambda y: y + 1, lambda y: y * 0.5, jnp.flip], y)

    def collatz(state: Any) -> Any:
        value, count = state
        return lax.cond(value % 2 == 0, lambda v: v // 2, lambda v: 3 * v + 1, value), count + 1

    counted = lax.while_loop(lambda s: s[0] > 1, collatz, (n, 0))[1]
    carried, each = lax.scan(lambda c, r: (c * 0.9 + r, c.sum()), x[0], x)
    nested = lax.fori_loop(0, 3, lambda i, y: lax.fori_loop(0, i, lambda j, z: z + j * i, y), x)
    data = lax.while_loop(lambda y: jnp.abs(y).sum() > 1, lambda y: y * 0.5, x)
    none = lax.while_loop(lambda y: jnp.all(y > 1e9), lambda y: y + 1, x)
    return lax.fori_loop(0, 6, branch, x), counted, carried, each, nested, data, none, carried.max()


def mapped_loop(x: Any) -> Any:
    """A loop whose count differs by element."""
    return jax.vmap(
        lambda v: lax.while_loop(lambda s: s[0] < 9, lambda s: (s[0] * 1.5 + 1, s[1] + 1), (v, 0))
    )(x)


def randoms(key: Any) -> Any:
    one, two = jax.random.split(key)
    return (
        jax.random.normal(one, (33, 7)),
        jax.random.uniform(two, (5,)),
        jax.random.bits(one, (9,)),
        jax.random.permutation(two, 11),
        jax.random.categorical(one, jnp.arange(30.0).reshape(3, 10)),
        jax.random.bernoulli(one, 0.3, (17,)),
        jax.random.randint(two, (6,), -5, 100),
        jax.random.gamma(one, 2.0, (5,)),
        jax.random.truncated_normal(two, -1, 1, (4,)),
        jax.random.choice(one, 10, (4,), replace=False),
        jax.random.gumbel(two, (3,)),
    )


def products(x: Any, w: Any) -> Any:
    return x @ w, x.T @ x, jnp.einsum("ij,kj->ki", x, x), x[0] @ w, (x[None] @ w[None])[0] * 2


def attention(q: Any, k: Any, v: Any, mask: Any = None, causal: bool = False) -> Any:
    """By its definition: JAX's own takes no f16 on CPUs."""
    wide = jnp.float64 if q.dtype == jnp.float64 else jnp.float32
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], 2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q.astype(wide), k.astype(wide)) * q.shape[-1] ** -0.5
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(q.dtype), v)


def convolution(x: Any, w: Any, **options: Any) -> Any:
    strides = options.pop("window_strides", (1,) * (x.ndim - 2))
    return lax.conv_general_dilated(x, w, strides, options.pop("padding", "SAME"), **options)


def slopes(function: Callable[..., Any], *given: Any) -> Any:
    def loss(*values: Any) -> Any:
        return (function(*values).astype(jnp.float32) ** 2).sum()

    return jax.grad(loss, tuple(range(len(given))))(*given)


def cross_entropy(x: Any, t: Any) -> Any:
    logs = jax.nn.log_softmax(x.astype(jnp.float32))
    return -jnp.take_along_axis(logs, t[:, None], 1).mean()


def norm(x: Any, w: Any) -> Any:
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype) * w


def cases() -> Iterator[tuple[str, Case]]:
    """Every case by name."""
    for kind in FLOATS:
        x = array((6, 17), kind)
        yield f"functions of {kind}", (functions, (x,))
        special = np.asarray([v for v in SPECIAL if kind != "float16" or v != 1e30]).astype(x.dtype)
        yield f"special values of {kind}", (functions, (special,))
        yield f"rows of {kind}", (rows, (x,))
        yield (
            f"attention of {kind}",
            (attention, tuple(array((1, 5, 2, 24), kind, n) for n in (0, 1, 2))),
        )
        yield (
            f"convolution of {kind}",
            (convolution, (array((1, 3, 7, 5), kind), array((5, 3, 3, 3), kind))),
        )
        yield f"sorted of {kind}", (sorted_, (x,))
        if kind in ("float32", "float64"):
            yield f"special functions of {kind}", (special_functions, (x,))
            yield f"loops of {kind}", (loops, (x, np.int32(27)))
    for kind in (*FLOATS, *INTEGERS, *COMPLEX, "bool"):
        x, y = array((6, 17), kind), array((6, 17), kind, 1)
        if kind not in ("bool", *COMPLEX):
            yield f"chain of {kind}", (chain, (x, y))
            yield (
                f"empty {kind}",
                (lambda x: (x.sum(0), x * 2, x.T, x.sum()), (array((0, 3), kind),)),
            )
            yield (
                f"scattered {kind}",
                (scattered, (x, np.array([5, 1, 1, 5, 0, 99]), array((6, 17), kind, 2))),
            )
        if kind in INTEGERS:
            zero = y.copy()
            zero[:, ::5] = 0
            yield f"integers of {kind}", (integer_ops, (x, zero))
        if kind in COMPLEX:
            yield f"complex of {kind}", (complex_ops, (x, y))
        else:
            yield f"reductions of {kind}", (reductions, (x,))
        yield f"moved {kind}", (moved, (x,))
        yield f"indexed {kind}", (indexed, (x, np.array([5, -1, 1, 99, 0, 3])))
        yield f"products of {kind}", (products, (x, array((17, 9), kind)))
        for other in (
            "float16",
            "bfloat16",
            "float32",
            "int8",
            "uint16",
            "int64",
            "bool",
            "complex64",
        ):
            if kind in COMPLEX and other != "complex64":
                continue
            # Negative floats as unsigned integers are the implementation's choice.
            safe = x if kind in (*INTEGERS, *COMPLEX, "bool") else np.abs(x) * 9
            yield f"{kind} to {other}", (lambda x, o=other: x.astype(o), (safe,))
    yield from shapes()
    yield from networks()


def shapes() -> Iterator[tuple[str, Case]]:
    for shape in (
        (),
        (1,),
        (1, 1),
        (7, 1),
        (1, 7),
        (1, 32001),
        (3, 5, 1, 1, 2, 1, 3),
        (2, 1, 1031),
        (5000,),
    ):
        x = array(shape)
        yield f"chain of {shape}", (chain, (x, array(shape, seed=1)))
        if shape:
            yield f"rows of {shape}", (rows, (x,))
            yield (
                f"sums of {shape}",
                (
                    lambda x: (
                        [x.sum(d) for d in range(x.ndim)] + [x.max(), x.mean(), (x * x).sum()]
                    ),
                    (x,),
                ),
            )
    yield "broadcast", (lambda x, y, z: x + y * z, (array((5, 1, 7)), array((3, 1)), array(())))
    yield "vocabulary", (cross_entropy, (array((3, 32001), "bfloat16"), small(32001, 3)))
    yield (
        "vocabulary, gradient",
        (
            lambda x, t: jax.grad(lambda x: cross_entropy(x, t))(x),
            (array((3, 32001)), small(32001, 3)),
        ),
    )
    yield (
        "vocabulary, product",
        (
            lambda x, w, t: cross_entropy(x @ w, t),
            (array((3, 17)), array((17, 32001)), small(32001, 3)),
        ),
    )
    yield "norm, odd", (norm, (array((1, 1, 999), "bfloat16"), array((999,), "bfloat16")))
    yield "norm, odd, gradient", (partial(slopes, norm), (array((3, 999)), array((999,))))
    ends = [88.7, 88.73, 88.8, 90, 127, 128, 200, 1e30, np.inf, np.nan, 0, -88, -103, -104, -1e30]
    yield (
        "ends of exponentials",
        (
            lambda x: (jnp.exp(x), jax.nn.sigmoid(x), jnp.exp(-x)),
            (np.array([*ends, -np.inf], "f"),),
        ),
    )
    yield (
        "ends of divisors",
        (
            lambda x: x / x.sum(1, keepdims=True),
            (np.array([[x, y] for x in (3, 0, -1e-30, np.inf) for y in (0, 1, -3, 1e30)], "f"),),
        ),
    )
    yield "very long row", (rows, (array((1, 140003)),))
    yield "long columns", (lambda x: (x.sum(0), x.max(0), jnp.argmax(x, 0)), (array((20011, 3)),))
    yield "all of nothing", (lambda x: (x.any(), x.all(), x.sum()), (array((0,), "bool"),))
    yield "product of nothing", (lambda x, y: x @ y + 1, (array((3, 0)), array((0, 4))))
    yield "no rows", (lambda x, y: jax.nn.softmax(x @ y), (array((0, 3)), array((3, 4))))
    yield (
        "concatenated nothing",
        (lambda x, y: jnp.concatenate([x, y, x]), (array((0, 3)), array((2, 3)))),
    )
    special = np.tile(np.asarray(SPECIAL, "f"), (3, 1))
    yield "rows of special values", (rows, (special,))
    yield (
        "sorted special values",
        (lambda x: (jnp.sort(x), jnp.argsort(-x), lax.top_k(x, 2)), (special,)),
    )
    yield (
        "reductions of special values",
        (lambda x: (x.max(1), x.min(1), jnp.argmax(x, 1), jnp.argmin(x, 1), x.sum(1)), (special,)),
    )
    yield (
        "rows of minus infinity",
        (lambda x: (jax.nn.softmax(x), jax.nn.logsumexp(x, 1)), (np.full((2, 9), -np.inf, "f"),)),
    )
    yield (
        "float to integers",
        (
            lambda x: (x.astype("int32"), x.astype("int8"), x.astype("uint8")),
            (array((50,)) * 100 % 100,),
        ),
    )
    yield "mapped loop", (mapped_loop, (np.abs(array((9,))),))
    yield "random", (randoms, (jax.random.key_data(jax.random.key(3)),))
    x = np.asfortranarray(array((6, 9)))
    yield (
        "strided",
        (lambda x, y, z: x * 2 + y + z, (x, array((9, 6)).T, array((12, 18))[::-2, ::2])),
    )
    yield (
        "broadcast memory",
        (lambda x, y: x + y, (np.broadcast_to(array((9,)), (6, 9)), array((7, 9))[1:])),
    )
    yield "unaligned", (lambda x, y: x * 2 + y, (array((65,))[1:], array((67,))[3:]))


def networks() -> Iterator[tuple[str, Case]]:
    def heads(b: int, s: int, h: int, d: int, kind: str = "float32", seed: int = 0) -> Any:
        return array((b, s, h, d), kind, seed)

    for depth in (8, 40, 72, 80, 96, 112, 160, 192, 256):
        q, k, v = (heads(1, 19, 2, depth, "bfloat16", n) for n in range(3))
        yield f"attention, depth {depth}", (partial(attention, causal=True), (q, k, v))
    q, k, v = (heads(1, 13, 4, 96, seed=n) for n in range(3))
    yield "attention, gradient", (partial(slopes, partial(attention, causal=True)), (q, k, v))
    yield "attention, grouped", (attention, (q, k[:, :, :2], v[:, :, :2]))
    yield "attention, one query", (attention, (q[:, :1], k, v))
    mask = array((1, 1, 13, 13), "bool")
    yield "attention, masked", (attention, (q, k, v, mask))
    yield "attention, values of other depth", (attention, (q, k, v))
    x, w = array((1, 3, 9, 7)), array((6, 3, 3, 3))
    for name, options in {
        "strides": {"window_strides": (2, 3)},
        "dilated": {"rhs_dilation": (2, 2), "padding": "VALID"},
        "uneven pads": {"padding": ((0, 2), (1, 0))},
        "negative pads": {"padding": ((-1, 2), (1, -1))},
        "transposed": {"lhs_dilation": (2, 2), "padding": ((1, 2), (2, 1))},
    }.items():
        run = partial(convolution, **options)
        yield f"convolution, {name}", (run, (x, w))
        yield f"convolution, {name}, gradient", (partial(slopes, run), (x, w))
        yield f"convolution, {name}, half", (run, (x.astype("float16"), w.astype("float16")))
    grouped = partial(convolution, feature_group_count=3)
    yield "convolution, depthwise", (grouped, (x, array((6, 1, 3, 3))))
    yield "convolution, depthwise, gradient", (partial(slopes, grouped), (x, array((6, 1, 3, 3))))
    yield "convolution, 1 dim", (convolution, (array((2, 5, 19)), array((7, 5, 4))))
    yield "convolution, 3 dims", (convolution, (array((1, 2, 5, 4, 3)), array((3, 2, 2, 3, 1))))
    channels = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}
    yield (
        "convolution, channels last",
        (
            partial(convolution, **channels),
            (array((2, 5, 5, 33), "bfloat16"), array((3, 3, 33, 17), "bfloat16")),
        ),
    )
    yield (
        "pools",
        (
            lambda x: (
                lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 2), (1, 1, 2, 2), "SAME"),
                lax.reduce_window(x, 0.0, lax.add, (1, 1, 5, 5), (1, 1, 1, 1), "VALID"),
            ),
            (x,),
        ),
    )
    yield (
        "linear algebra",
        (
            lambda x: (
                jnp.linalg.cholesky(x @ x.T + 9 * jnp.eye(6)),
                jnp.linalg.solve(x @ x.T + 9 * jnp.eye(6), x),
                jnp.linalg.det(x @ x.T + jnp.eye(6)),
                jnp.linalg.inv(x @ x.T + 9 * jnp.eye(6)),
            ),
            (array((6, 6)),),
        ),
    )
    yield (
        "fourier",
        (
            lambda x: (jnp.fft.fft(x), jnp.fft.irfft(jnp.fft.rfft(x)), jnp.fft.fft2(x)),
            (array((6, 10)),),
        ),
    )


CASES: dict[str, Case] = dict(cases())
