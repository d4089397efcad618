"""Host tensors in place of a GPU's while PyTorch traces.

On CUDA tensors PyTorch traces other ops: cuDNN's recurrent layers, fused cells, and strides of
fused attention. A traced program is the same on every device; values are those of the user's
tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any


def like_on_host(tensor: Any) -> Any:
    """A tensor of the same type on the host, without its elements; others as they are.

    A view of another tensor is replaced, too: PyTorch would make the sizes of both symbolic where
    both are arguments.
    """
    import torch

    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return tensor
    if tensor.device.type != "cuda" and not (tensor.device.type == "cpu" and tensor._is_view()):
        return tensor
    shape, strides = tensor.shape, tensor.stride()
    made = torch.empty_strided(shape, strides, dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(made, tensor.requires_grad)
    return made.requires_grad_(tensor.requires_grad)


@contextmanager
def on_host(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments for tracing a module, whose tensors are on the host meanwhile.

    Under `torch.autocast("cuda")` everything stays: the ops that it casts are a GPU's.
    """
    import torch
    from torch.nn.utils.stateless import _reparametrize_module
    from torch.utils._pytree import tree_map_only

    if torch.is_autocast_enabled("cuda"):
        yield tuple(args), dict(kwargs)
        return
    stand_ins: dict[int, Any] = {}  # tied tensors stay tied
    named = [*module.named_parameters(remove_duplicate=False)]
    named += [*module.named_buffers(remove_duplicate=False)]
    moved = {}
    for name, tensor in named:
        if tensor.device.type == "cuda":
            moved[name] = stand_ins.setdefault(id(tensor), like_on_host(tensor))
    swapped = _reparametrize_module(module, moved, tie_weights=False) if moved else nullcontext()
    with swapped, _attributes_on_host(module):
        yield tree_map_only(torch.Tensor, like_on_host, (tuple(args), dict(kwargs)))


@contextmanager
def _attributes_on_host(module: Any) -> Iterator[None]:
    """Tensors that are neither parameters nor buffers: constants, with their elements."""
    import torch

    held = [
        (part, name, value)
        for part in module.modules()
        for name, value in vars(part).items()
        if isinstance(value, torch.Tensor) and value.device.type == "cuda"
    ]
    for part, name, value in held:
        vars(part)[name] = value.cpu()
    try:
        yield
    finally:
        for part, name, value in held:
            vars(part)[name] = value
