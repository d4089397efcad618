"""Functions as people write them in JAX, small enough to be evaluated in numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax import lax

Case = tuple[Callable[..., Any], tuple[Any, ...]]
_random = np.random.default_rng(0)


def normal(*shape: int, dtype: Any = np.float32) -> Any:
    return _random.standard_normal(shape).astype(dtype)


def integers(*shape: int, high: int = 8) -> Any:
    return _random.integers(0, high, shape).astype(np.int32)


def positive(size: int) -> Any:
    """A symmetric matrix whose eigenvalues are positive and apart."""
    basis, _ = np.linalg.qr(_random.standard_normal((size, size)))
    return (basis @ np.diag(1.0 + np.arange(size)) @ basis.T).astype(np.float32)


@jax.custom_vjp
def clipped(x: Any) -> Any:
    return jnp.clip(x, -1, 1)


clipped.defvjp(lambda x: (clipped(x), None), lambda _, g: (jnp.clip(g, -0.1, 0.1),))


def newton(x: Any) -> Any:
    def better(state: Any) -> Any:
        guess, _ = state
        return (guess + x / guess) / 2, guess

    return lax.while_loop(lambda s: jnp.abs(s[0] - s[1]) > 1e-3, better, (x, 0.0 * x))[0]


def branches(n: Any, x: Any) -> Any:
    small = lax.cond(x.sum() > 0, jnp.sin, lambda v: v * 2, x)
    return lax.switch(n, [lambda v: v + 1, lambda v: v * v, jnp.cos], small)


def recurrence(w: Any, xs: Any) -> Any:
    return lax.scan(lambda s, x: (jnp.tanh(s @ w + x), s.sum()), jnp.zeros(4), xs)


def embedding_loss(table: Any, tokens: Any) -> Any:
    x = jax.nn.softmax(table[tokens] @ table.T)
    return -jnp.log(jnp.take_along_axis(x, tokens[:, None], 1)).mean()


def tree(values: Any, scale: Any) -> Any:
    return {"a": values["x"] * scale, "b": [values["y"][0] + 1, None], "c": (scale,)}


CASES: dict[str, Case] = {
    "elementwise": (lambda x, y: jnp.tanh(x) * y + jnp.exp(-jnp.abs(x)), (normal(3, 4), normal(4))),
    "matmul": (lambda x, y: jnp.einsum("bij,bjk->bik", x, y), (normal(2, 3, 4), normal(2, 4, 5))),
    "reductions": (
        lambda x: (x.sum(0), x.max(1), jnp.argmin(x), jnp.prod(x), jnp.any(x > 2)),
        (normal(3, 4),),
    ),
    "scan": (recurrence, (normal(4, 4), normal(5, 4))),
    "grad of scan": (
        jax.grad(lambda w, xs: recurrence(w, xs)[0].sum()),
        (normal(4, 4), normal(5, 4)),
    ),
    "while": (newton, (np.float32(9.0),)),
    "fori": (
        lambda x: lax.fori_loop(0, 5, lambda i, v: v.at[i].add(i * 1.0), x),
        (normal(6),),
    ),
    "cond and switch": (branches, (np.int32(1), normal(5))),
    "vmap of cond": (jax.vmap(branches, (0, 0)), (np.array([0, 1, 2], np.int32), normal(3, 5))),
    "value and grad": (jax.value_and_grad(embedding_loss), (normal(8, 4), integers(6))),
    "jacobian": (jax.jacobian(lambda x: jnp.sin(x) * x.sum()), (normal(3),)),
    "custom vjp": (jax.grad(lambda x: (clipped(x) * 3).sum()), (normal(5),)),
    "remat": (jax.grad(jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)).sum())), (normal(5),)),
    "convolution": (
        lambda x, k: lax.conv_general_dilated(x, k, (1, 2), "SAME"),
        (normal(1, 2, 6, 6), normal(3, 2, 3, 3)),
    ),
    "pooling": (
        jax.grad(lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (2,), (2,), "VALID").sum()),
        (normal(8),),
    ),
    "indexing": (
        lambda x, i: (x[i], x.at[i].set(0.0), x[1:3, ::2], lax.dynamic_slice(x, (1, 1), (2, 2))),
        (normal(6, 4), integers(3, high=6)),
    ),
    "sort": (lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1), lax.top_k(x, 2)), (normal(4, 5),)),
    "cumulative": (
        lambda x: (jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(x, 0), lax.cumlogsumexp(x)),
        (normal(3, 4),),
    ),
    "fft": (
        lambda x: (jnp.fft.rfft(x), jnp.fft.ifft2(x), jnp.fft.irfft(jnp.fft.rfft(x))),
        (normal(4, 8),),
    ),
    "integers": (
        lambda a, b: (a // (b + 1), a % (b + 1), a & b, a << 2, lax.population_count(a), ~a),
        (integers(6), integers(6)),
    ),
    "special functions": (
        lambda x: (
            lax.erf(x),
            lax.lgamma(x + 3),
            lax.digamma(x + 3),
            jax.nn.gelu(x),
            lax.erf_inv(x / 9),
        ),
        (normal(6),),
    ),
    "approximate top k": (lambda x: lax.approx_max_k(x, 3), (normal(2, 16),)),
    "approximate minimum": (
        lambda x: lax.approx_min_k(x, 3, reduction_dimension=0),
        (normal(16, 2),),
    ),
    "ragged dot": (
        lambda x, w, sizes: lax.ragged_dot(x, w, sizes),
        (normal(6, 4), normal(2, 4, 3), np.array([2, 4], np.int32)),
    ),
    "pytrees": (tree, ({"x": normal(2), "y": [normal(2), None]}, 3)),
    "weak types": (lambda x, s: (x * s, s + 1, x + 1.5), (np.float16(2), 3)),
    "bf16": (
        lambda x, y: (x @ y, jax.nn.softmax(x), x.sum()),
        (normal(4, 4, dtype=ml_dtypes.bfloat16), normal(4, 4, dtype=ml_dtypes.bfloat16)),
    ),
    "fp8": (
        lambda x, y: (x.astype(jnp.float8_e4m3fn), jnp.dot(x, y, preferred_element_type="float32")),
        (normal(4, 4, dtype=ml_dtypes.float8_e4m3fn), normal(4, 4, dtype=ml_dtypes.float8_e4m3fn)),
    ),
    "constants": (lambda x: x + np.arange(4, dtype=np.float32) + jnp.ones(4), (normal(4),)),
    "no arguments": (lambda: jnp.arange(3) * 2, ()),
    "an argument unused": (lambda x, y: x, (normal(2), normal(3))),
}

RANDOM: dict[str, Case] = {
    "normal": (lambda k: jax.random.normal(k, (3, 4)), (jax.random.key(1),)),
    "split": (lambda k: jax.random.split(k, 3), (jax.random.key(1),)),
    "raw key": (
        lambda k: jax.random.uniform(jax.random.fold_in(k, 7), (5,)),
        (jax.random.PRNGKey(3),),
    ),
    "integers": (lambda k: jax.random.randint(k, (5,), 0, 100), (jax.random.key(2),)),
    "permutation": (lambda k: jax.random.permutation(k, 8), (jax.random.key(2),)),
    "categorical": (lambda k, x: jax.random.categorical(k, x), (jax.random.key(4), normal(3, 5))),
    "gamma": (lambda k: jax.random.gamma(k, 2.0, (4,)), (jax.random.key(5),)),
}
