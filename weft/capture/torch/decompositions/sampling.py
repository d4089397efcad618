"""Samples of volumes at the points of a grid."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

_NEAREST = 1
_BORDER, _REFLECTION = 1, 2


def grid_sampler_3d(
    x: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    """Volumes at points from -1 to 1: the nearest element, or the eight around, interpolated."""
    import torch

    sizes = x.shape[2:]
    points = [
        _inside(_place(grid[..., 2 - n], size, align_corners), size, padding_mode, align_corners)
        for n, size in enumerate(sizes)
    ]
    if interpolation_mode == _NEAREST:
        return _elements_or_zero(x, [point.round() for point in points])
    low = [point.floor() for point in points]
    total = torch.zeros((), dtype=x.dtype)
    for corner in product((0, 1), repeat=len(sizes)):
        weight = torch.ones((), dtype=x.dtype)
        for point, first, side in zip(points, low, corner, strict=True):
            weight = weight * ((point - first) if side else (first + 1 - point))
        at = [first + side for first, side in zip(low, corner, strict=True)]
        total = total + _elements_or_zero(x, at) * weight[:, None]
    return total


def _place(point: Any, size: int, align_corners: bool) -> Any:
    """A point from -1 to 1 as an index."""
    return (point + 1) / 2 * (size - 1) if align_corners else ((point + 1) * size - 1) / 2


def _inside(place: Any, size: int, padding_mode: int, align_corners: bool) -> Any:
    """An index moved into the volume, as the padding mode says."""
    import torch

    if padding_mode == _REFLECTION:
        low, span = (0.0, float(size - 1)) if align_corners else (-0.5, float(size))
        if span == 0:
            place = torch.zeros_like(place)
        else:
            apart = (place - low).abs()
            rest, turns = torch.fmod(apart, span), (apart / span).floor()
            place = torch.where(turns % 2 == 0, rest + low, span - rest + low)
    return place.clamp(0, size - 1) if padding_mode in (_BORDER, _REFLECTION) else place


def _elements_or_zero(x: Any, places: list[Any]) -> Any:
    """The elements at indices; 0 outside."""
    import torch

    sizes = x.shape[2:]
    flat = torch.zeros((), dtype=torch.int64)
    is_inside = torch.ones((), dtype=torch.bool)
    for place, size in zip(places, sizes, strict=True):
        is_inside = is_inside & (place >= 0) & (place <= size - 1)
        flat = flat * size + place.clamp(0, size - 1).to(torch.int64)
    count, channels = x.shape[:2]
    index = flat.reshape(count, 1, -1).expand(count, channels, -1)
    found = x.reshape(count, channels, -1).gather(2, index)
    found = found.reshape(count, channels, *flat.shape[1:])
    return torch.where(is_inside[:, None], found, 0)


def sampled(
    x: Any, grid: Any, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    """Samples of images or volumes, in ops that can be differentiated."""
    import torch
    from torch._decomp import decomposition_table

    flat = decomposition_table[torch.ops.aten.grid_sampler_2d.default]
    sample = grid_sampler_3d if x.dim() == 5 else flat
    return sample(x, grid, interpolation_mode, padding_mode, align_corners)


def named_sampled(
    input: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Any:
    """As `torch.nn.functional` has it: modes by name."""
    how = ("bilinear", "nearest", "bicubic").index(mode)
    outside = ("zeros", "border", "reflection").index(padding_mode)
    return sampled(input, grid, how, outside, bool(align_corners))


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {"grid_sampler_3d": grid_sampler_3d}

# Ops whose gradients have no lowering: these are traced instead.
DIFFERENTIATED: dict[str, Callable[..., Any]] = {
    "aten.grid_sampler.default": sampled,
    "aten.grid_sampler_2d.default": sampled,
    "aten.grid_sampler_3d.default": sampled,
}
