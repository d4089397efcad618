"""What becomes one kernel, and that kernels compute what their nodes do."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tile.stepping import check
from weft.ops.shape import Constant


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def layer_norm(x, gain, bias):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gain + bias


def rms_norm(x, gain):
    return x * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-5) * gain


def rotary(x, cos, sin):
    first, second = jnp.split(x, 2, -1)
    return x * cos + jnp.concatenate([-second, first], -1) * sin


def swiglu(x, gate, up):
    return jax.nn.silu(x @ gate) * (x @ up)


ONE_KERNEL = {
    "bias_gelu_residual": (lambda x, b, y: jax.nn.gelu(x + b) + y, [(6, 8), (8,), (6, 8)]),
    "softmax": (jax.nn.softmax, [(20, 8)]),
    "log_softmax": (jax.nn.log_softmax, [(20, 8)]),
    "layer_norm": (layer_norm, [(20, 8), (8,), (8,)]),
    "rms_norm": (rms_norm, [(20, 8), (8,)]),
    "rotary": (rotary, [(4, 6, 8), (6, 8), (6, 8)]),
    "rotary by halves": (
        lambda x, c, s: jnp.concatenate(
            [x[..., :4] * c - x[..., 4:] * s, x[..., 4:] * c + x[..., :4] * s], -1
        ),
        [(4, 6, 8), (6, 4), (6, 4)],
    ),
    "transposed": (lambda x, y: x.T + y, [(6, 8), (8, 6)]),
    "sliced and reversed": (lambda x: x[1:5, ::2] * x[::-1][1:5, 1::2], [(6, 8)]),
    "merged and split dims": (lambda x: (x.reshape(48) * 2).reshape(2, 3, 8) + 1, [(6, 8)]),
    "padded": (lambda x: jnp.pad(x, ((1, 2), (0, 3)), constant_values=7.0) * 2, [(6, 8)]),
    "counted": (lambda x: x * jnp.arange(8) + jnp.tril(x), [(8, 8)]),
    "dot with bias, activation, residual": (
        lambda x, w, b, y: jax.nn.gelu(x @ w + b) + y,
        [(6, 8), (8, 10), (10,), (6, 10)],
    ),
    "dot with heads": (
        lambda x, w: (x @ w).reshape(2, 3, 4, 5).transpose(0, 2, 1, 3) * 2,
        [(6, 8), (8, 20)],
    ),
    "batched dot": (lambda x, y: jnp.einsum("bhqd,bhkd->bhqk", x, y) * 0.5, [(2, 3, 4, 5)] * 2),
    "sum of columns": (lambda x: (x * 2).sum(0), [(6, 8)]),
    "sum of everything": (lambda x: (x**2).sum(), [(6, 8)]),
    "sum in the middle": (lambda x: x.sum(1) + 1, [(4, 6, 8)]),
    "sum of dims in another order": (lambda x: (x * 2).sum((2, 0)), [(4, 6, 8)]),
    "softmax of dims in another order": (partial(jax.nn.softmax, axis=(2, 1)), [(20, 3, 8)]),
    "argmax": (lambda x: jnp.argmax(x * 2, -1), [(20, 8)]),
    "argmin of columns": (lambda x: jnp.argmin(x, 0) + 1, [(6, 8)]),
    "convolution with bias and activation": (
        lambda x, w, b: jax.nn.relu(
            jax.lax.conv_general_dilated(x, w, (2, 1), ((1, 1), (0, 2)), rhs_dilation=(1, 2)) + b
        ),
        [(2, 3, 8, 7), (4, 3, 3, 2), (4, 1, 1)],
    ),
    "embedding": (lambda x, i: x[i.astype(int)] * 2, [(6, 8), (3, 5)]),
    "rows by label": (
        lambda x, i: jnp.take_along_axis(x, i.astype(int), 1) + 1,
        [(6, 8), (6, 1)],
    ),
    "dynamic slice": (
        lambda x: jax.lax.dynamic_slice(x, (x[0, 0].astype(int), 1), (2, 3)) * 2,
        [(6, 8)],
    ),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name):
    fn, shapes = ONE_KERNEL[name]
    groups = check(fn, *(normal(*shape, seed=n) for n, shape in enumerate(shapes)))
    by_themselves = [g.nodes[0].op for g in groups if g.kernel is None]
    assert all(isinstance(op, Constant) for op in by_themselves)
    assert len(groups) - len(by_themselves) == 1


SEVERAL = {
    "cross-entropy": (
        lambda x, i: -jnp.take_along_axis(jax.nn.log_softmax(x), i[:, None].astype(int), 1).mean(),
        [(20, 8), (20,)],
        3,
    ),
    "swiglu": (swiglu, [(6, 8), (8, 10), (8, 10)], 2),
    "softmax over rows of a product": (lambda x, y: jax.nn.softmax(x @ y), [(20, 8), (8, 5)], 2),
    "a value that two read": (
        lambda x, y: (jnp.exp(x) @ y, jnp.exp(x).sum(0)),
        [(6, 8), (8, 5)],
        3,
    ),
    "reshape across dims": (lambda x: jnp.exp(x).reshape(8, 3) + x.T.reshape(8, 3), [(6, 4)], 3),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_kernels(name):
    fn, shapes, most = SEVERAL[name]
    groups = check(fn, *(normal(*shape, seed=n) for n, shape in enumerate(shapes)))
    assert sum(g.kernel is not None for g in groups) <= most


def test_cheap_values_are_not_kept_for_the_backward_pass():
    """What gelu saves is what its gradient cannot compute again cheaply."""

    def loss(w, x):
        return jax.nn.gelu(x @ w).sum()

    groups = check(jax.grad(loss), normal(8, 10), normal(6, 8))
    (product, *_) = [g for g in groups if g.kernel and "contract" in g.kernel.name]
    assert len(product.outputs) <= 2


def test_what_several_values_are_made_of_is_kept_alone():
    """x + x^3, of which gelu and its gradient need the tangent, is made of x once more."""

    def loss(w, v, x):
        return ((jax.nn.gelu(x @ w) @ v) ** 2).sum()

    shapes = ((8, 24), (24, 10), (16, 8))
    groups = check(jax.grad(loss, (0, 1)), *(normal(*shape) for shape in shapes), rtol=1e-3)
    large = [v for g in groups for v in g.outputs if v.type.sizes == (16, 24)]
    assert len(large) == 3  # the product, its gelu, and its gradient


@pytest.mark.parametrize(("sums", "kept"), [(2, False), (3, True)])
def test_a_costly_function_is_computed_twice_but_not_more_often(sums, kept):
    def several(x):
        return tuple([jnp.exp(x).sum(axis) for axis in ((0,), (1,), (0, 2))[:sums]])

    groups = check(several, normal(6, 7, 8))
    assert any(v.type.sizes == (6, 7, 8) for g in groups for v in g.outputs) is kept


@pytest.mark.parametrize("seed", range(3))
def test_gradients_of_a_block(seed):
    width, heads, batch, length = 16, 2, 3, 5

    def block(x, p):
        y = layer_norm(x, p["g1"], p["b1"])
        split = (batch, length, heads, width // heads)
        q, k, v = ((y @ p[w]).reshape(split).transpose(0, 2, 1, 3) for w in ("q", "k", "v"))
        scores = jax.nn.softmax(q @ k.swapaxes(-1, -2) * 0.3)
        x = x + (scores @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ p["o"]
        return x + jax.nn.gelu(layer_norm(x, p["g2"], p["b2"]) @ p["up"]) @ p["down"]

    shapes = dict.fromkeys(("q", "k", "v", "o"), (width, width))
    shapes |= dict.fromkeys(("g1", "b1", "g2", "b2"), (width,))
    shapes |= {"up": (width, 4 * width), "down": (4 * width, width)}
    names = list(shapes)

    def gradients(x, *values):
        given = dict(zip(names, values, strict=True))
        return jax.grad(lambda p: (block(x, p) ** 2).mean())(given)

    values = [normal(*shapes[n], seed=seed + i) for i, n in enumerate(names)]
    groups = check(gradients, normal(batch, length, width, seed=seed), *values)
    assert all(g.kernel is not None for g in groups)


@st.composite
def chains(draw):
    """A random chain of elementwise ops, views and reductions of two arrays of one shape."""
    shape = tuple(draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    picks = draw(st.lists(st.integers(0, 9), min_size=1, max_size=8))
    return shape, picks, draw(st.integers(0, 2**16))


def _apply(pick: int, x, y, seed: int):
    rank = x.ndim
    match pick:
        case 0:
            return x + y
        case 1:
            return jnp.tanh(x)
        case 2 if rank:
            axis = seed % rank
            return x - x.max(axis, keepdims=True)
        case 3 if rank:
            return x.reshape(-1).reshape(x.shape[::-1])
        case 4:
            return x.transpose(tuple(np.random.default_rng(seed).permutation(rank)))
        case 5 if rank:
            return jnp.concatenate([x, x * 2], seed % rank)
        case 6 if rank:
            return jnp.flip(x, seed % rank)[tuple([slice(0, None, 1 + seed % 2)] * rank)]
        case 7 if rank:
            return jnp.broadcast_to(x.sum(seed % rank, keepdims=True), x.shape) * 0.1
        case 8 if rank:
            return jnp.pad(x, [(n % 2, seed % 2) for n in range(rank)])
        case 9 if rank and x.size < 500:
            return jnp.tensordot(x, x, ((seed % rank,), (seed % rank,))) * 0.1
    return x * 0.5


@given(chains())
@settings(deadline=None, max_examples=25)
def test_random_chains(chain):
    shape, picks, seed = chain

    def run(x, y):
        kept = []
        for n, pick in enumerate(picks):
            other = y if y.shape == x.shape else x
            x = _apply(pick, x, other, seed + n)
            if x.ndim > 5 or x.size > 3000:
                x = x.reshape(-1)[:50]
            if n % 3 == 2:
                kept.append(x)
        return x, *kept

    check(partial(run), normal(*shape), normal(*shape, seed=1))
