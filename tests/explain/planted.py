"""Twelve programs with a mistake in their shardings, and the annotation that mends each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from weft import P, constrain

WHOLE, FEATURES = P(None, None), P("data", "model")
BATCH, WIDTH, HIDDEN, VOCAB, ROUNDS = 4096, 4096, 16384, 32768, 8


def types(*shapes: tuple[int, ...], dtype: Any = jnp.bfloat16) -> list[Any]:
    """Arrays of these shapes that are never allocated."""
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


@dataclass(frozen=True)
class Planted:
    """A program with a mistake: its arguments, shardings, and what the advice has to name."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    shardings: tuple[Any, ...]
    fix: str  # a part of the advice's text
    line: str  # a part of the line that a row or the advice names
    mesh: str = "data=2,model=4"
    results: Any = None
    machine: str = "8xh100"
    mended: dict[str, Any] = field(default_factory=dict)  # fields of the program without it


def feed_forward(x: Any, up: Any, down: Any) -> Any:
    return jax.nn.gelu(x @ up) @ down


def wrong_axis() -> Planted:
    """The second product of a pair is split by its columns, so its input is gathered."""
    shapes = types((BATCH, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
    shardings = (P("data", None), P(None, "model"), P(None, "model"))
    fix = 'down: P("model", None)'
    return Planted(
        feed_forward, tuple(shapes), shardings, fix, "@ down", results=P("data", None),
        mended={"shardings": (P("data", None), P(None, "model"), P("model", None))},
    )  # fmt: skip


def transposed_weight() -> Planted:
    """A weight that is used transposed, with the sharding of one that is not."""

    def logits(x: Any, table: Any) -> Any:
        return jax.nn.softmax((x @ table.T).astype(jnp.float32))

    shapes = types((BATCH, WIDTH), (VOCAB, WIDTH))
    shardings, fix = (P("data", None), P(None, "model")), 'table: P("model", None)'
    mended = {"shardings": (P("data", None), P("model", None))}
    return Planted(logits, tuple(shapes), shardings, fix, "table.T", mended=mended)


def batch_not_split() -> Planted:
    """The batch is whole on all devices, so all compute all of it."""
    shapes = types((BATCH, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
    shardings = (P(None, None), P(None, "model"), P("model", None))
    mended = {"shardings": (P("data", None), *shardings[1:])}
    fix = 'x: P("data", None)'
    return Planted(feed_forward, tuple(shapes), shardings, fix, "@ down", mended=mended)


def needless_constraint() -> Planted:
    """A constraint between two products that gathers the batch."""

    def block(x: Any, up: Any, down: Any) -> Any:
        h = constrain(jax.nn.gelu(x @ up), P(None, "model"))
        return h @ down

    shapes = types((BATCH, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
    shardings = (P("data", None), P(None, "model"), P("model", None))
    fix = 'constraint P(None, "model") at planted.py'
    mended = {"function": feed_forward}
    return Planted(block, tuple(shapes), shardings, fix, "h @ down", mended=mended)


def missing_constraint() -> Planted:
    """Activations made inside of the program, that nothing tells to be split."""

    def noisy(up: Any, split: P | None = None) -> Any:
        rows = lax.broadcasted_iota(jnp.float32, (BATCH, WIDTH), 0)
        noise = jnp.sin(rows if split is None else constrain(rows, split)).astype(up.dtype)
        for _ in range(3):
            noise = jnp.tanh(noise @ up)
        return jnp.sum(noise.astype(jnp.float32), 0)

    shapes = types((WIDTH, WIDTH))
    fix = "weft.constrain(..., P("
    mended = {"function": partial(noisy, split=P(("data", "model"), None))}
    return Planted(
        noisy, tuple(shapes), (P(None, None),), fix, "jnp.sin(rows", results=P(None),
        mended=mended,
    )  # fmt: skip


def indivisible_heads() -> Planted:
    """Six heads over four devices: a quarter of the work is padding."""

    def attention(x: Any, q: Any, k: Any) -> Any:
        one = jnp.einsum("bd,dhf->bhf", x, q)
        other = jnp.einsum("bd,dhf->bhf", x, k)
        return jnp.einsum("bhf,chf->hbc", one, other)

    shapes = types((BATCH, WIDTH), (WIDTH, 6, 512), (WIDTH, 6, 512))
    shardings = (P("data", None), P(None, "model", None), P(None, "model", None))
    mended = {"shardings": (P("data", None), *[P(None, None, "model")] * 2)}
    fix = 'P(None, None, "model")'
    return Planted(attention, tuple(shapes), shardings, fix, "einsum", mended=mended)


def replicated_state() -> Planted:
    """The optimizer's moments are whole on every device before and after the step."""

    def adam(w: Any, m: Any, v: Any, g: Any) -> Any:
        m = 0.9 * m + 0.1 * g
        v = 0.99 * v + 0.01 * g * g
        return w - 1e-3 * m * lax.rsqrt(v + 1e-8), m, v

    shapes = types(*[(HIDDEN, WIDTH)] * 4, dtype=jnp.float32)
    split, whole = P(("data", "model"), None), P(None, None)
    fix, results = 'm, v: P(("data", "model"), None)', (split, whole, whole)
    mended = {"shardings": (split,) * 4, "results": (split,) * 3}
    return Planted(
        adam, tuple(shapes), (split, whole, whole, split), fix, "m = ", results=results,
        mended=mended,
    )  # fmt: skip


def gather_in_loop() -> Planted:
    """A constraint in a loop splits the features of what the next round contracts."""

    def rounds(x: Any, w: Any, split: P = FEATURES) -> Any:
        def body(_: Any, h: Any) -> Any:
            return constrain(jnp.tanh(h @ w), split)

        return lax.fori_loop(0, ROUNDS, body, x)

    shapes = types((BATCH, WIDTH), (WIDTH, WIDTH))
    shardings = (P("data", None), P(None, None))
    mended = {"function": partial(rounds, split=P(("data", "model"), None))}
    return Planted(
        rounds, tuple(shapes), shardings, "constraint", "constrain(jnp.tanh(h @ w)", mended=mended
    )


def reduced_twice() -> Planted:
    """Each part of a gradient is summed over the batch, in every round, and not once at the end."""

    def gradient(xs: Any, ys: Any, split: P = WHOLE) -> Any:
        def body(total: Any, pair: Any) -> Any:
            x, y = pair
            return total + constrain(x.T @ y, split), ()

        start = jnp.zeros((WIDTH, WIDTH), jnp.bfloat16)
        total, _ = lax.scan(body, start, (xs, ys))
        return total

    shapes = types((ROUNDS, BATCH, WIDTH), (ROUNDS, BATCH, WIDTH))
    shardings = (P(None, ("data", "model"), None), P(None, ("data", "model"), None))
    mended = {"function": partial(gradient, split=P(("data", "model"), None))}
    return Planted(gradient, tuple(shapes), shardings, "constraint", "x.T @ y", mended=mended)


def slow_axis() -> Planted:
    """Tensor parallelism between nodes and data parallelism inside of them."""
    shapes = types((BATCH, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH))
    shardings = (P("near", None), P(None, "far"), P("far", None))
    return Planted(
        feed_forward, tuple(shapes), shardings, 'mesh: near=8, far=8', "@ down",
        "far=8,near=8", P("near", None), "8x(8xh100)", {"mesh": "near=8,far=8"},
    )  # fmt: skip


def split_norm() -> Planted:
    """A scale of features is split, and splits the features of every activation."""

    def norm(x: Any, scale: Any, w: Any) -> Any:
        x = x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale
        return x @ w

    shapes = types((BATCH, WIDTH), (WIDTH,), (WIDTH, WIDTH))
    shardings = (P("data", "model"), P("model"), P(None, "model"))
    mended = {"shardings": (P("data", None), *shardings[1:])}
    fix = 'x: P("data", None)'
    return Planted(norm, tuple(shapes), shardings, fix, "x @ w", mended=mended)


def contracted_head() -> Planted:
    """The head is split along the contracted dim: whole logits are summed over devices."""

    def head(x: Any, w: Any) -> Any:
        return jnp.max(x @ w, -1)

    shapes = types((BATCH, WIDTH), (WIDTH, VOCAB))
    mended = {"shardings": (P("data", None), P(None, "model"))}
    fix, shardings = 'w: P(None, "model")', (P("data", None), P("model", None))
    return Planted(head, tuple(shapes), shardings, fix, "x @ w", mended=mended)


PLANTED = (
    wrong_axis,
    transposed_weight,
    batch_not_split,
    needless_constraint,
    missing_constraint,
    indivisible_heads,
    replicated_state,
    gather_in_loop,
    reduced_twice,
    slow_axis,
    split_norm,
    contracted_head,
)
