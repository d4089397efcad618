"""The kinds of sources that `weft.compile` accepts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from weft.array.jax_types import make_known_to_jax
from weft.capture.jax.function import JaxFunction, jax_function
from weft.capture.options import CallOptions
from weft.capture.source import Source
from weft.capture.stablehlo.source import stablehlo_program
from weft.errors import WeftError
from weft.mesh.plans import ShardingPlan

if TYPE_CHECKING:
    from weft.capture.torch.sizes.buckets import SizeBuckets


def pytorch_program(program: object, options: CallOptions) -> Source | None:
    """The source of a program of PyTorch; None for others."""
    # The front end of PyTorch is 60 modules: a process that has not imported PyTorch needs none.
    if "torch" not in sys.modules:
        return None
    from weft.capture.torch.graphs import graph_program
    from weft.capture.torch.source import torch_program
    from weft.capture.torch.training.step import training_step

    kinds = (training_step, graph_program, torch_program)
    return next((made for kind in kinds if (made := kind(program, options)) is not None), None)


# Tried in order; each returns None for a program that is not its kind. Last is JAX, whose source
# accepts any callable.
KINDS = (stablehlo_program, pytorch_program, jax_function)


def source_of(program: object, options: CallOptions) -> Source:
    """The source of a program."""
    make_known_to_jax()
    for kind in KINDS:
        made: Source | None = kind(program, options)
        if made is not None:
            return made
    raise WeftError(
        f"{type(program).__name__} {program!r} cannot be compiled"[:120],
        help="give a function of JAX or PyTorch, a module, or StableHLO: its text, bytes or path",
    )


def source_for(
    source: Source, options: CallOptions, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Source:
    """The source of a function that is called: PyTorch's if it is first called with tensors."""
    if isinstance(source, JaxFunction):
        if "torch" in sys.modules:
            from weft.capture.torch.source import holds_tensors, torch_function

            if holds_tensors(args, kwargs):
                return torch_function(source.function, options)
        _refuse_plan(options)
    return source


def size_buckets(name: str, shapes: Any, most: int) -> SizeBuckets:
    """Calls of a program whose sizes vary; PyTorch's can be padded."""
    from weft.capture.torch.sizes.buckets import SizeBuckets

    return SizeBuckets(name, shapes, most)


def _refuse_plan(options: CallOptions) -> None:
    if options.plan is not None and not isinstance(options.plan, ShardingPlan):
        raise WeftError(
            "patterns of names are a plan for the parameters of a PyTorch program",
            help="give in_shardings for a JAX function, or a plan of weft.plan",
        )
