"""Gradients of pooling by maxima: one element of each window takes the window's part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.emit.triton.library.regions import update_of
from weft.ir.module import Region
from weft.kernels.single_node import SingleNode
from weft.ops.elementwise.pointwise import Compare
from weft.ops.window import SelectAndScatter

_KEEPS = {"GE": "ge", "GT": "gt", "LE": "le", "LT": "lt"}


def select_and_scatter(kernel: SingleNode, operand: Any, source: Any, init: Any) -> Sequence[Any]:
    """Each part of the source is added to the element that its window selects."""
    import torch

    op = kernel.op
    assert isinstance(op, SelectAndScatter)
    keeps = getattr(torch, _KEEPS[str(_direction(kernel.regions[0]))])
    chosen = _selected(op, operand, source.shape, keeps).reshape(-1)
    # A window without elements has -1, which is one more element.
    chosen = torch.where(chosen < 0, operand.numel(), chosen)
    held = torch.float32 if source.dtype in (torch.bfloat16, torch.float16) else source.dtype
    made = init.to(held).expand(operand.numel() + 1).clone()
    made.index_add_(0, chosen, source.reshape(-1).to(held))
    return [made[:-1].reshape(operand.shape).to(operand.dtype)]


def _selected(
    op: SelectAndScatter, operand: Any, places: Sequence[int], keeps: Callable[..., Any]
) -> Any:
    """For each window, the flat index of its element: pairs are compared, as in the op's meaning.

    NaN makes the order of comparisons matter.
    """
    import torch

    window, device = op.window, operand.device
    index = torch.zeros((), dtype=torch.int64, device=device)
    seen = torch.ones((), dtype=torch.bool, device=device)
    for dim, (size, count) in enumerate(zip(operand.shape, places, strict=True)):
        start = torch.arange(count, device=device)[:, None] * window.strides[dim]
        at = start - window.padding[dim][0] + torch.arange(window.sizes[dim], device=device)
        at = at.reshape([1] * dim + [count] + [1] * dim + [window.sizes[dim]])
        index = index.unsqueeze(dim).unsqueeze(2 * dim + 1) * size + at
        seen = seen.unsqueeze(dim).unsqueeze(2 * dim + 1) & (at >= 0) & (at < size)
    flat, values = torch.where(seen, index, -1).reshape(*places, -1), operand.reshape(-1)
    while (count := flat.shape[-1]) > 1:
        left, right = flat[..., 0 : count // 2 * 2 : 2], flat[..., 1::2]
        kept = keeps(values[left.clamp_min(0)], values[right.clamp_min(0)])
        winner = torch.where((right < 0) | ((left >= 0) & kept), left, right)
        flat = torch.cat([winner, flat[..., count // 2 * 2 :]], -1)
    return flat[..., 0]


def _direction(region: Region) -> str | None:
    """The direction of a comparison of the arguments in order, or None."""
    node = region.results[0].node
    if node is None or not isinstance(node.op, Compare) or node.operands != region.args:
        return None
    return node.op.comparison_direction


def refuses_selection(kernel: SingleNode) -> str | None:
    """Why a node is left to numpy."""
    if _direction(kernel.regions[0]) not in _KEEPS or update_of(kernel.regions[1]) != "add":
        return "it selects or adds otherwise"
    if not kernel.inputs[0].size or not kernel.inputs[1].size:
        return "it is empty"
    dtype = kernel.inputs[0].dtype
    return None if dtype.is_float else f"of {dtype}"
