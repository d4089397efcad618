"""Plans that the search finds, and the published recipes, predicted for the same program."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

import weft
from tests.plan.models import SIZES, program, values
from weft.capture import capture
from weft.machine import machine
from weft.mesh.plans import ShardingPlan, read_plan
from weft.planner.search import plan_captured, predicted_plan, subject_of

RECIPES = Path(__file__).parent / "recipes"
MACHINES = {8: "8xh100", 64: "8x(8xh100)"}


@dataclass(frozen=True)
class Compared:
    """The plans found, and rows of name, mesh, seconds, bytes, and whether they fit."""

    plans: list[ShardingPlan]
    rows: list[tuple[str, str, float, int, bool]]

    @property
    def best(self) -> ShardingPlan:
        return self.plans[0]

    def fastest_recipe(self) -> float:
        """The seconds of the fastest recipe that fits."""
        return min((row[2] for row in self.rows if row[0] != "weft" and row[4]), default=np.inf)


def compare(kind: str, devices: int, **options: Any) -> Compared:
    """Search for plans of a model on so many H100s; the batch grows with them."""
    sizes = SIZES[kind]
    fn, args = program(kind, replace(sizes, batch=sizes.batch * devices // 8))
    captured, where = capture(fn, args), machine(MACHINES[devices])
    plans = plan_captured(captured, where, devices, **options)
    rows = [("weft", p.title, p.seconds, p.memory, p.memory <= where.memory) for p in plans]
    subject = subject_of(captured)
    for path in sorted(RECIPES.glob(f"{kind}-{devices}-*.json")):
        recipe = read_plan(path)
        made = predicted_plan(subject, recipe.mesh, recipe.arguments, where)
        fits = made.memory <= where.memory
        rows.append((path.stem.rpartition("-")[2], recipe.title, made.seconds, made.memory, fits))
    return Compared(plans, rows)


def run_tiny(kind: str, plan: ShardingPlan, layers: int = 2) -> float:
    """Run a small variant of a model by a plan, in lockstep: the largest difference from JAX."""
    fn, types = program(kind, SIZES[kind].tiny(layers))
    args = values(types)
    want = jax.jit(fn)(*args)
    made = weft.compile(fn, *types, plan=plan)(*args)
    assert made[2].shape == ()
    return difference(want, made)


def difference(want: Any, made: Any) -> float:
    """The largest difference between two trees of arrays."""
    pairs = zip(jax.tree.leaves(want), jax.tree.leaves(made), strict=True)
    both = [(np.asarray(a, np.float32), np.asarray(b, np.float32)) for a, b in pairs]
    return max(float(np.max(np.abs(a - b))) for a, b in both)
