"""Attention by PyTorch: cuDNN's on NVIDIA GPUs, else products and softmax by their definition.

The definition computes all gradients, in f32 or f64, on a few outer points at a time, so that the
scores of all pairs need no more than a gigabyte.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from weft.emit.triton.emitted import LibraryCall
from weft.emit.triton.library.cudnn import cudnn_attention, has_frontend, operands_of
from weft.ir.types import F64
from weft.kernels.attention import Access, Attention

_TYPES = {"bf16", "f16"}
SCORES = 1 << 28  # elements of the scores that are held at a time


def refuses_cudnn(kernel: Attention) -> str | None:
    """Why cuDNN does not compute attention, or None if it does."""
    if kernel.dtype(kernel.q).name not in _TYPES:
        return "it takes f16 and bf16"
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
        return "of few queries or keys"
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
    reason = refuses_cudnn(kernel)
    causal = "" if kernel.window.is_open else ", in a window"
    sizes = f"{kernel.outer}, {kernel.queries} queries, {kernel.keys} keys, depth {kernel.depth}"
    what = "attention" if kernel.gradients is None else "the gradients of attention"
    how = "cuDNN's" if has_frontend() and operands_of(kernel) else "cuDNN's, copied to its place"
    how = how if reason is None else f"by its definition, not cuDNN's: {reason}"
    text = f"# {kernel.name}\n# {what} by PyTorch: {sizes}{causal}; {how}\n"
    numbers = tuple(range(len(kernel.operands)))
    return LibraryCall(kernel.name, text, numbers, partial(_attend, kernel, reason is None))


def _attend(kernel: Attention, is_cudnn: bool, *tensors: Any) -> None:
    if not is_cudnn or tensors[0].device.type == "cpu":
        _by_definition(kernel, tensors)
        return
    if (graph := cudnn_attention(kernel)) is not None:
        graph(tensors)
        _scale_gradients(kernel, tensors)
        return
    rows = [kernel.queries, kernel.keys, kernel.keys, kernel.queries]
    rows += rows[3:] + rows[:3] if kernel.gradients is not None else []
    views = [
        _view(kernel, tensors, access, count, kernel.depth)
        for access, count in zip(_accesses(kernel), rows, strict=True)
    ]
    logs = kernel.lse
    lse = None if logs is None else _view(kernel, tensors, logs, kernel.queries, 1)[..., 0]
    if kernel.gradients is None:
        _forward(kernel, views, lse)
    else:
        _backward(kernel, views, lse)
        _scale_gradients(kernel, tensors)


def _view(
    kernel: Attention, tensors: Sequence[Any], access: Access, rows: int, columns: int
) -> Any:
    """The elements of an operand by outer point, row and column."""
    sizes, strides = (*kernel.outer, rows, columns), (*access.outer, access.row, access.column)
    return tensors[access.operand].as_strided(sizes, strides, access.offset)


# By cuDNN


def _stacked(tensor: Any) -> Any:
    """A tensor of batch, heads, rows and depth: all outer dims but the last as one."""
    return tensor.reshape(-1, *tensor.shape[-3:])


def _forward(kernel: Attention, views: Sequence[Any], lse: Any) -> None:
    import torch

    q, k, v = (_stacked(t) for t in views[:3])
    out, causal = views[3], not kernel.window.is_open
    results = torch.ops.aten._scaled_dot_product_cudnn_attention.default(
        q, k, v, None, lse is not None, 0.0, causal, False, scale=kernel.scale
    )
    out.copy_(results[0].reshape(out.shape))
    if lse is not None:
        lse.copy_(results[1].reshape(lse.shape))


def _backward(kernel: Attention, views: Sequence[Any], lse: Any) -> None:
    import torch

    q, k, v, out, d_out = (_stacked(t) for t in views[:5])
    causal, scale = not kernel.window.is_open, kernel.scale
    logs = lse.reshape(q.shape[:-1])
    # The seed and the offset of a dropout that is 0.
    seed = torch.zeros((), dtype=torch.int64, device=q.device)
    # No sequences of unequal length; the longest of queries and keys.
    none = (None, None, q.shape[-2], k.shape[-2])
    gradients = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default(
        d_out, q, k, v, out, logs.unsqueeze(-1).contiguous(), seed, seed, None, *none,
        0.0, causal, scale=scale,
    )  # fmt: skip
    for into, value in zip(views[5:8], gradients, strict=True):
        into.copy_(value.reshape(into.shape))


def _scale_gradients(kernel: Attention, tensors: Sequence[Any]) -> None:
    """Multiply the gradients of queries and keys where theirs is another scale than the scores'."""
    gradients, scale = kernel.gradients, kernel.scale
    if gradients is None or not scale:
        return
    for access, rows, factor in (
        (gradients.q, kernel.queries, gradients.q_scale),
        (gradients.k, kernel.keys, gradients.k_scale),
    ):
        if factor not in (None, scale):
            _view(kernel, tensors, access, rows, kernel.depth).mul_(factor / scale)


# By the definition


def _by_definition(kernel: Attention, tensors: Sequence[Any]) -> None:
    """Outputs or gradients, summed over shared outer points."""
    import torch

    held = torch.float64 if kernel.held is F64 else torch.float32
    gradients = kernel.gradients
    sums: list[Any] = []
    if gradients is not None:
        written = [(gradients.q, kernel.queries, kernel.depth)]
        written += [(gradients.k, kernel.keys, kernel.depth)]
        written += [(gradients.v, kernel.keys, kernel.value_depth)]
        if gradients.bias is not None:
            written.append((gradients.bias, kernel.queries, kernel.keys))
        for access, rows, columns in written:
            sizes = [n if s else 1 for n, s in zip(kernel.outer, access.outer, strict=True)]
            device = tensors[0].device
            sums.append(torch.zeros((*sizes, rows, columns), dtype=held, device=device))
    for point in _points(kernel):
        if gradients is None:
            _outputs_at(kernel, tensors, point, held)
            continue
        for total, part in zip(sums, _gradients_at(kernel, tensors, point, held), strict=True):
            at = tuple([n if total.shape[d] > 1 else 0 for d, n in enumerate(point)])
            into = total[at]
            dims = [d for d in range(part.ndim) if into.shape[d] != part.shape[d]]
            into += part.sum(dims, keepdim=True) if dims else part
    if gradients is not None:
        for (access, _, _), total in zip(written, sums, strict=True):
            strides = (*access.outer, access.row, access.column)
            into = tensors[access.operand].as_strided(total.shape, strides, access.offset)
            into.copy_(total)


def _points(kernel: Attention) -> Iterator[tuple[int, ...]]:
    """Points of the first outer dims, so many that the scores of one are few enough."""
    count = 0
    while count < len(kernel.outer):
        if math.prod(kernel.outer[count:]) * kernel.queries * kernel.keys <= SCORES:
            break
        count += 1
    return itertools.product(*map(range, kernel.outer[:count]))


def _softmax_at(
    kernel: Attention, tensors: Sequence[Any], point: tuple[int, ...], held: Any
) -> tuple[Any, Any, Any]:
    """The probabilities, the logsumexp, and the pairs that the mask hides."""
    import torch

    q = _view(kernel, tensors, kernel.q, kernel.queries, kernel.depth)[point].to(held)
    k = _view(kernel, tensors, kernel.k, kernel.keys, kernel.depth)[point].to(held)
    scores = q @ k.mT * kernel.scale
    if kernel.softcap:
        scores = kernel.softcap * torch.tanh(scores / kernel.softcap)
    if kernel.bias is not None:
        bias = _view(kernel, tensors, kernel.bias, kernel.queries, kernel.keys)[point]
        scores = scores + kernel.bias_scale * bias.to(held)
    hidden = torch.zeros((), dtype=torch.bool, device=q.device)
    if kernel.mask is not None:
        mask = _view(kernel, tensors, kernel.mask.access, kernel.queries, kernel.keys)[point]
        hidden = mask != 0 if kernel.mask.hides else mask == 0
        scores = scores.masked_fill(hidden, kernel.mask.fill)
    if not kernel.window.is_open:
        scores = scores.masked_fill(~_visible_pairs(kernel, q.device), -math.inf)
    top = scores.amax(-1, keepdim=True)
    # A row without visible keys: -inf - -inf would be NaN, while exp(-inf - 0) is 0.
    top = torch.where(top == -math.inf, 0.0, top)
    powers = (scores - top).exp()
    total = powers.sum(-1, keepdim=True)
    empty = math.nan if kernel.empty == "nan" else 0.0
    weights = torch.where(total == 0.0, empty, powers / total)
    return weights, (top + total.log())[..., 0], hidden


def _visible_pairs(kernel: Attention, device: Any) -> Any:
    """The pairs that the window shows."""
    import torch

    window = kernel.window
    i = torch.arange(kernel.queries, device=device)[:, None] + window.shift
    s = torch.arange(kernel.keys, device=device)[None, :]
    seen = torch.ones((kernel.queries, kernel.keys), dtype=torch.bool, device=device)
    if window.left is not None:
        seen &= s >= i - window.left
    if window.right is not None:
        seen &= s <= i + window.right
    return seen


def _outputs_at(
    kernel: Attention, tensors: Sequence[Any], point: tuple[int, ...], held: Any
) -> None:
    weights, logs, _ = _softmax_at(kernel, tensors, point, held)
    v = _view(kernel, tensors, kernel.v, kernel.keys, kernel.value_depth)[point].to(held)
    out = _view(kernel, tensors, kernel.out, kernel.queries, kernel.value_depth)[point]
    out.copy_(weights @ v)
    if kernel.lse is not None:
        _view(kernel, tensors, kernel.lse, kernel.queries, 1)[point][..., 0].copy_(logs)


def _gradients_at(
    kernel: Attention, tensors: Sequence[Any], point: tuple[int, ...], held: Any
) -> list[Any]:
    """The gradients of q, k, v and perhaps of the bias."""
    import torch

    gradients = kernel.gradients
    assert gradients is not None

    def read(access: Access, rows: int, columns: int) -> Any:
        return _view(kernel, tensors, access, rows, columns)[point].to(held)

    weights, _, hidden = _softmax_at(kernel, tensors, point, held)
    d_out = read(gradients.out, kernel.queries, kernel.value_depth)
    out = read(kernel.out, kernel.queries, kernel.value_depth)
    d_weights = d_out @ read(kernel.v, kernel.keys, kernel.value_depth).mT
    # The sum over keys of P * dP is the dot product of the output and its gradient, which needs no
    # scores (FlashAttention).
    d_scores = weights * (d_weights - (out * d_out).sum(-1, keepdim=True))
    # Pairs outside of the window have probability 0, or NaN in a row without any.
    d_scores = torch.where(hidden | (weights == 0.0), 0.0, d_scores)
    scales = [kernel.scale if s is None else s for s in (gradients.q_scale, gradients.k_scale)]
    results = [
        scales[0] * (d_scores @ read(kernel.k, kernel.keys, kernel.depth)),
        scales[1] * (d_scores.mT @ read(kernel.q, kernel.queries, kernel.depth)),
        weights.mT @ d_out,
    ]
    return results if gradients.bias is None else [*results, kernel.bias_scale * d_scores]
