"""The memory of a lockstep program: which results share the arena, and who may be written over."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from weft.ir.types import TensorType
from weft.run.code import Code, Item

ALIGNED = 64  # bytes
SMALL = 1 << 14  # bytes below which numpy's own allocation costs nothing


@dataclass(frozen=True, slots=True)
class Memory:
    """The bytes that one run holds, all devices together, equal parts counted once."""

    arguments: int
    results: int
    arena: int  # of results that are computed into memory which is planned
    others: int  # the most that other values take at once

    @property
    def peak(self) -> int:
        """The most bytes at once."""
        return self.arguments + self.results + self.arena + self.others


@dataclass(slots=True)
class Life:
    """When the memory of a value is in use, values that share it included."""

    begin: int
    end: int
    escapes: bool = False  # it is read where nobody looks, or leaves the program
    slots: int = 0  # that share it


class Planner:
    """Finds out when values live, and gives those that can be planned a place in the arena."""

    def __init__(
        self,
        code: Code,
        inputs: tuple[int, ...],
        donated: frozenset[int],
        constants: Collection[int],
    ) -> None:
        self.code, self.inputs, self.donated, self.constants = code, inputs, donated, constants
        self.items: list[tuple[Item, int, int]] = []  # with the positions it covers
        self.parent: dict[int, int] = {}  # slots that share memory, as a forest
        self.begin: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.escaping: set[int] = set(code.results)
        self.depth: dict[int, tuple[int, ...]] = {}  # where a slot is written: enclosing items
        self.around: dict[int, tuple[int, ...]] = {}  # where an item stands: enclosing items
        self.ends: dict[int, int] = {}  # the last position of an item that encloses others
        self.clock = 0
        for slot in inputs:
            self.begin[slot], self.depth[slot] = -1, ()
        self._number(code, ())
        self._lifetimes()
        self.lives = self._lives()

    # Lifetimes

    def _number(self, code: Code, around: tuple[int, ...]) -> None:
        for item in code.items:
            start = self.clock
            self.clock += 1
            self.around[start] = around
            for slot in item.outs:
                self.begin[slot], self.depth[slot] = start, around
            for slot in item.carried:
                self.depth[slot] = (*around, start)
            for inner in item.inner:
                self.escaping.update(inner.results)
                self._number(inner, (*around, start))
            if item.inner or item.kernel is None:
                # What goes in may come out again, or be carried round.
                self.escaping.update(item.ins, item.outs)
            self.ends[start] = self.clock
            self.items.append((item, start, self.clock))
            self.clock += 1

    def _lifetimes(self) -> None:
        for item, start, stop in self.items:
            if item.kernel is not None and item.kernel.shares:
                for slot in (*item.ins, *item.outs[1:]):
                    if item.outs:
                        self._join(slot, item.outs[0])
            around = self.around[start]
            for slot in item.ins:
                last = stop
                if around:
                    outside = [a for a in around if a not in self.depth.get(slot, ())]
                    last = self.ends[outside[0]] if outside else stop
                self.end[slot] = max(self.end.get(slot, last), last)
        for slot in self.code.results:
            self.end[slot] = self.clock

    def _root(self, slot: int) -> int:
        """The slot that stands for all that share its memory; the way there becomes shorter."""
        parent = self.parent
        while (up := parent.get(slot, slot)) != slot:
            parent[slot] = parent.get(up, up)
            slot = up
        return slot

    def _join(self, one: int, other: int) -> None:
        a, b = self._root(one), self._root(other)
        if a != b:
            self.parent[a] = b

    def _lives(self) -> dict[int, Life]:
        """When each piece of memory is in use, by the slot that stands for it."""
        found: dict[int, Life] = {}
        for slot, begin in self.begin.items():
            root = self._root(slot)
            end = self.end.get(slot, begin + 1)
            life = found.get(root)
            if life is None:
                life = found[root] = Life(begin, end)
            elif begin < life.begin:
                life.begin = begin
            if end > life.end:
                life.end = end
            life.slots += 1
        for slot in (*self.escaping, *self.inputs):
            if (root := self._root(slot)) in found:
                found[root].escapes = True
        return found

    # Places

    def plan(self, new_slot: int) -> tuple[int, int]:
        """Give results places in the arena; its size, and the number of slots in use after it."""
        arena = Arena()
        held: dict[int, tuple[int, int]] = {}  # by root: the place it has in the arena
        ending: list[tuple[int, int]] = []  # when, and which root, the next first
        for item, start, stop in sorted(self.items, key=lambda entry: entry[1]):
            while ending and ending[0][0] <= start:
                _, root = heapq.heappop(ending)
                if root in held:
                    arena.give(held.pop(root))
            if wanted := self.plannable(item):
                root = self._root(item.outs[0])
                place = self._taken_over(item, held, wanted, stop)
                held[root] = place or arena.take(wanted)
                item.buffer, item.place = new_slot, held[root]
                new_slot += 1
                heapq.heappush(ending, (self.lives[root].end, root))
        return arena.size, new_slot

    def plannable(self, item: Item) -> int:
        """The bytes of a result that can be computed into planned memory; 0 if it cannot."""
        if item.kernel is None or item.kernel.into is None or len(item.outs) != 1:
            return 0
        bytes_ = bytes_of(item, 0)
        if bytes_ < SMALL or self.lives[self._root(item.outs[0])].escapes:
            return 0
        return bytes_

    def _taken_over(
        self,
        item: Item,
        held: dict[int, tuple[int, int]],
        wanted: int,
        stop: int,
    ) -> tuple[int, int] | None:
        """The place of an operand that dies here, if the result may be written over it."""
        assert item.kernel is not None
        for index in item.kernel.in_place:
            if index >= len(item.ins):
                continue
            root = self._root(item.ins[index])
            if root not in held or self.lives[root].end != stop or held[root][1] < wanted:
                continue
            if self._alone(item, index):
                return held.pop(root)
        return None

    def _alone(self, item: Item, index: int) -> bool:
        """Whether no other operand is written over with this one, unless the kernel allows it."""
        assert item.kernel is not None
        root = self._root(item.ins[index])
        others = [n for n, slot in enumerate(item.ins) if self._root(slot) == root]
        return all(n in item.kernel.in_place for n in others)

    def reuse_donated(self) -> None:
        """Let results that leave the program be written over donated arguments that die there."""
        taken: set[int] = set()
        for item, _, stop in self.items:
            kernel = item.kernel
            if kernel is None or kernel.into is None or item.buffer is not None:
                continue
            for index in kernel.in_place:
                slot = item.ins[index] if index < len(item.ins) else -1
                if slot not in self.donated or slot in taken or slot in self.escaping:
                    continue
                if self._shared(slot) or not self._alone(item, index):
                    continue
                if self.end.get(slot) == stop and not self.depth[item.outs[0]]:
                    item.over = index
                    taken.add(slot)
                    break

    def reuse_carried(self) -> None:
        """Let a loop write what it carries over itself, round by round; it begins with a copy."""
        for loop, _, _ in self.items:
            if not loop.carried:
                continue
            work = loop.inner[1]
            inside = {item.outs[0]: item for item in work.items if len(item.outs) == 1}
            own = []
            for n, (slot, result) in enumerate(zip(loop.carried, work.results, strict=True)):
                item = inside.get(result)
                if item is not None and self._writes_over(item, slot, work, result):
                    own.append(n)
            loop.own = frozenset(own)

    def _writes_over(self, item: Item, slot: int, work: Code, result: int) -> bool:
        kernel = item.kernel
        if kernel is None or kernel.into is None or item.over is not None:
            return False
        if item.shapes[0] is None or work.results.count(result) > 1 or slot in work.results:
            return False
        where = [n for n in kernel.in_place if n < len(item.ins) and item.ins[n] == slot]
        sharing = [s for s in {*self.begin, slot} if self._root(s) == self._root(slot)]
        stop = next(stop for other, _, stop in self.items if other is item)
        if not where or any(self.end.get(s, 0) > stop or s in self.escaping for s in sharing):
            return False
        if self._shared(result) or not self._alone(item, where[0]):
            return False
        item.over, item.over_carried = where[0], True
        return True

    def owned(self) -> frozenset[int]:
        """The results whose memory is computed by one kernel and is nobody else's."""
        makers: dict[int, list[Item]] = {}
        for item, _, _ in self.items:
            for slot in item.outs:
                if item.kernel is None or not item.kernel.shares:
                    makers.setdefault(self._root(slot), []).append(item)
        taken = Counter([self._root(slot) for slot in (*self.code.results, *self.inputs)])
        kept = {self._root(slot) for slot in self.constants}
        return frozenset(
            slot
            for slot in self.code.results
            if taken[root := self._root(slot)] == 1
            and root not in kept
            and len(found := makers.get(root, [])) == 1
            and found[0].kernel is not None
        )

    def _shared(self, slot: int) -> bool:
        """Whether a slot's memory is that of others, too."""
        life = self.lives.get(self._root(slot))
        return life is not None and life.slots > 1


def bytes_of(item: Item, index: int) -> int:
    """The bytes of a result, 0 where its shape is not known."""
    shape = item.shapes[index] if index < len(item.shapes) else None
    if shape is None:
        return 0
    type = item.values[index].type
    assert isinstance(type, TensorType)
    return math.prod(shape) * type.dtype.numpy.itemsize


class Arena:
    """Places in one piece of memory, best fit first."""

    def __init__(self) -> None:
        self.size = 0
        self.free: list[tuple[int, int]] = []  # offset and size

    def take(self, wanted: int) -> tuple[int, int]:
        """A place for so many bytes."""
        wanted = -(-wanted // ALIGNED) * ALIGNED
        fitting = [(size, offset) for offset, size in self.free if size >= wanted]
        if fitting:
            size, offset = min(fitting)
            self.free.remove((offset, size))
            if size > wanted:
                self.free.append((offset + wanted, size - wanted))
            return offset, wanted
        last = next(((o, s) for o, s in self.free if o + s == self.size), None)
        if last is not None:  # grow what is free at the end
            self.free.remove(last)
            self.size = last[0]
        offset = self.size
        self.size += wanted
        return offset, wanted

    def give(self, place: tuple[int, int]) -> None:
        """Give a place back; neighbours that are free become one."""
        offset, size = place
        for other in list(self.free):
            if other[0] + other[1] == offset:
                self.free.remove(other)
                offset, size = other[0], size + other[1]
            elif offset + size == other[0]:
                self.free.remove(other)
                size += other[1]
        self.free.append((offset, size))


def others_at_once(planner: Planner) -> int:
    """The most bytes that values outside of the arena, arguments and results take at once."""
    changes: dict[int, int] = {}
    results = set(planner.code.results)
    for item, start, _ in planner.items:
        for n, slot in enumerate(item.outs):
            bytes_ = bytes_of(item, n)
            shares = item.kernel is not None and item.kernel.shares
            if item.buffer is not None or shares or slot in results or not bytes_:
                continue
            end = planner.lives[planner._root(slot)].end
            changes[start] = changes.get(start, 0) + bytes_
            changes[end] = changes.get(end, 0) - bytes_
    now = most = 0
    for position in sorted(changes):
        now += changes[position]
        most = max(most, now)
    return most
