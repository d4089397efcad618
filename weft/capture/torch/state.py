"""The state of PyTorch modules and optimizers by name, for checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from weft.array.exchange import to_numpy
from weft.capture.torch.training.optimizers import prepare_state, state_tensors
from weft.errors import WeftError
from weft.ir.types import Array

OPTIMIZER = "optimizer."  # the prefix of an optimizer's tensors, named after their parameters


def state_tensors_by_name(module: Any, optimizer: Any = None) -> dict[str, Any]:
    """Parameters, persistent buffers and the optimizer's tensors; tied ones under one name."""
    import torch

    tensors: dict[str, Any] = {}
    seen: set[tuple[int, ...]] = set()
    for name, value in module.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            raise WeftError(
                f"the state {name} is a {type(value).__name__}, not a tensor",
                help="save values that are not tensors separately",
            )
        memory = (value.data_ptr(), *value.shape, *value.stride())
        if value.numel() and memory in seen:
            continue
        seen.add(memory)
        tensors[name] = value
    if optimizer is not None:
        names = _parameter_names(module)
        for parameter, word, tensor in state_tensors(optimizer):
            tensors[f"{OPTIMIZER}{names[parameter]}.{word}"] = tensor
    return tensors


def _parameter_names(module: Any) -> dict[Any, str]:
    return {parameter: name for name, parameter in module.named_parameters()}


def settings_text(optimizer: Any) -> str:
    """The options of an optimizer's groups that JSON holds: rates, decays, and the like."""
    groups = []
    for group in optimizer.param_groups:
        plain = {k: v for k, v in group.items() if k != "params" and _is_plain(v)}
        groups.append(plain)
    return json.dumps(groups)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def restore_settings(optimizer: Any, text: str) -> None:
    """Set the options of an optimizer's groups."""
    groups = json.loads(text)
    if len(groups) != len(optimizer.param_groups):
        raise WeftError(
            f"the checkpoint has {len(groups)} groups of parameters, and the optimizer "
            f"{len(optimizer.param_groups)}",
            help="make the optimizer as it was when the checkpoint was saved",
        )
    for group, saved in zip(optimizer.param_groups, groups, strict=True):
        for key, value in saved.items():
            held = tuple(value) if isinstance(group.get(key), tuple) else value
            if hasattr(group.get(key), "fill_"):  # a learning rate as a tensor
                group[key].fill_(value)
            else:
                group[key] = held


def restore_tensors(module: Any, optimizer: Any, saved: Mapping[str, Callable[[], Array]]) -> None:
    """Write saved tensors into those of a module and of its optimizer, one after another."""
    import torch

    if optimizer is not None:
        prepare_state(optimizer)
    wanted = state_tensors_by_name(module, optimizer)
    missing, unknown = [n for n in wanted if n not in saved], [n for n in saved if n not in wanted]
    if optimizer is None:  # a checkpoint of training serves a module alone, too
        unknown = [name for name in unknown if not name.startswith(OPTIMIZER)]
    tied = {*module.state_dict()}
    unknown = [name for name in unknown if name not in tied]
    if missing or unknown:
        listed = [f"{word} {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
                  for word, names in (("it lacks", missing), ("it has also", unknown))
                  if names]  # fmt: skip
        raise WeftError(
            f"the checkpoint is not of this {type(module).__name__}: {'; '.join(listed)}",
            help="load it into a module (and an optimizer) made as the saved one",
        )
    with torch.no_grad():
        for name, tensor in wanted.items():
            _copy(name, tensor, saved[name]())
    torch.autograd.graph.increment_version([*wanted.values()])


def _copy(name: str, tensor: Any, array: Array) -> None:
    target = to_numpy(tensor)
    if target.shape != array.shape or target.dtype != array.dtype:
        raise WeftError(
            f"{name} is {array.dtype}{[*array.shape]} in the checkpoint, and "
            f"{target.dtype}{[*target.shape]} here",
            help="make the module as the saved one, or convert it after loading",
        )
    target[...] = array


def tensor_like(name: str, like: Any, array: Array) -> Any:
    """A new tensor of a saved array, with the type, device and need of gradients of another one."""
    import torch

    made = torch.empty_like(like, device="cpu", requires_grad=False)
    _copy(name, made, array)
    placed = made if like.device.type == "meta" else made.to(like.device)
    return placed.requires_grad_(like.requires_grad)
