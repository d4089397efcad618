"""Binary search, modes, medians, histograms and scans."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

_FEW = 64  # sorted numbers: comparing with all of them is one fused kernel

# Binary search


def searchsorted(
    edges: Any,
    values: Any,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """The place of each value in sorted numbers, before equal ones or after them."""
    import torch

    if sorter is not None:
        edges = edges.gather(-1, sorter)
    find = _counted if edges.shape[-1] <= _FEW else _bisected
    found = find(edges, values, right or side == "right")
    return found.to(torch.int32 if out_int32 else torch.int64)


def _counted(edges: Any, values: Any, right: bool) -> Any:
    import torch

    near = edges[..., None, :] if edges.dim() > 1 else edges
    far = values[..., None]
    below = ~(near > far) if right else ~(near >= far)  # NaN is after all numbers
    if edges.is_floating_point():
        below = below & (near == near)
    return below.to(torch.int64).sum(-1)


def _bisected(edges: Any, values: Any, right: bool) -> Any:
    """The steps of PyTorch's own search, for all values at once."""
    import torch

    count = edges.shape[-1]
    low = torch.zeros(values.shape, dtype=torch.int64)
    high = torch.full(values.shape, count, dtype=torch.int64)
    for _ in range(count.bit_length()):
        middle = (low + high) >> 1
        at = middle.clamp(max=count - 1)
        edge = edges.gather(-1, at) if edges.dim() > 1 else edges[at]
        # Negated, not <= and <: NaN compares as false, and belongs behind all edges.
        below = ~(edge > values) if right else ~(edge >= values)
        is_open = low < high
        high = torch.where(is_open & ~below, middle, high)
        low = torch.where(is_open & below, middle + 1, low)
    return low


def searchsorted_scalar(
    edges: Any,
    value: float,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Any = None,
) -> Any:
    """The place of a number in sorted numbers."""
    number = _as_tensor(value, edges)
    return searchsorted(edges, number, out_int32=out_int32, right=right, side=side, sorter=sorter)


def bucketize(values: Any, edges: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    """The place of each value in sorted numbers."""
    return searchsorted(edges, values, out_int32=out_int32, right=right)


def bucketize_scalar(
    value: float, edges: Any, *, out_int32: bool = False, right: bool = False
) -> Any:
    """The place of a number in sorted numbers."""
    return searchsorted_scalar(edges, value, out_int32=out_int32, right=right)


def _as_tensor(value: float, edges: Any) -> Any:
    import torch

    exact = edges.is_floating_point() or isinstance(value, int)
    return torch.full((), value, dtype=edges.dtype if exact else torch.get_default_dtype())


# Modes and medians


def mode(x: Any, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    """The most frequent element along a dim, the smallest of several, and its last index."""
    import torch

    if not x.dim():
        return x.clone(), torch.zeros((), dtype=torch.int64)
    ordered, places = x.movedim(dim, -1).sort(dim=-1, stable=True)
    count = ordered.shape[-1]
    differs = ordered[..., 1:] != ordered[..., :-1]
    end = torch.ones((*ordered.shape[:-1], 1), dtype=torch.bool)
    is_first, is_last = torch.cat([end, differs], -1), torch.cat([differs, end], -1)
    at = torch.arange(count)
    start = torch.where(is_first, at, 0).cummax(-1)[0]
    # The length of each run, at its end. Of equal lengths argmax takes the first: the smallest.
    best = torch.where(is_last, at - start + 1, 0).argmax(-1, keepdim=True)
    made = [each.gather(-1, best).movedim(-1, dim) for each in (ordered, places)]
    return tuple(each if keepdim else each.squeeze(dim) for each in made)


def nanmedian(x: Any) -> Any:
    """The lower median of all elements that are not NaN."""
    return nanmedian_along(x.reshape(-1), 0)[0] if x.numel() else x.sum() * math.nan


def nanmedian_along(x: Any, dim: int = -1, keepdim: bool = False) -> tuple[Any, Any]:
    """The lower median along a dim of elements that are not NaN, and its index."""
    import torch

    if not x.dim():
        return x.clone(), torch.zeros((), dtype=torch.int64)
    ordered, places = x.sort(dim=dim, stable=True)  # NaN last
    count = (~ordered.isnan()).to(torch.int64).sum(dim, keepdim=True)
    middle = torch.clamp(count - 1, min=0) // 2
    made = [each.gather(dim, middle) for each in (ordered, places)]
    return tuple(each if keepdim else each.squeeze(dim) for each in made)


# Histograms


def histogram(x: Any, edges: Any, *, weight: Any = None, density: bool = False) -> tuple[Any, Any]:
    """Weights, or counts, of the elements between sorted edges, the last one included."""
    import torch

    bins = edges.shape[0] - 1
    flat = x.reshape(-1)
    place = torch.searchsorted(edges, flat, right=True) - 1
    place = torch.where(flat == edges[-1], bins - 1, place)
    is_inside = (flat >= edges[0]) & (flat <= edges[-1])
    each = torch.ones_like(flat) if weight is None else weight.reshape(-1)
    sums = torch.zeros(bins, dtype=x.dtype)
    sums = sums.index_add(0, place.clamp(0, bins - 1), torch.where(is_inside, each, 0))
    if density:
        sums = sums / (edges[1:] - edges[:-1]) / sums.sum()
    return sums, edges


def histogram_of_bins(
    x: Any, bins: int = 100, *, range: Any = None, weight: Any = None, density: bool = False
) -> tuple[Any, Any]:
    """A histogram of equal bins, between two numbers or the extreme elements."""
    import torch

    if range is not None:
        edges = torch.linspace(range[0], range[1], bins + 1, dtype=x.dtype)
    else:
        edges = _edges(x, bins)
    return histogram(x, edges, weight=weight, density=density)


def _edges(x: Any, bins: int) -> Any:
    import torch

    if not x.numel():
        return torch.linspace(0, 1, bins + 1, dtype=x.dtype)
    low, high = x.amin(), x.amax()
    is_point = low == high
    low, high = torch.where(is_point, low - 0.5, low), torch.where(is_point, high + 0.5, high)
    return torch.linspace(low, high, bins + 1, dtype=x.dtype)


# Scans and numbers


def logcumsumexp(x: Any, dim: int) -> Any:
    """Prefix sums of exponentials, in logarithms, by recursive doubling."""
    import torch

    if not x.dim():
        return x.clone()
    wide = x.to(torch.float32) if x.dtype in (torch.bfloat16, torch.float16) else x
    count, shift = x.shape[dim], 1
    while shift < count:
        shape = list(x.shape)
        shape[dim] = shift
        none = torch.full(shape, -math.inf, dtype=wide.dtype)
        earlier = torch.cat([none, wide.narrow(dim, 0, count - shift)], dim)
        wide = torch.logaddexp(earlier, wide)
        shift *= 2
    return wide.to(x.dtype)


def round_to(x: Any, *, decimals: int) -> Any:
    """Elements rounded to a number of decimals, each step in the element type, as PyTorch's."""
    import torch

    scale = torch.full((), 10.0 ** abs(decimals), dtype=x.dtype)
    return (x / scale).round() * scale if decimals < 0 else (x * scale).round() / scale


def lcm(x: Any, y: Any) -> Any:
    """The least common multiple, 0 if one of them is."""
    import torch

    divisor = torch.gcd(x, y)
    return torch.where(divisor == 0, 0, x // torch.where(divisor == 0, 1, divisor) * y).abs()


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    "bucketize.Scalar": bucketize_scalar,
    "bucketize.Tensor": bucketize,
    "histogram.bin_ct": histogram_of_bins,
    "histogram.bins_tensor": histogram,
    "lcm": lcm,
    "logcumsumexp": logcumsumexp,
    "mode": mode,
    "nanmedian": nanmedian,
    "nanmedian.dim": nanmedian_along,
    "round.decimals": round_to,
    "searchsorted.Scalar": searchsorted_scalar,
    "searchsorted.Tensor": searchsorted,
}
