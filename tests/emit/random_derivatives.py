"""Random loops in JAX, and their derivatives: programs that nobody would write by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Function = Callable[..., Any]


@dataclass(frozen=True)
class Drawn:
    """A program of a matrix, a vector and directions to derive along, and what it is made of."""

    function: Function
    arguments: tuple[Any, ...]
    told: str


def drawn(seed: int) -> Drawn:
    """The program of a number."""
    rng = np.random.default_rng(seed)
    size, turns = int(rng.choice([1, 3, 4, 8, 17])), int(rng.integers(1, 4))
    products, curves = _products(size), _curves()
    names = [(str(rng.choice([*products])), str(rng.choice([*curves]))) for _ in range(2)]
    layers = [(products[p], curves[c]) for p, c in names[: int(rng.integers(1, 3))]]
    recomputed, batched = bool(rng.integers(3)), not rng.integers(3)
    loop = _loop(layers, turns, recomputed)
    told = f"size {size}, {turns} turns, {names}, recomputed {recomputed}, batched {batched}"
    shapes = ((size, size), (size,), (size,), (size, size), (size,))
    given = tuple([(rng.standard_normal(s) / 2).astype(np.float32) for s in shapes])
    return Drawn(_derived(_batched(loop) if batched else loop), given, told)


def _products(size: int) -> dict[str, Function]:
    import jax.numpy as jnp
    from jax import lax

    return {
        "right": lambda w, x: x @ w,
        "left": lambda w, x: w @ x,
        "row": lambda w, x: x * w[0],
        "twice": lambda w, x: jnp.einsum("ij,i,j->j", w, x, x) * 0.3,
        "sums": lambda w, x: (w * x).sum(1),
        "norm": lambda w, x: jnp.sqrt(((w * x[:, None]) ** 2).sum(0) + 0.1),
        "slice": lambda w, x: lax.dynamic_slice(w, (1 % size, 0), (1, size))[0] + x,
        "diagonal": lambda w, x: jnp.diagonal(w) + x,
    }


def _curves() -> dict[str, Function]:
    import jax
    import jax.numpy as jnp
    from jax import lax

    return {
        "sin": jnp.sin,
        "square": lambda x: x * x * 0.3,
        "softmax": jax.nn.softmax,
        "gelu": jax.nn.gelu,
        "centred": lambda x: x - x.mean(),
        "cumsum": lambda x: jnp.cumsum(x) * 0.2,
        "reverse": lambda x: x[::-1],
        "roll": lambda x: jnp.roll(x, 1),
        "update": lambda x: lax.dynamic_update_slice(x, x[:1] * 2, (0,)),
        "add at": lambda x: x.at[0].add(1.0),
        "branch": lambda x: lax.cond(x.sum() > 0, jnp.sin, lambda y: y * 0.5, x),
        "take": lambda x: x[jnp.arange(x.shape[0]) // 2],
    }


def _loop(layers: list[tuple[Function, Function]], turns: int, recomputed: bool) -> Function:
    """The layers in a loop, whose turns are kept or computed again for derivatives."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    def body(w: Any, x: Any, shift: Any) -> Any:
        for product, curve in layers:
            x = curve(product(w, x)) + shift
        return x

    turn = jax.checkpoint(body) if recomputed else body

    def run(w: Any, x: Any) -> Any:
        shifts = jnp.arange(turns, dtype=x.dtype) * 0.1
        last, every = lax.scan(lambda x, s: (turn(w, x, s), x * 2), x, shifts)
        return last + every.sum(0) * 0.1

    return run


def _batched(function: Function) -> Function:
    import jax
    import jax.numpy as jnp

    def run(w: Any, x: Any) -> Any:
        return jax.vmap(function, (None, 0))(w, jnp.stack([x, x * 0.5])).sum(0)

    return run


def _derived(function: Function) -> Function:
    """The value, the derivative backwards, that of the derivative, and the one forwards."""
    import jax

    def back(w: Any, x: Any, along: Any) -> Any:
        return jax.vjp(function, w, x)[1](along)

    def main(w: Any, x: Any, along: Any, dw: Any, dx: Any) -> Any:
        second = jax.vjp(back, w, x, along)[1]((dw, dx))
        return function(w, x), back(w, x, along), second, jax.jvp(function, (w, x), (dw, dx))

    return main
