"""The hook for automatic search over argument shardings: propose, propagate, score."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from weft.errors import WeftError
from weft.ir.module import Function, Module
from weft.ir.names import SHARDING
from weft.ir.types import TensorType
from weft.mesh import as_sharding
from weft.records import dataclass
from weft.shard import shard

# By argument number: weft.P, a Sharding, or one of JAX's.
Proposal: TypeAlias = Mapping[int, object]


@dataclass(frozen=True, slots=True)
class Trial:
    """One proposal, the sharded module and its score."""

    arguments: Proposal
    module: Module  # sharded
    score: float


Propose: TypeAlias = Callable[[Module, Sequence[Trial]], Proposal | None]
Score: TypeAlias = Callable[[Module], float]


def search(module: Module, propose: Propose, score: Score, *, func: str = "main") -> Trial:
    """Try proposals until there are no more, and return the one with the lowest score.

    `propose` gets the module and all trials so far; ties go to the first.
    """
    function = module.function(func)
    history: list[Trial] = []
    while (arguments := propose(module, tuple(history))) is not None:
        made = shard(with_arguments(module, function, arguments))
        history.append(Trial(dict(arguments), made, score(made)))
    if not history:
        raise WeftError(
            "the search made no proposal",
            help="let `propose` return shardings for some arguments before it returns None",
        )
    return min(history, key=lambda trial: trial.score)


def with_arguments(module: Module, function: Function, arguments: Proposal) -> Module:
    """The module with these shardings on some arguments of a function."""
    meshes = [(name, mesh) for name, mesh in module.meshes.items() if mesh.axes]
    if not meshes:
        raise WeftError("the module has no mesh", help="add one: weft.shard(module, mesh)")
    name, mesh = meshes[0]
    count = len(function.body.args)
    attrs = list(function.arg_attrs or ((),) * count)
    for number, sharding in arguments.items():
        if not 0 <= number < count:
            raise WeftError(
                f"@{function.name} has no argument {number}",
                help=f"it has {count}, numbered from 0",
            )
        type = function.body.args[number].type
        rank = type.rank if isinstance(type, TensorType) else 0
        made = as_sharding(sharding, rank, mesh, name=name)
        others = [a for a in attrs[number] if a[0] != SHARDING]
        # Sorted as the parser reads them, so that texts of equal modules are equal.
        attrs[number] = tuple(sorted([*others, (SHARDING, str(made))]))
    annotated = replace(function, arg_attrs=tuple(attrs))
    return module.with_functions({**module.functions, function.name: annotated})
