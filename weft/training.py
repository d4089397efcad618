"""`weft.train_step`: a PyTorch module, its loss and its optimizer as one compiled program."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from weft.capture.torch.training.step import Training, TrainingOptions
from weft.compiled import Compiled, compile  # noqa: A004  # the word users know
from weft.errors import WeftError


def train_step(
    module: Any,
    loss: Any,
    optimizer: Any,
    *,
    mesh: object = None,
    plan: object = None,
    accumulate: int = 1,
    clip: float | None = None,
    precision: Any = None,
    checkpoint: str | Sequence[str] = (),
    **options: Any,
) -> Compiled:
    """Compile a training step of a PyTorch module: loss, gradients and the optimizer's changes.

    The step is called with a batch and gives the loss; parameters, buffers and the optimizer's
    state are changed in place, as eager training does. The loss is `loss(output, *targets)`, where
    the first argument of a batch goes to the module; or `loss(module, *batch)`; or None for modules
    that return their loss. `accumulate` computes a batch in so many parts, `clip` is the largest
    norm of all gradients together, and `precision` the dtype of the forward pass (torch.bfloat16);
    parameters and the optimizer's state keep theirs. `checkpoint` has patterns of modules' names:
    of their calls only inputs and outputs are kept for the backward pass, which computes the rest
    again. The other options are those of `weft.compile`;
    state of a parameter's shape is sharded as the parameter is.
    """
    training = TrainingOptions(
        _count(accumulate), _norm(clip), _dtype(precision), _patterns(checkpoint)
    )
    step = Training(_module(module), loss, optimizer, training)
    return compile(step, mesh=mesh, plan=plan, **options)  # type: ignore[arg-type]


def _module(module: Any) -> Any:
    import torch

    if isinstance(module, torch.nn.Module):
        return module
    raise WeftError(
        f"a training step needs a module of PyTorch's, and this is a {type(module).__name__}",
        help="compile a step of JAX with weft.compile: it is a function of its state",
    )


def _count(accumulate: Any) -> int:
    try:
        count = operator.index(accumulate)
    except TypeError:
        count = 0
    if count < 1:
        raise WeftError(
            f"accumulate={accumulate!r} is not a positive integer", help="give 1 or more"
        )
    return count


def _norm(clip: Any) -> float | None:
    if clip is None or (isinstance(clip, int | float) and clip > 0):
        return clip
    raise WeftError(
        f"clip={clip!r} is not a gradient norm", help="give a positive number, or None to disable"
    )


def _patterns(checkpoint: Any) -> tuple[str, ...]:
    listed = (checkpoint,) if isinstance(checkpoint, str) else checkpoint
    if isinstance(listed, Sequence) and all(isinstance(each, str) for each in listed):
        return tuple(listed)
    raise WeftError(
        f"checkpoint={checkpoint!r} is no list of modules' names",
        help='give patterns, as checkpoint=["layers.*"]',
    )


def _dtype(precision: Any) -> Any:
    import torch

    named = {"bf16": torch.bfloat16, "bfloat16": torch.bfloat16, "f16": torch.float16,
             "float16": torch.float16, "f32": None, "float32": None}  # fmt: skip
    if isinstance(precision, str) and precision in named:
        return named[precision]
    if precision is None or (isinstance(precision, torch.dtype) and precision.is_floating_point):
        return precision
    raise WeftError(
        f"precision={precision!r} is not a float type", help="give torch.bfloat16 or None"
    )
