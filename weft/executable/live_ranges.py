"""When the memory of every value of a tiled program is in use, and which values share it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from weft.executable.items import (
    Block,
    Branch,
    Done,
    Host,
    Item,
    Launch,
    Loop,
    Move,
    Slot,
    Slots,
    blocks_of,
)


@dataclass(slots=True)
class SlotLiveRange:
    """When a piece of memory is in use, by all values that share it."""

    begin: int
    end: int
    escapes: bool = False  # it is read where nobody looks, or leaves the program
    slots: int = 0  # that share it


class SlotLiveRanges:
    """Positions of all items, inner ones between the two of what encloses them; lives of slots."""

    def __init__(
        self, block: Block, inputs: Slots, rotating: Mapping[Slot, frozenset[int]]
    ) -> None:
        self.block = block
        self.rotating = rotating  # by loop, the carried values that its kernels make in rotations
        self.items: list[tuple[Item, int, int]] = []  # with the positions it covers
        self.parent: dict[int, int] = {}  # slots that share memory, as a forest
        self.begin: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.escaping: set[int] = set(block.results)
        self.depth: dict[int, tuple[int, ...]] = {}  # where a slot is written: enclosing items
        self.around: dict[int, tuple[int, ...]] = {}  # where an item stands: enclosing items
        self.ends: dict[int, int] = {}  # the last position of an item that encloses others
        self.clock = 0
        for slot in inputs:
            self.begin[slot], self.depth[slot] = -1, ()
        self._number(block, ())
        self._read()
        self.by_root = self._found()
        for slot in (*self.escaping, *inputs):
            if (root := self.root(slot)) in self.by_root:
                self.by_root[root].escapes = True

    def of(self, slot: int) -> SlotLiveRange:
        """The life of a slot's memory."""
        return self.by_root[self.root(slot)]

    def root(self, slot: int) -> int:
        """The slot that stands for all that share its memory; the way there becomes shorter."""
        parent = self.parent
        while (up := parent.get(slot, slot)) != slot:
            parent[slot] = parent.get(up, up)
            slot = up
        return slot

    def sharing(self, slot: int) -> list[int]:
        """The slot, and those that items make of its memory."""
        root = self.root(slot)
        return [slot, *(other for other in (*self.parent, root) if self._is_made(other, root))]

    def _is_made(self, slot: int, root: int) -> bool:
        return slot in self.begin and self.root(slot) == root

    def covers(self, item: Item) -> tuple[int, int]:
        """The first and the last position of an item."""
        return next((start, stop) for other, start, stop in self.items if other is item)

    def is_shared(self, slot: int) -> bool:
        """Whether a slot's memory is that of others, too."""
        life = self.by_root.get(self.root(slot))
        return life is not None and life.slots > 1

    def _number(self, block: Block, around: tuple[int, ...]) -> None:
        for item in block.items:
            start = self.clock
            self.clock += 1
            self.around[start] = around
            for slot in item.outs:
                self.begin[slot], self.depth[slot] = start, around
            if isinstance(item, Loop):
                for slot in item.carried:
                    self.depth[slot] = (*around, start)
            for inner in blocks_of(item):
                self._number(inner, (*around, start))
            self._note_escapes(item)
            self.ends[start] = self.clock
            self.items.append((item, start, self.clock))
            self.clock += 1

    def _note_escapes(self, item: Item) -> None:
        """What goes into control flow may come out again, or be carried round."""
        if isinstance(item, Launch | Host | Done | Move):
            return
        if not isinstance(item, Loop) or item.layout.has_rows:
            self.escaping.update(item.outs)
            for inner in item.blocks:
                self.escaping.update(inner.results)
            if not isinstance(item, Branch):
                self.escaping.update(item.ins)
            return
        # A loop: rotating buffers hold their values, and values it passes through stay in place.
        rotating = self.rotating.get(item.carried[0], ()) if item.carried else ()
        handed = {n for n, slot in enumerate(item.carried) if item.body.results[n] == slot}
        for n, (given, out) in enumerate(zip(item.ins, item.outs, strict=True)):
            if n in handed:
                self._join(given, out)
            elif n not in rotating:
                self.escaping.update((given, out, item.body.results[n]))

    def _read(self) -> None:
        """Note when slots are read for the last time, and which share memory."""
        for item, start, stop in self.items:
            if shares(item):
                for slot in (*item.ins, *item.outs[1:]):
                    if item.outs:
                        self._join(slot, item.outs[0])
            for slot in item.ins:
                self._is_read(slot, start, stop)
            if isinstance(item, Loop) and not item.layout.has_rows:
                self._is_read(item.test.results[0], start, stop)  # after every round
        for slot in self.block.results:
            self.end[slot] = self.clock

    def _is_read(self, slot: int, start: int, stop: int) -> None:
        around = self.around[start]
        last = stop
        if around:
            outside = [a for a in around if a not in self.depth.get(slot, ())]
            last = self.ends[outside[0]] if outside else stop
        self.end[slot] = max(self.end.get(slot, last), last)

    def _join(self, one: int, other: int) -> None:
        a, b = self.root(one), self.root(other)
        if a != b:
            self.parent[a] = b

    def _found(self) -> dict[int, SlotLiveRange]:
        """When each piece of memory is in use, by the slot that stands for it."""
        found: dict[int, SlotLiveRange] = {}
        for slot, begin in self.begin.items():
            root = self.root(slot)
            end = self.end.get(slot, begin + 1)
            life = found.get(root)
            if life is None:
                life = found[root] = SlotLiveRange(begin, end)
            elif begin < life.begin:
                life.begin = begin
            if end > life.end:
                life.end = end
            life.slots += 1
        return found


def shares(item: Item) -> bool:
    """Whether the results of an item may lie in the memory of its operands."""
    if isinstance(item, Host):
        return item.traits.shares
    return isinstance(item, Move) and item.how != "token"
