"""Memory planning of a tiled program: one planner, for the runtime and for memory reports."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import field, replace

from weft.array.place_buffers import Span, most_alive, place
from weft.executable.items import Host, Item, Launch, Loop, Slot, Stack, Tiled
from weft.executable.live_ranges import SlotLiveRanges
from weft.executable.memory import outside_arena, results_over_arguments
from weft.executable.plan import MemoryBytes, Plan, RotatingBuffer
from weft.ir.names import UPDATED
from weft.ir.types import TensorType, Type
from weft.kernels.in_place import Pairs, overwritten
from weft.records import dataclass
from weft.tile.memory.reuse import (
    PlannedRotation,
    owned,
    reuse_carried,
    reuse_donated,
    rotations_of,
)
from weft.varying.masks import Mask

SMALL = 1 << 14  # bytes below which a host allocation is free


def plan(tiled: Tiled) -> Plan:
    """Plan the memory of a program."""
    planner = Planner(tiled)
    arena = planner.place()
    nbytes = _argument_bytes(tiled)
    sizes = {tiled.inputs[n]: nbytes[n] for n in tiled.donated}
    # After the arena: only results that leave the program are outside of it, and may take a donated
    # argument.
    taken = reuse_donated(planner, sizes, _updates(tiled))
    reused = tuple([n for n in tiled.donated if tiled.inputs[n] in taken])
    own = reuse_carried(planner)
    root = planner.lives.root
    argument_of = {root(slot): n for n, slot in enumerate(tiled.inputs)}
    roots = [root(slot) for slot in tiled.block.results]
    planned = Plan(
        arena,
        planner.places,
        planner.over,
        planner.donors,
        {
            slot: planner.rotating_buffers(found)
            for slot, found in planner.rotations.items()
            if found
        },
        own,
        owned(planner),
        {n: argument_of[found] for n, found in enumerate(roots) if found in argument_of},
        reused,
    )
    return replace(planned, memory=_memory(planner, planned))


def _updates(tiled: Tiled) -> dict[Slot, Slot]:
    """The arguments that are updated in place, and their new values."""
    updates = {}
    for n, attrs in enumerate(tiled.module.function(tiled.function).arg_attrs):
        text = dict(attrs).get(UPDATED)
        if text is not None:
            updates[tiled.inputs[n]] = tiled.block.results[int(text.partition(" ")[0])]
    return updates


def _memory(planner: Planner, plan: Plan) -> MemoryBytes:
    """Memory use of a run, over all devices."""
    tiled, function = planner.tiled, planner.tiled.module.function(planner.tiled.function)
    others = [
        Span(count * planner.stack(slot).nbytes, start, stop)
        for slot, count, start, stop in outside_arena(tiled, plan, planner.lives)
    ]
    over = results_over_arguments(tiled, plan, planner.lives)
    arguments = _argument_bytes(tiled)
    results = zip(function.result_types, tiled.result_masks, strict=True)
    return MemoryBytes(
        sum(arguments),
        sum(_bytes(tiled, type, mask) for type, mask in results),
        plan.arena,
        most_alive([span for span in others if span.size]),
        sum(arguments[n] for n in over),
    )


def _argument_bytes(tiled: Tiled) -> list[int]:
    types = tiled.module.function(tiled.function).arg_types
    return [_bytes(tiled, type, mask) for type, mask in zip(types, tiled.masks, strict=True)]


def _bytes(tiled: Tiled, type: Type, mask: Mask) -> int:
    if not isinstance(type, TensorType) or not isinstance(mask, int):
        return 0
    return math.prod(tiled.stack_dims.shape(mask) + type.sizes) * type.dtype.numpy.itemsize


@dataclass(slots=True)
class PlannedBuffer:
    """An arena buffer, and the results that it holds one after another."""

    size: int
    begin: int
    end: int
    holds: list[Slot] = field(default_factory=list)
    rotation: PlannedRotation | None = None


class Planner:
    """Assigns arena buffers to values."""

    def __init__(self, tiled: Tiled) -> None:
        self.tiled, self.block, self.inputs = tiled, tiled.block, tiled.inputs
        self.constants = tiled.constants
        self.rotations = rotations_of(tiled)
        self.rotated = {rotation.result for found in self.rotations.values() for rotation in found}
        numbers = {
            slot: frozenset(n for rotation in found for n in rotation.indices)
            for slot, found in self.rotations.items()
        }
        self.lives = SlotLiveRanges(tiled.block, tiled.inputs, numbers)
        self.items = self.lives.items
        self.buffers: list[PlannedBuffer] = []
        self.held: dict[int, PlannedBuffer] = {}  # by representative slot
        self.places: dict[Slot, int] = {}
        self.over: dict[Slot, tuple[int, bool]] = {}
        self.donors: dict[Slot, Slot] = {}
        self._pairs: dict[int, Pairs] = {}  # by the id of a kernel, which its launch keeps alive

    def stack(self, slot: Slot) -> Stack:
        """The type of a slot."""
        found = self.tiled.stacks[slot]
        assert found is not None, "only values have stacks"
        return found

    def place(self) -> int:
        """Place results in the arena; returns its size."""
        # In program order, so that an operand's buffer is known when its last reader may take it
        # over.
        for item, start, stop in sorted(self.items, key=lambda entry: entry[1]):
            match item:
                case Launch():
                    self._plan_launch(item, start, stop)
                case Loop() if found := self.rotations.get(item.carried[0] if item.carried else -1):
                    self._plan_rotations(item, found, start, stop)
                case Host() if wanted := self._plannable(item):
                    root = self.lives.root(item.outs[0])
                    taken = self._taken_over(item, item.traits.in_place, wanted, stop)
                    self._hold(root, taken or self._new(item.outs[0], start), item.outs[0])
        # All at once: a good packing depends on every live range, not on the order of the program.
        offsets, size = place([Span(b.size, b.begin, b.end) for b in self.buffers])
        for buffer, offset in zip(self.buffers, offsets, strict=True):
            self.places.update(dict.fromkeys(buffer.holds, offset))
            if buffer.rotation is not None:
                buffer.rotation.places += (offset,)
        return size

    def rotating_buffers(self, found: list[PlannedRotation]) -> tuple[RotatingBuffer, ...]:
        """The rotating buffers of a loop, as data."""
        return tuple(
            [RotatingBuffer(t.indices, t.slots, t.result, t.buffers, t.places) for t in found]
        )

    def _new(self, slot: Slot, start: int) -> PlannedBuffer:
        made = PlannedBuffer(self.stack(slot).nbytes, start, start)
        self.buffers.append(made)
        return made

    def _hold(self, root: int, buffer: PlannedBuffer, slot: Slot) -> None:
        buffer.end = max(buffer.end, self.lives.by_root[root].end)
        buffer.holds.append(slot)
        self.held[root] = buffer

    def _plannable(self, item: Host) -> int:
        """The bytes of a result that can use planned memory; 0 if it cannot."""
        if not item.traits.writes or len(item.outs) != 1:
            return 0
        bytes_ = self.stack(item.outs[0]).nbytes
        # The arena is used again by the next run: what the caller keeps must have memory of its
        # own.
        if bytes_ < SMALL or self.lives.of(item.outs[0]).escapes:
            return 0
        return bytes_

    def _taken_over(
        self, item: Item, candidates: Collection[int], wanted: int, stop: int
    ) -> PlannedBuffer | None:
        """The buffer of an operand that dies here, if the result may overwrite it."""
        for index in candidates:
            if index >= len(item.ins):
                continue
            root = self.lives.root(item.ins[index])
            if root not in self.held or self.lives.by_root[root].end != stop:
                continue
            # The old value must not be read by another operand of the same item, at another
            # element. A larger buffer will do: its end is extended, and its size stays.
            if self.held[root].size >= wanted and self.alone(item, index, candidates):
                return self.held.pop(root)
        return None

    def alone(self, item: Item, index: int, candidates: Collection[int]) -> bool:
        """Whether no other operand shares the overwritten buffer, unless allowed, too."""
        root = self.lives.root(item.ins[index])
        others = [n for n, slot in enumerate(item.ins) if self.lives.root(slot) == root]
        return all(n in candidates for n in others)

    # Kernels

    def pairs(self, launch: Launch) -> Pairs:
        """Operand and result numbers of a launch that may share one buffer."""
        kernel = launch.kernel
        numbers = self._pairs.get(id(kernel))
        if numbers is None:
            number: dict[int, int] = {}
            for output in (False, True):
                order = [n for n, operand in enumerate(kernel.operands) if operand.output is output]
                number |= {operand: n for n, operand in enumerate(order)}
            pairs = [(number[source], number[result]) for source, result in overwritten(kernel)]
            numbers = self._pairs[id(kernel)] = tuple(pairs)
        return numbers

    def _plan_launch(self, launch: Launch, start: int, stop: int) -> None:
        pairs = self.pairs(launch)
        for number, slot in enumerate(launch.outs):
            root = self.lives.root(slot)
            if self.lives.by_root[root].escapes or slot in self.rotated:
                continue
            over = [given for given, made in pairs if made == number]
            found = self._taken_over(launch, over, self.stack(slot).nbytes, stop)
            self._hold(root, found or self._new(slot, start), slot)

    def _plan_rotations(
        self, loop: Loop, found: list[PlannedRotation], start: int, stop: int
    ) -> None:
        """Rotating buffers of a loop: one fewer if the oldest value may be overwritten."""
        for rotation in found:
            # One buffer for each live level, and one to write to, unless the kernel may write over
            # the oldest.
            rotation.buffers = len(rotation.slots) + (0 if self._over_itself(rotation) else 1)
            lives = [self.lives.of(loop.outs[index]) for index in rotation.indices]
            if any(life.escapes for life in lives):
                continue
            end = max(stop, *[life.end for life in lives])
            size = self.stack(rotation.result).nbytes
            self.buffers += [
                PlannedBuffer(size, start, end, rotation=rotation) for _ in range(rotation.buffers)
            ]

    def _over_itself(self, rotation: PlannedRotation) -> bool:
        """Whether the oldest carried value is dead when the new one is written."""
        start, stop = self.lives.covers(rotation.maker)
        lives, oldest = self.lives, rotation.slots[-1]
        root = lives.root(oldest)
        last = max([lives.end.get(s, -1) for s in lives.sharing(oldest)])
        if last < start:
            return True
        over = {given for given, made in self.pairs(rotation.maker) if made == rotation.number}
        reads = [n for n, slot in enumerate(rotation.maker.ins) if lives.root(slot) == root]
        # Read by the kernel that writes the new value: only element by element, at every operand.
        return last == stop and bool(reads) and over.issuperset(reads)
