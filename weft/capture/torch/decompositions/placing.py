"""Elements placed by index, mask or diagonal."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any


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


def take(x: Any, index: Any) -> Any:
    """Elements at indices into the flattened tensor."""
    return x.reshape(-1).index_select(0, index.reshape(-1)).reshape(index.shape)


def put(x: Any, index: Any, source: Any, accumulate: bool = False) -> Any:
    """Elements at indices into the flattened tensor, replaced or added to."""
    flat = x.reshape(-1).index_put((index.reshape(-1),), source.reshape(-1), accumulate)
    return flat.reshape(x.shape)


def index_reduce(
    x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Any:
    """Slices of a source combined into those of a tensor, by index."""
    if not x.dim():
        return index_reduce(
            x[None], 0, index, source.reshape(-1), reduce, include_self=include_self
        )[0]
    shape = [1] * x.dim()
    shape[dim] = -1
    places = index.reshape(shape).expand(source.shape)
    return x.scatter_reduce(dim, places, source, reduce, include_self=include_self)


def diagonal_scatter(x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    """A diagonal replaced."""
    import torch

    count = source.shape[-1]
    along = torch.arange(count)
    rows, columns = along + max(-offset, 0), along + max(offset, 0)
    moved = x.movedim((dim1, dim2), (0, 1))
    return moved.index_put((rows, columns), source.movedim(-1, 0)).movedim((0, 1), (dim1, dim2))


def embedding_renorm(weight: Any, indices: Any, max_norm: float, norm_type: float) -> Any:
    """Rows that indices name, with norms above a limit scaled down to it."""
    import torch

    norms = torch.linalg.vector_norm(weight, norm_type, dim=1, keepdim=True)
    named = torch.zeros(weight.shape[0], dtype=torch.bool)
    named = named.index_put((indices.reshape(-1),), torch.ones((), dtype=torch.bool))
    is_long = (norms > max_norm) & named[:, None]
    return torch.where(is_long, weight * (max_norm / (norms + 1e-7)), weight)


def nonzero_static(x: Any, *, size: int, fill_value: int = -1) -> Any:
    """The indices of the first elements that are not 0, and a number after the last."""
    import torch

    count = math.prod(x.shape)
    is_nonzero = (x != 0).reshape(-1)
    place = torch.where(is_nonzero, is_nonzero.to(torch.int64).cumsum(0) - 1, size).clamp(max=size)
    flat = torch.zeros(size + 1, dtype=torch.int64)
    flat = flat.index_put((place,), torch.arange(count))[:size]
    is_there = torch.arange(size) < is_nonzero.sum()
    columns, step = [], count
    for length in x.shape:
        step //= max(length, 1)
        columns.append(torch.where(is_there, flat // max(step, 1) % max(length, 1), fill_value))
    return torch.stack(columns, 1) if columns else torch.zeros((size, 0), dtype=torch.int64)


def repeated_places(repeats: Any, *, output_size: int | None = None) -> Any:
    """Every index as often as its number says; without a size this depends on elements."""
    import torch

    if output_size is None:
        return NotImplemented
    return torch.searchsorted(repeats.cumsum(0), torch.arange(output_size), right=True)


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "diagonal_scatter": diagonal_scatter,
    "embedding_renorm": embedding_renorm,
    "index_reduce": index_reduce,
    "masked_scatter": masked_scatter,
    "nonzero_static": nonzero_static,
    "put": put,
    "repeat_interleave.Tensor": repeated_places,
    "take": take,
}
