"""Optimize: passes from module to module, in running order."""

from weft.ir.module import Module
from weft.ir.verify import verify
from weft.optimize.cse import cse
from weft.optimize.drop_dead import drop_dead

PASSES = (cse, drop_dead)


def optimize(module: Module) -> Module:
    """Run every pass, and verify the module after each."""
    for run in PASSES:
        module = verify(run(module))
    return module


__all__ = ["PASSES", "cse", "drop_dead", "optimize"]
