"""A memory plan: which bytes of a device every value takes, and when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from weft.array.place_buffers import Span, aligned, alive
from weft.errors import WeftError
from weft.ir.location import UNKNOWN, Location
from weft.ir.module import Function, Node, Value
from weft.ir.write import value_names
from weft.machine import Machine, bytes_text

BufferKind: TypeAlias = Literal["argument", "constant", "result", "temporary", "inner"]
_SHOWN = 8  # values that an error or a table names
_COLUMNS, _BYTES = 80, 10  # of a table, and of the bytes in it


@dataclass(frozen=True, slots=True)
class PlannedBuffer:
    """A range of a device's bytes, and the values that it holds one after another.

    It is in use from the node number `begin` to the node number `end`, both included; -1 is before
    the first node, and the number of nodes is after the last. An `inner` buffer is what the regions
    or the function that a node runs need for themselves.
    """

    kind: BufferKind
    offset: int
    size: int
    begin: int
    end: int
    values: tuple[Value, ...] = ()
    inner: tuple[MemoryPlan, ...] = ()

    @property
    def span(self) -> Span:
        """Its size and lifetime."""
        return Span(self.size, self.begin, self.end)


@dataclass(frozen=True, slots=True)
class Outside:
    """A value of an inner region that lives in what the region is given, or gives."""

    value: Value
    place: Literal["argument", "result"]
    index: int
    leaf: int = 0  # of a tuple


@dataclass(frozen=True, slots=True)
class Alive:
    """A buffer in use at the peak, of whichever function or region."""

    buffer: PlannedBuffer
    value: Value
    name: str
    loc: Location


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What one device needs to run a function; of a region, what it needs beyond its operands."""

    function: Function
    nodes: tuple[Node, ...]
    buffers: tuple[PlannedBuffer, ...]
    peak: int  # bytes from the lowest to the highest offset
    needed: int  # the most bytes in use at once; the rest of the peak is lost between buffers
    arguments: int
    results: int
    constants: int
    aliased: int  # bytes that hold an argument first and a result later
    temporaries: int  # bytes that hold neither arguments nor constants nor results
    copies: tuple[int, ...]  # results that are copied at the end, since their place was not free
    outside: tuple[Outside, ...] = ()  # of an inner region; what it sees of others is not here

    def at_peak(self) -> tuple[Alive, ...]:
        """What is in use when most is, the largest first."""
        if not self.buffers:
            return ()
        counts = alive([b.span for b in self.buffers])
        point = int(counts.argmax()) + min(b.begin for b in self.buffers)
        names = value_names(self.function)
        numbers = {value: n for n, node in enumerate(self.nodes) for value in node.results}
        found: list[Alive] = []
        for buffer in self.buffers:
            if not (buffer.begin <= point <= buffer.end and buffer.size):
                continue
            if buffer.inner:
                found += max(buffer.inner, key=lambda plan: plan.peak).at_peak()
                continue
            # Of values that share a buffer, the last one defined by then holds it.
            held = [v for v in buffer.values if numbers.get(v, -1) <= point]
            value = (held or list(buffer.values))[-1]
            found.append(Alive(buffer, value, names.get(value, "?"), self._place(value)))
        return tuple(sorted(found, key=lambda a: -a.buffer.size))

    def __str__(self) -> str:
        """A table: the bytes by what they hold, and the largest values at the peak."""
        parts = [
            ("arguments", self.arguments),
            ("results", self.results),
            ("constants", self.constants),
            ("temporaries", self.temporaries),
        ]
        lines = [f"{self.function.name}: {bytes_text(self.peak)} on each device"]
        lines += [f"  {word:<12}{bytes_text(size):>10}" for word, size in parts]
        lost = self.peak - self.needed
        extra = [("shared", self.aliased, "of an argument and a result")]
        extra.append(("unused", lost, "between buffers at the peak"))
        lines += [f"  {word:<12}{bytes_text(n):>10}  {why}" for word, n, why in extra if n]
        shown = self.at_peak()
        lines += ["  in use at the peak, the largest first:"] if shown else []
        rows = [*map(_cells, shown[:_SHOWN])]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append(f"    {row[0]:>{_BYTES}}  {'  '.join(cells[1:])}"[:_COLUMNS].rstrip())
        rest = shown[_SHOWN:]
        if rest:
            size = bytes_text(sum(alive.buffer.size for alive in rest))
            lines.append(f"    {size:>{_BYTES}}  in {len(rest):,} more")
        return "\n".join(lines)

    def _place(self, value: Value) -> Location:
        if value.node is not None:
            return value.node.loc
        args = self.function.body.args
        return self.function.body.arg_locs[args.index(value)] if value in args else UNKNOWN

    def fits(self, machine: Machine) -> MemoryPlan:
        """The plan itself if the machine can hold it, else an error with the largest values."""
        if self.peak <= machine.memory:
            return self
        shown = self.at_peak()
        lines = [
            f"{bytes_text(a.buffer.size):>10}  {a.name} : {a.value.type}"
            + (f"  {a.loc.describe().partition('  ')[0]}" if a.loc.known else "")
            for a in shown[:_SHOWN]
        ]
        rest = len(shown) - _SHOWN
        if rest > 0:
            size = sum(a.buffer.size for a in shown[_SHOWN:])
            lines.append(f"{bytes_text(size):>10}  in {rest} more")
        most = "\n  ".join(lines)
        raise WeftError(
            f"{self.function.name!r} needs {bytes_text(self.peak)} on every device, but "
            f"{machine.name} has {bytes_text(machine.memory)}; largest at the peak:\n  {most}",
            help="split the large values over more devices, donate arguments that are not read "
            "again, recompute activations, or use a smaller batch",
            loc=shown[0].loc if shown else None,
        )


def _cells(alive: Alive) -> tuple[str, ...]:
    """A value at the peak: its bytes, kind, name, type and line."""
    type = str(alive.value.type).removeprefix("tensor<").removesuffix(">")
    line = alive.loc.describe().partition("  ")[0].rpartition("/")[2] if alive.loc.line else ""
    name = alive.name if alive.loc.line else alive.loc.name or alive.name
    return bytes_text(alive.buffer.size), alive.buffer.kind, name, type, line


def covered(buffers: list[PlannedBuffer]) -> int:
    """The bytes that buffers cover together, whichever of them overlap."""
    ranges = sorted((b.offset, b.offset + aligned(b.size)) for b in buffers)
    total = end = 0
    for low, high in ranges:
        total += max(0, high - max(low, end))
        end = max(end, high)
    return total
