"""Dead slots after each item, so that a run releases their values early."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from weft.executable.items import Block, Item, Slot, Slots, blocks_of


def dead_slots(block: Block, owned: Iterable[Slot], constants: Collection[Slot]) -> list[Slots]:
    """For each item of a block, the slots that die after it.

    Candidates are slots written in the block and the `owned` ones; its results and constants never
    die.
    """
    last = dict.fromkeys(owned, -1)
    # A result without readers dies where it is written.
    for position, item in enumerate(block.items):
        last.update(dict.fromkeys(item.outs, position))
    for position, item in enumerate(block.items):
        for slot in _reads(item):
            if slot in last:
                last[slot] = position
    stay = {*block.results, *constants}
    dead: list[list[Slot]] = [[] for _ in block.items]
    for slot, position in last.items():
        if position >= 0 and slot not in stay:
            dead[position].append(slot)
    return [tuple(slots) for slots in dead]


def _reads(item: Item) -> set[Slot]:
    """The slots read by an item and by its nested items."""
    read = {*item.ins}
    for block in blocks_of(item):
        read.update(block.results)
        for inner in block.items:
            read |= _reads(inner)
    return read


def results_made(block: Block, live: Collection[Slot]) -> Slots:
    """The results of a block that its own items define."""
    defined = {slot for item in block.items for slot in item.outs}
    return tuple(
        [slot for slot in dict.fromkeys(block.results) if slot in defined and slot not in live]
    )
