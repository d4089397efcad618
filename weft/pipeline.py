"""The compiler pipeline: a captured module is sharded, partitioned, optimized, tiled, emitted."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from functools import partial

from weft.capture import normalize
from weft.cost.costs import Costs, spmd_seconds
from weft.emit import emit
from weft.emit.numpy import host_of
from weft.emit.numpy.target import NUMPY
from weft.errors import Unsupported, WeftError
from weft.executable.executable import Executable
from weft.executable.process import Process
from weft.ir.gc_pause import without_gc
from weft.ir.module import Module
from weft.ir.on_mesh import with_mesh
from weft.ir.work import moved
from weft.ir.write import node_text
from weft.knobs import TRACE, Tune
from weft.machine import Machine, bytes_text
from weft.mesh import as_mesh
from weft.mesh.owners import StackedAxes
from weft.ops.elementwise.approximate import approximable
from weft.optimize import Level, PassRecord, combine_collectives, cse, inline_calls, optimize
from weft.optimize.approximate import approximate as marked
from weft.optimize.layout import channels_last, narrow_ragged_dots, unroll_windows
from weft.partition import PolicyMemory, is_single_device, partition
from weft.records import dataclass
from weft.run import LocalProgram
from weft.shard import IndivisibleDim, Pads, Rules, shard
from weft.target import Target
from weft.targets import target_named
from weft.tile import tile
from weft.trace import Trace
from weft.traced import record_prediction, trace_program
from weft.varying.world import World

STAGES = ("captured", "sharded", "partitioned", "optimized", "tiled", "emitted")
OPTIMIZED = STAGES[3]  # the last stage whose output is a module


@dataclass(frozen=True, slots=True)
class Program:
    """A program after each stage up to the last one compiled, and its loaded form."""

    stages: Mapping[str, Module]
    executable: Executable | None = None
    loaded: LocalProgram | None = None
    notes: tuple[
        IndivisibleDim, ...
    ] = ()  # arguments and results that are less split than their inferred sharding

    @property
    def local(self) -> LocalProgram:
        """The loaded program."""
        assert self.loaded is not None, "compiled up to emit"
        return self.loaded

    @property
    def module(self) -> Module:
        """The optimized module."""
        return self.stages[OPTIMIZED]

    def digest(self) -> str:
        """The digest of the tiled program, by which processes see that theirs are the same."""
        return hashlib.blake2b(self.text("tiled").encode(), digest_size=16).hexdigest()

    def stage(self, name: str) -> Module:
        """The module after a stage."""
        if name not in self.stages:
            late = 0 if self.executable is None else 1 if self.executable.texts is None else 2
            known = (*self.stages, *STAGES[4 : 4 + late])
            raise WeftError(f"unknown stage {name!r}", help=f"stages are {', '.join(known)}")
        return self.stages[name]

    def text(self, stage: str, *, locations: bool = False) -> str:
        """The text of the program after a stage; of the last two, that of an executable."""
        executable = self.executable
        if executable is not None and stage == "tiled":
            return executable.text(locations=locations).text
        if executable is not None and executable.texts is not None and stage == "emitted":
            return executable.emitted_text(locations=locations)
        return self.stage(stage).text(locations=locations)


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
    approximate: Collection[str] = (),
    pads: Pads = "none",
    pieces: bool = False,
    rules: Rules | None = None,
    numbers: Mapping[str, int] = {},
    policy: PolicyMemory | None = None,
    stacked: StackedAxes | None = None,
    process: Process | None = None,
    trace: Trace | None = None,
    since: str | None = None,
    to: str = STAGES[-1],
    fits: bool = True,
) -> Program:
    """Take a module through every stage, or up to `to`; only the last stage needs llvmlite.

    `since` is the stage whose output the module is, if it was read from text. `trace` overrides
    WEFT_TRACE. Without `fits` a program may need more memory than the machine has.

    With `fold_sums` a product that feeds an all_reduce also sums over devices, which rounds
    differently from summing on each device first. `tune` is the mode of tuning, by default
    WEFT_TUNE. Without `excess_precision` bf16 is rounded after every op, and multiply-adds are not
    fused. The functions of f32 that `approximate` names may err by 2^-13. With `pads="named"`
    arguments and results have the shardings that the module names, even if uneven; JAX requires
    even shards. With `pieces` callers pass local shards, as JAX does to a plugin. `rules`
    are the user's, for custom calls and composites; `numbers` are those of
    `weft.optimize.PassOptions`.

    `stacked` are the mesh axes whose devices are all in one process, or a function of the mesh that
    gives them: sums over devices are folded
    into kernels along these only, and along the others collectives run between kernels. The tiled
    program is the same for all processes; `process` identifies this one at run time. Without both,
    all devices are in this process.
    """
    notes: list[IndivisibleDim] = []
    approximate = approximable(approximate)
    rules, trace = rules or Rules(), trace or Trace(TRACE.value(), module.name)
    spread = partial(shard, rules=rules)
    stages = _Stages(trace, since, to)
    # Virtual devices of a processor share a memory, where most collectives become kernels.
    links = None if machine is None or machine.kind == "cpu" else machine
    seconds = None if links is None else partial(partitioned_seconds, machine=links)
    program = module if mesh is None else with_mesh(module, as_mesh(mesh))
    if machine is not None:
        machine.holding(max((mesh.size for mesh in program.meshes.values()), default=1))
    with without_gc(), _enough_memory(module):
        _check_sizes(module)
        program = stages.after("captured", program, lambda m: normalize(m, spread, pieces=pieces))
        program = stages.after(
            "sharded",
            program,
            lambda m: m if is_single_device(m) else spread(m, pads=pads, notes=notes),
        )
        program = stages.after(
            "partitioned",
            program,
            lambda m: partition(m, rules, policy=policy, machine=links, seconds=seconds),
        )
        program = stages.after(
            "optimized",
            program,
            lambda m: optimize(m, level, machine=machine, watch=stages.saw, **numbers),
        )
        trace.note(map(str, notes))
        if to in STAGES[:4]:
            return Program(stages.modules, notes=tuple(notes))
        runs = to == STAGES[-1]
        options = {"fold_sums": fold_sums, "tune": tune, "excess_precision": excess_precision}
        the_target = target_named(target, runs=runs, **options)  # type: ignore[arg-type]
        host, fold = host_of(process), fold_sums or the_target.has_kernels
        program = marked(program, approximate)  # not a pass: texts of earlier stages have it, too
        program = for_target(program, the_target)
        with trace.timed("tiled"):
            tiled = tile(program, host=host, target=the_target, fold=fold, stacked=stacked)
        trace.write_executable("tiled", tiled)
        if machine is not None and fits:
            tiled.memory().fits(machine)
        if not runs:
            return Program(stages.modules, tiled, None, tuple(notes))
        op_by_op = partial(local_program, program, fold=fold, stacked=stacked, process=process)
        with trace.timed("emitted"):
            emitted = emit(tiled, the_target)
            loaded = LocalProgram(emitted.tiled, emitted.plan, host, the_target, op_by_op)
        trace_program(trace, program, loaded)
        record_prediction(loaded, emitted, machine)
        return Program(stages.modules, emitted, loaded, tuple(notes))


def for_target(module: Module, target: Target) -> Module:
    """The module with layouts and ops that a target's kernels are best at."""
    if target.limits.unrolled:
        module = unroll_windows(module)
    if target.limits.channels_last:
        module = channels_last(module)
    if target.limits.narrow:
        module = narrow_ragged_dots(module)
    return module


def partitioned_seconds(module: Module, machine: Machine) -> float:
    """The seconds of a partitioned program's collectives and products.

    Equal nodes count once, and independent collectives as one, as they will be merged.
    """
    merged = combine_collectives(cse(inline_calls(module)), machine=machine)
    entries = [name for name, f in merged.functions.items() if f.visibility != "private"]
    costs = Costs(merged, machine)
    return sum(spmd_seconds(merged, costs, name) for name in entries or merged.functions)


@dataclass(frozen=True, slots=True)
class _Stages:
    """Runs the module stages from the one after `since` up to `to`, with times and trace."""

    trace: Trace
    since: str | None
    to: str
    modules: dict[str, Module] = field(default_factory=dict)

    def after(self, stage: str, module: Module, make: Callable[[Module], Module]) -> Module:
        """Run a stage on a module; stages up to `since` and after `to` are skipped."""
        first = STAGES.index(self.since) if self.since is not None else -1
        if not first <= STAGES.index(stage) <= STAGES.index(self.to):
            return module
        # Sharded text has no side table, so it is sharded again; propagation is idempotent.
        if stage != self.since or stage == "sharded":
            with self.trace.timed(stage):
                module = make(module)
        if stage != OPTIMIZED or stage == self.since:  # its passes are traced
            self.trace.write(stage, module)
        self.modules[stage] = module
        return module

    def saw(self, ran: PassRecord) -> None:
        """Trace a pass of the optimizer."""
        self.trace.took(f"optimized/{ran.name}", ran.seconds + ran.verifying)
        if ran.changed:
            self.trace.write(f"optimized-{ran.name}", ran.module)


@contextmanager
def _enough_memory(module: Module) -> Iterator[None]:
    """Turn MemoryError into an error at the line of the largest value."""
    try:
        yield
    except MemoryError:
        raise _too_large(module) from None


def _check_sizes(module: Module) -> None:
    """Refuse values with more bytes than 64 bits count: numpy and JAX fail on them later."""
    if any(moved(type) >> 63 for type in {t for node in module.nodes() for t in node.types}):
        raise MemoryError


def _too_large(module: Module) -> WeftError:
    message = f"out of memory: {module.name or 'the program'} cannot be compiled"
    node = max(module.nodes(), key=lambda n: moved(*n.types), default=None)
    if node is None:
        return Unsupported(message, help="use smaller sizes")
    message += f"; its largest value, of {bytes_text(moved(*node.types))}, is of this line"
    return Unsupported(message, help="use smaller sizes", loc=node.loc, node=node_text(node))


def local_program(
    module: Module,
    function: str = "main",
    *,
    devices: int | tuple[int, int] | None = None,
    donate: Sequence[int] | None = None,
    fold: bool = True,
    target: Target = NUMPY,
    world: World | None = None,
    stacked: StackedAxes | None = None,
    process: Process | None = None,
) -> LocalProgram:
    """A function of a local module, tiled, planned, emitted and loaded.

    Without `fold` every value of the module is computed, by the host, for comparison. With a world,
    of another program on the same meshes, stacks have its layout. With `stacked` axes, `process`
    has the devices along these; without, all devices are in this process.
    """
    host, target = host_of(process), target if fold else NUMPY
    placing = {"devices": devices, "donate": donate, "world": world, "stacked": stacked}
    with without_gc():
        made = tile(module, function, host=host, target=target, fold=fold, **placing)  # type: ignore[arg-type]
    again = partial(local_program, module, function, target=NUMPY, fold=fold, process=process)
    return LocalProgram(made.tiled, made.plan, host, target, partial(again, **placing))


# A small program, whose compilation compiles the methods of records and sets up LLVM.
_WARM_UP = """
"builtin.module"() <{sym_name = "warm_up"}> ({
  "sdy.mesh"() <{mesh = #sdy.mesh<["x"=2]>, sym_name = "mesh"}> : () -> ()
  "func.func"() <{arg_attrs = [{sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>}],
      function_type = (tensor<8x8xf32>) -> tensor<8x8xf32>,
      res_attrs = [{sdy.sharding = #sdy.sharding<@mesh, [{}, {}]>}], sym_name = "main"}> ({
  ^bb0(%arg0: tensor<8x8xf32>):
    %0 = "stablehlo.dot_general"(%arg0, %arg0) <{dot_dimension_numbers = #stablehlo.dot<
      lhs_contracting_dimensions = [0], rhs_contracting_dimensions = [0]>}>
      : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    %1 = "stablehlo.tanh"(%0) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    "func.return"(%1) : (tensor<8x8xf32>) -> ()
  }) : () -> ()
}) : () -> ()
"""


def warm_up() -> None:
    """Compile a small program before workers are forked, so that they do not all pay for it.

    Nothing runs, and no thread starts.
    """
    from weft.ir.read import read_module
    from weft.ops import BY_NAME

    module = read_module(_WARM_UP.replace("\n      ", " "), BY_NAME, None)
    compile_module(module, tune="off", trace=Trace(None, module.name))
