"""The memory of a lockstep program: which results share the arena, and who may be written over."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from weft.array.place_buffers import Span, place
from weft.ir.types import TensorType, Type
from weft.run.code import Code, Item, Turn
from weft.run.in_place import Pairs, overwritten
from weft.run.lives import Lives

SMALL = 1 << 14  # bytes below which numpy's own allocation costs nothing


@dataclass(frozen=True, slots=True)
class Memory:
    """The bytes that one run holds."""

    arguments: int
    results: int
    arena: int  # of values that are computed into memory which is planned
    others: int  # the most that other values take at once
    reused: int = 0  # of donated arguments that results are written over

    @property
    def peak(self) -> int:
        """The most bytes at once."""
        return self.arguments + self.results + self.arena + self.others - self.reused


@dataclass(slots=True)
class Buffer:
    """A piece of the arena, and the results that it holds one after another."""

    size: int
    begin: int
    end: int
    piece: int  # the bytes that one device has of it
    holds: list[tuple[Item, int]] = field(default_factory=list)  # items, and numbers of results
    turns: list[Turn] = field(default_factory=list)


class Planner:
    """Gives those values that can be planned a place in the arena."""

    def __init__(self, code: Code, inputs: tuple[int, ...], constants: Collection[int]) -> None:
        self.code, self.inputs, self.constants = code, inputs, constants
        self.lives = Lives(code, inputs)
        self.items = self.lives.items
        self.buffers: list[Buffer] = []
        self.held: dict[int, Buffer] = {}  # by root
        self._pairs: dict[int, Pairs] = {}  # by kernel

    def plan(self, new_slot: int) -> tuple[int, int]:
        """Give results places in the arena; its size, and the number of slots in use after it."""
        for item, start, stop in sorted(self.items, key=lambda entry: entry[1]):
            if item.group is not None:
                self._plan_group(item, start, stop)
            elif item.turns:
                self._plan_turns(item, start, stop)
            elif wanted := self.plannable(item):
                root = self.lives.root(item.outs[0])
                assert item.kernel is not None
                found = self._taken_over(item, item.kernel.in_place, wanted, stop)
                self._hold(root, found or self._new(item, 0, start), item, 0)
                item.buffer = new_slot
                new_slot += 1
        offsets, size = place([Span(b.size, b.begin, b.end) for b in self.buffers])
        for buffer, offset in zip(self.buffers, offsets, strict=True):
            for item, number in buffer.holds:
                item.places[number] = offset
            for turn in buffer.turns:
                turn.places += (offset,)
        return size, new_slot

    def piece_spans(self) -> list[Span]:
        """What one device has of the arena's buffers."""
        return [Span(b.piece, b.begin, b.end) for b in self.buffers]

    def _new(self, item: Item, number: int, start: int) -> Buffer:
        made = Buffer(bytes_of(item, number), start, start, piece_of(item, number))
        self.buffers.append(made)
        return made

    def _hold(self, root: int, buffer: Buffer, item: Item, number: int) -> None:
        buffer.end = max(buffer.end, self.lives.by_root[root].end)
        buffer.holds.append((item, number))
        self.held[root] = buffer

    def plannable(self, item: Item) -> int:
        """The bytes of a result that can be computed into planned memory; 0 if it cannot."""
        if item.kernel is None or item.kernel.into is None or len(item.outs) != 1:
            return 0
        bytes_ = bytes_of(item, 0)
        if bytes_ < SMALL or self.lives.of(item.outs[0]).escapes:
            return 0
        return bytes_

    def _taken_over(
        self, item: Item, candidates: Collection[int], wanted: int, stop: int
    ) -> Buffer | None:
        """The buffer of an operand that dies here, if the result may be written over it."""
        for index in candidates:
            if index >= len(item.ins):
                continue
            root = self.lives.root(item.ins[index])
            if root not in self.held or self.lives.by_root[root].end != stop:
                continue
            if self.held[root].size >= wanted and self.alone(item, index, candidates):
                return self.held.pop(root)
        return None

    def alone(self, item: Item, index: int, candidates: Collection[int]) -> bool:
        """Whether no other operand is written over with this one, unless that is allowed, too."""
        root = self.lives.root(item.ins[index])
        others = [n for n, slot in enumerate(item.ins) if self.lives.root(slot) == root]
        return all(n in candidates for n in others)

    # Kernels of a target

    def pairs(self, item: Item) -> Pairs:
        """Pairs of an operand and a result of a kernel, by number, that may be one buffer."""
        assert item.group is not None and item.group.kernel is not None
        kernel = item.group.kernel
        found = self._pairs.get(id(kernel))
        if found is None:
            number: dict[int, int] = {}
            for output in (False, True):
                order = [n for n, operand in enumerate(kernel.operands) if operand.output is output]
                number |= {operand: n for n, operand in enumerate(order)}
            pairs = [(number[given], number[made]) for given, made in overwritten(kernel)]
            found = self._pairs[id(kernel)] = tuple(pairs)
        return found

    def _plan_group(self, item: Item, start: int, stop: int) -> None:
        pairs = self.pairs(item)
        for number, slot in enumerate(item.outs):
            root = self.lives.root(slot)
            if self.lives.by_root[root].escapes or number in item.turning:
                continue
            over = [given for given, made in pairs if made == number]
            found = self._taken_over(item, over, bytes_of(item, number), stop)
            self._hold(root, found or self._new(item, number, start), item, number)

    def _plan_turns(self, loop: Item, start: int, stop: int) -> None:
        """Buffers for what a loop makes in turns: one less if it may be written over the oldest."""
        assert loop.turns is not None
        for turn in loop.turns:
            turn.buffers = len(turn.slots) + (0 if self._over_itself(turn) else 1)
            lives = [self.lives.of(loop.outs[index]) for index in turn.indices]
            if any(life.escapes for life in lives):
                continue
            end = max(stop, *[life.end for life in lives])
            for _ in range(turn.buffers):
                made = Buffer(turn.nbytes, start, end, turn.piece)
                made.turns.append(turn)
                self.buffers.append(made)

    def _over_itself(self, turn: Turn) -> bool:
        """Whether the oldest value that is carried is read no more when a new one is written."""
        start, stop = self.covers(turn.maker)
        lives, oldest = self.lives, turn.slots[-1]
        root = lives.root(oldest)
        last = max([lives.end.get(s, -1) for s in lives.sharing(oldest)])
        if last < start:
            return True
        over = {given for given, made in self.pairs(turn.maker) if made == turn.number}
        reads = [n for n, slot in enumerate(turn.maker.ins) if lives.root(slot) == root]
        return last == stop and bool(reads) and over.issuperset(reads)

    def covers(self, item: Item) -> tuple[int, int]:
        return next((start, stop) for other, start, stop in self.items if other is item)


def bytes_of(item: Item, index: int) -> int:
    """The bytes of a result, all devices together; 0 where its shape is not known."""
    shape = item.shapes[index] if index < len(item.shapes) else None
    if shape is None:
        return 0
    type = item.values[index].type
    assert isinstance(type, TensorType)
    return math.prod(shape) * type.dtype.numpy.itemsize


def piece_of(item: Item, index: int) -> int:
    """The bytes that one device has of a result."""
    return piece_bytes(item.values[index].type)


def piece_bytes(type: Type) -> int:
    """The bytes that one device has of a value."""
    return type.size * type.dtype.numpy.itemsize if isinstance(type, TensorType) else 0


def outside_arena(planner: Planner) -> Iterator[tuple[Span, Span]]:
    """What takes memory of its own beside arguments and results: of all devices, and of one."""
    results = {planner.lives.root(slot) for slot in planner.code.results}
    for item, start, stop in planner.items:
        for turn in item.turns or ():  # one of its buffers is what the loop gives
            if not turn.places:
                more = turn.buffers - 1
                yield Span(more * turn.nbytes, start, stop), Span(more * turn.piece, start, stop)
        for number, slot in enumerate(item.outs):
            bytes_ = bytes_of(item, number)
            shares = item.kernel is not None and item.kernel.shares
            inside = number in item.places or number in item.turning
            root = planner.lives.root(slot)
            if inside or shares or root in results or not bytes_:
                continue
            end = planner.lives.by_root[root].end
            yield Span(bytes_, start, end), Span(piece_of(item, number), start, end)
