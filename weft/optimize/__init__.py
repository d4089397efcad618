"""Optimization passes from module to module, in running order, and their levels."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Literal, TypeAlias

from weft.errors import WeftError
from weft.ir.module import Module
from weft.machine import HOST, Machine
from weft.optimize.collectives.canonicalize_collectives import canonicalize_collectives
from weft.optimize.collectives.collective_matmul import collective_matmul
from weft.optimize.collectives.combine_collectives import combine_collectives
from weft.optimize.collectives.hoist_gather import hoist_gather
from weft.optimize.collectives.rematerialize_gather import rematerialize_gather
from weft.optimize.cse import cse
from weft.optimize.drop_dead import drop_dead
from weft.optimize.inline_calls import inline_calls
from weft.optimize.runner import Pass, PassOptions, PassRecord, PassWatch, given_numbers, run_passes
from weft.optimize.scheduling.assign_streams import assign_streams
from weft.optimize.scheduling.schedule import schedule
from weft.optimize.scheduling.split_async import split_async
from weft.optimize.simplification.fold_constants import fold_constants
from weft.optimize.simplification.simplify import simplify
from weft.optimize.sink_masks import sink_masks

Level: TypeAlias = Literal[0, 1, 2]

# Every pass with the level that enables it, in running order.
STEPS: tuple[tuple[Pass, Level], ...] = (
    (inline_calls, 1),  # first: the others do not look across calls
    (cse, 1),
    (simplify, 1),
    (canonicalize_collectives, 1),
    (hoist_gather, 2),  # after canonicalization, which may remove or shrink a gather
    (cse, 1),
    (drop_dead, 1),
    (collective_matmul, 2),  # before combining, which would merge a product's gather with others
    (cse, 2),
    (combine_collectives, 1),
    (sink_masks, 1),
    (rematerialize_gather, 2),  # late: the passes before it change live ranges
    (split_async, 2),
    (assign_streams, 2),
    (schedule, 2),  # last: it fixes the order of nodes
)
# All passes that can be run by name; simplify folds constants itself at every level.
PASSES: tuple[Pass, ...] = tuple(dict.fromkeys((fold_constants, *(run for run, _ in STEPS))))

LEVELS = {
    0: "nothing: the program as it was partitioned",
    1: "cheap cleanup, and collectives combined",
    2: "all: what is gathered, when it travels, what it overlaps with",
}


def optimize(
    module: Module,
    level: Level = 1,
    *,
    machine: Machine | None = None,
    watch: PassWatch | None = None,
    **numbers: int,
) -> Module:
    """Run the passes of a level and verify the module after each; `watch` is called after each.

    `numbers` are the numeric fields of `PassOptions`: streams, and limits of combining.
    """
    if level not in LEVELS:
        raise WeftError(f"unknown optimization level {level!r}", help="levels are 0, 1 and 2")
    options = PassOptions(machine or HOST, **numbers)
    return run_passes(module, steps(level), options, watch)


def steps(level: Level) -> tuple[Pass, ...]:
    """The passes that a level runs, in order."""
    return tuple(run for run, least in STEPS if least <= level)


def named(names: Sequence[str]) -> tuple[Pass, ...]:
    """The passes of these names; an unknown name is an error with the known ones."""
    known = {run.__name__: run for run in PASSES}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise WeftError(f"unknown pass {name!r}", help=f"{hint}known: {', '.join(known)}")
    return tuple(known[name] for name in names)


__all__ = [
    "LEVELS",
    "PASSES",
    "STEPS",
    "Level",
    "Pass",
    "PassOptions",
    "PassRecord",
    "PassWatch",
    "assign_streams",
    "canonicalize_collectives",
    "collective_matmul",
    "combine_collectives",
    "cse",
    "drop_dead",
    "fold_constants",
    "given_numbers",
    "hoist_gather",
    "inline_calls",
    "named",
    "optimize",
    "rematerialize_gather",
    "run_passes",
    "schedule",
    "simplify",
    "split_async",
    "steps",
]
