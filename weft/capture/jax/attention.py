"""Attention of JAX arrays: a composite, or plain operations where it is differentiated."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from weft.errors import WeftError


def attend_arrays(
    q: Any, k: Any, v: Any, mask: Any, bias: Any, sinks: Any, how: Any, logsumexp: bool
) -> tuple[Any, Any]:
    """The result and its logsumexp, if that is wanted."""
    try:
        import jax.numpy as jnp
    except ImportError:
        raise WeftError(
            f"attention: {type(q).__name__} is neither a JAX value nor a tensor",
            help="call it on the arrays inside a function that is compiled",
        ) from None
    q, k, v = (jnp.asarray(x) for x in (q, k, v))
    given = {"mask": mask, "bias": bias, "sinks": sinks}
    extra = {name: jnp.asarray(x) for name, x in given.items() if x is not None}
    for name in ("mask", "bias"):
        if name in extra:
            x = extra[name]
            extra[name] = x.reshape((1,) * (q.ndim - x.ndim) + x.shape)
    made: tuple[Any, Any] = _function()(how, logsumexp, q, k, v, extra)
    return made


@cache
def _function() -> Any:
    import jax

    def whole(how: Any, logsumexp: bool, q: Any, k: Any, v: Any, extra: Any) -> Any:
        return _composite(how, logsumexp, q, k, v, extra)

    def forward(how: Any, logsumexp: bool, q: Any, k: Any, v: Any, extra: Any) -> Any:
        # Differentiated, attention is plain ops in the forward pass, too: a composite has no
        # gradient.
        return jax.vjp(lambda *given: _plain(how, logsumexp, *given), q, k, v, extra)

    def backward(how: Any, logsumexp: bool, pulled: Any, cotangent: Any) -> Any:
        return pulled(cotangent)

    made = jax.custom_vjp(whole, nondiff_argnums=(0, 1))
    made.defvjp(forward, backward)
    return made


def _composite(how: Any, logsumexp: bool, q: Any, k: Any, v: Any, extra: Any) -> Any:
    """The op `weft.attention`; sinks rescale its result by their part of the softmax."""
    import jax
    import jax.numpy as jnp

    names = [name for name in ("mask", "bias") if name in extra]
    wants_lse = logsumexp or "sinks" in extra

    def meaning(q: Any, k: Any, v: Any, *pairs: Any, **_: Any) -> Any:
        out, lse = _plain(how, wants_lse, q, k, v, dict(zip(names, pairs, strict=True)))
        return (out, lse) if wants_lse else out

    outputs = jax.lax.composite(meaning, name="weft.attention")(
        q, k, v, *[extra[name] for name in names],
        scale=how.scale, left=how.left, right=how.right, bottom_right=how.bottom_right,
        masked="mask" in extra, biased="bias" in extra, logsumexp=wants_lse, softcap=how.softcap,
    )  # fmt: skip
    if not wants_lse:
        return outputs, None
    out, lse = outputs
    if "sinks" not in extra:
        return out, lse
    sink = extra["sinks"].astype(lse.dtype)[:, None]
    # exp(lse) / (exp(lse) + exp(sink)), without overflow.
    scaled = out.astype(lse.dtype) * jax.nn.sigmoid(lse - sink)[..., None]
    return scaled.astype(out.dtype), jnp.logaddexp(lse, sink) if logsumexp else None


def _plain(how: Any, logsumexp: bool, q: Any, k: Any, v: Any, extra: Any) -> Any:
    """The op's meaning in JAX's own operations, which can be differentiated."""
    import jax
    import jax.numpy as jnp

    wide = jnp.float64 if q.dtype == jnp.float64 else jnp.float32
    shared = q.shape[-3] // max(1, k.shape[-3])
    grouped = (*k.shape[:-2], shared)  # neighbouring heads share a kv head
    queries = q.astype(wide).reshape(*grouped, *q.shape[-2:])
    scores = how.scale * jnp.einsum("...gid,...sd->...gis", queries, k.astype(wide))
    if how.softcap:
        scores = how.softcap * jnp.tanh(scores / how.softcap)
    if "bias" in extra:
        scores = scores + _over_groups(extra["bias"].astype(wide), grouped)
    seen = _window(how, q.shape[-2], k.shape[-2])
    if "mask" in extra:
        mask = _over_groups(extra["mask"], grouped)
        seen = mask if seen is None else mask & seen
    if seen is not None:
        scores = jnp.where(seen, scores, -math.inf)
    # The maximum cancels out of the softmax: its gradient is 0 but for rounding.
    top = jax.lax.stop_gradient(scores.max(-1, keepdims=True, initial=-math.inf))
    # A row without visible keys: -inf - -inf would be NaN, and reach the gradients.
    top = jnp.where(top == -math.inf, 0.0, top)
    if "sinks" in extra:
        sink = extra["sinks"].astype(wide).reshape(*grouped[-2:], 1, 1)
        top = jnp.maximum(top, jax.lax.stop_gradient(sink))
    powers = jnp.exp(scores - top)
    total = powers.sum(-1, keepdims=True)
    if "sinks" in extra:
        total = total + jnp.exp(sink - top)
    # The same row: 0 / 0. `where` outside of the division would still give NaN gradients.
    weights = powers / jnp.where(total == 0, 1.0, total)
    out = jnp.einsum("...gis,...sd->...gid", weights, v.astype(wide))
    out = out.reshape(*q.shape[:-1], v.shape[-1]).astype(q.dtype)
    lse = (top + jnp.log(total)).reshape(q.shape[:-1]) if logsumexp else None
    return out, lse


def _over_groups(x: Any, grouped: tuple[int, ...]) -> Any:
    """A mask or bias with its heads split into kv heads and the heads that share one."""
    heads = (1, 1) if x.shape[-3] == 1 else grouped[-2:]
    return x.reshape(*x.shape[:-3], *heads, *x.shape[-2:])


def _window(how: Any, queries: int, keys: int) -> Any:
    """The mask of a window over queries and keys; None if both sides are open."""
    import jax.numpy as jnp

    if how.left < 0 and how.right < 0:
        return None
    apart = jnp.arange(keys)[None] - jnp.arange(queries)[:, None]
    apart = apart - (keys - queries if how.bottom_right else 0)
    if how.left < 0:
        return apart <= how.right
    return apart >= -how.left if how.right < 0 else (apart >= -how.left) & (apart <= how.right)
