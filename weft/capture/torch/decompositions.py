"""Decompositions of ATen's ops: PyTorch's own, and those that it lacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

from weft.capture.torch.aten import LOWERINGS

# PyTorch's decomposition returns a wrong logsumexp, and so wrong gradients.
_WRONG = {"aten._scaled_dot_product_flash_attention_for_cpu.default"}


@cache
def decompositions() -> dict[Any, Any]:
    """PyTorch's decompositions of ops without a lowering, except composite ops.

    Decompositions of composite ops end in prims, which have no lowering; the dispatcher decomposes
    these ops to ATen by itself, unless they have a kernel for the CPU (`silu_backward`).
    """
    import torch
    from torch._decomp import decomposition_table

    kept = _WRONG | LOWERINGS.keys()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    theirs = {
        op: rule
        for op, rule in decomposition_table.items()
        if isinstance(op, torch._ops.OpOverload)
        and str(op) not in kept
        and not op._schema.is_mutable  # the graph is functional already
        and (has(op.name(), "CPU") or not has(op.name(), "CompositeImplicitAutograd"))
    }
    aten = torch.ops.aten
    return theirs | {getattr(aten, name).default: rule for name, rule in OURS.items()}


# Embedding bags


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
        made, best = _bag_maxima(rows, indices, bag, used, sizes)
        return made, bag, sizes, best
    rows = torch.where(used[:, None], rows, 0).to(wide)
    made = torch.zeros(count, weight.shape[1], dtype=wide).index_add(0, bag, rows)
    if mode == 1:
        made = made / sizes.clamp(min=1)[:, None].to(wide)
    kept = bag if mode == 1 or padding_idx >= 0 else bag[:0]
    return made.to(weight.dtype), kept, sizes, sizes


def _bag_maxima(rows: Any, indices: Any, bag: Any, used: Any, sizes: Any) -> tuple[Any, Any]:
    """The maxima of bags, 0 for empty ones, and the rows that they came from."""
    import torch

    shape = (sizes.shape[0], rows.shape[1])
    at = bag[:, None].expand(rows.shape)
    low = torch.where(used[:, None], rows, -math.inf)
    made = torch.full(shape, -math.inf, dtype=rows.dtype).scatter_reduce(0, at, low, "amax")
    places = torch.arange(rows.shape[0])[:, None].expand(rows.shape)
    is_best = (low == made.index_select(0, bag)) & used[:, None]
    last = rows.shape[0]
    first = torch.full(shape, last).scatter_reduce(
        0, at, torch.where(is_best, places, last), "amin"
    )
    best = indices[first.clamp(max=max(last - 1, 0))] if last else first * 0
    is_empty = (sizes == 0)[:, None]
    return torch.where(is_empty, 0, made), torch.where(is_empty, 0, best)


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


# Distances


def _norms(apart: Any, p: float) -> Any:
    """The p-norms along the last dim."""
    size = apart.abs()
    if p == 0:
        return (size != 0).to(apart.dtype).sum(-1)
    if p == 1:
        return size.sum(-1)
    if p == 2:
        return (apart * apart).sum(-1).sqrt()
    if p == math.inf:
        return size.amax(-1) if apart.shape[-1] else size.sum(-1)
    return (size**p).sum(-1) ** (1 / p)


def _norm_gradient(grad: Any, apart: Any, norm: Any, p: float) -> Any:
    """The gradient of norms with respect to the vectors; 0 at 0."""
    import torch

    grad, norm = grad[..., None], norm[..., None]
    if p == 0:
        return torch.zeros_like(apart)
    if p == 1:
        return grad * apart.sign()
    if p == math.inf:
        return grad * apart.sign() * (apart.abs() == norm).to(apart.dtype)
    safe = torch.where(norm == 0, 1, norm)
    if p == 2:
        made = grad * apart / safe
    else:
        inner = torch.where(apart == 0, 1, apart.abs()) ** (p - 1)
        made = torch.where(apart == 0, 0, grad * apart.sign() * inner / safe ** (p - 1))
    return torch.where(norm == 0, 0, made)


def cdist(x1: Any, x2: Any, p: float, compute_mode: int | None) -> Any:
    """The distances of all pairs of rows."""
    return _norms(x1[..., :, None, :] - x2[..., None, :, :], p)


def cdist_backward(grad: Any, x1: Any, x2: Any, p: float, cdist: Any) -> Any:
    """The gradient of all distances with respect to the first rows."""
    apart = x1[..., :, None, :] - x2[..., None, :, :]
    return _norm_gradient(grad, apart, cdist, p).sum(-2)


def _pairs(count: int) -> tuple[Any, Any]:
    import numpy as np
    import torch

    first, second = np.triu_indices(count, 1)
    return torch.from_numpy(first), torch.from_numpy(second)


def pdist(x: Any, p: float = 2) -> Any:
    """The distances of rows to those after them."""
    first, second = _pairs(x.shape[0])
    return _norms(x[first] - x[second], p)


def pdist_backward(grad: Any, x: Any, p: float, pdist: Any) -> Any:
    """The gradient of the distances of rows to those after them."""
    import torch

    first, second = _pairs(x.shape[0])
    made = _norm_gradient(grad, x[first] - x[second], pdist, p)
    return torch.zeros_like(x).index_add(0, first, made).index_add(0, second, -made)


# Others


def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    """Masked elements replaced by those of another tensor, in order."""
    import torch

    shape = torch.broadcast_shapes(x.shape, mask.shape)
    x, mask = x.expand(shape), mask.expand(shape)
    if not source.numel() or not x.numel():
        return x.clone()
    place = mask.reshape(-1).to(torch.int64).cumsum(0) - 1
    taken = source.reshape(-1)[place.clamp(0, source.numel() - 1)].view(shape)
    return torch.where(mask, taken, x)


def weight_norm_backward(grad: Any, v: Any, g: Any, norms: Any, dim: int) -> tuple[Any, Any]:
    """The gradients of a direction and of a magnitude, whose norm runs over all dims but one."""
    others = [d for d in range(v.dim()) if d != dim]
    norms = norms.to(v.dtype)
    along = (grad * v).sum(others, keepdim=True)
    return (g / norms) * (grad - v * (along / (norms * norms))), along / norms


def randperm(n: int, *, dtype: Any = None, **layout: Any) -> Any:
    """The order of random numbers."""
    import torch

    made = torch.rand(n, dtype=torch.float64).argsort()
    return made if dtype is None else made.to(dtype)


def multinomial(
    chances: Any, num_samples: int, replacement: bool = False, *, generator: Any = None
) -> Any:
    """Indices by their chances: the first of exponential races, or the inverse of their sums."""
    import torch

    wide = chances.to(torch.float64)
    if not replacement or num_samples == 1:
        race = wide / -torch.log1p(-torch.rand(wide.shape, dtype=torch.float64))
        return race.topk(num_samples, -1)[1]
    sums = wide.cumsum(-1)
    drawn = torch.rand((*wide.shape[:-1], num_samples), dtype=torch.float64) * sums[..., -1:]
    return (sums[..., None, :] <= drawn[..., None]).to(torch.int64).sum(-1)


OURS: dict[str, Callable[..., Any]] = {
    "_cdist_backward": cdist_backward,
    "_cdist_forward": cdist,
    "_embedding_bag": embedding_bag,
    "_embedding_bag_backward": embedding_bag_backward,
    "_embedding_bag_forward_only": embedding_bag,
    "_embedding_bag_per_sample_weights_backward": embedding_bag_weights_backward,
    "_pdist_backward": pdist_backward,
    "_pdist_forward": pdist,
    "_weight_norm_interface_backward": weight_norm_backward,
    "masked_scatter": masked_scatter,
    "multinomial": multinomial,
    "randperm": randperm,
}
