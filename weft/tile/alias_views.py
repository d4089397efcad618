"""Views between kernels as aliases of one buffer, so that no host step ends a native call.

Kernels see addresses, and have shapes of their own: the result of a reshape, or of a bitcast to as
many bits, is read from the memory of its operand, or written there at once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from weft.executable.items import Block, Branch, Host, Item, Launch, Loop, Slot, is_view
from weft.tile.flows import StackList, slots_read


def without_views(block: Block, stacks: StackList) -> Block:
    """The block without views: launches read their sources, or write their results."""
    return _Aliases(block, stacks).block()


class _Aliases:
    def __init__(self, block: Block, stacks: StackList) -> None:
        self.given, self.stacks = block, stacks
        self.items: list[Item | None] = list(block.items)
        self.readers: dict[Slot, list[Item]] = {}
        self.reads = Counter(block.results)  # by slot
        for item in block.items:
            for slot in slots_read(item):
                self.reads[slot] += 1
                self.readers.setdefault(slot, []).append(item)
        self.makers: dict[Slot, int] = {}  # the numbers of launches
        self.sources: dict[Slot, Slot] = {}  # by view: the buffer that is read instead

    def block(self) -> Block:
        for number, item in enumerate(self.given.items):
            if isinstance(item, Host) and is_view(item, self.stacks) and self._alias(item):
                self.items[number] = None
                continue
            self.items[number] = self._renamed(item)
            if isinstance(item, Launch):
                self.makers.update(dict.fromkeys(item.outs, number))
        kept = [item for item in self.items if item is not None]
        return Block(tuple(kept), self.given.results)

    def _alias(self, view: Host) -> bool:
        """Give a view's result the buffer of its operand, if only kernels depend on it."""
        (source,), (out,) = view.ins, view.outs
        readers = self.readers.get(out, [])
        # Reads by results of the block, and inside of loops, are not in the operands of launches.
        if self.reads[out] == sum(out in r.ins for r in readers if isinstance(r, Launch)):
            source = self.sources.get(source, source)
            self.sources[out] = source
            self.reads[source] += self.reads[out] - 1
            return True
        # Otherwise the launch that makes the source writes to the view's buffer, if nothing else
        # reads the source.
        number = self.makers.get(source)
        if number is None or self.reads[source] > 1:
            return False
        maker = self.items[number]
        assert isinstance(maker, Launch), "only launches are noted"
        outs = tuple([out if slot == source else slot for slot in maker.outs])
        self.items[number] = replace(maker, outs=outs)
        self.makers[out] = number
        return True

    def _renamed(self, item: Item) -> Item:
        """An item with the buffers that it reads now."""
        if isinstance(item, Launch) and any(slot in self.sources for slot in item.ins):
            return replace(item, ins=tuple([self.sources.get(slot, slot) for slot in item.ins]))
        if isinstance(item, Branch):
            blocks = tuple([without_views(block, self.stacks) for block in item.blocks])
            return replace(item, blocks=blocks)
        if isinstance(item, Loop):
            test, body = (without_views(block, self.stacks) for block in item.blocks)
            return replace(item, test=test, body=body)
        return item
