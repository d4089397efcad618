"""The objective of a training step: a module and its loss, as one module to be exported."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from weft.errors import WeftError

_FORMS = "a loss is loss(output, *targets), loss(module, *batch), or None for a module's own"


def objective(module: Any, loss: Any, count: int, precision: Any) -> Any:
    """A module whose forward takes a batch of `count` arguments and returns the loss first."""
    import torch

    with_module = loss is not None and takes_module(loss, count)

    class Objective(torch.nn.Module):  # type: ignore[misc]
        """A module and its loss."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = module
            if isinstance(loss, torch.nn.Module):
                self.criterion = loss

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            with _cast(self.inner, precision):
                if precision is not None:
                    args, kwargs = _narrowed((args, kwargs), precision)
                if loss is None:
                    return _own_loss(self.inner(*args, **kwargs))
                if with_module:
                    return loss(self.inner, *args, **kwargs)
                return loss(self.inner(args[0], **kwargs), *args[1:])

    Objective.__name__ = type(module).__name__  # which refusals name
    return Objective()


def takes_module(loss: Any, count: int) -> bool:
    """Whether a loss takes the module and the batch, and not an output and targets."""
    called = getattr(loss, "forward", loss)
    if not callable(called):
        raise WeftError(f"the loss is a {type(loss).__name__}", help=_FORMS)
    required = [
        parameter
        for parameter in inspect.signature(called).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    name = getattr(loss, "__name__", type(loss).__name__)
    if len(required) == count + 1:
        return True
    if len(required) == count and count:
        return False
    raise WeftError(
        f"{name} takes {len(required)} arguments, but a batch has {count}",
        help=f"{_FORMS}: it takes {count} or {count + 1} here",
    )


def _own_loss(output: Any) -> Any:
    """The loss that a module computes itself: its output, or a field of that name."""
    import torch

    if isinstance(output, torch.Tensor):
        return output
    loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if loss is None:
        raise WeftError(
            f"the module returns a {type(output).__name__} that has no loss",
            help="pass what it needs for it, as labels, or give weft.train_step a loss",
        )
    return loss


def _cast(module: Any, precision: Any) -> AbstractContextManager[object]:
    """The module with its floating-point parameters in another type, while it runs."""
    from torch.nn.utils.stateless import _reparametrize_module

    if precision is None:
        return nullcontext()
    held = {
        name: parameter.to(precision)
        for name, parameter in module.named_parameters()
        if parameter.is_floating_point()
    }
    # named_parameters lists a tied parameter once: its other names follow it.
    made: AbstractContextManager[object] = _reparametrize_module(module, held, tie_weights=True)
    return made


def _narrowed(batch: Any, precision: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map_only

    return tree_map_only(
        torch.Tensor, lambda held: held.to(precision) if held.is_floating_point() else held, batch
    )
