"""Normalization: one form for programs of all front ends, so that their numbers agree."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from weft.capture.normalize.absorb_composites import absorb_composites
from weft.capture.normalize.choose_by_flags import choose_by_flags
from weft.capture.normalize.custom_partitioning import partition_by_hand
from weft.capture.normalize.explicit_collectives import reshard_by_collectives
from weft.capture.normalize.join_meshes import join_meshes
from weft.capture.normalize.layouts import choose_layouts
from weft.capture.normalize.tokens import keep_tokens_inside, tokens_as_values
from weft.ir.module import Module

NormalizePass = Callable[[Module], Module]


def normalize(module: Module, shard: NormalizePass, *, pieces: bool = False) -> Module:
    """The module in the form that the stages after capture expect.

    `shard` propagates shardings for `custom_partitioning`. With `pieces` callers pass local shards,
    and empty arrays for tokens, as JAX does to a plugin; otherwise they pass global values and no
    tokens.
    """
    for step in passes(shard, pieces=pieces):
        module = step(module)
    return module


def passes(shard: NormalizePass, *, pieces: bool = False) -> tuple[NormalizePass, ...]:
    """The passes in running order."""
    return (
        # First: the others know Weft's own ops, not JAX's wrappers of them.
        absorb_composites,
        tokens_as_values if pieces else keep_tokens_inside,
        choose_layouts,
        # Before meshes are joined, since it reads axes of the meshes that the program names.
        reshard_by_collectives,
        partial(join_meshes, pieces=pieces),
        partial(partition_by_hand, shard=shard),
        # Last: a user's partitioner must see the program as it was written.
        choose_by_flags,
    )


__all__ = ["normalize", "passes"]
