"""Live ranges of slots, and which slots alias one buffer."""

from __future__ import annotations

from collections.abc import Mapping

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
from weft.records import dataclass


@dataclass(slots=True)
class SlotLiveRange:
    """The live range of a buffer, over all slots that alias it."""

    begin: int
    end: int
    escapes: bool = False  # it has untracked readers, or is a result of the program
    slots: int = 0  # slots that alias it


class SlotLiveRanges:
    """Positions of all items (nested ones lie inside their parent's span), and live ranges."""

    def __init__(
        self, block: Block, inputs: Slots, rotating: Mapping[Slot, frozenset[int]]
    ) -> None:
        self.block = block
        self.rotating = rotating  # by loop, the numbers of its values in rotating buffers
        self.items: list[tuple[Item, int, int]] = []  # items with the positions they span
        self.parent: dict[int, int] = {}  # aliasing slots, as a union-find forest
        self.begin: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.escaping: set[int] = set(block.results)
        self.depth: dict[int, tuple[int, ...]] = {}  # nesting of the item that writes a slot
        self.around: dict[int, tuple[int, ...]] = {}  # nesting depth of an item
        self.ends: dict[int, int] = {}  # last position of an item with nested blocks
        self.clock = 0
        for slot in inputs:
            # Arguments are there before the first item.
            self.begin[slot], self.depth[slot] = -1, ()
        self._number(block, ())
        self._read()
        self.by_root = self._ranges()
        for slot in (*self.escaping, *inputs):
            if (root := self.root(slot)) in self.by_root:
                self.by_root[root].escapes = True

    def of(self, slot: int) -> SlotLiveRange:
        """The live range of a slot's buffer."""
        return self.by_root[self.root(slot)]

    def root(self, slot: int) -> int:
        """The representative of a slot's alias set, with path compression."""
        parent = self.parent
        while (up := parent.get(slot, slot)) != slot:
            parent[slot] = parent.get(up, up)
            slot = up
        return slot

    def sharing(self, slot: int) -> list[int]:
        """The slot and the slots that alias it."""
        root = self.root(slot)
        return [slot, *(other for other in (*self.parent, root) if self._is_defined(other, root))]

    def _is_defined(self, slot: int, root: int) -> bool:
        return slot in self.begin and self.root(slot) == root

    def covers(self, item: Item) -> tuple[int, int]:
        """The first and last position of an item."""
        return next((start, stop) for other, start, stop in self.items if other is item)

    def is_shared(self, slot: int) -> bool:
        """Whether a slot is aliased."""
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
            # Two positions for each item, its begin and its end: what nests in it lies between.
            self.clock += 1

    def _note_escapes(self, item: Item) -> None:
        """Operands of control flow escape: they may be returned or carried on."""
        if isinstance(item, Launch | Host | Done | Move):
            return
        # Only uniform loops are tracked. Other control flow returns one of several buffers, which
        # the engine chooses at run time.
        if not isinstance(item, Loop) or item.stack_dims.has_rows:
            self.escaping.update(item.outs)
            for inner in item.blocks:
                self.escaping.update(inner.results)
            if not isinstance(item, Branch):
                self.escaping.update(item.ins)
            return
        # A loop: rotating buffers hold their values, and values it passes through stay in place.
        rotating = self.rotating.get(item.carried[0], ()) if item.carried else ()
        handed = {n for n, slot in enumerate(item.carried) if item.body.results[n] == slot}
        for n, (initial, out) in enumerate(zip(item.ins, item.outs, strict=True)):
            if n in handed:
                # Passed through unchanged: the result is the initial value's own memory.
                self._join(initial, out)
            elif n not in rotating:
                self.escaping.update((initial, out, item.body.results[n]))

    def _read(self) -> None:
        """Record last uses and aliases."""
        for item, start, stop in self.items:
            if may_alias(item):
                # Whichever operand it is: one buffer for all of them is safe.
                for slot in (*item.ins, *item.outs[1:]):
                    if item.outs:
                        self._join(slot, item.outs[0])
            for slot in item.ins:
                self._is_read(slot, start, stop)
            if isinstance(item, Loop) and not item.stack_dims.has_rows:
                self._is_read(item.test.results[0], start, stop)  # read after every iteration
        for slot in self.block.results:
            self.end[slot] = self.clock

    def _is_read(self, slot: int, start: int, stop: int) -> None:
        around = self.around[start]
        last = stop
        if around:
            outside = [a for a in around if a not in self.depth.get(slot, ())]
            # Read in a loop, and defined outside of it: the next iteration reads it again, so that
            # it lives until the outermost of these loops ends.
            last = self.ends[outside[0]] if outside else stop
        self.end[slot] = max(self.end.get(slot, last), last)

    def _join(self, one: int, other: int) -> None:
        a, b = self.root(one), self.root(other)
        if a != b:
            self.parent[a] = b

    def _ranges(self) -> dict[int, SlotLiveRange]:
        """Live ranges by representative slot."""
        ranges: dict[int, SlotLiveRange] = {}
        for slot, begin in self.begin.items():
            root = self.root(slot)
            end = self.end.get(slot, begin + 1)  # without readers it lives while it is written
            life = ranges.get(root)
            if life is None:
                life = ranges[root] = SlotLiveRange(begin, end)
            elif begin < life.begin:
                life.begin = begin
            if end > life.end:
                life.end = end
            life.slots += 1
        return ranges


def may_alias(item: Item) -> bool:
    """Whether an item's results may alias its operands."""
    if isinstance(item, Host):
        return item.traits.shares
    return isinstance(item, Move) and item.how != "token"
