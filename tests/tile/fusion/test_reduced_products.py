"""Reductions of products' results: which join the product's kernel, and that they stay right."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft
from tests.tile.stepping import check
from weft.kernels.kernel import Contract, Kernel, Reduce, Store
from weft.kernels.text import kernel_text
from weft.mesh import Mesh, P
from weft.run.parts import parts_of


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng([*shape]).standard_normal(shape).astype(np.float32)


def both(reduce):
    """A dense layer with its activation, and what is made of it."""
    return lambda x, w, b: (lambda h: (h, reduce(h)))(jax.nn.gelu(x @ w + b))


def alone(reduce):
    return lambda x, w, b: reduce(jax.nn.gelu(x @ w + b))


LAYER = [(128, 32), (32, 96), (96,)]
ONE_KERNEL = {
    "sum of rows": (both(lambda h: h.sum(-1)), LAYER),
    "sum of rows, alone": (alone(lambda h: h.sum(-1)), LAYER),
    "sum over rows": (both(lambda h: h.sum(0)), LAYER),
    "mean of squares": (alone(lambda h: (h**2).mean()), LAYER),
    "statistics of a norm": (both(lambda h: jax.lax.rsqrt((h**2).mean(-1) + 1e-5)), LAYER),
    "rows and columns": (both(lambda h: (h.max(-1), h.min(0), h.sum())), LAYER),
    "with another array": (lambda x, w, y: (x @ w * y).sum(0), [(128, 32), (32, 96), (128, 96)]),
    "scores": (
        lambda q, k: jnp.einsum("bhqd,bhkd->bhqk", q, k).max(-1),
        [(2, 3, 64, 16), (2, 3, 48, 16)],
    ),
    "over batch and rows": (
        lambda x, w: (lambda h: (h, h.sum((0, 1))))(x @ w),
        [(4, 64, 32), (32, 48)],
    ),
    "over rows and batch": (lambda x, w: (x @ w).sum((1, 0)), [(4, 64, 32), (32, 48)]),
    "pooled": (lambda x, w: jax.nn.relu(x @ w).mean(1), [(3, 160, 32), (32, 48)]),
    "turned over": (
        lambda x, w: (lambda h: (h.T, h.sum(0)))(jnp.tanh(x @ w)),
        [(128, 32), (32, 96)],
    ),
    "and": (lambda x, w: (x @ w > -40).all(-1), [(128, 32), (32, 300)]),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name: str):
    fn, shapes = ONE_KERNEL[name]
    (group,) = check(fn, *[normal(*shape) for shape in shapes])
    assert isinstance(group.kernel, Kernel)
    kinds = {type(step) for step in group.kernel.steps}
    assert {Contract, Reduce} <= kinds


def test_what_only_the_reduction_reads_is_not_stored():
    fn, shapes = ONE_KERNEL["sum of rows, alone"]
    (group,) = check(fn, *[normal(*shape) for shape in shapes])
    assert isinstance(group.kernel, Kernel)
    assert [o.shape for o in group.kernel.operands if o.output] == [(128,)]
    assert sum(isinstance(step, Store) for step in group.kernel.steps) == 1


APART = {
    "the result is needed again": lambda x, w, b: (lambda h: h - h.max(-1, keepdims=True))(x @ w),
    "reduced twice": lambda x, w, b: jax.nn.logsumexp(x @ w + b, -1),
    "few columns of many": lambda x, w, b: (x @ w).reshape(128, 24, 4).sum(-1),
}


@pytest.mark.parametrize("name", APART)
def test_apart(name: str):
    groups = check(APART[name], *[normal(*shape) for shape in LAYER])
    for group in groups:
        assert isinstance(group.kernel, Kernel)
        assert not {Contract, Reduce} <= {type(step) for step in group.kernel.steps}


def test_little_is_not_worth_it():
    groups = check(lambda x, w: (x @ w).sum(0), normal(20, 30), normal(30, 40))
    assert len(groups) == 2


def test_nobody_waits_in_a_circle():
    """What the reduction reads beside the product is made of the product by another kernel."""

    def fn(x, w, v):
        h = x @ w
        return h, (h * (jnp.tanh(h) @ v)).sum(0)

    check(fn, normal(128, 32), normal(32, 96), normal(96, 96))


SPLITS = {
    "rows": (P("a"), P(), P()),
    "columns": (P(), P(None, "a"), P("a")),
    "both": (P("a"), P(None, "b"), P("b")),
    "depth": (P(None, "b"), P("b"), P()),
}


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16], ids=["f32", "bf16"])
def test_many_devices(split: str, dtype):
    def fn(x, w, b):
        h = jnp.tanh(x @ w + b)
        return h, h.max(-1), h.sum(0), (h * h).sum()

    arrays = [normal(*shape).astype(dtype) for shape in ((512, 48), (48, 256), (256,))]
    mesh = Mesh(a=2, b=2)
    got = weft.compile(fn, *arrays, mesh=mesh, in_shardings=SPLITS[split])(*arrays)
    wanted = fn(*[a.astype(np.float32) for a in arrays])
    for a, b in zip(got, wanted, strict=True):
        close, wide = 1e-4 if dtype is np.float32 else 0.02, np.asarray(b)
        np.testing.assert_allclose(
            np.asarray(a).astype(np.float32), wide, rtol=close, atol=close * np.abs(wide).max()
        )


def test_the_text_tells():
    fn, shapes = ONE_KERNEL["sum over rows"]
    compiled = weft.compile(fn, *[normal(*shape) for shape in shapes])
    (part,) = parts_of(compiled.program.local)
    assert part.group is not None and part.group.kernel is not None
    text = kernel_text(part.group.kernel)
    assert "sum[" in text and "dot[" in text and "  packed: " in text


def test_the_same_bits_every_time():
    arrays = [normal(*shape) for shape in LAYER]
    compiled = weft.compile(both(lambda h: (h.sum(), h.sum(0))), *arrays)
    first = jax.tree.leaves(compiled(*arrays))
    for _ in range(5):
        for a, b in zip(first, jax.tree.leaves(compiled(*arrays)), strict=True):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
