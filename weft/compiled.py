"""`weft.compile`: a JAX function or a StableHLO program, ready to run on a mesh of devices."""

from __future__ import annotations

import inspect
import os
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, update_wrapper
from typing import Any, Protocol

from weft.array import Array
from weft.array.jax_types import make_known_to_jax
from weft.capture import Captured, parse
from weft.capture.captured import Leaf
from weft.capture.given import capture_module, exactly
from weft.capture.jax import Arguments, capture_flat, flatten, glance
from weft.capture.jax_inline import inlined, is_traced, refuse_module
from weft.capture.jax_shardings import Spelled
from weft.capture.jax_values import from_physical, is_changed, to_physical
from weft.capture.options import Positions, as_positions, check_apart, check_keywords
from weft.cost.sent import Sent
from weft.cost.sent_table import sent_by_line
from weft.describe import described, mesh_text
from weft.errors import WeftError, warn
from weft.ir.module import Module
from weft.knobs import Tune
from weft.machine import MACHINES, Machine
from weft.machine import machine as machine_named
from weft.mesh import Mesh, as_mesh
from weft.optimize import Level, given_numbers
from weft.optimize.memory_plan import MemoryPlan
from weft.optimize.plan_memory import plan_memory
from weft.pipeline import STAGES, Program, compile_module
from weft.run import execute
from weft.run.execute import at_once, face_of
from weft.shard import Pads, Rules
from weft.shard.mesh_sizes import with_mesh
from weft.shard.rules import GivenRule, as_rules

MOST_NOTES = 4  # that one warning tells


@dataclass(frozen=True, slots=True)
class Options:
    """What a program is compiled for, beside its arguments."""

    mesh: Mesh | None
    level: Level
    machine: Machine | None
    target: str | None
    fold_sums: bool
    tune: Tune | None
    excess_precision: bool
    sync_every_op: bool
    rules: Rules | None = None
    numbers: Mapping[str, int] = field(default_factory=dict)  # of weft.optimize.Options
    pads: Pads = "named"  # which arguments and results are padded where sizes do not divide


class Given(Protocol):
    """Arguments that are taken apart."""

    @property
    def values(self) -> tuple[Any, ...]:
        """One for each leaf."""
        ...


@dataclass(frozen=True, slots=True)
class Arrays:
    """The arguments of a module, which are leaves already."""

    values: tuple[Any, ...]


class Source(Protocol):
    """Where programs come from, one for each kind of arguments."""

    @property
    def name(self) -> str:
        """What the program is called."""
        ...

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Hashable, Any]:
        """What the program for these arguments is remembered by, and the arguments taken apart."""
        ...

    def glance(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, Sequence[Any]]:
        """What tells cheaply that the program is an earlier call's, if it does, and the leaves."""
        ...

    def capture(self, given: Any) -> Captured:
        """The program for these arguments."""
        ...

    def inlined(self) -> Callable[..., Any]:
        """What JAX traces in its place."""
        ...


@dataclass(frozen=True, slots=True)
class JaxFunction:
    """A JAX function with the options that jax.jit has, too."""

    fn: Callable[..., Any]
    mesh: object
    in_shardings: Spelled
    out_shardings: Spelled
    donate_argnums: tuple[int, ...]
    static_argnums: tuple[int, ...]

    @property
    def name(self) -> str:
        return str(getattr(self.fn, "__name__", type(self.fn).__name__))

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Hashable, Arguments]:
        given = flatten(args, kwargs, self.donate_argnums, self.static_argnums)
        return given.key, given

    def glance(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, Sequence[Any]]:
        return glance(args, kwargs, self.static_argnums)

    def capture(self, given: Arguments) -> Captured:
        return capture_flat(self.fn, given, self.mesh, self.in_shardings, self.out_shardings)

    def inlined(self) -> Callable[..., Any]:
        shardings = (self.in_shardings, self.out_shardings)
        return inlined(self.fn, self.mesh, *shardings, self.static_argnums)


@dataclass(frozen=True, slots=True)
class GivenModule:
    """A module, which is one program whatever it is called with."""

    module: Module
    in_shardings: Spelled
    out_shardings: Spelled
    donate_argnums: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.module.name or "main"

    def flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Hashable, Arrays]:
        if kwargs:
            raise WeftError(
                f"a module was called with {', '.join(kwargs)}",
                help="its arguments have no names: pass arrays, one after another",
            )
        return None, Arrays(args)

    def glance(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, Sequence[Any]]:
        if kwargs or not all(type(arg) is Array for arg in args):
            return None, args
        return tuple([arg.place for arg in args]), args

    def capture(self, given: Given) -> Captured:
        return capture_module(
            self.module, self.in_shardings, self.out_shardings, self.donate_argnums
        )

    def inlined(self) -> Callable[..., Any]:
        raise refuse_module()


@dataclass(frozen=True, slots=True)
class Ready:
    """A program for one kind of arguments, and what runs it."""

    captured: Captured
    program: Program
    sync_every_op: bool

    def run(self, values: Sequence[Any]) -> list[Any]:
        """Run the program on the leaves of the arguments, and give those of the results."""
        arrays = self.arguments(values)
        results = execute(self.program.local, *arrays, sync_every_op=self.sync_every_op)
        return [*map(from_physical, results, self.captured.results)]

    def check_count(self, values: Sequence[Any]) -> None:
        """Refuse another number of leaves than the program takes."""
        wanted = len(self.captured.arguments)
        if len(values) != wanted:
            raise WeftError(
                f"the program takes {wanted} arguments, {len(values)} given",
                help="give one array for each argument",
            )

    def arguments(self, values: Sequence[Any]) -> list[Any]:
        """The leaves of the arguments as arrays that the program takes, and nobody changes."""
        self.check_count(values)
        captured = self.captured
        convert = exactly if captured.in_tree is None else to_physical
        return [*map(convert, values, captured.arguments)]


class Known:
    """A program for arguments that were seen before."""

    def __init__(self, ready: Ready, values: Sequence[Any]) -> None:
        self.ready, self.local = ready, ready.program.local
        self.face = face_of(self.local)
        captured = ready.captured
        tree = captured.out_tree
        self.packed = captured.packed
        self.is_one = tree is not None and tree.num_leaves == 1 == tree.num_nodes
        # Whether all are arrays that the program takes and gives as they are.
        fits = len(values) == len(captured.arguments) and all(map(_is, values, captured.arguments))
        plain = not ready.sync_every_op and not any(map(is_changed, captured.results))
        self.is_plain = plain and fits and self.face.takes(values)

    def __call__(self, values: Sequence[Any]) -> Any:
        """The results, packed."""
        if self.is_plain:
            made = at_once(self.local, self.face, values)
            if made is not None:
                return made[0] if self.is_one else self.packed([*made])
        return self.packed(self.ready.run(values))


class Compiled:
    """A function or module that is compiled for a mesh: call it, and look at what it became.

    A call with arguments of other types or shapes, or with other static arguments, compiles anew;
    every program is kept. Where JAX traces the arguments, inside of its grad, vmap or jit or of
    another function that Weft compiles, the function itself is traced.
    """

    def __init__(self, source: Source, options: Options) -> None:
        self._source = source
        self._options = options
        self._programs: dict[Hashable, Ready] = {}
        self._known: dict[Hashable, Known] = {}  # by what is seen at a glance
        self._last: Ready | None = None
        self._lock = threading.RLock()  # a callback may compile while it is traced
        make_known_to_jax()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on arrays, scalars and pytrees of them; what comes back may still be computed."""
        seen, values = self._source.glance(args, kwargs)
        try:
            known = self._known[seen]
        except (KeyError, TypeError):  # or static arguments that cannot be hashed
            return self._first(seen, args, kwargs)
        self._last = known.ready
        return known(values)

    def _first(self, seen: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A call with arguments that were not seen before."""
        if is_traced((args, kwargs)):
            return self._inlined(*args, **kwargs)
        key, given = self._source.flatten(args, kwargs)
        known = Known(self._ready(key, given), given.values)
        if seen is not None:
            self._known[seen] = known
        return known(given.values)

    @cached_property
    def _inlined(self) -> Callable[..., Any]:
        return self._source.inlined()

    def prepare(self, *args: Any, **kwargs: Any) -> None:
        """Compile for arguments of these types without running."""
        key, given = self._source.flatten(args, kwargs)
        ready = self._ready(key, given)
        if args or kwargs:
            ready.check_count(given.values)

    def leaves(self, *args: Any, **kwargs: Any) -> list[Any]:
        """The arguments as the program takes them: arrays, one after another."""
        key, given = self._source.flatten(args, kwargs)
        return self._ready(key, given).arguments(given.values)

    def flat(self, values: Sequence[Any]) -> list[Any]:
        """Run the latest program on its leaves, and give those of its results."""
        return self._latest.run(values)

    def __repr__(self) -> str:
        if self._last is None:
            return f"<weft.Compiled {self._source.name}, for no arguments yet>"
        mesh = next((m for m in self.program.module.meshes.values() if m.axes), None)
        return f"<weft.Compiled {self._source.name} on {mesh_text(mesh)}>"

    def __str__(self) -> str:
        """The latest program: signature, mesh, stages, what is sent, and memory."""
        if self._last is None:
            return f"{self._source.name}: compiled when it is first called"
        captured = self._last.captured
        text = described(self._source.name, self.program, captured.arguments, captured.results)
        others = len(self._programs) - 1
        return f"{text}\n  (the latest of {others + 1} programs)" if others else text

    @property
    def program(self) -> Program:
        """The latest program: the module after every stage."""
        return self._latest.program

    def text(self, stage: str = STAGES[-1], *, locations: bool = False) -> str:
        """The program after a stage, as StableHLO: captured, sharded, partitioned or optimized."""
        return self.program.stage(stage).text(locations=locations)

    def memory(self) -> MemoryPlan:
        """What one device needs to run it: the most bytes at once, and where each value lives."""
        return plan_memory(self.program.module)

    def collectives(self) -> list[Sent]:
        """What devices send each other: one row for each kind, axes, size and source line."""
        return sent_by_line(self.program.module)

    @property
    def _latest(self) -> Ready:
        if self._last is None:
            raise WeftError(
                "nothing has been compiled yet: no arguments were given",
                help="call it, or pass arguments (or their types) to weft.compile",
            )
        return self._last

    def _ready(self, key: Hashable, given: Any) -> Ready:
        with self._lock:
            ready = self._programs.get(key)
            if ready is None:
                captured = self._source.capture(given)
                chosen = self._options
                mesh = captured.mesh if chosen.mesh is None else chosen.mesh
                program = compile_module(
                    captured.module,
                    mesh,
                    level=chosen.level,
                    machine=chosen.machine,
                    target=chosen.target,
                    fold_sums=chosen.fold_sums,
                    tune=chosen.tune,
                    excess_precision=chosen.excess_precision,
                    pads=chosen.pads,
                    rules=chosen.rules,
                    numbers=chosen.numbers,
                )
                _warn(program)
                ready = self._programs[key] = Ready(captured, program, chosen.sync_every_op)
            self._last = ready
            return ready


def compile(
    fn: Callable[..., Any] | Module | str | bytes | os.PathLike[str],
    *args: Any,
    mesh: object = None,
    in_shardings: Spelled = None,
    out_shardings: Spelled = None,
    donate_argnums: Positions = (),
    static_argnums: Positions = (),
    level: Level = 1,
    machine: Machine | str | None = None,
    target: str | None = None,
    fold_sums: bool = True,
    tune: Tune | None = None,
    excess_precision: bool = True,
    sync_every_op: bool = False,
    rules: Rules | Mapping[str, GivenRule] | None = None,
    compute_streams: int | None = None,
    communication_streams: int | None = None,
    combine_bytes: int | None = None,
    combine_ops: int | None = None,
    **kwargs: Any,
) -> Compiled:
    """Compile a JAX function, a module, or StableHLO (its text, bytes or path) for a mesh.

    The options mean what they mean to jax.jit; the arguments, or their types, say what to compile
    for. Without arguments a function is compiled when it is first called. A machine says how much
    memory a device has, and what is worth doing to the program. The target, llvm or numpy, says
    what computes it. Without `fold_sums` every device's own sums are rounded before an all_reduce
    adds them up, as on devices of their own. With `tune="measure"` large products are measured in
    several ways, once for each class of shapes; by default they are as they were measured before,
    and with "off" as the cost model says. Without `excess_precision` every op of a kernel rounds as
    it does by itself: bf16 after every op, and no product and sum at once. With `sync_every_op` a
    call waits for every op, so that an error names the one that failed. `rules` say how custom
    calls and composites are split, by their names. The streams are those that level 2 assigns, and
    collectives are combined up to `combine_bytes` and `combine_ops`; 0 combines none.
    """
    ours = None if mesh is None else as_mesh(mesh)
    modelled = machine_named(machine) if isinstance(machine, str) else machine
    _check(fn, kwargs, modelled)
    donated = as_positions("donate_argnums", donate_argnums)
    static = as_positions("static_argnums", static_argnums)
    numbers = given_numbers(
        compute_streams=compute_streams,
        communication_streams=communication_streams,
        combine_bytes=combine_bytes,
        combine_ops=combine_ops,
    )
    options = Options(
        ours, level, modelled, target, fold_sums, tune, excess_precision, sync_every_op,
        None if rules is None else as_rules(rules), numbers,
    )  # fmt: skip
    if callable(fn):
        shardings = (in_shardings, out_shardings)
        check_apart(static, donated)
        source = JaxFunction(fn, mesh, *shardings, donated, static)
        made = Compiled(source, options)
        update_wrapper(made, fn, updated=())
        if args or kwargs or _takes_nothing(fn):
            made.prepare(*args, **kwargs)
        return made
    module = fn if isinstance(fn, Module) else parse(fn)
    if ours is not None:
        module = with_mesh(module, ours)
    if static:
        raise WeftError(
            "static_argnums of a module: all its arguments are arrays", help="leave it out"
        )
    made = Compiled(GivenModule(module, in_shardings, out_shardings, donated), options)
    made.prepare(*args)
    return made


OPTIONS = tuple(
    name
    for name, parameter in inspect.signature(compile).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
)


def _check(fn: object, keywords: Mapping[str, Any], machine: object) -> None:
    """Refuse what is no program, no option, or no machine."""
    if not callable(fn) and not isinstance(fn, Module | str | bytes | os.PathLike):
        raise WeftError(
            f"{type(fn).__name__} {fn!r} is nothing to compile"[:120],
            help="give a JAX function, a module, or StableHLO: its text, bytes or path",
        )
    check_keywords(keywords, fn if callable(fn) else None, OPTIONS)
    if machine is not None and not isinstance(machine, Machine):
        raise WeftError(
            f"machine={machine!r} is no machine", help=f"name one: {', '.join(MACHINES)}"
        )


def _warn(program: Program) -> None:
    """Say what is less split than its inferred sharding, in one warning."""
    if program.notes:
        lines = [f"\n  {note}" for note in program.notes[:MOST_NOTES]]
        left = len(program.notes) - len(lines)
        more = f"\n  and {left} more, in notes.txt of a trace (WEFT_TRACE)" if left else ""
        help_ = "name them in in_shardings or out_shardings for padded pieces, or as replicated"
        warn(f"sizes that do not divide:{''.join(lines)}{more}\n{help_}")


def _is(value: Any, leaf: Leaf) -> bool:
    """Whether a value is an array of Weft's, of the shape and type that a program takes."""
    return type(value) is Array and value.shape == leaf.shape and value.dtype == leaf.dtype


def _takes_nothing(fn: Callable[..., Any]) -> bool:
    """Whether a function has no parameters at all, so that there is nothing to wait for."""
    try:
        return not inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return False
