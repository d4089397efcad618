"""The whole compiler: a captured module is sharded, partitioned, optimized, and ready to run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.errors import WeftError
from weft.ir.memory import without_gc
from weft.ir.module import Module
from weft.knobs import TRACE, Tune
from weft.machine import Machine
from weft.optimize import Level, Ran, optimize
from weft.optimize.plan_memory import plan_memory
from weft.partition import is_of_one, partition
from weft.run import LocalProgram
from weft.shard import Rules, Shrunk, shard
from weft.target import target_named
from weft.trace import Trace

STAGES = ("captured", "sharded", "partitioned", "optimized")


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled program: the module after every stage, and what runs it on all devices."""

    stages: Mapping[str, Module]
    local: LocalProgram
    notes: tuple[Shrunk, ...] = ()  # arguments and results that are less split than inferred

    @property
    def module(self) -> Module:
        """The module that runs."""
        return self.stages[STAGES[-1]]

    def stage(self, name: str) -> Module:
        """The module after a stage."""
        if name not in self.stages:
            raise WeftError(f"no stage {name!r}", help=f"stages are {', '.join(self.stages)}")
        return self.stages[name]


def compile_module(
    module: Module,
    mesh: object = None,
    *,
    level: Level = 1,
    machine: Machine | None = None,
    target: str | None = None,
    fold_sums: bool = True,
    tune: Tune | None = None,
    pad_named: bool = False,
) -> Program:
    """Take a module through every stage.

    With `fold_sums` a product also sums over devices where an all_reduce comes next, which rounds
    otherwise than devices that sum up by themselves first. `tune` says whether products are
    measured; without it WEFT_TUNE does. With `pad_named` arguments and results have the shardings
    that the module names for them, also where these do not divide them; JAX wants even pieces.
    """
    notes: list[Shrunk] = []
    with without_gc():
        stages = _stages(module, mesh, level, machine, pad_named, notes)
        local = _local(stages[STAGES[-1]], target, fold_sums, tune)
        return Program(stages, local, tuple(notes))


def optimized_program(
    module: Module,
    *,
    target: str | None = None,
    fold_sums: bool = True,
    tune: Tune | None = None,
) -> Program:
    """The program of a module that went through all stages before, and was written down."""
    with without_gc():
        return Program({STAGES[-1]: module}, _local(module, target, fold_sums, tune))


def _local(best: Module, target: str | None, fold_sums: bool, tune: Tune | None) -> LocalProgram:
    chosen = target_named(target, fold_sums=fold_sums, tune=tune)
    return LocalProgram(best, target=chosen, fold=fold_sums or chosen is not None)


def _stages(
    module: Module,
    mesh: object,
    level: Level,
    machine: Machine | None,
    pad_named: bool,
    notes: list[Shrunk],
) -> dict[str, Module]:
    trace = Trace(TRACE.value(), module.name)
    trace.write("captured", module)
    rules = Rules()
    whole = mesh is None and is_of_one(module)  # most of what JAX compiles while a program starts
    sharded = module
    if not whole:
        sharded = shard(module, mesh, rules=rules, pad_named=pad_named, notes=notes)
    trace.write("sharded", sharded)
    trace.note(map(str, notes))
    local = partition(sharded, rules)
    trace.write("partitioned", local)

    def see(ran: Ran) -> None:
        if ran.changed:
            trace.write(f"optimized-{ran.name}", ran.module)

    best = optimize(local, level, machine=machine, watch=see)
    if machine is not None:
        plan_memory(best).fits(machine)
    return dict(zip(STAGES, (module, sharded, local, best), strict=True))
