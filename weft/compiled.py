"""`weft.compile`: a program of JAX, PyTorch or StableHLO, ready to run on a mesh of devices."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, update_wrapper
from typing import TYPE_CHECKING, Any, TypeVar

from weft.cache.recent import RecentlyUsed
from weft.capture import Captured, Source, source_for, source_of
from weft.capture.options import (
    CallOptions,
    Positions,
    as_positions,
    check_capacity,
    check_dynamic,
    check_keywords,
    check_programs,
)
from weft.capture.shardings import Spelled
from weft.capture.source import Varied
from weft.capture.sources import size_buckets
from weft.cost.sent import Sent
from weft.cost.sent_table import sent_by_line
from weft.errors import WeftError, warn
from weft.executable.files import save
from weft.executable.memory import MemoryUse
from weft.executable.process import Process
from weft.executable.signature import Signature
from weft.executable.version import __version__
from weft.ir.gc_pause import without_gc
from weft.ir.module import Module
from weft.knobs import TRACE, Tune
from weft.machine import HOST, MACHINES, Machine
from weft.machine import machine as machine_named
from weft.mesh import Axis
from weft.mesh.plans import ShardingPlan, as_plan
from weft.mesh.spelling import as_axes
from weft.ops.elementwise.approximate import approximable
from weft.optimize import Level, given_numbers
from weft.pipeline import OPTIMIZED, STAGES, Program, compile_module
from weft.ready import FastPath, QuickCall, ReadyProgram, described, mesh_text, warn_of_notes
from weft.records import dataclass
from weft.shard import Pads, Rules
from weft.shard.rules import GivenRule, as_rules
from weft.targets import target_of
from weft.trace import Trace
from weft.workers import cluster_holding

if TYPE_CHECKING:
    from weft.advise import Explained
    from weft.predict import Prediction
    from weft.simulate import Noise
    from weft.workers.cluster import Cluster

T = TypeVar("T")
PROGRAMS = 128  # those that are kept for different types of arguments


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Compile options of a program."""

    level: Level
    machine: Machine | None
    target: str | None
    fold_sums: bool
    tune: Tune | None
    excess_precision: bool
    sync_every_op: bool
    rules: Rules | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)  # of weft.optimize.Options
    stacked: tuple[Axis, ...] | None = None  # axes whose devices are all in this process
    process: Process | None = None
    programs: int = PROGRAMS  # how many are kept for different types of arguments
    approximate: tuple[str, ...] = ()  # of weft.ops.elementwise.approximate
    pads: Pads = "named"  # the arguments and results that may have uneven, padded shards


class Compiled:
    """A function or module compiled for a mesh: call it, or inspect its stages.

    A call with arguments of other types or shapes, or with other static arguments, compiles another
    program; the most recently used ones are kept. Inside JAX's grad, vmap or jit, or another
    function that Weft compiles, the original function is traced.
    """

    def __init__(
        self, source: Source, options: CompileOptions, call_options: CallOptions | None = None
    ) -> None:
        self._source = source
        self._options = options
        self._call_options = call_options or CallOptions()
        self._programs: RecentlyUsed[Hashable, ReadyProgram] = RecentlyUsed(options.programs)
        self._known: dict[Hashable, FastPath] = {}  # by cheap cache key
        self._last: ReadyProgram | None = None
        self._quick: QuickCall | None = None  # for arguments like those of the last two calls
        self._lock = threading.RLock()  # reentrant: a callback may compile while tracing

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays, scalars and pytrees of them; results are asynchronous."""
        if self._quick is not None and not kwargs:
            made = self._quick(args)
            if made is not None:
                return made
        seen, values = self._source.quick_key(args, kwargs)
        try:
            known = self._known.get(seen)
        except TypeError:  # static arguments that are not hashable
            known = None
        if known is None:
            return self._first(seen, args, kwargs)
        if known.ready is not self._last:
            self._quick = None  # where types alternate, a quick call would be in vain
            self._use(known)
        elif not kwargs:
            self._quick = known.quick_for(args, values)
        return known(values)

    def _use(self, known: FastPath) -> None:
        """Make another program the latest one."""
        self._last = known.ready
        if self._lock.acquire(blocking=False):  # not while another thread compiles: it takes long
            try:
                self._programs.used(known.key)
            finally:
                self._lock.release()

    def _first(self, seen: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The slow path: a call whose cheap key is new."""
        if not self._programs:
            self._source = source_for(self._source, self._call_options, args, kwargs)
            seen, _ = self._source.quick_key(args, kwargs)
        if self._source.is_traced(args, kwargs):
            return self._inlined(*args, **kwargs)
        key, call = self._source.flatten(args, kwargs)
        ready = self._ready(key, call)
        ready.compare_arguments(call.values)
        known = FastPath(ready, key, call.values)
        if seen is not None:
            self._known[seen] = known
        return known(call.values)

    @cached_property
    def _inlined(self) -> Callable[..., Any]:
        return self._source.inlined()

    def __reduce_ex__(self, protocol: Any) -> Any:
        help = "copy what it was compiled from, or save the program: .save(path) and weft.load"
        raise WeftError("a compiled program cannot be copied or pickled", help=help)

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Compile for arguments of these types without running."""
        if not self._programs:
            self._source = source_for(self._source, self._call_options, args, kwargs)
        key, given = self._source.flatten(args, kwargs)
        ready = self._ready(key, given)
        if args or kwargs:
            ready.check_count(ready.captured.spread(given.values))

    def captured_for(self, *args: Any, **kwargs: Any) -> Captured:
        """The program captured for arguments of these types, not compiled."""
        source = source_for(self._source, self._call_options, args, kwargs)
        _, given = source.flatten(args, kwargs)
        return source.capture(given)

    def leaves(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The flattened arguments as arrays."""
        key, given = self._source.flatten(args, kwargs)
        return self._ready(key, given).arguments(given.values)

    def flat(self, values: Sequence[Any]) -> list[Any]:
        """Run the latest program on flattened arguments; returns flattened results."""
        return self._latest.run(values)

    def __repr__(self) -> str:
        if self._last is None:
            return f"<weft.Compiled {self._source.name}, for no arguments yet>"
        mesh = next((m for m in self.program.module.meshes.values() if m.axes), None)
        return f"<weft.Compiled {self._source.name} on {mesh_text(mesh)}>"

    def __str__(self) -> str:
        """The latest program: signature, mesh, stages, collectives and memory."""
        if self._last is None:
            return f"{self._source.name}: compiled when it is first called"
        captured = self._last.captured
        text = described(self._source.name, self.program, captured.arguments, captured.results)
        count, dropped = len(self._programs), self._programs.dropped
        gone = f", and {dropped} were dropped" if dropped else ""
        return f"{text}\n  (the latest of {count} programs{gone})" if count > 1 or gone else text

    @property
    def program(self) -> Program:
        """The latest program: the module after every stage."""
        return self._latest.program

    def text(self, stage: str = OPTIMIZED, *, locations: bool = False) -> str:
        """The program after a stage: captured, sharded, partitioned, optimized, tiled or emitted.

        The first four are StableHLO; the others are texts of executables.
        """
        return self.program.text(stage, locations=locations)

    @property
    def signature(self) -> Signature:
        """The signature of the latest program: names, types, shardings, structure."""
        return self._latest.signature()

    def save(self, path: str | os.PathLike[str], *, code: bool = False) -> None:
        """Write the executable to a file, which `weft.load` reads where no JAX is installed.

        With `code` the file also has the emitted text and the machine code of its kernels, which
        `weft.load(path, trust=True)` uses on processors like this one.
        """
        ready = self._latest
        made, target = ready.program.executable, ready.program.local.target
        assert made is not None, "compiled up to emit"
        packed = target.packed if code and target is not None else None
        save(path, made, ready.signature(), f"weft {__version__}", packed)

    def memory(self) -> MemoryUse:
        """The peak memory of one device, and its parts."""
        return self.program.local.memory_of_one()

    def collectives(self) -> list[Sent]:
        """Bytes sent between devices, one row for each kind, axes, size and source line."""
        return sent_by_line(self.program.module)

    def predict(
        self, machine: Machine | str | None = None, *, level: Level = 2, noise: Noise | None = None
    ) -> Prediction:
        """One step of the latest program on a machine, optimized for it: time, parts, memory.

        The default is the machine that it was compiled for, or else this computer.
        """
        from weft.predict import predict  # with the simulator: most programs only run
        from weft.simulate import QUIET

        return self._examined(predict, machine, level=level, noise=noise or QUIET)

    def explain(
        self, machine: Machine | str | None = None, *, tries: int | None = None
    ) -> Explained:
        """Every collective of the latest program: its cost, its cause, and what would remove it.

        The advice was tried: at most `tries` changes of the annotations are predicted, 48 by
        default. The machine is the one of `predict`.
        """
        from weft.advise import TRIES, explain  # as for predict

        tries, source = TRIES if tries is None else tries, self._source
        variants = source.variants() if tries and isinstance(source, Varied) else ()
        return self._examined(explain, machine, tries=tries, variants=variants)

    def _examined(self, examine: Callable[..., T], machine: Machine | str | None, **how: Any) -> T:
        """The findings of an examination of the latest program, as it was captured."""
        module, options = self.program.stages[STAGES[0]], self._options
        how |= {"pads": options.pads, "rules": options.rules, "numbers": options.numbers}
        return examine(module, self._machine(machine), name=self._source.name, **how)

    def _machine(self, given: Machine | str | None) -> Machine:
        found = given or self._options.machine or HOST.name
        return machine_named(found) if isinstance(found, str) else found

    def report(
        self,
        path: str | os.PathLike[str],
        machine: Machine | str | None = None,
        *,
        others: Iterable[Machine | str] | None = None,
    ) -> Prediction:
        """Write a page that shows the latest program on a machine; it is one file, for a browser.

        The default machine is that of `predict`; `others` are machines to compare it with.
        """
        from weft.reporting import write_report

        return write_report(
            path,
            self.program.stages[STAGES[0]],
            self._machine(machine),
            name=self._source.name,
            others=None if others is None else [*map(self._machine, others)],
            rules=self._options.rules,
        )

    @property
    def _latest(self) -> ReadyProgram:
        if self._last is None:
            raise WeftError(
                "nothing has been compiled yet: there were no arguments",
                help="call it, or pass arguments (or their types) to weft.compile",
            )
        return self._last

    def _ready(self, key: Hashable, call: Any) -> ReadyProgram:
        with self._lock:
            self._quick = None
            ready = self._programs.used(key)
            if ready is None:
                options = self._options
                target = options.target or target_of(call.values)
                with without_gc():  # of what is traced little is garbage at once
                    captured = self._source.capture(call)
                stacked, process, workers = self._own_devices(captured.module)
                trace = Trace(TRACE.value(), captured.module.name)
                if self._programs:
                    trace.write_text("programs.txt", self._counts())
                program = compile_module(
                    captured.module,
                    level=options.level,
                    machine=options.machine,
                    target=target,
                    fold_sums=options.fold_sums,
                    tune=options.tune,
                    excess_precision=options.excess_precision,
                    approximate=options.approximate,
                    pads=options.pads,
                    rules=options.rules,
                    numbers=options.numbers,
                    stacked=stacked,
                    process=process,
                    trace=trace,
                )
                warn_of_notes(program)
                if workers is not None:
                    workers.coordination.agree(self._source.name, program.digest())
                captured = replace(captured, kept=())  # it is compiled
                every_op, first = options.sync_every_op, [] if workers is None else [workers]
                ready = ReadyProgram(self._source, captured, program, every_op, first_run=first)
                self._keep(key, ready)
            self._last = ready
            return ready

    def _counts(self) -> str:
        """The programs for other types of arguments, when one more is compiled."""
        programs = self._programs
        return (
            f"{self._source.name}: {len(programs)} programs for other types of arguments, "
            f"at most {programs.most} kept, {programs.dropped} dropped\n"
        )

    def _keep(self, key: Hashable, ready: ReadyProgram) -> None:
        """Keep a program, and drop the one that was not used for the longest time, if too many."""
        programs = self._programs
        if programs.dropped == 0 and len(programs) == programs.most:
            warn(
                f"{self._source.name} is compiled for more than {programs.most} types of "
                "arguments: the program that was not used for the longest time is dropped; "
                "pad sizes to a few, or give weft.compile a larger programs="
            )
        gone = {id(each) for each in programs.put(key, ready)}
        for seen in [seen for seen, known in self._known.items() if id(known.ready) in gone]:
            del self._known[seen]

    def _own_devices(
        self, module: Module
    ) -> tuple[tuple[Axis, ...] | None, Process | None, Cluster | None]:
        """The devices of this process: as given, else a launched worker's share of the mesh."""
        stacked, process = self._options.stacked, self._options.process
        mesh = max(module.meshes.values(), key=lambda mesh: mesh.size, default=None)
        if stacked is not None or process is not None or mesh is None:
            return stacked, process, None
        workers = cluster_holding(mesh)
        return (None, None, None) if workers is None else (*workers.holding(mesh), workers)


class DynamicCompiled(Compiled):
    """A program of PyTorch's whose sizes vary: arguments are padded to a few sizes."""

    def __init__(
        self, source: Source, options: CompileOptions, given: CallOptions, shapes: object
    ) -> None:
        super().__init__(source, options, given)
        self._buckets = size_buckets(source.name, shapes, options.programs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on tensors, padded where that changes no result."""
        call = self._sized(args, kwargs)
        if call is None:
            return super().__call__(*args, **kwargs)
        return call.cut(super().__call__(call))

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Compile for the padded sizes of arguments of these types without running."""
        call = self._sized(args, kwargs)
        super().prepare(*args, **kwargs) if call is None else super().prepare(call)

    def _sized(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The padded call, or None if it is compiled for its own sizes."""
        if not self._source.takes_tensors:  # a function that has not been called
            self._source = source_for(self._source, self._call_options, args, kwargs)
        return self._buckets.call(self._source, args, kwargs)


def compile(
    fn: Callable[..., Any] | Module | str | bytes | os.PathLike[str],
    *args: Any,
    mesh: object = None,
    in_shardings: Spelled = None,
    out_shardings: Spelled = None,
    donate_argnums: Positions = (),
    static_argnums: Positions = (),
    plan: object = None,
    level: Level = 1,
    machine: Machine | str | None = None,
    target: str | None = None,
    fold_sums: bool = True,
    tune: Tune | None = None,
    excess_precision: bool = True,
    approximate: str | Iterable[str] = (),
    sync_every_op: bool = False,
    rules: Rules | Mapping[str, GivenRule] | None = None,
    compute_streams: int | None = None,
    communication_streams: int | None = None,
    combine_bytes: int | None = None,
    combine_ops: int | None = None,
    stacked: Iterable[Axis | str] | None = None,
    process: Process | None = None,
    programs: int = PROGRAMS,
    dynamic: bool = False,
    dynamic_shapes: object = None,
    capacity: float | None = None,
    **kwargs: Any,
) -> Compiled:
    """Compile a function of JAX or PyTorch, a module, or StableHLO (text, bytes, path) for a mesh.

    Options of jax.jit have their meaning there; the program is compiled for these arguments, or
    their types. Without arguments a function is compiled on its first call. `machine` gives the
    memory of a device, and the rates of the cost model. `target` is llvm, triton or numpy; by
    default WEFT_TARGET, or triton for arguments in a GPU's memory. Without `fold_sums` partial sums
    are rounded on every device before an all_reduce adds them, as on separate machines.
    `tune="measure"` times the candidates of large products, once for each class of shapes; by
    default cached measurements are used, and with "off" the cost model. Without `excess_precision`
    every op of a kernel rounds as it does alone: bf16 after every op, and no fused multiply-add.
    `approximate` names functions of f32 that may err by 2^-13: exp (and logistic, tanh), rsqrt,
    reciprocal. With `sync_every_op` a call waits for every op, so that an error names the op that
    failed. `rules` are sharding rules of custom calls and composites, by name. `plan` is one of
    `weft.plan`, or its file; or the shardings of a PyTorch program's parameters, buffers and
    arguments, by patterns of their names. The numbers of streams are those of level 2, and
    collectives are combined up to `combine_bytes` and `combine_ops`; 0 combines none. A `process`
    with only the devices along `stacked` axes of the mesh runs its part of the program on its own
    shards of arrays, and communicates with the others through its transport; a process that a
    launcher started as one of several workers knows both by itself. For arguments of different
    types and shapes, so many `programs` are kept, those that were used most recently.
    `dynamic_shapes` are those of torch.export: arguments of a PyTorch program are padded to the
    next power of two, or the largest size, of every Dim, where that changes no result. With
    `dynamic` the batch varies, dim 0 of the tensors. Expert parallelism has room for all tokens, or
    for `capacity` times the even share of a device: others are dropped.
    """
    modelled = machine_named(machine) if isinstance(machine, str) else machine
    _check(fn, kwargs, modelled)
    donated = as_positions("donate_argnums", donate_argnums)
    static = as_positions("static_argnums", static_argnums)
    plan = as_plan(plan)
    if isinstance(plan, ShardingPlan) and mesh is None:
        mesh = plan.mesh
    call = CallOptions(
        mesh, in_shardings, out_shardings, donated, static, plan, check_capacity(capacity)
    )
    source = source_of(fn, call)
    numbers = given_numbers(
        compute_streams=compute_streams,
        communication_streams=communication_streams,
        combine_bytes=combine_bytes,
        combine_ops=combine_ops,
    )
    options = CompileOptions(
        level, modelled, target, fold_sums, tune, excess_precision, sync_every_op,
        None if rules is None else as_rules(rules), numbers,
        None if stacked is None else as_axes(stacked), process, check_programs(programs),
        approximable(approximate),
    )  # fmt: skip
    if check_dynamic(dynamic, dynamic_shapes):
        compiled: Compiled = DynamicCompiled(source, options, call, dynamic_shapes)
    else:
        compiled = Compiled(source, options, call)
    if source.function is not None:
        update_wrapper(compiled, source.function, updated=())
    if args or kwargs or not source.needs_arguments:
        compiled.prepare(*args, **kwargs)
    return compiled


_PARAMETERS = inspect.signature(compile).parameters
OPTIONS = tuple(name for name, p in _PARAMETERS.items() if p.kind is p.KEYWORD_ONLY)


def _check(fn: object, keywords: Mapping[str, Any], machine: object) -> None:
    """Refuse unknown options and an invalid machine."""
    check_keywords(keywords, fn if callable(fn) else None, OPTIONS)
    if machine is not None and not isinstance(machine, Machine):
        help = f"name one: {', '.join(MACHINES)}, or 8xh100"
        raise WeftError(f"machine={machine!r} is not a machine", help=help)
