"""Decompositions of ATen's ops: PyTorch's own, and those that it lacks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from weft.capture.torch.aten import LOWERINGS
from weft.capture.torch.decompositions import (
    bags,
    distances,
    drawing,
    gradients,
    layers,
    losses,
    matrices,
    orders,
    placing,
    sampling,
    spacing,
    special,
)

# PyTorch's decomposition returns a wrong logsumexp, and so wrong gradients.
_WRONG = {"aten._scaled_dot_product_flash_attention_for_cpu.default"}

FAMILIES = (
    bags,
    distances,
    drawing,
    gradients,
    layers,
    losses,
    matrices,
    orders,
    placing,
    sampling,
    spacing,
    special,
)
OURS: dict[str, Callable[..., Any]] = {
    name: rule for family in FAMILIES for name, rule in family.DECOMPOSITIONS.items()
}

# Ops whose gradients have no lowering: their own meaning is differentiated instead.
DIFFERENTIATED: dict[str, Callable[..., Any]] = (
    losses.DIFFERENTIATED | matrices.DIFFERENTIATED | sampling.DIFFERENTIATED
)

# The same functions by their names in `torch.nn.functional`, which TorchDynamo's graphs call.
DIFFERENTIATED_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "grid_sample": sampling.named_sampled,
    "multilabel_margin_loss": losses.named_multilabel_margin_loss,
}


@cache
def decompositions() -> dict[Any, Any]:
    """PyTorch's decompositions of ops without a lowering, except composite ops.

    Decompositions of composite ops end in prims, which have no lowering; the dispatcher decomposes
    these ops to ATen by itself, unless they have a kernel for the CPU (`silu_backward`).
    """
    import torch
    from torch._decomp import decomposition_table

    excluded = _WRONG | LOWERINGS.keys()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    theirs = {
        op: rule
        for op, rule in decomposition_table.items()
        if isinstance(op, torch._ops.OpOverload)
        and str(op) not in excluded
        and not op._schema.is_mutable  # the graph is functional already
        and (has(op.name(), "CPU") or not has(op.name(), "CompositeImplicitAutograd"))
    }
    return theirs | {_overload(name): rule for name, rule in OURS.items()}


def _overload(name: str) -> Any:
    """The op of a name; its default overload, unless the name has another one."""
    import torch

    word, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, word), overload or "default")
