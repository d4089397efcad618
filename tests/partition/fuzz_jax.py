"""Random JAX functions and their gradients, with random shardings on what they take and give."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tests.partition.corpus import LENGTHS, widened
from tests.partition.fuzz import MESHES
from tests.partition.one_op import annotated
from tests.partition.program import Program
from weft.capture import parse
from weft.mesh import Mesh

SHAPES = ((8, 8), (4, 8), (6, 4), (5, 8), (8, 4, 2), (16,))
Step = Callable[[random.Random, list[Any]], Any]


def _matmul(rng: random.Random, held: list[Any]) -> Any:
    a, b = rng.choice(held), rng.choice(held)
    a, b = a.reshape(a.shape[0], -1), b.reshape(b.shape[0], -1)
    common = min(a.shape[1], b.shape[0])
    return a[:, :common] @ b[:common]


def _attend(rng: random.Random, held: list[Any]) -> Any:
    a = rng.choice(held)
    a = a.reshape(a.shape[0], -1)
    return jax.nn.softmax(a @ a.T) @ a


def _normalize(rng: random.Random, held: list[Any]) -> Any:
    a = rng.choice(held)
    mean = a.mean(-1, keepdims=True)
    return (a - mean) * lax.rsqrt(((a - mean) ** 2).mean(-1, keepdims=True) + 1e-3)


def _loop(rng: random.Random, held: list[Any]) -> Any:
    a = rng.choice(held)
    made, rows = lax.scan(lambda c, x: (jnp.tanh(c + x), c * x), a[0], a)
    return rows + made


def _pick(rng: random.Random, held: list[Any]) -> Any:
    a = rng.choice(held)
    index = jnp.array([rng.randrange(a.shape[0]) for _ in range(rng.choice([2, 4, 5]))])
    return a[index]


def _put(rng: random.Random, held: list[Any]) -> Any:
    a = rng.choice(held)
    index = jnp.array([rng.randrange(a.shape[0]) for _ in range(4)])
    return a.at[index].add(a[:1] * 2)


def _join(rng: random.Random, held: list[Any]) -> Any:
    a = rng.choice(held)
    return jnp.concatenate([a, a[: a.shape[0] // 2 + 1] * 3, a[::-1]], 0)


def _window(rng: random.Random, held: list[Any]) -> Any:
    a = rng.choice(held)
    size = min(2, a.shape[0])
    sizes = (size,) + (1,) * (a.ndim - 1)
    return lax.reduce_window(a, -jnp.inf, lax.max, sizes, (1,) * a.ndim, "SAME")


def _convolve(rng: random.Random, held: list[Any]) -> Any:
    a = rng.choice(held)
    image = a.reshape(1, a.shape[0], -1)
    kernel = image[:, :3].reshape(-1, 1, image.shape[2])[:3]
    groups = image.shape[2]
    dims = ("NHC", "HIO", "NHC")
    return lax.conv_general_dilated(
        image, kernel, (1,), "SAME", dimension_numbers=dims, feature_group_count=groups
    )[0]


def _fold(rng: random.Random, held: list[Any]) -> Any:
    a = rng.choice(held)
    return (a.sum(0) if a.ndim > 1 else jnp.cumsum(a)) * 0.5


STEPS: tuple[Step, ...] = (
    _matmul,
    _matmul,
    _attend,
    _normalize,
    _loop,
    _pick,
    _put,
    _join,
    _window,
    _convolve,
    _fold,
    lambda rng, held: jnp.sin(rng.choice(held)),
    lambda rng, held: jnp.sort(rng.choice(held), 0),
    lambda rng, held: rng.choice(held).T,
    lambda rng, held: jnp.roll(rng.choice(held), 1, 0),
    lambda rng, held: jnp.exp(-(rng.choice(held) ** 2)),
)


def loss(seed: int) -> Callable[..., Any]:
    """A random function of a few arrays that gives one number."""

    def run(*arrays: Any) -> Any:
        rng = random.Random(seed)
        held = list(arrays)
        for _ in range(rng.randint(2, 6)):
            made = rng.choice(STEPS)(rng, held)
            if made.ndim and made.size <= 512:
                held.append(made)
        return sum((a**2).mean() for a in held[len(arrays) :] or held)

    return run


@lru_cache(maxsize=64)
def gradient(seed: int) -> Program:
    """A random function with its gradient, on a random mesh, arguments and results split."""
    rng = random.Random(seed)
    count = rng.randint(1, 3)
    shapes = [jax.ShapeDtypeStruct(rng.choice(SHAPES), jnp.float32) for _ in range(count)]
    made = jax.jit(jax.value_and_grad(loss(seed), tuple(range(count))), keep_unused=True)
    lowered = made.trace(*shapes).lower(lowering_platforms=("cpu",))
    text = widened(lowered.as_text())
    module = replace(parse(text), meshes={"mesh": Mesh(rng.choice(MESHES))})
    return Program(annotated(module, rng).text(), seed=seed, length=LENGTHS["f64"])
