"""The whole compiler: a captured module is sharded, partitioned, optimized, tiled and emitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from weft.capture import normalize
from weft.emit.numpy import host_of
from weft.errors import Unsupported, WeftError
from weft.executable.executable import Executable
from weft.executable.process import Process
from weft.executable.text import emitted_text
from weft.ir.memory import without_gc
from weft.ir.module import Module
from weft.ir.on_mesh import with_mesh
from weft.ir.work import moved
from weft.ir.write import node_text
from weft.knobs import TRACE, Tune
from weft.machine import Machine, bytes_text
from weft.mesh import Axis, as_mesh
from weft.optimize import Level, Ran, optimize
from weft.optimize.plan_memory import plan_memory
from weft.partition import is_of_one, partition
from weft.run import LocalProgram
from weft.shard import Pads, Rules, Shrunk, shard
from weft.target import Target
from weft.targets import target_named
from weft.tile.lower import lower
from weft.tile.plan import plan
from weft.trace import Trace
from weft.traced import emitted_texts, trace_program
from weft.varying.world import World

STAGES = ("captured", "sharded", "partitioned", "optimized", "tiled", "emitted")
OPTIMIZED = STAGES[3]  # the last stage that is a module


@dataclass(frozen=True, slots=True)
class Program:
    """A program after every stage, as far as it was compiled, and what runs it on all devices."""

    stages: Mapping[str, Module]
    executable: Executable | None = None
    loaded: LocalProgram | None = None
    notes: tuple[Shrunk, ...] = ()  # arguments and results that are less split than inferred

    @property
    def local(self) -> LocalProgram:
        """What runs."""
        assert self.loaded is not None, "it was compiled to run"
        return self.loaded

    @property
    def module(self) -> Module:
        """The module that runs."""
        return self.stages[OPTIMIZED]

    def stage(self, name: str) -> Module:
        """The module after a stage."""
        if name not in self.stages:
            raise WeftError(f"no stage {name!r}", help=f"stages are {', '.join(self.stages)}")
        return self.stages[name]

    def text(self, stage: str, *, locations: bool = False) -> str:
        """The program after a stage; of the last two, as text of executables."""
        if stage in STAGES[4:] and self.executable is not None:
            tiled = self.executable.text(locations=locations).text
            if stage == "tiled":
                return tiled
            if self.loaded is not None:
                return emitted_text(tiled, self.executable.target, emitted_texts(self.loaded))
        known = [*self.stages, *(STAGES[4:] if self.executable is not None else ())]
        if stage not in self.stages:
            raise WeftError(f"no stage {stage!r}", help=f"stages are {', '.join(known)}")
        return self.stages[stage].text(locations=locations)


def compile_module(
    module: Module,
    mesh: object = None,
    *,
    level: Level = 1,
    machine: Machine | None = None,
    target: str | None = None,
    fold_sums: bool = True,
    tune: Tune | None = None,
    excess_precision: bool = True,
    pads: Pads = "none",
    pieces: bool = False,
    rules: Rules | None = None,
    numbers: Mapping[str, int] = {},
    stacked: Sequence[Axis] | None = None,
    process: Process | None = None,
    trace: Trace | None = None,
    since: str | None = None,
    to: str = STAGES[-1],
) -> Program:
    """Take a module through every stage, or up to `to`, which before the last needs no llvmlite.

    `since` is the stage that the module is after, if it was written down. `trace` is where stages
    are written, if not by WEFT_TRACE.

    With `fold_sums` a product also sums over devices where an all_reduce comes next, which rounds
    otherwise than devices that sum up by themselves first. `tune` says whether products are
    measured; without it WEFT_TUNE does. Without `excess_precision` bf16 is rounded after every op,
    too, and no two ops are computed as one. With `pads="named"` arguments and results have the
    shardings that the module names for them, also where these do not divide them; JAX wants even
    pieces. With `pieces` callers pass what each device holds, as JAX does to a plugin. `rules` are
    the user's, for custom calls and composites; `numbers` are those of `weft.optimize.Options`.

    Axes of the mesh that are `stacked` are those along which one process has the devices: sums
    over devices fold into kernels along these only, and along the others devices meet between
    kernels. What is tiled is the same for all processes; to run it, a `process` is told which one
    it is. Without both, all devices are here.
    """
    notes: list[Shrunk] = []
    with without_gc():
        trace = trace or Trace(TRACE.value(), module.name)
        try:
            given = (trace, pads, notes, pieces, rules or Rules(), numbers)
            stages = _stages(module, mesh, level, machine, *given, since, to)
            if OPTIMIZED not in stages or to == OPTIMIZED:
                return Program(stages, notes=tuple(notes))
            options = {"fold_sums": fold_sums, "tune": tune, "excess_precision": excess_precision}
            chosen = target_named(target, runs=to == STAGES[-1], **options)  # type: ignore[arg-type]
            rest = (trace, tuple(notes), to, stacked, process)
            return _tiled(stages, chosen, fold_sums, *rest)
        except MemoryError:
            raise _out_of_memory(module) from None


def _out_of_memory(module: Module) -> WeftError:
    """The refusal of a program that is too large to compile, at the line of its largest value."""
    told = f"out of memory: {module.name or 'the program'} cannot be compiled"
    node = max(module.nodes(), key=lambda n: moved(*n.types), default=None)
    if node is None:
        return Unsupported(told, help="use smaller sizes")
    told += f"; its largest value, of {bytes_text(moved(*node.types))}, is of this line"
    return Unsupported(told, help="use smaller sizes", loc=node.loc, node=node_text(node))


def optimized_program(
    module: Module,
    *,
    target: str | None = None,
    fold_sums: bool = True,
    tune: Tune | None = None,
    excess_precision: bool = True,
    to: str = STAGES[-1],
) -> Program:
    """The program of a module that went through all stages before, and was written down."""
    with without_gc():
        trace = Trace(TRACE.value(), module.name)
        trace.write(OPTIMIZED, module)
        options = {"fold_sums": fold_sums, "tune": tune, "excess_precision": excess_precision}
        chosen = target_named(target, runs=to == STAGES[-1], **options)  # type: ignore[arg-type]
        return _tiled({OPTIMIZED: module}, chosen, fold_sums, trace, (), to)


def _tiled(
    stages: Mapping[str, Module],
    target: Target | None,
    fold_sums: bool,
    trace: Trace,
    notes: tuple[Shrunk, ...],
    to: str,
    stacked: Sequence[Axis] | None = None,
    process: Process | None = None,
) -> Program:
    """The last stages: nodes are grouped to kernels, which are emitted and loaded."""
    best, fold = stages[OPTIMIZED], fold_sums or target is not None
    with trace.timed("tiled"):
        host = host_of(process)
        tiled = lower(best, host=host, target=target, fold=fold, stacked=stacked)
        made = Executable(tiled, plan(tiled), "numpy" if target is None else target.name)
    trace.write_executable("tiled", made)
    if to == "tiled":
        return Program(stages, made, None, notes)
    with trace.timed("emitted"):
        rest = (
            host,
            target,
            lambda: local_program(best, fold=fold, stacked=stacked, process=process),
        )
        loaded = LocalProgram(tiled, made.plan, *rest)
    trace_program(trace, best, loaded)
    return Program(stages, made, loaded, notes)


def local_program(
    module: Module,
    function: str = "main",
    *,
    devices: int | tuple[int, int] | None = None,
    donate: Sequence[int] | None = None,
    fold: bool = True,
    target: Target | None = None,
    world: World | None = None,
    stacked: Sequence[Axis] | None = None,
    process: Process | None = None,
) -> LocalProgram:
    """A function of a local module, tiled, planned, emitted and loaded.

    Without `fold` every value is computed as it is written, for those who look at each. With a
    world, that of another program of the same meshes, stacks are as they are there. With `stacked`
    axes this is the `process` that has the devices along these; without, all devices are here.
    """
    host = host_of(process)
    with without_gc():
        tiled = lower(
            module,
            function,
            host=host,
            target=target,
            fold=fold,
            devices=devices,
            donate=donate,
            world=world,
            stacked=stacked,
        )

    def op_by_op() -> LocalProgram:
        given: dict[str, Any] = {"devices": devices, "donate": donate, "fold": fold}
        given |= {"world": world, "stacked": stacked, "process": process}
        return local_program(module, function, target=None, **given)

    return LocalProgram(tiled, plan(tiled), host, target if fold else None, op_by_op)


def _stages(
    module: Module,
    mesh: object,
    level: Level,
    machine: Machine | None,
    trace: Trace,
    pads: Pads,
    notes: list[Shrunk],
    pieces: bool,
    rules: Rules,
    numbers: Mapping[str, int],
    since: str | None,
    to: str,
) -> dict[str, Module]:
    if since == OPTIMIZED:
        return {OPTIMIZED: module}
    stages: dict[str, Module] = {}
    local = module
    if since != "partitioned":
        stages = _partitioned(module, mesh, trace, pads, notes, pieces, rules, since, to)
        if to in stages:
            return stages
        local = stages["partitioned"]
    trace.took("optimized", 0.0)  # before its passes, of which it is the sum

    def see(ran: Ran) -> None:
        for stage in ("optimized", f"optimized/{ran.name}"):
            trace.took(stage, ran.seconds + ran.verifying)
        if ran.changed:
            trace.write(f"optimized-{ran.name}", ran.module)

    best = optimize(local, level, machine=machine, watch=see, **numbers)
    if machine is not None:
        plan_memory(best).fits(machine)
    return stages | {OPTIMIZED: best}


def _partitioned(
    module: Module,
    mesh: object,
    trace: Trace,
    pads: Pads,
    notes: list[Shrunk],
    pieces: bool,
    rules: Rules,
    since: str | None,
    to: str,
) -> dict[str, Module]:
    """The first stages, up to the program of one device; sharding again changes nothing."""
    if mesh is not None:
        module = with_mesh(module, as_mesh(mesh))
    if since is None:
        with trace.timed("captured"):
            module = normalize(module, partial(shard, rules=rules), pieces=pieces)
    trace.write("captured", module)
    stages = {"captured": module}
    if to == "captured":
        return stages
    whole = is_of_one(module)  # most of what JAX compiles while a program starts
    sharded = module
    with trace.timed("sharded"):
        if not whole:
            sharded = shard(module, rules=rules, pads=pads, notes=notes)
    trace.write("sharded", sharded)
    trace.note(map(str, notes))
    stages["sharded"] = sharded
    if to == "sharded":
        return stages
    with trace.timed("partitioned"):
        local = partition(sharded, rules)
    trace.write("partitioned", local)
    return stages | {"partitioned": local}
