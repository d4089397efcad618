"""Memory use of one device: which buffers are live when, and for which values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field, replace
from typing import Literal, TypeAlias

import numpy as np

from weft.array.place_buffers import Span, most_alive, place
from weft.errors import WeftError
from weft.executable.items import Done, Item, Loop, Slot, Stack, Tiled, piece_bytes
from weft.executable.launched import item_name
from weft.executable.live_ranges import SlotLiveRanges, may_alias
from weft.executable.plan import Plan
from weft.ir.location import UNKNOWN, Location
from weft.ir.types import Type
from weft.machine import Machine, bytes_text
from weft.records import dataclass

BufferKind: TypeAlias = Literal["argument", "constant", "result", "temporary"]
_SHOWN = 8  # values listed in errors and tables
_COLUMNS, _BYTES = 80, 10  # widths of the table, and of its bytes column


@dataclass(frozen=True, slots=True)
class HeldBuffer:
    """A buffer of one device, named by the first value it holds.

    It is live from `begin` to `end`, inclusive; position -1 is before the program.
    """

    kind: BufferKind
    size: int
    begin: int
    end: int
    name: str  # of a value in the tiled text, or of an argument
    type: Type
    loc: Location
    maker: str = field(default="", compare=False)  # ops of its launch or host node, not saved

    @property
    def called(self) -> str:
        """A name for readers: the tracer's, else that of its maker's ops."""
        return self.loc.name or self.maker or self.name


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """The memory use of one device in a run, in bytes."""

    function: str
    buffers: tuple[HeldBuffer, ...]
    arguments: int
    results: int
    constants: int
    arena: int  # values with planned memory
    others: int  # peak of other values
    aliased: int  # results that alias arguments or other values

    @property
    def temporaries(self) -> int:
        """Bytes of temporaries."""
        return self.arena + self.others

    @property
    def peak(self) -> int:
        """Peak bytes."""
        held = self.arguments + self.results + self.constants + self.temporaries
        return held - self.aliased

    @property
    def needed(self) -> int:
        """Peak of live bytes; the rest of the peak is reserved but unused."""
        return int(self._in_use().max(initial=0))

    def _in_use(self) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Live bytes at every position, from -1 on."""
        # Position -1 is element 0; a buffer is free again after its last position.
        change = np.zeros(max([b.end for b in self.buffers], default=-1) + 3, np.int64)
        np.add.at(change, [b.begin + 1 for b in self.buffers], [b.size for b in self.buffers])
        np.add.at(change, [b.end + 2 for b in self.buffers], [-b.size for b in self.buffers])
        return np.cumsum(change)[:-1]

    def at_peak(self) -> tuple[HeldBuffer, ...]:
        """The buffers that are live at the peak, largest first."""
        point = int(self._in_use().argmax()) - 1
        live = [b for b in self.buffers if b.begin <= point <= b.end and b.size]
        return tuple(sorted(live, key=lambda b: -b.size))

    def __str__(self) -> str:
        """A table: the bytes by what they hold, and the largest values at the peak."""
        parts = [
            ("arguments", self.arguments),
            ("results", self.results),
            ("constants", self.constants),
            ("temporaries", self.temporaries),
        ]
        lines = [f"{self.function}: {bytes_text(self.peak)} on each device"]
        lines += [f"  {word:<12}{bytes_text(size):>10}" for word, size in parts]
        extra = [("shared", self.aliased, "of results and other values")]
        extra.append(("reserved", self.peak - self.needed, "beyond what is in use at the peak"))
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
            size = bytes_text(sum(buffer.size for buffer in rest))
            lines.append(f"    {size:>{_BYTES}}  in {len(rest):,} more")
        return "\n".join(lines)

    def fits(self, machine: Machine) -> MemoryUse:
        """Raise if the machine cannot hold it, with the largest values; returns itself."""
        if self.peak <= machine.memory:
            return self
        shown = self.at_peak()
        lines = [
            f"{bytes_text(b.size):>10}  {b.name} : {b.type}"
            + (f"  {b.loc.describe().partition('  ')[0]}" if b.loc.known else "")
            for b in shown[:_SHOWN]
        ]
        if rest := shown[_SHOWN:]:
            size = bytes_text(sum(b.size for b in rest))
            lines.append(f"{size:>10}  in {len(rest)} more")
        most = "\n  ".join(lines)
        raise WeftError(
            f"{self.function!r} needs {bytes_text(self.peak)} on every device, but "
            f"{machine.name} has {bytes_text(machine.memory)}; largest at the peak:\n  {most}",
            help="split the large values over more devices, donate arguments that are not read "
            "again, recompute activations, or use a smaller batch",
            loc=shown[0].loc if shown else None,
        )


def _cells(buffer: HeldBuffer) -> tuple[str, ...]:
    """A row of the table: bytes, kind, name, type and source line."""
    type, loc = str(buffer.type).removeprefix("tensor<").removesuffix(">"), buffer.loc
    line = loc.describe().partition("  ")[0].rpartition("/")[2] if loc.line else ""
    name = buffer.name if loc.line else buffer.called
    return bytes_text(buffer.size), buffer.kind, name, type, line


def memory_use(tiled: Tiled, plan: Plan) -> MemoryUse:
    """The memory use of one device in a run of a program."""
    return _Use(tiled, plan).use()


def live_ranges_of(tiled: Tiled, plan: Plan) -> SlotLiveRanges:
    """Live ranges of all slots."""
    rotating = {
        slot: frozenset([n for rotation in rotations for n in rotation.indices])
        for slot, rotations in plan.rotations.items()
    }
    return SlotLiveRanges(tiled.block, tiled.inputs, rotating)


def outside_arena(
    tiled: Tiled, plan: Plan, lives: SlotLiveRanges
) -> Iterator[tuple[Slot, int, int, int]]:
    """Values outside the arena, except arguments and results: count and live range."""
    results = {lives.root(slot) for slot in tiled.block.results}
    rotated = {rotation.result for rotations in plan.rotations.values() for rotation in rotations}
    for item, start, stop in lives.items:
        if isinstance(item, Loop) and item.carried:
            for rotation in plan.rotations.get(item.carried[0], ()):
                if not rotation.places:  # one of its buffers becomes the loop's result
                    yield rotation.result, rotation.buffers - 1, start, stop
        if may_alias(item):
            continue
        for slot in item.outs:
            root = lives.root(slot)
            inside = slot in plan.places or slot in rotated or slot in plan.over
            if not inside and slot not in plan.donors and root not in results:
                yield slot, 1, start, lives.by_root[root].end


def overwritten(
    tiled: Tiled, plan: Plan, lives: SlotLiveRanges
) -> Iterator[tuple[Slot, Slot, int]]:
    """Donated arguments, the values that overwrite them, and from which position."""
    for item, start, _ in lives.items:
        for slot in item.outs:
            # What is always overwritten is a loop's own buffer, not an argument's.
            index, always = plan.over.get(slot, (-1, True))
            donor = plan.donors.get(slot, -1 if always else item.ins[index])
            if donor in tiled.inputs:
                yield donor, slot, start


def results_over_arguments(tiled: Tiled, plan: Plan, lives: SlotLiveRanges) -> list[int]:
    """Numbers of donated arguments that results alias."""
    results = {lives.root(slot) for slot in tiled.block.results}
    pairs = overwritten(tiled, plan, lives)
    donors = {donor for donor, slot, _ in pairs if lives.root(slot) in results}
    return [n for n, slot in enumerate(tiled.inputs) if slot in donors]


class _Use:
    def __init__(self, tiled: Tiled, plan: Plan) -> None:
        self.tiled, self.plan, self.lives = tiled, plan, live_ranges_of(tiled, plan)
        self.main = tiled.module.function(tiled.function)
        self.makers: dict[Slot, tuple[Item, int]] = {
            slot: (item, start) for item, start, _ in self.lives.items for slot in item.outs
        }

    def use(self) -> MemoryUse:
        tiled, plan, lives = self.tiled, self.plan, self.lives
        argument_types, result_types = self.main.arg_types, self.main.result_types
        constants = [*self.constants()]
        planned = [*self.arena()]
        others = [
            self.buffer("temporary", slot, start, stop, count)
            for slot, count, start, stop in outside_arena(tiled, plan, lives)
        ]
        results = [*self.results()]
        size = sum(map(piece_bytes, result_types))
        aliased = size - sum(buffer.size for buffer in results)
        aliased += sum(
            piece_bytes(argument_types[n]) for n in results_over_arguments(tiled, plan, lives)
        )
        fixed = (*self.arguments(), *constants, *results)
        buffers = (*fixed, *planned, *others, *self.over_arguments())
        return MemoryUse(
            tiled.function,
            tuple([buffer for buffer in buffers if buffer.size]),
            sum(map(piece_bytes, argument_types)),
            size,
            sum(buffer.size for buffer in constants),
            # Placed again: the plan's offsets are of stacks of all devices, not of one's pieces.
            place(spans(planned))[1],
            most_alive(spans(others)),
            aliased,
        )

    def stack(self, slot: Slot) -> Stack:
        stack = self.tiled.stacks[slot]
        assert stack is not None, "only values take memory"
        return stack

    def buffer(
        self, kind: BufferKind, slot: Slot, begin: int, end: int, count: int = 1
    ) -> HeldBuffer:
        stack = self.stack(slot)
        # Temporaries of dynamic shape, in divergent code, are not counted.
        size = count * stack.piece if kind != "temporary" or stack.nbytes else 0
        maker = self.makers[slot][0] if slot in self.makers else None
        if isinstance(maker, Done):
            maker = self.makers[maker.ins[0]][0]  # its collective's start
        loc, name = (UNKNOWN, "") if maker is None else (maker.loc, item_name(maker))
        return HeldBuffer(kind, size, begin, end, f"b{slot}", stack.type, loc, name)

    def arguments(self) -> Iterator[HeldBuffer]:
        """Argument buffers; an overwritten one ends where its successor begins."""
        over = {n: start for n, _, start in overwritten(self.tiled, self.plan, self.lives)}
        locs = self.main.body.arg_locs
        for n, (slot, type) in enumerate(zip(self.tiled.inputs, self.main.arg_types, strict=True)):
            end = over.get(slot, self.lives.clock + 1) - 1
            yield HeldBuffer("argument", piece_bytes(type), -1, end, f"%arg{n}", type, locs[n])

    def over_arguments(self) -> Iterator[HeldBuffer]:
        """Temporaries in the memory of donated arguments."""
        results = {self.lives.root(slot) for slot in self.tiled.block.results}
        for _, slot, start in overwritten(self.tiled, self.plan, self.lives):
            if self.lives.root(slot) not in results:
                yield self.buffer("temporary", slot, start, self.lives.of(slot).end)

    def results(self) -> Iterator[HeldBuffer]:
        """Results that alias neither another result nor an argument."""
        seen: set[int] = set()
        for n, slot in enumerate(self.tiled.block.results):
            root = self.lives.root(slot)
            if n in self.plan.lent or slot in self.tiled.constants or root in seen:
                continue
            seen.add(root)
            yield self.buffer("result", slot, self.lives.by_root[root].begin, self.lives.clock)

    def constants(self) -> Iterator[HeldBuffer]:
        """Constant buffers; a splat takes no memory."""
        for slot, value in self.tiled.constants.items():
            # A splat is one element, broadcast with strides of 0.
            if isinstance(value, np.ndarray) and (value.size <= 1 or any(value.strides)):
                buffer = self.buffer("constant", slot, -1, self.lives.clock)
                yield replace(buffer, size=min(buffer.size, value.nbytes))

    def arena(self) -> Iterator[HeldBuffer]:
        """Arena buffers; values that reuse one offset while it is live are one buffer."""
        plan, lives = self.plan, self.lives
        starts = [(slot, self.makers[slot][1]) for slot in plan.places]
        latest: dict[int, HeldBuffer] = {}  # by offset
        for slot, start in sorted(starts, key=lambda entry: entry[1]):
            at, end = plan.places[slot], lives.of(slot).end
            previous, new = latest.get(at), self.buffer("temporary", slot, start, end)
            if previous is not None and start <= previous.end:  # it was overwritten
                size, end = max(previous.size, new.size), max(previous.end, end)
                new = replace(previous, size=size, end=end)
            elif previous is not None:
                yield previous
            latest[at] = new
        yield from latest.values()
        for item, start, stop in lives.items:
            if isinstance(item, Loop) and item.carried:
                for rotation in plan.rotations.get(item.carried[0], ()):
                    end = max([stop, *[lives.of(item.outs[n]).end for n in rotation.indices]])
                    for _ in rotation.places:
                        yield self.buffer("temporary", rotation.result, start, end)


def spans(buffers: list[HeldBuffer]) -> list[Span]:
    """The sizes and lifetimes of buffers."""
    return [Span(b.size, b.begin, b.end) for b in buffers]
