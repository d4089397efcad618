"""Buffer reuse: donated arguments, and loop-carried values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Protocol

from weft.executable.items import (
    Block,
    Host,
    Item,
    Launch,
    Loop,
    Slot,
    Slots,
    Stack,
    Tiled,
    all_items,
    blocks_of,
)
from weft.executable.live_ranges import SlotLiveRanges, may_alias
from weft.kernels.in_place import Pairs
from weft.records import dataclass


class BufferPlanner(Protocol):
    """The planner's state that reuse reads, and where it writes its decisions."""

    block: Block
    inputs: Slots
    constants: dict[Slot, object]
    lives: SlotLiveRanges
    items: list[tuple[Item, int, int]]
    rotated: set[Slot]
    places: dict[Slot, int]
    over: dict[Slot, tuple[int, bool]]
    donors: dict[Slot, Slot]

    def stack(self, slot: Slot) -> Stack:
        """The stack of a slot."""
        ...

    def alone(self, item: Item, index: int, candidates: Collection[int]) -> bool:
        """Whether no other operand shares the overwritten buffer, unless allowed, too."""
        ...

    def pairs(self, launch: Launch) -> Pairs:
        """Operand and result numbers of a launch that may share one buffer."""
        ...


# Donation


def reuse_donated(
    planner: BufferPlanner, sizes: Mapping[Slot, int], updates: Mapping[Slot, Slot]
) -> set[Slot]:
    """Let results overwrite donated arguments that are dead; returns which.

    `sizes` has the slot and the bytes of each donated argument; `updates` those that only one
    result may overwrite: the caller keeps their memory, and reads the new value there.
    """
    return _Donation(planner, sizes, updates).run()


class _Donation:
    def __init__(
        self, planner: BufferPlanner, sizes: Mapping[Slot, int], updates: Mapping[Slot, Slot]
    ) -> None:
        self.planner, self.lives, self.sizes = planner, planner.lives, sizes
        self.only = {slot: self.lives.root(result) for slot, result in updates.items()}
        self.ends: dict[Slot, int] = {}
        self.left = [slot for slot in sizes if self._is_free(slot)]

    def _is_free(self, slot: Slot) -> bool:
        """Whether nothing outlives it: views of it end inside of the program, too."""
        return not any(each in self.lives.escaping for each in self.lives.sharing(slot))

    def _end(self, slot: Slot) -> int:
        """The last position at which a slot, or a view of it, is read."""
        end = self.ends.get(slot)
        if end is None:
            sharing = self.lives.sharing(slot)
            end = self.ends[slot] = max([self.lives.end.get(each, 0) for each in sharing])
        return end

    def _may_take(self, slot: Slot, donor: Slot) -> bool:
        only = self.only.get(donor)
        return only is None or only == self.lives.root(slot)

    def run(self) -> set[Slot]:
        free = set(self.left)
        if free:
            # In program order: a donor goes to the first result that can have it.
            for item, start, stop in sorted(self.planner.items, key=lambda entry: entry[1]):
                if isinstance(item, Launch):
                    self._give_launch(item, start, stop)
                elif isinstance(item, Host) and item.traits.writes:
                    self._give(item, stop)
        return free - set(self.left)

    def _give(self, item: Host, stop: int) -> None:
        """A host node takes an operand's buffer for its result."""
        (out, *_), in_place = item.outs, item.traits.in_place
        # Only at the top level: a loop would overwrite in its first round what its second one
        # reads.
        if out in self.planner.places or self.lives.depth[out]:
            return
        for index in in_place:
            slot = item.ins[index] if index < len(item.ins) else -1
            if slot not in self.left or self._end(slot) != stop:
                continue
            if self._may_take(out, slot) and self.planner.alone(item, index, in_place):
                self.planner.over[out] = (index, False)
                self.left.remove(slot)
                return

    def _give_launch(self, launch: Launch, start: int, stop: int) -> None:
        """A launch takes buffers that it may overwrite, or dead ones."""
        planner, pairs = self.planner, self.planner.pairs(launch)
        for number, slot in enumerate(launch.outs):
            if slot in planner.places or slot in planner.rotated or self.lives.depth[slot]:
                continue
            over = [given for given, made in pairs if made == number]
            here = [
                launch.ins[n]
                for n in over
                if self._end(launch.ins[n]) == stop and planner.alone(launch, n, over)
            ]
            wanted = planner.stack(slot).nbytes
            for donor in self.left:
                # Dead before the launch, or overwritten by it element by element.
                # Strictly before: a kernel may read the donor until its last element is written.
                done = donor in here or self._end(donor) < start
                # Equal sizes only: a result in a larger block would keep all of it alive.
                if done and self.sizes[donor] == wanted and self._may_take(slot, donor):
                    planner.donors[slot] = donor
                    self.left.remove(donor)
                    break


# Rotating buffers


@dataclass(slots=True, eq=False)
class PlannedRotation:
    """A rotating buffer while it is planned."""

    indices: tuple[int, ...]
    slots: Slots
    result: Slot
    maker: Launch
    number: int  # among its launch's results
    buffers: int = 0
    places: tuple[int, ...] = ()


def rotations_of(tiled: Tiled) -> dict[Slot, list[PlannedRotation]]:
    """The rotating buffers of each loop, by the first slot that it carries."""
    return {
        item.carried[0]: _rotations(item, tiled)
        for item in all_items(tiled.block)
        if isinstance(item, Loop) and item.carried and not item.stack_dims.has_rows
    }


def _rotations(loop: Loop, tiled: Tiled) -> list[PlannedRotation]:
    work, stacks = loop.body, tiled.stacks
    made = [item for item in work.items if isinstance(item, Launch)]
    makers = {slot: (item, n) for item in made for n, slot in enumerate(item.outs)}
    alike = _sharing(work)
    counts = Counter([alike.get(slot, slot) for slot in (*work.results, *_handed_on(work))])
    # carried numbers by source slot
    after = {slot: index for index, slot in enumerate(work.results)}
    rotations = []
    for index, result in enumerate(work.results):
        if result not in makers or counts[alike.get(result, result)] > 1:
            continue
        # A carried value that is passed on is kept for another iteration; nothing else keeps any of
        # these.
        indices, slots = [index], [loop.carried[index]]
        while (follower := after.get(slots[-1])) is not None and follower not in indices:
            indices.append(follower)
            slots.append(loop.carried[follower])
        keepers = [counts[alike.get(slot, slot)] for slot in slots]
        # Every level but the last is passed on exactly once, to the next one; another keeper would
        # see the buffer change under it.
        if keepers != [1] * (len(slots) - 1) + [0]:
            continue
        # All buffers of a rotation exchange roles, so they must have one shape and type.
        if any(stacks[result] != stacks[loop.outs[index]] for index in indices):
            continue
        rotations.append(PlannedRotation(tuple(indices), tuple(slots), result, *makers[result]))
    return rotations


def _sharing(block: Block) -> dict[Slot, Slot]:
    """A representative for slots that share memory."""
    partners: dict[Slot, Slot] = {}
    for item in block.items:
        for inner in blocks_of(item):
            partners |= _sharing(inner)
        if may_alias(item):
            slots = (*item.ins, *item.outs)
            roots = {partners.get(slot, slot) for slot in slots}
            first = min(roots, default=0)
            partners.update({s: first for s, root in partners.items() if root in roots})
            partners.update(dict.fromkeys(slots, first))
    return partners


def _handed_on(block: Block) -> Iterator[Slot]:
    """Slots whose memory control flow may pass on."""
    for item in block.items:
        inside = blocks_of(item)
        if inside:
            yield from item.ins
        for inner in inside:
            yield from inner.results
            yield from _handed_on(inner)


# In-place loop-carried values


def reuse_carried(planner: BufferPlanner) -> dict[Slot, frozenset[int]]:
    """Let a loop overwrite its carried values in place; it starts with a copy.

    Returns the numbers of these values by the first slot that the loop carries.
    """
    overwritten: dict[Slot, frozenset[int]] = {}
    for loop, _, _ in planner.items:
        if not isinstance(loop, Loop) or not loop.carried:
            continue
        work = loop.body
        inside = {item.outs[0]: item for item in work.items if len(item.outs) == 1}
        own = []
        for n, (slot, result) in enumerate(zip(loop.carried, work.results, strict=True)):
            item = inside.get(result)
            if item is not None and _writes_over(planner, item, slot, work, result):
                own.append(n)
        if own:
            overwritten[loop.carried[0]] = frozenset(own)
    return overwritten


def _writes_over(planner: BufferPlanner, item: Item, slot: Slot, work: Block, result: Slot) -> bool:
    lives = planner.lives
    if not isinstance(item, Host) or not item.traits.writes or item.outs[0] in planner.over:
        return False
    if planner.stack(item.outs[0]).shape is None:
        return False
    if work.results.count(result) > 1 or slot in work.results:
        return False
    in_place = item.traits.in_place
    where = [n for n in in_place if n < len(item.ins) and item.ins[n] == slot]
    sharing = lives.sharing(slot)
    _, stop = lives.covers(item)
    if not where or any(lives.end.get(s, 0) > stop or s in lives.escaping for s in sharing):
        return False
    # An alias of the carried value would change with it.
    if lives.is_shared(result) or not planner.alone(item, where[0], in_place):
        return False
    planner.over[item.outs[0]] = (where[0], True)
    return True


def owned(planner: BufferPlanner) -> frozenset[Slot]:
    """The results that a single item computes, in unshared memory."""
    lives = planner.lives
    makers: dict[int, list[Item]] = {}
    for item, _, _ in planner.items:
        for slot in item.outs:
            if not may_alias(item):
                makers.setdefault(lives.root(slot), []).append(item)
    uses = Counter([lives.root(slot) for slot in (*planner.block.results, *planner.inputs)])
    constants = {lives.root(slot) for slot in planner.constants}
    return frozenset(
        slot
        for slot in planner.block.results
        if uses[root := lives.root(slot)] == 1
        and root not in constants
        and len(found := makers.get(root, [])) == 1
        and isinstance(found[0], Launch | Host)
    )
