"""Evenly spaced numbers between ends that are tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, **layout: Any) -> Any:
    """Numbers between two ends; integers in f64 from the nearer end, rounded toward zero."""
    import torch
    from torch._refs import linspace as with_floats

    if dtype is None or dtype.is_floating_point or dtype.is_complex:
        return with_floats(start, end, steps, dtype=dtype, **layout)
    first, last = (torch.as_tensor(x).to(dtype).to(torch.float64) for x in (start, end))
    place = torch.arange(steps, dtype=torch.float64)
    step = (last - first) / max(1, steps - 1)
    below, above = first + step * place, last - step * (steps - 1 - place)
    return torch.where(place < steps // 2, below, above if steps > 1 else below).to(dtype)


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "linspace.Scalar_Tensor": linspace,
    "linspace.Tensor_Scalar": linspace,
    "linspace.Tensor_Tensor": linspace,
}
