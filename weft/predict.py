"""Predictions of a program's step on a machine: seconds and their parts, memory, utilization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from weft.capture import normalize
from weft.columns import Column, table_text
from weft.cost.repeated import repeated
from weft.executable.executable import Executable
from weft.executable.memory import HeldBuffer
from weft.ir.module import Module
from weft.ir.on_mesh import with_mesh
from weft.ir.types import TensorType
from weft.machine import Machine, bytes_text, seconds_text
from weft.mesh import Mesh, as_mesh
from weft.optimize import Level
from weft.pipeline import Program, compile_module
from weft.records import dataclass
from weft.shard import Pads, Rules, shard
from weft.simulate import QUIET, Noise, simulate
from weft.timeline import Timeline

_SHOWN = 6  # values listed at the peak of memory


@dataclass(frozen=True, slots=True)
class PredictedMemory:
    """The memory of one device: its peak, its parts, and the largest values at the peak."""

    peak: int
    arguments: int
    results: int
    constants: int
    temporaries: int
    aliased: int
    largest: tuple[HeldBuffer, ...] = ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """One step of a program on a machine, as the simulator predicts it."""

    name: str
    machine: Machine
    mesh: Mesh | None
    seconds: float
    parts: Mapping[str, float]  # seconds by what the compute stream does in them; their sum
    hidden: float  # seconds of collectives behind computing
    flops: float  # of products, a device
    best: float  # seconds of these flops at the full rate of their element type
    memory: PredictedMemory
    tokens: int | None  # of all devices together; None where no argument has any
    timeline: Timeline
    sends: float = 0.0  # collectives of a step
    drawn: tuple[int, int] | None = None  # the layers in the timeline, of how many; None for all

    @property
    def devices(self) -> int:
        """The number of devices."""
        return 1 if self.mesh is None else self.mesh.size

    @property
    def mfu(self) -> float:
        """The share of the machine's rate of products that the step reaches."""
        return self.best / self.seconds if self.seconds else 0.0

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens a second of all devices together."""
        return None if self.tokens is None or not self.seconds else self.tokens / self.seconds

    @property
    def fits(self) -> bool:
        """Whether a device has the memory."""
        return self.memory.peak <= self.machine.memory

    def as_json(self) -> dict[str, Any]:
        """The prediction as data."""
        memory = self.memory
        held = ("arguments", "results", "constants", "temporaries", "aliased")
        return {
            "program": self.name,
            "machine": self.machine.name,
            "mesh": {} if self.mesh is None else dict(self.mesh.axes),
            "devices": self.devices,
            "seconds": self.seconds,
            "parts": dict(self.parts),
            "hidden": self.hidden,
            "flops": self.flops,
            "mfu": self.mfu,
            "tokens": self.tokens,
            "tokens_per_second": self.tokens_per_second,
            "fits": self.fits,
            "memory": {"peak": memory.peak, "limit": self.machine.memory}
            | {part: getattr(memory, part) for part in held},
        }

    def __str__(self) -> str:
        """The prediction as a table."""
        return "\n".join([self.headline(), *self._part_lines(), *self._memory_lines()])

    def headline(self) -> str:
        """The step's seconds, utilization and tokens a second, in a line."""
        where = "" if self.mesh is None or self.mesh.size == 1 else f" ({axes_text(self.mesh)})"
        line = f"{self.name} on {self.machine.name}{where}: {seconds_text(self.seconds)} a step"
        if self.flops:
            line += f", MFU {self.mfu:.1%}"
        if self.tokens_per_second is not None:
            line += f", {self.tokens_per_second:,.0f} tokens/s"
        return line

    def _part_lines(self) -> list[str]:
        rows = [
            (f"  {name}", seconds_text(seconds), f"{seconds / self.seconds:.1%}")
            for name, seconds in self.parts.items()
            if seconds
        ]
        if self.hidden:
            rows.append(("  collectives hidden behind compute", seconds_text(self.hidden), ""))
        columns = (Column(), Column(right=True), Column(right=True))
        return table_text(columns, rows).split("\n") if rows else []

    def _memory_lines(self) -> list[str]:
        memory, limit = self.memory, self.machine.memory
        verdict = "" if self.fits else ": it does not fit"
        lines = [f"  memory {bytes_text(memory.peak)} of {bytes_text(limit)} a device{verdict}"]
        parts = [
            f"{bytes_text(size)} {name}"
            for name, size in (
                ("arguments", memory.arguments),
                ("results", memory.results - memory.aliased),
                ("constants", memory.constants),
                ("temporaries", memory.temporaries),
            )
            if size > 0
        ]
        lines.append(f"    {', '.join(parts)}")
        rows = [
            (f"    {bytes_text(b.size)}", _holder(b), b.loc.describe().partition("  ")[0])
            for b in memory.largest[:_SHOWN]
        ]
        columns = (Column(right=True), Column(), Column())
        return [*lines, *(table_text(columns, rows).split("\n") if rows else [])]


def axes_text(mesh: Mesh) -> str:
    """`data=2, model=4`."""
    return ", ".join(f"{axis}={size}" for axis, size in mesh.axes)


def _holder(buffer: HeldBuffer) -> str:
    type = str(buffer.type).removeprefix("tensor<").removesuffix(">")
    return f"{buffer.kind} {buffer.loc.name or buffer.name}: {type}"


def predict(
    module: Module,
    machine: Machine,
    mesh: object = None,
    *,
    level: Level = 2,
    noise: Noise = QUIET,
    name: str = "",
    pads: Pads = "named",
    rules: Rules | None = None,
    numbers: Mapping[str, int] = {},
    whole: bool = False,
    apart: bool = False,
) -> Prediction:
    """Predict one step of a captured program, optimized for a machine; no kernels are made.

    Of a program with many equal layers one and two of them are compiled, and the others are
    extrapolated; with `whole` all are compiled. `apart` is that of `program_for`.
    """
    options: dict[str, Any] = {"level": level, "pads": pads, "rules": rules, "numbers": numbers}
    options["apart"] = apart
    module = normalize(module if mesh is None else with_mesh(module, as_mesh(mesh)), shard)
    name, tokens = name or module.name or "main", tokens_of(module.function("main").arg_types)
    found = None if whole else repeated(module)
    if found is None:
        program = program_for(module, machine, **options)
        return predicted(program, machine, noise=noise, name=name)
    one, two = (
        predicted(program_for(found.with_layers(n), machine, **options), machine, noise=noise)
        for n in (1, 2)
    )
    return replace(extrapolated(one, two, found.count - 2), name=name, tokens=tokens)


def extrapolated(one: Prediction, two: Prediction, more: int) -> Prediction:
    """The prediction of a program with so many layers more than another, which has one more."""

    def grown(a: float, b: float) -> float:
        return b + more * (b - a)

    a, b = one.memory, two.memory
    memory = PredictedMemory(
        round(grown(a.peak, b.peak)),
        round(grown(a.arguments, b.arguments)),
        round(grown(a.results, b.results)),
        round(grown(a.constants, b.constants)),
        round(grown(a.temporaries, b.temporaries)),
        round(grown(a.aliased, b.aliased)),
        b.largest,
    )
    parts = {part: grown(one.parts[part], two.parts[part]) for part in two.parts}
    return replace(
        two,
        seconds=grown(one.seconds, two.seconds),
        parts=parts,
        hidden=max(0.0, grown(one.hidden, two.hidden)),
        flops=grown(one.flops, two.flops),
        best=grown(one.best, two.best),
        memory=memory,
        sends=grown(one.sends, two.sends),
        drawn=(2, 2 + more),
    )


def program_for(
    module: Module,
    machine: Machine,
    *,
    level: Level = 2,
    pads: Pads = "named",
    rules: Rules | None = None,
    numbers: Mapping[str, int] = {},
    apart: bool = False,
) -> Program:
    """A program compiled for one device each of a machine, up to its launches.

    Virtual devices of a processor share one memory and run in lockstep, unless they are `apart`.
    """
    streams = dict(zip(("compute_streams", "communication_streams"), machine.streams, strict=True))
    return compile_module(
        module, level=level, machine=machine, target="llvm", tune="off", pads=pads,
        rules=rules, numbers=streams | dict(numbers), fits=False, to="tiled",
        stacked=None if machine.kind == "cpu" and not apart else (),
    )  # fmt: skip


def predicted(
    program: Program, machine: Machine, *, noise: Noise = QUIET, name: str = ""
) -> Prediction:
    """The prediction of a program that is tiled."""
    executable = program.executable
    assert executable is not None, "compiled up to tile"
    timeline = simulate(executable, machine, noise=noise)
    mesh = next((m for m in program.module.meshes.values() if m.axes), None)
    main = next(iter(program.stages.values())).function("main")
    return Prediction(
        name or program.module.name or "main",
        machine,
        mesh,
        timeline.seconds,
        _parts(timeline),
        timeline.seconds_of("collective") - timeline.exposed,
        sum(event.flops * event.times for event in timeline.events),
        sum(event.ideal * event.times for event in timeline.events),
        _memory(executable),
        tokens_of(main.arg_types),
        timeline,
        sum(event.times for event in timeline.collectives()),
    )


def tokens_of(types: Sequence[object]) -> int | None:
    """The elements of the largest integer argument with dims, as a language model's tokens."""
    sizes = [
        type.size
        for type in types
        if isinstance(type, TensorType) and type.dtype.is_integer and len(type.shape) >= 2
    ]
    return max(sizes, default=None)


def _parts(timeline: Timeline) -> dict[str, float]:
    """The seconds of the compute stream by what it does; they add up to the step."""
    found = {
        "products": timeline.seconds_of("product"),
        "attention": timeline.seconds_of("attention"),
        "other kernels": timeline.seconds_of("memory"),
        "collectives exposed": timeline.exposed,
    }
    rest = timeline.seconds - sum(found.values())
    found["stragglers"] = rest if rest > 1e-6 * timeline.seconds else 0.0
    return found


def _memory(executable: Executable) -> PredictedMemory:
    use = executable.memory()
    return PredictedMemory(
        use.peak, use.arguments, use.results, use.constants, use.temporaries, use.aliased,
        use.at_peak()[:_SHOWN],
    )  # fmt: skip
