"""Kernels of a target: which run in one native call, and where their operands are.

Every call has a table of addresses. Values in the arena and constants have fixed ones, written when
a frame is made; others are written when the value is: an argument is given, numpy has computed
something, memory for a result is taken. Kernels read rows of elements one after another, so what
does not lie so is copied then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from weft.array.room import ROOM, address_of, dense, is_dense
from weft.ir.types import Array, TensorType
from weft.run.code import Code, Item, Slots, Step
from weft.run.plan import bytes_of
from weft.target import Target

BRIEF = 1 << 25  # bytes: going through fewer takes no longer than waking another thread may
Place: TypeAlias = tuple[int, int]  # the slot of a call's table, and where in it


@dataclass
class Launch:
    """Kernels that run in one native call."""

    items: list[Item]
    loaded: list[Any]
    commands: int  # the slot that holds them in a frame
    table: int  # the slot that holds their table
    starts: list[int] = field(default_factory=list)  # where in it the operands of each begin


class Launches:
    """All native calls of a program."""

    def __init__(
        self, target: Target, code: Code, constants: dict[int, Any], new: Callable[[], int]
    ) -> None:
        self.target, self.constants, self.new = target, constants, new
        self.places: dict[int, list[Place]] = {}  # by slot, where its address is to be written
        self.arena: dict[int, int] = {}  # by slot, its place in the arena
        self.views: dict[int, tuple[int, Item, int]] = {}  # by slot, where an array of it is kept
        self.launches: list[Launch] = []
        self.read = set(code.results) | {*_read_by_others(code)}
        items = [*_kernels(code)]
        loaded = target.load([item.group.kernel for item in items if item.group is not None])
        self.loaded = {id(item): made for item, made in zip(items, loaded, strict=True)}
        for item in items:
            self._note_arena(item)
        # What nobody empties: memory that results take later, and what loops carry on.
        self.lasting = {slot for item in items for slot in item.donors.values()} | {*_turning(code)}
        self._join(code)
        for launch in self.launches:
            self._find_places(launch)
        self.fresh = {slot for item in items for slot, *_ in self.fresh_of(item)}
        _mark_dense(code, self.places)

    def _note_arena(self, item: Item) -> None:
        for number, place in item.places.items():
            slot = item.outs[number]
            self.arena[slot] = place
            if slot in self.read:
                self.views[slot] = (self.new(), item, number)

    def _join(self, code: Code) -> None:
        """Put kernels that follow each other into one item."""
        joined: list[Item] = []
        waiting: list[Item] = []
        for item in code.items:
            for inner in item.inner:
                self._join(inner)
            item.dead = tuple([slot for slot in item.dead if slot not in self.lasting])
            if item.group is not None:
                waiting.append(item)
                continue
            if waiting:
                joined.append(self._launch(waiting))
                waiting = []
            joined.append(item)
        if waiting:
            joined.append(self._launch(waiting))
        code.items = joined

    def _launch(self, items: list[Item]) -> Item:
        loaded = [self.loaded[id(item)] for item in items]
        launch = Launch(items, loaded, self.new(), self.new())
        self.launches.append(launch)
        dead = tuple([slot for item in items for slot in item.dead])
        item = Item(items[0].node, lambda item: self._bound(launch, item.dead), dead=dead)
        item.launch = launch
        return item

    def alone_in(self, code: Code) -> Launch | None:
        """The call that is all there is of a code, if it takes no memory when it runs."""
        launch = code.items[0].launch if len(code.items) == 1 else None
        if not isinstance(launch, Launch):
            return None
        return None if any(any(self.fresh_of(item)) for item in launch.items) else launch

    def _find_places(self, launch: Launch) -> None:
        """Where in the table of a call the addresses are that are not known before it runs."""
        commands = self.target.commands()
        for item, loaded in zip(launch.items, launch.loaded, strict=True):
            slots = operands_of(item)
            start = commands.kernel(loaded, [0] * len(slots))
            for number, slot in enumerate(slots):
                if slot in self.constants:
                    self.constants[slot] = dense(self.constants[slot])
                elif slot not in self.arena:
                    self.places.setdefault(slot, []).append((launch.table, start + number))

    # Frames

    def fill(self, slots: Slots) -> None:
        """Write the commands of a frame that has its arena."""
        arena = slots[0]
        base = address_of(arena)
        for where, item, number in self.views.values():
            slots[where] = _array(item, number, arena)
        for launch in self.launches:
            commands = self.target.commands()
            for item, loaded in zip(launch.items, launch.loaded, strict=True):
                commands.kernel(loaded, [self._address(s, base) for s in operands_of(item)])
            slots[launch.commands] = commands
            slots[launch.table] = memoryview(commands.pointers)

    def _address(self, slot: int, base: int) -> int:
        place = self.arena.get(slot)
        if place is not None:
            return base + place
        known = self.constants.get(slot)
        return 0 if known is None else address_of(known)

    # Steps

    def settled(self, slots: Sequence[int]) -> Step | None:
        """What writes the addresses of these slots' values, or None if no kernel reads them."""
        listed = [(slot, self.places[slot]) for slot in dict.fromkeys(slots) if slot in self.places]
        if not listed:
            return None

        def settle(s: Slots) -> None:
            for slot, places in listed:
                array = s[slot]
                if array.__class__ is not np.ndarray or not is_dense(array):
                    s[slot] = array = dense(np.asarray(array))
                address = address_of(array)
                for table, place in places:
                    s[table][place] = address

        return settle

    def _bound(self, launch: Launch, dead: tuple[int, ...]) -> Step:
        """The closure of a call."""
        commands = launch.commands
        fresh = [entry for item in launch.items for entry in self.fresh_of(item)]
        outs = [slot for item in launch.items for slot in item.outs]
        views = [(slot, self.views[slot][0]) for slot in outs if slot in self.views]
        empty = ROOM.empty
        if not fresh and not views and not dead:

            def bare(s: Slots) -> None:
                s[commands].run()

            return bare

        def step(s: Slots) -> None:
            for slot, donor, shape, dtype, nbytes, places in fresh:
                if donor in s[1]:
                    array = reshaped(s[donor], shape, dtype)
                else:
                    array = empty(shape, dtype, nbytes)
                s[slot] = array
                address = address_of(array)
                for table, place in places:
                    s[table][place] = address
            s[commands].run()
            for slot, view in views:
                s[slot] = s[view]
            for slot in dead:
                s[slot] = None

        return step

    def fresh_of(self, item: Item) -> Iterator[tuple[Any, ...]]:
        """The results of a kernel that memory is taken for when it runs."""
        for number, slot in enumerate(item.outs):
            if number in item.places or number in item.turning:
                continue
            shape, type = item.shapes[number], item.values[number].type
            assert shape is not None and isinstance(type, TensorType), "kernels make tensors"
            donor = item.donors.get(number, -1)
            size = bytes_of(item, number)
            yield slot, donor, shape, type.dtype.numpy, size, self.places[slot]


def is_native(code: Code) -> bool:
    """Whether nothing is computed by numpy."""
    return all(
        item.kernel is None and all(is_native(inner) for inner in item.inner) for item in code.items
    )


def is_brief(code: Code, nbytes: int) -> bool:
    """Whether a program only runs kernels, once each, that have little memory to go through."""
    few = nbytes <= BRIEF and len(code.items) <= 1
    return few and is_native(code) and not any(item.inner for item in code.items)


def operands_of(item: Item) -> list[int]:
    """The slots of a kernel's operands, in its own order."""
    assert item.group is not None and item.group.kernel is not None
    ins, outs = iter(item.ins), iter(item.outs)
    return [next(outs if operand.output else ins) for operand in item.group.kernel.operands]


def _array(item: Item, number: int, arena: Array) -> Array:
    """A result as an array in the arena."""
    shape, type = item.shapes[number], item.values[number].type
    assert shape is not None and isinstance(type, TensorType), "kernels make tensors"
    return np.ndarray(shape, type.dtype.numpy, arena, item.places[number])


def reshaped(array: Array, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The memory of an array that is dense, as one of another shape and type."""
    if array.shape == shape and array.dtype == dtype:
        return array
    return array.reshape(-1).view(dtype).reshape(shape)


def _kernels(code: Code) -> Iterator[Item]:
    """The kernels of a target, inner ones after what encloses them."""
    for item in code.items:
        if item.group is not None:
            yield item
        for inner in item.inner:
            yield from _kernels(inner)


def _read_by_others(code: Code) -> Iterator[int]:
    """The slots that are read by what is no kernel of the target."""
    for item in code.items:
        if item.group is None:
            yield from item.ins
        for inner in item.inner:
            yield from inner.results
            yield from _read_by_others(inner)


def _turning(code: Code) -> Iterator[int]:
    """The slots of what kernels make in turns."""
    for item in code.items:
        for turn in item.turns or ():
            yield from (*turn.slots, turn.result)
        for inner in item.inner:
            yield from _turning(inner)


def _mark_dense(code: Code, places: Mapping[int, list[Place]]) -> None:
    for item in code.items:
        item.dense = any(slot in places for slot in item.outs)
        for inner in item.inner:
            _mark_dense(inner, places)
