"""Programs as users write them, each with one mistake in its shardings, and without it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from weft import Mesh, P, constrain

BF16, F32, I32 = jnp.bfloat16, jnp.float32, jnp.int32
MESH = Mesh(data=2, model=4)
COLUMNS, ROWS = P(None, "model"), P("model", None)
TENSOR = {"q": COLUMNS, "k": COLUMNS, "v": COLUMNS, "o": ROWS, "up": COLUMNS, "down": ROWS}


def of(*shape: int, dtype: Any = BF16) -> Any:
    """An array of this shape that is never allocated."""
    return jax.ShapeDtypeStruct(shape, dtype)


@dataclass(frozen=True)
class Sharded:
    """A program, its arguments and their shardings."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    mesh: Mesh
    shardings: Any = None
    results: Any = None
    donated: tuple[int, ...] = ()
    plan: Any = None


@dataclass(frozen=True)
class Mistake:
    """What explaining a mistake has to say: a part of the advice or warning, and of a line."""

    program: Callable[[bool], Sharded]  # with the mistake, or without it
    said: str
    line: str
    machine: str = "8xh100"


def norm(x: Any) -> Any:
    wide = x.astype(F32)
    return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def block(params: Any, x: Any, heads: int) -> Any:
    """A transformer's block."""
    b, s, _ = x.shape
    h = norm(x)
    q = (h @ params["q"]).reshape(b, s, heads, -1)
    k = (h @ params["k"]).reshape(b, s, heads, -1)
    v = (h @ params["v"]).reshape(b, s, heads, -1)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(F32)
    scores = jnp.where(jnp.tril(jnp.ones((s, s), bool)), scores, -1e9)
    out = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1).astype(x.dtype), v)
    x = x + out.reshape(b, s, -1) @ params["o"]
    return x + jax.nn.silu(norm(x) @ params["up"]) @ params["down"]


def weights(width: int) -> dict[str, Any]:
    square, hidden = of(width, width), 4 * width
    return dict.fromkeys("qkvo", square) | {
        "up": of(width, hidden),
        "down": of(hidden, width),
    }


def transposed_weight(wrong: bool) -> Sharded:
    """The second weight of a perceptron is split along its columns, too."""

    def mlp(x: Any, up: Any, down: Any) -> Any:
        hidden = jax.nn.gelu(x @ up)
        return hidden @ down

    types = (of(2048, 4096), of(4096, 16384), of(16384, 4096))
    return Sharded(mlp, types, MESH, (P("data"), COLUMNS, COLUMNS if wrong else ROWS), P("data"))


def indivisible_heads(wrong: bool) -> Sharded:
    """Twelve heads for an axis of eight."""

    def attend(params: Any, x: Any) -> Any:
        return block(params, x, 12)

    mesh = Mesh(data=1, model=8) if wrong else MESH
    return Sharded(attend, (weights(1536), of(8, 1024, 1536)), mesh, (TENSOR, P("data")), P("data"))


def slow_axis(wrong: bool) -> Sharded:
    """Tensor parallelism between nodes, and data parallelism inside of them."""

    def attend(params: Any, x: Any) -> Any:
        return block(params, x, 16)

    mesh = Mesh(model=8, data=4) if wrong else Mesh(data=4, model=8)
    return Sharded(
        attend, (weights(2048), of(32, 1024, 2048)), mesh, (TENSOR, P("data")), P("data")
    )


def experts(wrong: bool) -> Sharded:
    """Experts' weights that are split inside of each expert, and not by expert."""

    def mixture(x: Any, router: Any, up: Any, down: Any) -> Any:
        count, room = router.shape[1], 2 * x.shape[1] // router.shape[1]
        gate, chosen = lax.top_k(jax.nn.softmax((x @ router).astype(F32), -1), 1)
        picked = jax.nn.one_hot(chosen[..., 0], count, dtype=F32)
        place = ((jnp.cumsum(picked, 1) - 1) * picked).sum(-1).astype(I32)
        seat = jax.nn.one_hot(place, room, dtype=F32)
        dispatch = (seat[:, :, None, :] * picked[..., None]).astype(x.dtype)
        sent = jnp.einsum("gsec,gsd->gecd", dispatch, x)
        hidden = jax.nn.silu(jnp.einsum("gecd,edf->gecf", sent, up))
        back = jnp.einsum("gecf,efd->gecd", hidden, down)
        weighted = dispatch * gate[..., None].astype(x.dtype)
        return jnp.einsum("gsec,gecd->gsd", weighted, back)

    types = (of(8, 2048, 2048), of(2048, 8), of(8, 2048, 8192), of(8, 8192, 2048))
    up = P(None, "expert") if wrong else P("expert")
    shardings = (P("data"), None, up, P("expert"))
    return Sharded(mixture, types, Mesh(data=2, expert=4), shardings, P("data"))


def split_images(wrong: bool) -> Sharded:
    """Images that are split along their height, and not by image."""

    def convolved(x: Any, kernels: Any) -> Any:
        for kernel in kernels:
            dims = ("NHWC", "HWIO", "NHWC")
            x = jax.nn.relu(
                lax.conv_general_dilated(x, kernel, (2, 2), "SAME", dimension_numbers=dims)
            )
        return x.mean((1, 2))

    kernels = [of(3, 3, n, 2 * n) for n in (64, 128, 256)]
    x = P(None, "data") if wrong else P("data")
    return Sharded(convolved, (of(64, 224, 224, 64), kernels), Mesh(data=8), (x, P()))


def whole_state(wrong: bool) -> Sharded:
    """Weights are split and the optimizer's moments are whole."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        h = jax.nn.relu(jax.nn.relu(x @ p["a"].astype(BF16)) @ p["b"].astype(BF16))
        return jnp.mean((h - y).astype(F32) ** 2)

    def step(p: Any, m: Any, v: Any, x: Any, y: Any) -> Any:
        value, g = jax.value_and_grad(loss)(p, x, y)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)
        p = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), p, m, v)
        return value, p, m, v

    p = {name: of(4096, 4096, dtype=F32) for name in "ab"}
    split = P("data", None)
    state = P() if wrong else split
    types = (p, p, p, of(4096, 4096), of(4096, 4096))
    shardings, results = (split, state, state, split, split), (P(), split, state, state)
    return Sharded(step, types, Mesh(data=8), shardings, results, (0, 1, 2))


def split_layers(wrong: bool) -> Sharded:
    """The stacked weights of a scan are split along the layers."""

    def deep(x: Any, w: Any) -> Any:
        def layer(x: Any, w: Any) -> Any:
            return jax.nn.gelu(x @ w["up"]) @ w["down"], None

        return lax.scan(layer, x, w)[0]

    w = {"up": of(8, 2048, 8192), "down": of(8, 8192, 2048)}
    right = {"up": P(None, None, "model"), "down": P(None, "model")}
    shardings = (P("data"), P("model") if wrong else right)
    return Sharded(deep, (of(16384, 2048), w), MESH, shardings, P("data"))


def tied_embedding(wrong: bool) -> Sharded:
    """A table that the head shares is split along its features."""

    def loss(table: Any, w: Any, tokens: Any, targets: Any) -> Any:
        x = table[tokens]
        x = x + jax.nn.gelu(x @ w)
        logits = jnp.einsum("bsd,vd->bsv", x, table).astype(F32)
        picked = jax.nn.one_hot(targets, table.shape[0], dtype=F32)
        return jnp.mean(jax.nn.logsumexp(logits, -1) - jnp.sum(logits * picked, -1))

    tokens = of(8, 1024, dtype=I32)
    types = (of(32768, 2048), of(2048, 2048), tokens, tokens)
    return Sharded(loss, types, MESH, (COLUMNS if wrong else ROWS, P(), P("data"), P("data")))


def summed_each_time(wrong: bool) -> Sharded:
    """Whole gradients are summed over devices in every micro-batch."""

    def loss(p: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jax.nn.relu(x @ p["a"]) @ p["b"] - y).astype(F32) ** 2)

    def step(p: Any, xs: Any, ys: Any) -> Any:
        def micro(total: Any, batch: Any) -> Any:
            g = jax.tree.map(lambda g: constrain(g, kept), jax.grad(loss)(p, *batch))
            return jax.tree.map(jnp.add, total, g), None

        g = lax.scan(micro, jax.tree.map(jnp.zeros_like, p), (xs, ys))[0]
        return jax.tree.map(lambda p, g: p - 0.1 * g, p, g)

    kept = P() if wrong else P("data")
    p, batch = {"a": of(2048, 8192), "b": of(8192, 2048)}, of(4, 8192, 2048)
    shardings = (P(), P(None, "data"), P(None, "data"))
    return Sharded(step, (p, batch, batch), Mesh(data=8), shardings, P(), (0,))


def split_cache(wrong: bool) -> Sharded:
    """A decoder's cache is split along the sequence, though the projections are by heads."""

    def decode(w: Any, cached_k: Any, cached_v: Any, x: Any, at: Any) -> Any:
        b, heads = x.shape[0], 16
        q = (x @ w["q"]).reshape(b, heads, -1)
        k = (x @ w["k"]).reshape(b, 1, heads, -1)
        v = (x @ w["v"]).reshape(b, 1, heads, -1)
        cached_k = lax.dynamic_update_slice(cached_k, k, (0, at, 0, 0))
        cached_v = lax.dynamic_update_slice(cached_v, v, (0, at, 0, 0))
        scores = jnp.einsum("bhd,bshd->bhs", q, cached_k).astype(F32)
        scores = jnp.where(jnp.arange(scores.shape[-1]) <= at, scores, -1e9)
        probs = jax.nn.softmax(scores, -1).astype(x.dtype)
        out = jnp.einsum("bhs,bshd->bhd", probs, cached_v)
        return out.reshape(b, -1) @ w["o"], cached_k, cached_v

    w = {name: of(2048, 2048) for name in "qkvo"}
    split = {name: TENSOR[name] for name in "qkvo"}
    cache, kept = of(32, 8192, 16, 128), COLUMNS if wrong else P(None, None, "model")
    types = (w, cache, cache, of(32, 2048), of(dtype=I32))
    shardings = (split, kept, kept, P(), P())
    return Sharded(decode, types, Mesh(model=8), shardings, (P(), kept, kept), (1, 2))


MISTAKES = (
    Mistake(transposed_weight, 'down: P("model", None)', "hidden @ down"),
    Mistake(indivisible_heads, "do not divide dim 2 of size 12", "reshape(b, s, heads, -1)"),
    Mistake(slow_axis, "mesh: data=4, model=8", '@ params["o"]', "4x(8xh100)@400G"),
    Mistake(experts, 'up: P("expert", None, None)', "sent, up"),
    Mistake(split_images, 'x: P("data", None, None, None)', "lax.conv_general_dilated"),
    Mistake(whole_state, "m['a'], m['b'], v['a'], v['b']: P(\"data\", None)", "0.99 * v"),
    Mistake(split_layers, "w['up']", "lax.scan(layer, x, w)"),
    Mistake(tied_embedding, 'table: P("model", None)', "table[tokens]"),
    Mistake(summed_each_time, "p['a']", "jnp.mean((jax.nn.relu(x @"),
    Mistake(split_cache, 'cached_k, cached_v: P(None, None, "model", None)', "softmax(scores"),
)
