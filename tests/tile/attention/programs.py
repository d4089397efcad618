"""Attention as people write it in JAX, small."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

B, S, H, D = 2, 24, 4, 8
ATTEND = jax.nn.dot_product_attention


def rows(*shape: int, seed: int = 0, dtype: object = np.float32) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


def qkv(dtype: object = np.float32, heads: int = H, keys: int = S) -> list[np.ndarray]:
    return [
        rows(B, S, H, D, seed=1, dtype=dtype),
        rows(B, keys, heads, D, seed=2, dtype=dtype),
        rows(B, keys, heads, D, seed=3, dtype=dtype),
    ]


def causal(queries: int, keys: int) -> jax.Array:
    return jnp.arange(queries)[:, None] >= jnp.arange(keys)[None]


def plain(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def causal_by_hand(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(q.shape[-1])
    scores = jnp.where(causal(q.shape[1], k.shape[1]), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def scaled_first(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q * q.shape[-1] ** -0.5, k)
    scores = jnp.where(causal(q.shape[1], k.shape[1]), scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def low_precision(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(scores * q.shape[-1] ** -0.5).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def merged_heads(q, k, v):
    """As frameworks without batch dims write it: one batch of all heads."""

    def split(x):
        return x.transpose(0, 2, 1, 3).reshape(-1, x.shape[1], x.shape[3])

    scores = split(q) @ split(k).transpose(0, 2, 1) * q.shape[-1] ** -0.5
    bias = jnp.where(causal(q.shape[1], k.shape[1]), 0.0, -jnp.inf)
    out = jax.nn.softmax(scores + bias) @ split(v)
    return out.reshape(q.shape[0], q.shape[2], *out.shape[1:]).transpose(0, 2, 1, 3)


def repeated_heads(q, k, v):
    shared = q.shape[2] // k.shape[2]
    return causal_by_hand(q, jnp.repeat(k, shared, 2), jnp.repeat(v, shared, 2))


def normalised_by_hand(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.3
    powers = jnp.exp(scores - scores.max(-1, keepdims=True))
    weights = powers * (1 / powers.sum(-1, keepdims=True))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def windowed(q, k, v):
    apart = jnp.arange(k.shape[1])[None] - jnp.arange(q.shape[1])[:, None]
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    scores = jnp.where((apart <= 2) & (apart >= -5), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def key_padding(q, k, v, keep):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5
    scores = jnp.where(keep[:, None, None, :], scores, -1e9)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def with_bias(q, k, v, bias):
    return ATTEND(q, k, v, bias=bias)


def two_layers(q, k, v):
    return plain(causal_by_hand(q, k, v), k, v)


def scaled_on_both_sides(q, k, v):
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q, k, v))
    root = q.shape[-1] ** -0.25
    scores = (q * root) @ (k * root).swapaxes(-1, -2)
    scores = scores + jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), 0.0, -jnp.inf)
    return (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3)


def one_kv_head(q, k, v):
    scores = jnp.einsum("bqhd,bkd->bhqk", q, k[:, :, 0]) * 0.3
    return jnp.einsum("bhqk,bkd->bqhd", jax.nn.softmax(scores), v[:, :, 0])


def mapped(q, k, v):
    def one(q, k, v):
        return jax.nn.softmax(q @ k.T / 3) @ v

    return jax.vmap(jax.vmap(one, 1, 1))(q, k, v)


def last_queries(q, k, v):
    q = q[:, :10]
    at = jnp.arange(10)[:, None] + k.shape[1] - 10
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.3
    scores = jnp.where(at >= jnp.arange(k.shape[1])[None], scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def segments(q, k, v, ids):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.3
    same = (ids[:, :, None] == ids[:, None, :])[:, None]
    scores = jnp.where(same & causal(q.shape[1], k.shape[1]), scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def checkpointed(q, k, v):
    return jax.checkpoint(causal_by_hand)(q, k, v)


def distances(q, k):
    """How far a key lies behind a query, times a slope for each head."""
    slopes = 2.0 ** -jnp.arange(1, H + 1, dtype=jnp.float32)
    apart = jnp.arange(q.shape[1])[:, None] - jnp.arange(k.shape[1])[None]
    return slopes[:, None, None] * apart


def alibi(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.3 - distances(q, k)
    scores = jnp.where(causal(q.shape[1], k.shape[1]), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def alibi_both_ways(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) - jnp.abs(distances(q, k))
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def bias_before_the_scale(q, k, v, bias):
    scores = (jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias) * 0.3
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def hidden_by_subtraction(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * 0.3
    scores = scores - jnp.where(causal(q.shape[1], k.shape[1]), 0.0, 1e10)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


FORWARD = {
    "plain": (plain, qkv()),
    "causal_by_hand": (causal_by_hand, qkv()),
    "scaled_first": (scaled_first, qkv()),
    "low_precision": (low_precision, qkv(jnp.bfloat16)),
    "merged_heads": (merged_heads, qkv()),
    "repeated_heads": (repeated_heads, qkv(heads=2)),
    "normalised_by_hand": (normalised_by_hand, qkv()),
    "windowed": (windowed, qkv()),
    "other_keys": (plain, qkv(keys=17)),
    "key_padding": (key_padding, [*qkv(), np.arange(B * S).reshape(B, S) % 5 > 0]),
    "library": (ATTEND, qkv()),
    "library_causal": (lambda *x: ATTEND(*x, is_causal=True), qkv()),
    "library_low": (lambda *x: ATTEND(*x, is_causal=True), qkv(jnp.bfloat16)),
    "library_shared": (lambda *x: ATTEND(*x, is_causal=True), qkv(heads=2)),
    "library_window": (lambda *x: ATTEND(*x, local_window_size=(3, 1)), qkv()),
    "library_bias": (with_bias, [*qkv(), rows(1, H, S, S, seed=4)]),
    "library_mask": (
        lambda q, k, v, m: ATTEND(q, k, v, mask=m),
        [*qkv(), rows(B, 1, S, S, seed=5) > -1],
    ),
    "two_layers": (two_layers, qkv()),
    "scaled_on_both_sides": (scaled_on_both_sides, qkv()),
    "one_kv_head": (one_kv_head, qkv()),
    "mapped": (mapped, qkv()),
    "last_queries": (last_queries, qkv()),
    "segments": (segments, [*qkv(), np.arange(B * S).reshape(B, S) // 9]),
    "checkpointed": (checkpointed, qkv()),
    "one_query": (lambda q, k, v: ATTEND(q[:, :1], k, v), qkv()),
    "alibi": (alibi, qkv()),
    "alibi_both_ways": (alibi_both_ways, qkv()),
    "alibi_of_one_query": (lambda q, k, v: alibi_both_ways(q[:, :1], k, v), qkv()),
    "bias_before_the_scale": (bias_before_the_scale, [*qkv(), rows(1, H, S, S, seed=7)]),
    "hidden_by_subtraction": (hidden_by_subtraction, qkv()),
}


def squares(fn):
    """The gradients of the sum of squares, by every float argument of rank 4 with depth."""

    def loss(q, k, v, *rest):
        return (fn(q, k, v, *rest).astype(jnp.float32) ** 2).sum()

    return jax.value_and_grad(loss, (0, 1, 2))


WITH_GRADIENTS = (
    "plain",
    "causal_by_hand",
    "scaled_first",
    "low_precision",
    "merged_heads",
    "repeated_heads",
    "normalised_by_hand",
    "windowed",
    "other_keys",
    "key_padding",
    "library_causal",
    "library_low",
    "library_shared",
    "library_mask",
    "library_bias",
    "scaled_on_both_sides",
    "one_kv_head",
    "mapped",
    "last_queries",
    "segments",
    "checkpointed",
    "alibi",
    "alibi_both_ways",
    "bias_before_the_scale",
    "hidden_by_subtraction",
)


def gives_weights(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    weights = jax.nn.softmax(scores)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v), weights


def softmax_of_queries(q, k, v):
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k), axis=2)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def no_softmax(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    weights = jnp.exp(scores) / (1 + jnp.exp(scores).sum(-1, keepdims=True))
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def dropped(q, k, v, keep):
    weights = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k)) * keep
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


OTHERS = {
    "gives_weights": (gives_weights, qkv()),
    "softmax_of_queries": (softmax_of_queries, qkv()),
    "no_softmax": (no_softmax, qkv()),
    "dropped": (dropped, [*qkv(), rows(B, H, S, S, seed=6)]),
}
