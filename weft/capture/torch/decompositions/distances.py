"""Distances of all pairs of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


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
    # Divided by 1 where the norm is 0: a division by 0 would be selected away, but its own gradient
    # would be NaN.
    safe = torch.where(norm == 0, 1, norm)
    if p == 2:
        gradient = grad * apart / safe
    else:
        inner = torch.where(apart == 0, 1, apart.abs()) ** (p - 1)
        gradient = torch.where(apart == 0, 0, grad * apart.sign() * inner / safe ** (p - 1))
    return torch.where(norm == 0, 0, gradient)


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


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "_cdist_backward": cdist_backward,
    "_cdist_forward": cdist,
    "_pdist_backward": pdist_backward,
    "_pdist_forward": pdist,
}
