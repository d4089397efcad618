"""Indices that are tensors of rank 0, which PyTorch makes Python numbers: `x[i] = y`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def get_item(x: Any, index: Any) -> Any:
    """`x[index]`. Beside tensors of indices it is a copy; torch.export takes the others, views."""
    import torch

    items = index if isinstance(index, tuple) else (index,)
    found = _places(x, items)
    if found and any(isinstance(each, list) or getattr(each, "ndim", 0) for each in items):
        for place, dim in found:
            x = x.index_select(dim, items[place].reshape(1))
        index = _with_zeros(items, found)
    return torch.Tensor.__getitem__(x, index)


def set_item(x: Any, index: Any, value: Any) -> None:
    """`x[index] = value`: the slices that are indexed are changed, and put back."""
    import torch

    items = index if isinstance(index, tuple) else (index,)
    found = _places(x, items)
    if not found:
        if len(items) == 1 and _is_scalar(items[0], torch.bool):
            x.copy_(torch.where(items[0], value, x))
        else:
            torch.Tensor.__setitem__(x, index, value)
        return
    (place, dim), *_ = found
    row = items[place].reshape(1)
    if len(found) == 1 and all(n == place or _is_whole(each) for n, each in enumerate(items)):
        part = x.select(dim, 0)
        rows = torch.as_tensor(value, dtype=x.dtype, device=x.device)
        rows = rows.reshape(rows.shape[max(0, rows.dim() - part.dim()) :])  # leading dims of 1
        x.index_copy_(dim, row, rows.expand(part.shape).unsqueeze(dim))
        return
    part = x.index_select(dim, row)
    set_item(part, _with_zeros(items, found[:1]), value)
    x.index_copy_(dim, row, part)


def _places(x: Any, items: Sequence[Any]) -> list[tuple[int, int]]:
    """The indices of rank 0, each with the dim that it indexes."""
    widths = [_width(each) for each in items]
    rest = x.dim() - sum(width for width in widths if width is not None)
    found, dim = [], 0
    for n, (each, width) in enumerate(zip(items, widths, strict=True)):
        if width is not None and _is_integer(each):
            found.append((n, dim))
        dim += rest if width is None else width
    return found


def _width(item: Any) -> int | None:
    """How many dims an index is for; None for an ellipsis."""
    import torch

    if item is Ellipsis:
        return None
    if item is None or isinstance(item, bool):
        return 0
    if isinstance(item, torch.Tensor) and item.dtype in (torch.bool, torch.uint8):
        return int(item.dim())
    return 1


def _is_integer(item: Any) -> bool:
    import torch

    return any(_is_scalar(item, t) for t in (torch.int64, torch.int32, torch.int16, torch.int8))


def _is_scalar(item: Any, dtype: Any) -> bool:
    import torch

    return isinstance(item, torch.Tensor) and not item.dim() and item.dtype is dtype


def _is_whole(item: Any) -> bool:
    return item is Ellipsis or (isinstance(item, slice) and item == slice(None))


def _with_zeros(items: Sequence[Any], found: Sequence[tuple[int, int]]) -> tuple[Any, ...]:
    places = {place for place, _ in found}
    return tuple([0 if n in places else each for n, each in enumerate(items)])
