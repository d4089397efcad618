"""Shardings of tensors by name: a plan of patterns for parameters, buffers and arguments."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase
from typing import Any

from weft.capture.captured import Leaf
from weft.capture.shardings import Spelled, mesh_of, shardings_of
from weft.errors import WeftError
from weft.mesh import Sharding
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class PlannedShardings:
    """The sharding of each argument, and of those that layers use gathered, the latter's."""

    arguments: list[Spelled]
    gathered: Mapping[int, Spelled] = field(default_factory=dict)


def planned(plan: object, leaves: Sequence[Leaf]) -> list[Spelled]:
    """The sharding of each leaf: by the first pattern that matches its name, or by a function."""
    if plan is None:
        return [None] * len(leaves)
    if callable(plan):
        return [plan(leaf.name, leaf.shape) for leaf in leaves]
    if not isinstance(plan, Mapping):
        raise WeftError(
            f"plan={plan!r} is not a plan",
            help='give a dict of name patterns and shardings, as {"layers.*.weight": P("model")}',
        )
    for pattern in plan:
        if not any(fnmatchcase(leaf.name, pattern) for leaf in leaves):
            near = difflib.get_close_matches(str(pattern), [leaf.name for leaf in leaves], n=3)
            some = near or [leaf.name for leaf in leaves[:3]]
            raise WeftError(
                f"plan: the pattern {pattern!r} matches no parameter, buffer or argument",
                help=f"names are like {', '.join(some)}; * stands for any characters",
            )
    # Counters among buffers match patterns like "norm.*", too.
    return [_first(plan, leaf.name) if leaf.shape else None for leaf in leaves]


def _first(plan: Mapping[str, Spelled], name: str) -> Spelled:
    return next((s for pattern, s in plan.items() if fnmatchcase(name, pattern)), None)


def input_shardings(spelled: Spelled, call: Any, leaves: Sequence[Leaf]) -> list[Spelled]:
    """`in_shardings` for the tensors of the arguments: one for all, or one each."""
    if isinstance(spelled, tuple | list):
        from torch.utils._pytree import tree_leaves

        positions = [n for n, arg in enumerate((*call.args, *call.kwargs.values()))
                     for _ in tree_leaves(arg)]  # fmt: skip
        tensors = [n for n, place in zip(positions, call.inputs, strict=True) if place is not None]
        count = len(call.args) + len(call.kwargs)
        if len(spelled) != count:
            raise WeftError(
                f"in_shardings does not fit: {len(spelled)} entries for {count} arguments",
                help="give one sharding for all, or one for each argument, or a plan by names",
            )
        return [spelled[n] for n in tensors]
    if isinstance(spelled, Mapping):
        return planned(spelled, leaves)
    return [spelled] * len(leaves)


def output_shardings(spelled: Spelled, leaves: Sequence[Leaf]) -> list[Spelled]:
    """`out_shardings` for the tensors of the results: one for all, or one each."""
    if not isinstance(spelled, tuple | list):
        return [spelled] * len(leaves)
    if len(spelled) != len(leaves):
        raise WeftError(
            f"out_shardings does not fit: {len(spelled)} entries for {len(leaves)} results",
            help="give one sharding for all, or one for each tensor that comes back",
        )
    return list(spelled)


def gathers_of(
    plan: PlannedShardings, arguments: Sequence[Leaf], mesh: object
) -> dict[int, Sharding]:
    """The shardings to which arguments are gathered, by number."""
    numbers = [*plan.gathered]
    leaves = [arguments[n] for n in numbers]
    ours = mesh_of(mesh, plan.arguments)
    found = shardings_of("the sharding of", [*plan.gathered.values()], leaves, ours)
    return {n: replace(s, mesh="mesh") for n, s in zip(numbers, found, strict=True) if s}
