"""The kinds of sources that `weft.compile` accepts."""

from __future__ import annotations

from typing import Any

from weft.array.jax_types import make_known_to_jax
from weft.capture.jax.function import JaxFunction, jax_function
from weft.capture.options import CallOptions
from weft.capture.source import Source
from weft.capture.stablehlo.source import stablehlo_program
from weft.capture.torch.graphs import graph_program
from weft.capture.torch.sizes.buckets import SizeBuckets
from weft.capture.torch.source import holds_tensors, torch_function, torch_program
from weft.capture.torch.training.step import training_step
from weft.errors import WeftError
from weft.mesh.plans import ShardingPlan

# Tried in order; each returns None for a program that is not its kind. Last is JAX, whose source
# accepts any callable.
KINDS = (stablehlo_program, training_step, graph_program, torch_program, jax_function)


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
        if holds_tensors(args, kwargs):
            return torch_function(source.function, options)
        _refuse_plan(options)
    return source


def size_buckets(name: str, shapes: Any, most: int) -> SizeBuckets:
    """Calls of a program whose sizes vary; PyTorch's can be padded."""
    return SizeBuckets(name, shapes, most)


def _refuse_plan(options: CallOptions) -> None:
    if options.plan is not None and not isinstance(options.plan, ShardingPlan):
        raise WeftError(
            "patterns of names are a plan for the parameters of a PyTorch program",
            help="give in_shardings for a JAX function, or a plan of weft.plan",
        )
