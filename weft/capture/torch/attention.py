"""Attention in PyTorch code: an op that export keeps whole, and its meaning in ATen ops."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from weft.capture.torch.build import AtenLowering, Build, LoweredResults, dtype_of, shape_of
from weft.ir.module import Value
from weft.ops.attention import Attention
from weft.ops.elementwise.pointwise import Abs, Add, Maximum, Multiply, Negate, Subtract
from weft.ops.elementwise.transcendental import Exponential, Logistic, LogPlusOne

_SCHEMA = (
    "(Tensor q, Tensor k, Tensor v, Tensor? mask, Tensor? bias, Tensor? sinks, float scale, "
    "int left, int right, bool bottom_right, float softcap) -> (Tensor, Tensor)"
)


# In the user's code


def attend_tensors(
    q: Any, k: Any, v: Any, mask: Any, bias: Any, sinks: Any, how: Any, logsumexp: bool
) -> tuple[Any, Any]:
    """The result and its logsumexp, by the op `weft::attention`."""
    mask, bias = (_with_rank(x, q.dim()) for x in (mask, bias))
    made: tuple[Any, Any] = whole_attention()(
        q, k, v, mask, bias, sinks, how.scale, how.left, how.right, how.bottom_right, how.softcap
    )
    return made


def whole_attention() -> Any:
    """The op `weft::attention`."""
    import torch

    if not hasattr(torch.ops.weft, "attention"):
        define_attention()
    return torch.ops.weft.attention.default


def scaled_dot_product(
    attend: Callable[..., Any],
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """PyTorch's scaled_dot_product_attention by that op, or by its meaning; without dropout."""
    import torch

    rank = max(4, query.dim(), key.dim(), value.dim())
    q, k, v = (_with_rank(x, rank) for x in (query, key, value))
    batch = torch.broadcast_shapes(*[x.shape[:-3] for x in (q, k, v)])
    heads = q.shape[-3]
    shared = k.shape[-3] if enable_gqa else max(heads, k.shape[-3], v.shape[-3])
    q = _expanded(q, (*batch, max(heads, shared)))
    k, v = (_expanded(x, (*batch, shared)) for x in (k, v))
    mask = _with_rank(attn_mask, rank)
    # A mask of booleans says which keys are seen; one of floats is added to the scores.
    is_mask = mask is not None and mask.dtype == torch.bool
    scale = 1 / math.sqrt(max(1, query.shape[-1])) if scale is None else scale
    pairs = (mask, None) if is_mask else (None, mask)
    made = attend(q, k, v, *pairs, None, float(scale), -1, 0 if is_causal else -1, False, 0.0)[0]
    outer = query.dim() if max(key.dim(), value.dim()) <= query.dim() else rank
    return made.reshape(made.shape[rank - outer :])


def drops_out(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call of scaled_dot_product_attention has dropout."""
    return bool(args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0))


def _expanded(x: Any, outer: tuple[int, ...]) -> Any:
    return x if tuple(x.shape[:-2]) == outer else x.expand(*outer, *x.shape[-2:])


def _with_rank(x: Any, rank: int) -> Any:
    if x is None or x.dim() == rank:
        return x
    return x.reshape((1,) * (rank - x.dim()) + tuple(x.shape))


def plain_attention(
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    bias: Any,
    sinks: Any,
    scale: float,
    left: int,
    right: int,
    bottom_right: bool,
    softcap: float,
) -> tuple[Any, Any]:
    """The op's meaning in ATen ops, which can be differentiated."""
    import torch

    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    shared = q.shape[-3] // max(1, k.shape[-3])
    keys, values = (_repeated(x.to(wide), shared) for x in (k, v))
    scores = (q.to(wide) @ keys.transpose(-1, -2)) * scale
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.to(wide)
    seen = _window(q, k, left, right, bottom_right)
    if mask is not None:
        seen = mask if seen is None else mask & seen
    if seen is not None:
        scores = scores.masked_fill(~seen, -math.inf)
    # The maximum cancels in the softmax, and has no gradient. A row without a visible key has -inf,
    # and -inf - -inf would be NaN: with 0 its powers are 0.
    top = scores.detach().amax(-1, keepdim=True)
    top = top.masked_fill(top == -math.inf, 0.0)
    if sinks is not None:
        sink = sinks.to(wide).reshape(-1, 1, 1)
        top = torch.maximum(top, sink.detach())
    powers = torch.exp(scores - top)
    total = powers.sum(-1, keepdim=True)
    if sinks is not None:
        total = total + torch.exp(sink - top)
    out = (powers / total.masked_fill(total == 0, 1.0)) @ values
    return out.to(q.dtype), (top + torch.log(total)).squeeze(-1)


def _repeated(x: Any, shared: int) -> Any:
    """Every kv head for each head of its group."""
    if shared == 1:
        return x
    spread = x.unsqueeze(-3).expand(*x.shape[:-2], shared, *x.shape[-2:])
    return spread.reshape(*x.shape[:-3], x.shape[-3] * shared, *x.shape[-2:])


def _window(q: Any, k: Any, left: int, right: int, bottom_right: bool) -> Any:
    """The mask of a window over queries and keys; None if both sides are open."""
    import torch

    if left < 0 and right < 0:
        return None
    queries, keys = q.shape[-2], k.shape[-2]
    shift = keys - queries if bottom_right else 0
    apart = torch.arange(keys, device=q.device) - torch.arange(queries, device=q.device)[:, None]
    apart = apart - shift
    if left < 0:
        return apart <= right
    return apart >= -left if right < 0 else (apart >= -left) & (apart <= right)


@cache
def define_attention() -> Any:
    """Define `weft::attention`, whose sizes may be symbolic."""
    import torch

    op = torch.library.custom_op(
        "weft::attention", plain_attention, mutates_args=(), schema=_SCHEMA
    )

    def shapes(q: Any, k: Any, v: Any, *_: Any) -> Any:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(q.shape[:-1], dtype=wide)

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        tensors, ctx.how = inputs[:6], inputs[6:]
        ctx.present = [x is not None for x in tensors]
        ctx.save_for_backward(*[x for x in tensors if x is not None])

    def backward(ctx: Any, *cotangents: Any) -> Any:
        saved = iter(ctx.saved_tensors)
        with torch.enable_grad():
            operands: list[Any] = [next(saved).detach() if held else None for held in ctx.present]
            wanted = [n for n in range(6) if ctx.needs_input_grad[n] and operands[n] is not None]
            for n in wanted:
                operands[n] = operands[n].requires_grad_()
            outputs = plain_attention(*operands[:6], *ctx.how)
            pairs = [(x, c) for x, c in zip(outputs, cotangents, strict=True) if c is not None]
            outs, given_grads = zip(*pairs, strict=True)
            inputs = [operands[n] for n in wanted]
            partials = torch.autograd.grad(outs, inputs, given_grads, allow_unused=True)
        # One for each operand of the schema: six tensors and five options.
        grads: list[Any] = [None] * 11
        for n, grad in zip(wanted, partials, strict=True):
            grads[n] = grad
        return tuple(grads)

    op.register_fake(shapes)
    op.register_autograd(backward, setup_context=keep)
    return op  # which lives as long as this object


# In the captured program


def attention(
    b: Build,
    q: Value,
    k: Value,
    v: Value,
    mask: Value | None,
    bias: Value | None,
    sinks: Value | None,
    scale: float,
    left: int,
    right: int,
    bottom_right: bool,
    softcap: float,
) -> LoweredResults:
    """One op; sinks rescale its result by their part of the softmax."""
    wants_lse = 1 in b.used or sinks is not None
    op = Attention(
        scale, left, right, bottom_right, mask is not None, bias is not None, wants_lse, softcap
    )
    made = b.all(op, q, k, v, *[x for x in (mask, bias) if x is not None])
    if not wants_lse:
        return made[0], None
    return made if sinks is None else with_sinks(b, made[0], made[1], sinks)


def with_sinks(b: Build, out: Value, lse: Value, sinks: Value) -> tuple[Value, Value]:
    """Attention whose softmax has one more score for each head, without a value."""
    held = dtype_of(lse)
    sink = b.spread(b.convert(sinks, held), shape_of(lse), (len(shape_of(lse)) - 2,))
    apart = b.op(Subtract(), lse, sink)
    # exp(lse) / (exp(lse) + exp(sink)), which does not overflow in this form.
    share = b.spread(b.op(Logistic(), apart), shape_of(out), range(len(shape_of(lse))))
    scaled = b.op(Multiply(), b.convert(out, held), share)
    # logaddexp(lse, sink) = max + log1p(exp(-|lse - sink|))
    near = b.op(Exponential(), b.op(Negate(), b.op(Abs(), apart)))
    total = b.op(Add(), b.op(Maximum(), lse, sink), b.op(LogPlusOne(), near))
    return b.convert(scaled, dtype_of(out)), total


LOWERINGS: dict[str, AtenLowering] = {"weft.attention.default": attention}
