"""Training steps of GPT-2, Llama and a mixture of experts, in JAX, at any size.

Mixed precision as published recipes have it: bf16 weights for the passes; f32 master weights and
Adam's two moments in the optimizer's state. Each layer is rematerialized in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model and of its batch."""

    tokens: int
    width: int
    heads: int
    kv_heads: int
    hidden: int
    layers: int
    batch: int
    length: int
    experts: int = 0

    def tiny(self, layers: int = 2) -> Sizes:
        """The same model, small enough to run in a test; dims stay apart and divide by 8."""
        kv_heads = 8 if self.kv_heads < self.heads else 16
        return replace(self, tokens=128, width=64, heads=16, kv_heads=kv_heads, hidden=160,
                       layers=layers, batch=64, length=16)  # fmt: skip

    @property
    def size(self) -> int:
        return max(2, self.width // self.heads)


GPT2 = Sizes(50304, 1024, 16, 16, 4096, 24, batch=64, length=1024)
LLAMA = Sizes(128256, 4096, 32, 8, 14336, 32, batch=16, length=2048)
MIXTRAL = Sizes(32000, 2048, 16, 8, 7168, 16, batch=16, length=2048, experts=8)


def layer_norm(x, scale, shift):
    y = x.astype(jnp.float32)
    y = y - jnp.mean(y, axis=-1, keepdims=True)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-5)
    return y.astype(x.dtype) * scale + shift


def rms_norm(x, scale):
    y = x.astype(jnp.float32)
    y = y * jax.lax.rsqrt(jnp.mean(y * y, axis=-1, keepdims=True) + 1e-5)
    return y.astype(x.dtype) * scale


def rotated(x):
    length, half = x.shape[1], x.shape[-1] // 2
    angles = jnp.arange(length)[:, None] / 10_000 ** (jnp.arange(half) / half)
    cos, sin = (f(angles)[:, None, :].astype(x.dtype) for f in (jnp.cos, jnp.sin))
    a, b = x[..., :half], x[..., half:]
    return jnp.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def attend(q, k, v):
    """Causal attention; several heads of q may share one of k and v."""
    q = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
    scores = jnp.einsum("blkgf,bmkf->bkglm", q, k).astype(jnp.float32) / q.shape[-1] ** 0.5
    seen = jnp.tril(jnp.ones((q.shape[1], q.shape[1]), bool))
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1).astype(v.dtype)
    made = jnp.einsum("bkglm,bmkf->blkgf", weights, v)
    return made.reshape(*made.shape[:2], -1, made.shape[-1])


def gpt2_layer(layer, x):
    y = layer_norm(x, layer["norm1"], layer["shift1"])
    q, k, v = (jnp.einsum("bld,dhf->blhf", y, layer[n]) + layer[f"{n}_bias"] for n in "qkv")
    x = x + jnp.einsum("blhf,hfd->bld", attend(q, k, v), layer["o"]) + layer["o_bias"]
    y = layer_norm(x, layer["norm2"], layer["shift2"])
    y = jax.nn.gelu(y @ layer["up"] + layer["up_bias"])
    return x + y @ layer["down"] + layer["down_bias"]


def llama_attention(layer, x):
    y = rms_norm(x, layer["norm1"])
    q, k, v = (jnp.einsum("bld,dhf->blhf", y, layer[n]) for n in "qkv")
    return x + jnp.einsum("blhf,hfd->bld", attend(rotated(q), rotated(k), v), layer["o"])


def llama_layer(layer, x):
    x = llama_attention(layer, x)
    y = rms_norm(x, layer["norm2"])
    return x + (jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]


def routed(layer, y):
    """Two experts a token, by masks of a fixed capacity: dispatch, and the weights to combine."""
    experts = layer["router"].shape[-1]
    capacity = max(4, 2 * y.shape[1] * 5 // (4 * experts))
    odds = jax.nn.softmax((y @ layer["router"]).astype(jnp.float32), axis=-1)
    best, which = jax.lax.top_k(odds, 2)
    chosen = jax.nn.one_hot(which, experts, dtype=jnp.float32)  # b l 2 e
    flat = chosen.transpose(0, 2, 1, 3).reshape(y.shape[0], -1, experts)
    place = (jnp.cumsum(flat, axis=1) - 1).reshape(y.shape[0], 2, -1, experts)
    place = place.transpose(0, 2, 1, 3)
    slot = jax.nn.one_hot(place, capacity, dtype=jnp.float32) * chosen[..., None]  # b l 2 e c
    weights = jnp.einsum("blk,blkec->blec", best, slot)
    return jnp.einsum("blkec->blec", slot).astype(y.dtype), weights.astype(y.dtype)


def mixtral_layer(layer, x):
    x = llama_attention(layer, x)
    y = rms_norm(x, layer["norm2"])
    dispatch, weights = routed(layer, y)
    z = jnp.einsum("bld,blec->ebcd", y, dispatch)
    gate, up = (jnp.einsum("ebcd,edf->ebcf", z, layer[n]) for n in ("gate", "up"))
    z = jnp.einsum("ebcf,efd->ebcd", jax.nn.silu(gate) * up, layer["down"])
    return x + jnp.einsum("ebcd,blec->bld", z, weights)


LAYERS = {"gpt2": gpt2_layer, "llama": llama_layer, "mixtral": mixtral_layer}
SIZES = {"gpt2": GPT2, "llama": LLAMA, "mixtral": MIXTRAL}


def loss(layer_of: Callable[..., Any], weights, tokens, targets):
    x = weights["embed"][tokens]
    if "positions" in weights:
        x = x + weights["positions"]
    for layer in weights["layers"]:
        x = jax.checkpoint(layer_of)(layer, x)
    y = layer_norm(x, weights["norm"], weights["shift"]) if "shift" in weights else rms_norm(
        x, weights["norm"])  # fmt: skip
    logits = (y @ weights["head"]).astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)


def train_step(layer_of: Callable[..., Any], weights, state, tokens, targets):
    """One step of Adam: new weights, new state, and the loss before it."""
    value, slopes = jax.value_and_grad(partial(loss, layer_of))(weights, tokens, targets)
    first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g.astype(jnp.float32), state["first"], slopes)
    second = jax.tree.map(
        lambda v, g: 0.95 * v + 0.05 * g.astype(jnp.float32) ** 2, state["second"], slopes
    )
    master = jax.tree.map(
        lambda w, m, v: w - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.01 * w),
        state["master"], first, second,
    )  # fmt: skip
    weights = jax.tree.map(lambda w, m: m.astype(w.dtype), weights, master)
    return weights, {"master": master, "first": first, "second": second}, value


def shapes(kind: str, sizes: Sizes) -> dict[str, Any]:
    """The shapes of a model's weights."""
    d, h, k, f, s = sizes.width, sizes.heads, sizes.kv_heads, sizes.hidden, sizes.size
    layer: dict[str, Any] = {"norm1": (d,), "norm2": (d,), "q": (d, h, s), "k": (d, k, s),
                             "v": (d, k, s), "o": (h, s, d)}  # fmt: skip
    if kind == "gpt2":
        layer |= {"shift1": (d,), "shift2": (d,), "q_bias": (h, s), "k_bias": (k, s),
                  "v_bias": (k, s), "o_bias": (d,), "up": (d, f), "up_bias": (f,),
                  "down": (f, d), "down_bias": (d,)}  # fmt: skip
    elif kind == "llama":
        layer |= {"gate": (d, f), "up": (d, f), "down": (f, d)}
    else:
        e = sizes.experts
        layer |= {"router": (d, e), "gate": (e, d, f), "up": (e, d, f), "down": (e, f, d)}
    made: dict[str, Any] = {"embed": (sizes.tokens, d), "head": (d, sizes.tokens), "norm": (d,),
                            "layers": [dict(layer) for _ in range(sizes.layers)]}  # fmt: skip
    if kind == "gpt2":
        made |= {"positions": (sizes.length, d), "shift": (d,)}
    return made


def program(kind: str, sizes: Sizes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A training step and the types of its arguments."""
    is_shape = lambda x: isinstance(x, tuple)  # noqa: E731
    like = lambda dtype: jax.tree.map(  # noqa: E731
        lambda s: jax.ShapeDtypeStruct(s, dtype), shapes(kind, sizes), is_leaf=is_shape
    )
    state = {name: like(jnp.float32) for name in ("master", "first", "second")}
    tokens = jax.ShapeDtypeStruct((sizes.batch, sizes.length), jnp.int32)
    made = partial(train_step, LAYERS[kind])
    made.__name__ = f"{kind}_step"  # type: ignore[attr-defined]
    return made, (like(jnp.bfloat16), state, tokens, tokens)


def values(types: Any, seed: int = 0) -> Any:
    """Arguments of these types: small weights, zero moments, random tokens."""
    random = np.random.default_rng(seed)

    def drawn(path: Any, type: Any) -> Any:
        name = jax.tree_util.keystr(path)
        if type.dtype == jnp.int32:
            return random.integers(0, 100, type.shape).astype(np.int32)
        if "first" in name or "second" in name:
            return np.zeros(type.shape, type.dtype)
        return (0.2 * random.standard_normal(type.shape)).astype(type.dtype)

    return jax.tree_util.tree_map_with_path(drawn, types)
