"""Predicted steps: seconds and their parts, memory, utilization."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from weft.columns import Column, table_text
from weft.executable.memory import HeldBuffer
from weft.machine import Machine, bytes_text, seconds_text
from weft.mesh import Mesh
from weft.records import dataclass
from weft.timeline import Timeline

SHOWN = 6  # values listed at the peak of memory


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
    parts: Mapping[
        str, float
    ]  # seconds of the compute stream by category; they add up to `seconds`
    hidden: float  # seconds of collectives that computing hides
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
            for b in memory.largest[:SHOWN]
        ]
        columns = (Column(right=True), Column(), Column())
        return [*lines, *(table_text(columns, rows).split("\n") if rows else [])]


def axes_text(mesh: Mesh) -> str:
    """`data=2, model=4`."""
    return ", ".join(f"{axis}={size}" for axis, size in mesh.axes)


def _holder(buffer: HeldBuffer) -> str:
    type = str(buffer.type).removeprefix("tensor<").removesuffix(">")
    return f"{buffer.kind} {buffer.called}: {type}"


def extrapolated(one: Prediction, two: Prediction, more: int) -> Prediction:
    """The prediction of a program with `more` layers than `two`, which has one more than `one`."""

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
    parts = _positive({part: grown(one.parts[part], two.parts[part]) for part in two.parts})
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


def _positive(parts: dict[str, float]) -> dict[str, float]:
    """Parts with the same sum, none of them negative.

    A collective that one more layer hides makes the exposed part shrink with the layers.
    """
    # What negative parts lack is taken from all others in proportion.
    missing = sum(min(0.0, seconds) for seconds in parts.values())
    kept = {part: max(0.0, seconds) for part, seconds in parts.items()}
    whole = sum(kept.values())
    return (
        {part: seconds * (1 + missing / whole) for part, seconds in kept.items()} if whole else kept
    )
