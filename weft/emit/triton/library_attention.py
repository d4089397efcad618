"""Attention by PyTorch: cuDNN's on NVIDIA GPUs, with the logsumexp and gradients of training.

On the host, where kernels are interpreted, it is computed by its definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from weft.emit.triton.emitted import LibraryCall
from weft.kernels.attention import Access, Attention

_TYPES = {"bf16", "f16"}


def refuses_attention(kernel: Attention) -> str | None:
    """Why PyTorch does not compute attention, or None if it does."""
    if kernel.dtype(kernel.q).name not in _TYPES:
        return "cuDNN's takes f16 and bf16"
    if kernel.bias is not None or kernel.mask is not None or kernel.softcap:
        return "it has a mask, a bias or a cap"
    window = kernel.window
    square = kernel.queries == kernel.keys and window.shift == 0
    causal = window.left is None and window.right == 0 and square
    if not window.is_open and not causal:
        return "its window is not causal"
    if kernel.depth != kernel.value_depth or kernel.depth > 128 or kernel.depth % 8:
        return f"of depth {kernel.depth}"
    if kernel.queries < 16 or kernel.keys < 16 or len(kernel.outer) < 2:
        return "products with vectors are faster"
    if any(access.column != 1 for access in _accesses(kernel)):
        return "its depth is not the innermost dim"
    return _refuses_gradients(kernel)


def _refuses_gradients(kernel: Attention) -> str | None:
    gradients = kernel.gradients
    if gradients is None:
        return None
    if gradients.bias is not None:
        return "it has the gradient of a bias"
    for access in (gradients.q, gradients.k, gradients.v):
        pairs = zip(access.outer, kernel.outer, strict=True)
        if any(stride == 0 and size > 1 for stride, size in pairs):
            return "gradients of grouped heads are summed"
    return None


def _accesses(kernel: Attention) -> tuple[Access, ...]:
    """The operands with one element for each index of the depth."""
    gradients = kernel.gradients
    more = () if gradients is None else (gradients.out, gradients.q, gradients.k, gradients.v)
    return (kernel.q, kernel.k, kernel.v, kernel.out, *more)


def attention_call(kernel: Attention) -> LibraryCall:
    """The call of attention, or of its gradients."""
    accesses = [*_accesses(kernel), *([] if kernel.lse is None else [kernel.lse])]
    causal = "" if kernel.window.is_open else ", causal"
    sizes = f"{kernel.outer}, {kernel.queries} queries, {kernel.keys} keys, depth {kernel.depth}"
    what = "attention" if kernel.gradients is None else "the gradients of attention"
    text = f"# {kernel.name}\n# {what} by PyTorch: {sizes}{causal}\n"
    run = partial(_attend, kernel, accesses)
    return LibraryCall(kernel.name, text, tuple([a.operand for a in accesses]), run)


def _attend(kernel: Attention, accesses: Sequence[Access], *tensors: Any) -> None:
    rows = [kernel.queries, kernel.keys, kernel.keys, kernel.queries]
    rows += rows[3:] + rows[:3] if kernel.gradients is not None else []
    views = [
        tensor.as_strided((*kernel.outer, count, kernel.depth), (*a.outer, a.row, 1), a.offset)
        for tensor, a, count in zip(tensors, accesses, rows, strict=False)
    ]
    lse = None
    if (at := kernel.lse) is not None:
        shape = (*kernel.outer, kernel.queries)
        lse = tensors[-1].as_strided(shape, (*at.outer, at.row), at.offset)
    if kernel.gradients is None:
        _forward(kernel, views, lse)
    else:
        _backward(kernel, views, lse)


def _stacked(tensor: Any) -> Any:
    """A tensor of batch, heads, rows and depth: all outer dims but the last as one."""
    return tensor.reshape(-1, *tensor.shape[-3:])


def _forward(kernel: Attention, views: Sequence[Any], lse: Any) -> None:
    import torch

    q, k, v = (_stacked(t) for t in views[:3])
    out, causal = views[3], not kernel.window.is_open
    if q.device.type == "cpu":
        made, logs = _by_definition(q, k, v, causal, kernel.scale)
    else:
        found = torch.ops.aten._scaled_dot_product_cudnn_attention.default(
            q, k, v, None, lse is not None, 0.0, causal, False, scale=kernel.scale
        )
        made, logs = found[0], found[1]
    out.copy_(made.reshape(out.shape))
    if lse is not None:
        lse.copy_(logs.reshape(lse.shape))


def _backward(kernel: Attention, views: Sequence[Any], lse: Any) -> None:
    import torch

    q, k, v, out, given = (_stacked(t) for t in views[:5])
    causal, scale = not kernel.window.is_open, kernel.scale
    logs = lse.reshape(q.shape[:-1])
    if q.device.type == "cpu":
        made = _gradients(q, k, v, out, given, logs, causal, scale)
    else:
        seed = torch.zeros((), dtype=torch.int64, device=q.device)
        none = (None, None, q.shape[-2], k.shape[-2])
        made = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default(
            given, q, k, v, out, logs.unsqueeze(-1).contiguous(), seed, seed, None, *none,
            0.0, causal, scale=scale,
        )  # fmt: skip
    gradients = kernel.gradients
    assert gradients is not None
    factors = (gradients.q_scale, gradients.k_scale, None)
    for into, value, factor in zip(views[5:8], made, factors, strict=True):
        scaled = value if factor in (None, scale) or not scale else value * (factor / scale)
        into.copy_(scaled.reshape(into.shape))


def _scores(q: Any, k: Any, causal: bool, scale: float) -> Any:
    import torch

    scores = q.float() @ k.float().mT * scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).tril().logical_not()
        scores = scores.masked_fill(hidden, float("-inf"))
    return scores


def _by_definition(q: Any, k: Any, v: Any, causal: bool, scale: float) -> tuple[Any, Any]:
    scores = _scores(q, k, causal, scale)
    return scores.softmax(-1) @ v.float(), scores.logsumexp(-1)


def _gradients(
    q: Any, k: Any, v: Any, out: Any, given: Any, logs: Any, causal: bool, scale: float
) -> tuple[Any, Any, Any]:
    """The gradients of q, k and v, from the logsumexp."""
    weights = (_scores(q, k, causal, scale) - logs.float().unsqueeze(-1)).exp()
    wide = given.float()
    delta = (wide * out.float()).sum(-1, keepdim=True)
    inner = weights * (wide @ v.float().mT - delta) * scale
    return inner @ k.float(), inner.mT @ q.float(), weights.mT @ wide
