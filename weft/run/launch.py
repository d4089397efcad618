"""Launches: grouping into native calls, and the address tables of their operands.

Every call has an address table. Arena values and constants have fixed addresses, written when a
frame is created; others are written when the value appears: an argument is passed, the host has
computed a result, an output is allocated. Kernels assume dense row-major operands, so a value with
other strides is copied at that point.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from weft.array.host import is_dense
from weft.executable.items import Block, Launch, Slot, Stack, Tiled, all_blocks, all_items
from weft.ir.types import TensorType
from weft.run.code import Code, KernelCall, SlotStep, SlotValues

if TYPE_CHECKING:
    from weft.array.memory import Memory
    from weft.executable.plan import Plan
    from weft.target import Runtime

TablePlace: TypeAlias = tuple[int, int]  # the slot of a call's table, and the index in it


class Calls:
    """All native calls of a program."""

    def __init__(self, target: Runtime, tiled: Tiled, plan: Plan, slots: Iterator[int]) -> None:
        self.target, self.tiled, self.plan = target, tiled, plan
        self.memory: Memory = target.memory
        self.constants, self.new = dict[Slot, Any](tiled.constants), slots.__next__
        self.places: dict[Slot, list[TablePlace]] = {}  # by slot: table entries of its address
        self.views: dict[Slot, int] = {}  # by slot: the slot of its arena view
        launches = [i for i in all_items(tiled.block) if isinstance(i, Launch)]
        outputs = {slot for launch in launches for slot in launch.outs}
        self.arena = {slot: place for slot, place in plan.places.items() if slot in outputs}
        self.rotated = {
            rotation.result for rotations in plan.rotations.values() for rotation in rotations
        }
        # Kernels pass arena values by address alone; everything else reads an array.
        for slot in (set(tiled.block.results) | {*_read_by_others(tiled.block)}) & {*self.arena}:
            self.views[slot] = self.new()
        # Slots that are never cleared: later outputs and loop-carried buffers.
        rotating = [t for rotations in plan.rotations.values() for t in rotations]
        self.lasting = {*plan.donors.values(), *[s for t in rotating for s in (*t.slots, t.result)]}
        loaded = target.load([launch.kernel for launch in launches])
        self._loaded = dict(zip(map(id, launches), loaded, strict=True))
        self.calls = [*self._merge_launches(tiled.block)]
        self._by_first = {id(call.launches[0]): call for call in self.calls}
        for call in self.calls:
            self._find_places(call)
        self.fresh = {slot for launch in launches for slot, *_ in self.fresh_of(launch)}

    def call_of(self, first: Launch) -> KernelCall:
        """The call that starts with a launch."""
        return self._by_first[id(first)]

    def _merge_launches(self, block: Block) -> Iterator[KernelCall]:
        """Adjacent launches merged into calls, in nested blocks too."""
        for part in all_blocks(block):
            waiting: list[Launch] = []
            for item in (*part.items, None):  # None ends the last call of the block
                if isinstance(item, Launch):
                    waiting.append(item)
                elif waiting:
                    loaded = [self._loaded[id(launch)] for launch in waiting]
                    yield KernelCall(waiting, loaded, self.new(), self.new())
                    waiting = []

    def alone_in(self, code: Code) -> KernelCall | None:
        """The only call of a code, if it allocates nothing at run time."""
        call = code.units[0] if len(code.units) == 1 else None
        if not isinstance(call, KernelCall):
            return None
        return None if any(any(self.fresh_of(launch)) for launch in call.launches) else call

    def _find_places(self, call: KernelCall) -> None:
        """Table entries of addresses that are only known at run time."""
        commands = self.target.commands()
        for launch, loaded in zip(call.launches, call.loaded, strict=True):
            slots = launch.operands
            # Without addresses: only the positions in the table are of interest here.
            start = commands.kernel(loaded, [0] * len(slots))
            for number, slot in enumerate(slots):
                if slot in self.constants:
                    # Once for all frames: constants are dense and in the target's memory from here
                    # on.
                    self.constants[slot] = self.memory.place(self.constants[slot])
                elif slot not in self.arena:
                    self.places.setdefault(slot, []).append((call.table, start + number))

    # Frames

    def fill(self, slots: SlotValues) -> None:
        """Write the commands of a frame with an allocated arena."""
        arena = slots[0]
        base = self.memory.address(arena)
        for slot, where in self.views.items():
            slots[where] = self._viewed(self.tiled.stacks[slot], self.arena[slot], arena)
        for call in self.calls:
            commands = self.target.commands()
            for launch, loaded in zip(call.launches, call.loaded, strict=True):
                commands.kernel(loaded, [self._address(s, base) for s in launch.operands])
            slots[call.commands] = commands
            # A memoryview: its elements are stored with less overhead than numpy's.
            slots[call.table] = memoryview(commands.pointers)

    def _address(self, slot: Slot, base: int) -> int:
        place = self.arena.get(slot)
        if place is not None:
            return base + place
        known = self.constants.get(slot)
        return 0 if known is None else self.memory.address(known)

    def _viewed(self, stack: Stack | None, place: int, arena: Any) -> Any:
        """A view of the arena as a result."""
        assert stack is not None and stack.shape is not None
        assert isinstance(stack.type, TensorType), "kernels make tensors"
        return self.memory.view(arena, place, stack.shape, stack.type.dtype.numpy)

    # Steps

    def settled(self, slots: Iterable[Slot]) -> SlotStep | None:
        """The action that writes these slots' addresses, or None if no kernel reads them."""
        listed = [
            (slot, stack.shape, self.places[slot])
            for slot in dict.fromkeys(slots)
            if slot in self.places and (stack := self.tiled.stacks[slot]) is not None
        ]
        if not listed:
            return None

        locate, put = self.memory.address, self.memory.place
        is_there = is_dense if self.memory.is_host else _never

        def settle(s: SlotValues) -> None:
            for slot, shape, places in listed:
                array = s[slot]
                if array.__class__ is not np.ndarray or not is_there(array):
                    s[slot] = array = put(array)
                # The last check before native code, which reads by address and has no sizes of its
                # own.
                if array.shape != shape:  # guards against out-of-bounds reads
                    raise AssertionError(f"a kernel reads {array.shape}, expected {shape}")
                address = locate(array)
                for table, place in places:
                    s[table][place] = address

        return settle

    def step(self, call: KernelCall, dead: tuple[Slot, ...]) -> SlotStep:
        """The step of a call."""
        commands = call.commands
        fresh = [entry for launch in call.launches for entry in self.fresh_of(launch)]
        outs = [slot for launch in call.launches for slot in launch.outs]
        views = [(slot, self.views[slot]) for slot in outs if slot in self.views]
        memory = self.memory
        allocate, locate = memory.allocate, memory.address
        if not fresh and not views and not dead:

            def bare(s: SlotValues) -> None:
                s[commands].run()

            return bare

        def step(s: SlotValues) -> None:
            for slot, donor, shape, dtype, nbytes, places in fresh:
                # Decided at run time: a donated argument may have another reader, or come from a
                # read-only array.
                if donor in s[1]:  # arguments that this run may overwrite
                    array = reshaped(s[donor], shape, dtype, memory)
                else:
                    array = allocate(shape, dtype, nbytes)
                s[slot] = array
                address = locate(array)
                for table, place in places:
                    s[table][place] = address
            s[commands].run()
            for slot, view in views:
                s[slot] = s[view]
            for slot in dead:
                # Memory of dead values goes back before the next call allocates.
                s[slot] = None

        return step

    def fresh_of(self, launch: Launch) -> Iterator[tuple[Any, ...]]:
        """A kernel's outputs that are allocated at run time."""
        for slot in launch.outs:
            if slot in self.arena or slot in self.rotated:
                continue
            stack = self.tiled.stacks[slot]
            assert stack is not None and stack.shape is not None
            assert isinstance(stack.type, TensorType), "kernels make tensors"
            donor = self.plan.donors.get(slot, -1)
            rest = (stack.shape, stack.type.dtype.numpy, stack.nbytes, self.places[slot])
            yield slot, donor, *rest


def reshaped(buffer: Any, shape: tuple[int, ...], dtype: np.dtype[Any], memory: Memory) -> Any:
    """A dense buffer viewed as another shape and type."""
    if buffer.shape == shape and buffer.dtype == dtype:
        return buffer
    return memory.view(buffer, 0, shape, dtype)


def _never(_: Any) -> bool:
    return False


def _read_by_others(block: Block) -> Iterator[Slot]:
    """The slots read by items other than launches."""
    for part in all_blocks(block):
        yield from part.results
        for item in part.items:
            if not isinstance(item, Launch):
                yield from item.ins
