"""Memory that is used again: of donated arguments, and of what loops carry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from weft.run.code import Code, Item, Turn
from weft.run.plan import Planner, bytes_of, piece_of


def reuse_donated(planner: Planner, sizes: Mapping[int, int]) -> set[int]:
    """Let results be written over donated arguments that nothing reads after them; which are so.

    `sizes` has the slot and the bytes of each donated argument.
    """
    return _Donation(planner, sizes).run()


class _Donation:
    def __init__(self, planner: Planner, sizes: Mapping[int, int]) -> None:
        self.planner, self.lives, self.sizes = planner, planner.lives, sizes
        self.left = [slot for slot in sizes if self._is_free(slot)]

    def _is_free(self, slot: int) -> bool:
        return slot not in self.lives.escaping and not self.lives.is_shared(slot)

    def run(self) -> set[int]:
        free = set(self.left)
        if free:
            for item, start, stop in sorted(self.planner.items, key=lambda entry: entry[1]):
                if item.group is not None:
                    self._give_group(item, start, stop)
                elif item.kernel is not None and item.kernel.into is not None:
                    self._give(item, stop)
        return free - set(self.left)

    def _give(self, item: Item, stop: int) -> None:
        """A kernel of numpy takes an operand's memory for its result."""
        assert item.kernel is not None
        if item.buffer is not None or self.lives.depth[item.outs[0]]:
            return
        for index in item.kernel.in_place:
            slot = item.ins[index] if index < len(item.ins) else -1
            if slot not in self.left or self.lives.end.get(slot) != stop:
                continue
            if self.planner.alone(item, index, item.kernel.in_place):
                item.over = index
                self.left.remove(slot)
                return

    def _give_group(self, item: Item, start: int, stop: int) -> None:
        """A kernel takes what it may write over, or what nobody reads any more."""
        pairs = self.planner.pairs(item)
        for number, slot in enumerate(item.outs):
            if number in item.places or number in item.turning or self.lives.depth[slot]:
                continue
            over = [given for given, made in pairs if made == number]
            here = [
                item.ins[n]
                for n in over
                if self.lives.end.get(item.ins[n]) == stop and self.planner.alone(item, n, over)
            ]
            wanted = bytes_of(item, number)
            for donor in self.left:
                done = donor in here or self.lives.end.get(donor, 0) < start
                if done and self.sizes[donor] == wanted:
                    item.donors[number] = donor
                    self.left.remove(donor)
                    break


def choose_turns(code: Code) -> None:
    """Find what loops make in turns: their kernels write it into one of two buffers."""
    for item in code.items:
        for inner in item.inner:
            choose_turns(inner)
        if item.turns is not None:
            item.turns = [*_turns(item)]
            for turn in item.turns:
                turn.maker.turning |= {turn.number}


def _turns(loop: Item) -> list[Turn]:
    work = loop.inner[1]
    makers = {s: (i, n) for i in work.items if i.group for n, s in enumerate(i.outs)}
    alike = _sharing(work)
    kept = Counter([alike.get(slot, slot) for slot in (*work.results, *_handed_on(work))])
    after = {slot: index for index, slot in enumerate(work.results)}  # who takes a slot
    found = []
    for index, result in enumerate(work.results):
        if result not in makers or kept[alike.get(result, result)] > 1:
            continue
        maker, number = makers[result]
        # What is handed on is carried for another round; nobody else keeps any of these.
        indices, slots = [index], [loop.carried[index]]
        while (follower := after.get(slots[-1])) is not None and follower not in indices:
            indices.append(follower)
            slots.append(loop.carried[follower])
        keepers = [kept[alike.get(slot, slot)] for slot in slots]
        if keepers != [1] * (len(slots) - 1) + [0]:
            continue
        if any(maker.shapes[number] != loop.shapes[index] for index in indices):
            continue
        sizes = bytes_of(maker, number), piece_of(maker, number)
        found.append(Turn(tuple(indices), tuple(slots), result, maker, number, *sizes))
    return found


def _sharing(code: Code) -> dict[int, int]:
    """For slots that share memory, one that stands for all of them."""
    found: dict[int, int] = {}
    for item in code.items:
        for inner in item.inner:
            found |= _sharing(inner)
        if item.kernel is not None and item.kernel.shares:
            slots = (*item.ins, *item.outs)
            roots = {found.get(slot, slot) for slot in slots}
            first = min(roots, default=0)
            found.update({s: first for s, root in found.items() if root in roots})
            found.update(dict.fromkeys(slots, first))
    return found


def _handed_on(code: Code) -> Iterator[int]:
    """Slots whose memory control flow may hand on."""
    for item in code.items:
        if item.inner:
            yield from item.ins
        for inner in item.inner:
            yield from inner.results
            yield from _handed_on(inner)


def reuse_carried(planner: Planner) -> None:
    """Let a loop write what it carries over itself, round by round; it begins with a copy."""
    for loop, _, _ in planner.items:
        if not loop.carried:
            continue
        work = loop.inner[1]
        inside = {item.outs[0]: item for item in work.items if len(item.outs) == 1}
        own = []
        for n, (slot, result) in enumerate(zip(loop.carried, work.results, strict=True)):
            item = inside.get(result)
            if item is not None and _writes_over(planner, item, slot, work, result):
                own.append(n)
        loop.own = frozenset(own)


def _writes_over(planner: Planner, item: Item, slot: int, work: Code, result: int) -> bool:
    kernel, lives = item.kernel, planner.lives
    if kernel is None or kernel.into is None or item.over is not None:
        return False
    if item.shapes[0] is None or work.results.count(result) > 1 or slot in work.results:
        return False
    where = [n for n in kernel.in_place if n < len(item.ins) and item.ins[n] == slot]
    sharing = lives.sharing(slot)
    _, stop = planner.covers(item)
    if not where or any(lives.end.get(s, 0) > stop or s in lives.escaping for s in sharing):
        return False
    if lives.is_shared(result) or not planner.alone(item, where[0], kernel.in_place):
        return False
    item.over, item.over_carried = where[0], True
    return True


def owned(planner: Planner) -> frozenset[int]:
    """The results whose memory is computed by one kernel and is nobody else's."""
    lives = planner.lives
    makers: dict[int, list[Item]] = {}
    for item, _, _ in planner.items:
        for slot in item.outs:
            if item.kernel is None or not item.kernel.shares:
                makers.setdefault(lives.root(slot), []).append(item)
    taken = Counter([lives.root(slot) for slot in (*planner.code.results, *planner.inputs)])
    kept = {lives.root(slot) for slot in planner.constants}
    return frozenset(
        slot
        for slot in planner.code.results
        if taken[root := lives.root(slot)] == 1
        and root not in kept
        and len(found := makers.get(root, [])) == 1
        and (found[0].kernel is not None or found[0].group is not None)
    )
