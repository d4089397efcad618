"""Functions of JAX whose kernels the tests run, on odd shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

RNG = np.random.default_rng(7)


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("f")


def b(*shape: int) -> Any:
    return jnp.asarray(f(*shape)).astype(jnp.bfloat16)


def i(most: int, *shape: int) -> Any:
    return RNG.integers(0, most, shape).astype("i")


def rms_norm(x, w):
    wide = x.astype(jnp.float32)
    scaled = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    return scaled.astype(x.dtype) * w


def layer_norm(x, w, c):
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return scaled.astype(x.dtype) * w + c


def cross_entropy(x, t):
    logs = jax.nn.log_softmax(x.astype(jnp.float32))
    return -jnp.take_along_axis(logs, t[:, None], 1).mean()


def rotary(x, cos, sin):
    one, other = jnp.split(x, 2, -1)
    return jnp.concatenate([one * cos - other * sin, other * cos + one * sin], -1)


def integers(x, y):
    return (x // y) % 3 + jnp.where(x > y, x << 2, y >> 1)


def functions(x):
    made = jnp.tanh(x) + jnp.log1p(jnp.abs(x)) + jax.nn.sigmoid(x) + jnp.sin(x) + jnp.round(x)
    made += jnp.sign(x) + jax.scipy.special.erf(x) + x.astype(int) + jnp.exp(x)
    return made + jnp.sqrt(jnp.abs(x)) + jnp.maximum(x, 2) / 3


# Name: function, arguments, the schedules of its kernels.
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], set[str]]] = {
    "softmax": (jax.nn.softmax, (f(5, 301),), {"rows"}),
    "rms_norm": (rms_norm, (b(6, 130), b(130)), {"rows"}),
    "rms_norm, long": (lambda x: rms_norm(x, x[0]), (f(2, 4100),), {"rows"}),
    "gradients": (
        lambda x, w: jax.grad(lambda x, w: (rms_norm(x, w) ** 2).sum(), (0, 1))(x, w),
        (f(7, 65), f(65)),
        {"rows"},
    ),
    "gradients, columns beside rows": (
        lambda x, w, g: jax.vjp(rms_norm, x, w)[1](g),
        (f(1030, 37), f(37), f(1030, 37)),
        {"crossed"},
    ),
    "gradients, tiles of rows": (
        lambda x, w, c, g: jax.vjp(layer_norm, x, w, c)[1](g),
        (b(2121, 24), b(24), b(24), b(2121, 24)),
        {"crossed"},
    ),
    "a power for all points": (
        lambda x, y, s, t: (x @ y) * 0.99 ** (s + 1) + jnp.exp(x[0, 0] ** t),
        (f(260, 9), f(9, 257), f(), abs(f())),
        {"library"},
    ),
    "cross-entropy": (cross_entropy, (f(6, 77), i(77, 6)), {"rows"}),
    "product, bias, gelu": (
        lambda x, w, c: jax.nn.gelu(x @ w + c),
        (b(33, 70), b(70, 40), b(40)),
        {"library"},
    ),
    "product, bias, sum, relu": (
        lambda x, w, c, y: jax.nn.relu(x @ w + c + y),
        (b(33, 72), b(72, 40), b(40), b(33, 40)),
        {"library"},
    ),
    "product, wide bias": (
        lambda x, w, c: (jnp.matmul(x, w, preferred_element_type="f4") + c).astype(x.dtype),
        (b(2, 33, 72), b(72, 40), b(40)),
        {"library"},
    ),
    "product of f16, bias": (
        lambda x, w, c: jnp.matmul(x, w.T) + c,
        tuple(x.astype("f2") for x in (f(33, 72), f(40, 72), f(40))),
        {"library"},
    ),
    "product of tf32": (
        lambda x, w: jnp.matmul(x, w, precision="high") + 1,
        (f(33, 70), f(70, 40)),
        {"library"},
    ),
    "tiles of tf32": (
        lambda x, w: jnp.matmul(jnp.tril(x), w, precision="tensorfloat32"),
        (f(20, 70), f(70, 36)),
        {"library"},
    ),
    "bytes, a short sum": (lambda x: x.T @ x, (i(256, 6, 17).astype("i1"),), {"matrix"}),
    "computed side": (lambda x, w: (x * 2 + 1) @ w, (b(20, 70), b(70, 36)), {"library"}),
    "triangular side": (
        lambda w: jnp.tril(jnp.ones((20, 70), jnp.bfloat16)) @ w,
        (b(70, 36),),
        {"matrix"},
    ),
    "heads": (
        lambda x, w: jnp.einsum("bhqd,bkhd->bhqk", x, w),
        (f(2, 3, 9, 8), f(2, 7, 3, 8)),
        {"library"},
    ),
    "vector": (lambda x, w: x @ w, (f(1, 300), f(300, 40)), {"rows"}),
    "convolution": (
        lambda x, w: jax.lax.conv(x, w, (1, 1), "SAME"),
        (f(2, 3, 6, 6), f(4, 3, 3, 3)),
        {"matrix"},
    ),
    "columns": (lambda x: x.sum(0), (f(33, 65),), {"rows"}),
    "in parts": (lambda x: (x * x).sum(), (f(90, 67),), {"rows"}),
    "loss and its slopes": (
        lambda x, y: ((x - y) * 2, ((x - y) ** 2).mean()),
        (f(90, 67), f(90, 67)),
        {"rows"},
    ),
    "transposed": (lambda x: x.T + 1, (f(20, 70),), {"points"}),
    "rotary": (rotary, (f(2, 5, 3, 16), f(5, 1, 8), f(5, 1, 8)), {"points"}),
    "padded": (lambda x: jnp.pad(x, ((0, 0), (1, 2))) * 2, (f(5, 17),), {"points"}),
    "gathered": (lambda x, t: x[t] * 2, (f(9, 33), i(9, 5)), {"points"}),
    "largest": (lambda x: jnp.argmax(x, 1), (f(6, 301).round(),), {"rows"}),
    "largest, long": (lambda x: jnp.argmax(x, 1), (f(3, 5001).round(),), {"rows"}),
    "least of a constant": (lambda x: jnp.argmin(x * 0 + jnp.inf, 1), (f(2, 4500),), {"rows"}),
    "gated unit, gradient": (
        lambda x, y, g: jax.vjp(lambda x, y: jax.nn.silu(x) * y, x, y)[1](g),
        (f(33, 70), f(33, 70), f(33, 70)),
        {"points"},
    ),
    "cross-entropy, gradient": (
        lambda x, t: jax.grad(lambda x: cross_entropy(x, t))(x),
        (f(6, 77), i(90, 6) - 5),
        {"rows"},
    ),
    "guarded scalar": (
        lambda x, s: jnp.concatenate([x, jnp.broadcast_to(s, (5, 3))], 1) * 2,
        (f(5, 17), f()),
        {"points"},
    ),
    "three pieces": (
        lambda x, y: jnp.concatenate([x * 2, y + x, x * y], 1),
        (f(5, 24), f(5, 24)),
        {"points"},
    ),
    "power of a scalar": (lambda x: jnp.power(x, x + 1) * 2, (abs(f()),), {"points"}),
    "integers": (integers, (i(9, 64) - 4, i(9, 64) - 4), {"points"}),
    "any": (lambda x: (x > 2).any(1), (f(6, 70),), {"rows"}),
    "functions": (functions, (f(200) * 3,), {"points"}),
    "narrow": (
        lambda x: (x.astype(jnp.float16) * 3.3 + 1) * x.astype(jnp.float16),
        (f(200),),
        {"points"},
    ),
}
# Triton's interpreter does not round to 8 bits as GPUs do.
ON_GPU = {
    "fp8": (
        lambda x: (x * 200).astype(jnp.float8_e4m3fn).astype(jnp.float32),
        (f(200),),
        {"points"},
    ),
}
