"""Embedding bags."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


def _bags(indices: Any, offsets: Any, count: int) -> Any:
    """The bag of each index; one after the last bag for indices behind it."""
    import torch

    places = torch.arange(indices.shape[0], dtype=offsets.dtype)
    return torch.bucketize(places, offsets, right=True) - 1 if count else torch.zeros_like(places)


def embedding_bag(
    weight: Any,
    indices: Any,
    offsets: Any,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> Any:
    """The sums (mode 0), means (1) or maxima (2) of rows, one for each bag."""
    import torch

    count = offsets.shape[0] - int(include_last_offset)
    bag = _bags(indices, offsets[:count], count)
    rows = weight.index_select(0, indices)
    used = indices != padding_idx
    sizes = torch.zeros(count, dtype=indices.dtype).index_add(0, bag, used.to(indices.dtype))
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    wide = torch.float32 if rows.dtype in (torch.bfloat16, torch.float16) else rows.dtype
    if mode == 2:
        result, best = _bag_maxima(rows, indices, bag, used, sizes)
        return result, bag, sizes, best
    rows = torch.where(used[:, None], rows, 0).to(wide)
    result = torch.zeros(count, weight.shape[1], dtype=wide).index_add(0, bag, rows)
    if mode == 1:
        result = result / sizes.clamp(min=1)[:, None].to(wide)
    # Empty for plain sums, as PyTorch's: their gradient finds the bags by the offsets.
    offset2bag = bag if mode == 1 or padding_idx >= 0 else bag[:0]
    return result.to(weight.dtype), offset2bag, sizes, sizes


def _bag_maxima(rows: Any, indices: Any, bag: Any, used: Any, sizes: Any) -> tuple[Any, Any]:
    """The maxima of bags, 0 for empty ones, and the rows that they came from."""
    import torch

    shape = (sizes.shape[0], rows.shape[1])
    at = bag[:, None].expand(rows.shape)
    low = torch.where(used[:, None], rows, -math.inf)
    maxima = torch.full(shape, -math.inf, dtype=rows.dtype).scatter_reduce(0, at, low, "amax")
    places = torch.arange(rows.shape[0])[:, None].expand(rows.shape)
    is_best = (low == maxima.index_select(0, bag)) & used[:, None]
    last = rows.shape[0]
    first = torch.full(shape, last).scatter_reduce(
        0, at, torch.where(is_best, places, last), "amin"
    )
    best = indices[first.clamp(max=max(last - 1, 0))] if last else first * 0
    is_empty = (sizes == 0)[:, None]
    return torch.where(is_empty, 0, maxima), torch.where(is_empty, 0, best)


def embedding_bag_backward(
    grad: Any,
    indices: Any,
    offsets: Any,
    offset2bag: Any,
    bag_size: Any,
    maximum_indices: Any,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    sparse: bool,
    per_sample_weights: Any,
    padding_idx: int = -1,
) -> Any:
    """The gradient of the rows: those of their bags, added up."""
    import torch

    wide = torch.float32 if grad.dtype in (torch.bfloat16, torch.float16) else grad.dtype
    zeros = torch.zeros(num_weights, grad.shape[1], dtype=wide)
    if mode == 2:
        grad = torch.where((bag_size == 0)[:, None], 0, grad).to(wide)
        return zeros.scatter_add(0, maximum_indices, grad).to(grad.dtype)
    bag = _bags(indices, offsets[: grad.shape[0]], grad.shape[0])
    if mode == 1:
        grad = grad / bag_size.clamp(min=1)[:, None].to(grad.dtype)
    rows = grad.index_select(0, bag).to(wide)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    if scale_grad_by_freq:
        ones = torch.ones_like(indices)
        often = torch.zeros(num_weights, dtype=indices.dtype).index_add(0, indices, ones)
        rows = rows / often[indices][:, None].to(wide)
    rows = torch.where((indices != padding_idx)[:, None], rows, 0)
    return zeros.index_add(0, indices, rows).to(grad.dtype)


def embedding_bag_weights_backward(
    grad: Any,
    weight: Any,
    indices: Any,
    offsets: Any,
    offset2bag: Any,
    mode: int,
    padding_idx: int = -1,
) -> Any:
    """The gradient of the weights of samples: a row's product with its bag's gradient."""
    import torch

    bag = _bags(indices, offsets[: grad.shape[0]], grad.shape[0])
    made = (grad.index_select(0, bag) * weight.index_select(0, indices)).sum(-1)
    return torch.where(indices != padding_idx, made, 0)


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "_embedding_bag": embedding_bag,
    "_embedding_bag_backward": embedding_bag_backward,
    "_embedding_bag_forward_only": embedding_bag,
    "_embedding_bag_per_sample_weights_backward": embedding_bag_weights_backward,
}
