"""Losses whose decompositions PyTorch lacks or has wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MEAN, _SUM = 1, 2


def multilabel_margin(x: Any, target: Any, reduction: int) -> tuple[Any, Any]:
    """The margins between target classes, those before the first -1, and all others."""
    import torch

    rows = x.reshape(-1, x.shape[-1]) if x.dim() else x.reshape(1, 1)
    labels = target.reshape(rows.shape)
    is_label = (labels == -1).to(torch.int64).cumsum(1) == 0
    place = torch.where(is_label, labels, 0)
    classes = torch.arange(rows.shape[1])
    is_target = ((place[:, :, None] == classes) & is_label[:, :, None]).any(1)
    apart = (1 - rows.gather(1, place)[:, :, None] + rows[:, None, :]).clamp(min=0)
    counts = is_label[:, :, None] & ~is_target[:, None, :]
    loss = torch.where(counts, apart, 0).sum((1, 2)) / rows.shape[1]
    if reduction == _MEAN:
        loss = loss.mean()
    elif reduction == _SUM:
        loss = loss.sum()
    else:
        loss = loss.reshape(x.shape[:-1])
    return loss, is_target.to(x.dtype).reshape(target.shape)


def multilabel_margin_loss(x: Any, target: Any, reduction: int = _MEAN) -> Any:
    """The loss alone, in ops that can be differentiated."""
    return multilabel_margin(x, target, reduction)[0]


def named_multilabel_margin_loss(
    input: Any,
    target: Any,
    size_average: bool | None = None,
    reduce: bool | None = None,
    reduction: str = "mean",
) -> Any:
    """As `torch.nn.functional` has it: the reduction by name."""
    if size_average is not None or reduce is not None:
        is_mean = size_average is None or size_average
        reduction = "none" if reduce is False else "mean" if is_mean else "sum"
    return multilabel_margin_loss(input, target, ("none", "mean", "sum").index(reduction))


def multi_margin_loss(*args: Any) -> Any:
    """The margins between a class and all others, in ops that can be differentiated."""
    import torch
    from torch._decomp import decomposition_table

    return decomposition_table[torch.ops.aten.multi_margin_loss.default](*args)


DECOMPOSITIONS: dict[str, Callable[..., Any]] = {
    # PyTorch's counts the places after the last label, too.
    "multilabel_margin_loss_forward": multilabel_margin,
}

# Ops whose gradients have no lowering: these are traced instead.
DIFFERENTIATED: dict[str, Callable[..., Any]] = {
    "aten.multi_margin_loss.default": multi_margin_loss,
    "aten.multilabel_margin_loss.default": multilabel_margin_loss,
}
