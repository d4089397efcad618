"""Gradients that PyTorch computes by one op each, and has no decompositions of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any


def shrink_backward(grad: Any, x: Any, lambd: float) -> Any:
    """The gradient of a hard or soft shrink: 0 where the result is 0."""
    import torch

    return torch.where((x >= -lambd) & (x <= lambd), 0, grad)


def replication_pad_backward(grad: Any, x: Any, padding: Sequence[int]) -> Any:
    """The gradient of elements: that of all their copies."""
    import torch

    for n, before in enumerate(padding[::2]):
        dim = x.dim() - 1 - n
        places = (torch.arange(grad.shape[dim]) - before).clamp(0, x.shape[dim] - 1)
        shape = [*grad.shape]
        shape[dim] = x.shape[dim]
        grad = torch.zeros(shape, dtype=grad.dtype).index_add(dim, places, grad)
    return grad


def masked_scatter_backward(grad: Any, mask: Any, sizes: Sequence[int]) -> Any:
    """The gradient of the source: in order, that of the places where the mask is true."""
    import torch

    count = math.prod(sizes)
    flat = mask.expand(grad.shape).reshape(-1)
    place = torch.where(flat, flat.to(torch.int64).cumsum(0) - 1, count).clamp(max=count)
    made = torch.zeros(count + 1, dtype=grad.dtype).scatter(0, place, grad.reshape(-1))
    return made[:count].reshape(sizes)


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "hardshrink_backward": shrink_backward,
    "masked_scatter_backward": masked_scatter_backward,
    "replication_pad1d_backward": replication_pad_backward,
    "replication_pad2d_backward": replication_pad_backward,
    "replication_pad3d_backward": replication_pad_backward,
    "softshrink_backward": shrink_backward,
}
