"""Rotating buffers of loop-carried values, and loops that run without Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.ir.types import TensorType
from weft.native.cpython import address_of
from weft.target import SupportsLoops

if TYPE_CHECKING:
    from weft.executable.plan import RotatingBuffer
    from weft.run.binding import BlockBinder
    from weft.run.code import Code, SlotValues

AT_ONCE = 1 << 12  # iterations between checks for interrupts


class BufferRotation:
    """A loop-carried value that the body writes to alternating buffers.

    Level 0 holds the value of the last iteration, level 1 that of the one before, and so on.
    """

    def __init__(self, rotation: RotatingBuffer, binder: BlockBinder) -> None:
        calls, stack = binder.calls, binder.stacks[rotation.result]
        assert calls is not None, "kernels of a target are launched"
        self.memory, self.is_on_host = calls.memory, calls.memory.is_host
        assert stack is not None and stack.shape is not None
        assert isinstance(stack.type, TensorType), "kernels make tensors"
        self.shape, self.dtype, self.nbytes = stack.shape, stack.type.dtype.numpy, stack.nbytes
        self.slots, self.result, self.count = rotation.slots, rotation.result, rotation.buffers
        self.offsets = rotation.places
        self.held = binder.new()  # buffers and their addresses
        self.read = [calls.places.get(slot, []) for slot in rotation.slots]
        self.written = calls.places[rotation.result]

    @property
    def settles(self) -> bool:
        """Whether a single buffer suffices, so that nothing rotates."""
        return self.count == 1

    def begin(self, s: SlotValues) -> None:
        """Allocate the buffers, and set the output address of the first iteration."""
        if not self.is_on_host:
            for slot in self.slots:
                s[slot] = self.memory.place(s[slot])
        if s[self.held] is None:
            s[self.held] = [(buffer, self.memory.address(buffer)) for buffer in self._buffers(s)]
        s[self.result], address = s[self.held][0]
        for table, place in self.written:
            s[table][place] = address

    def _buffers(self, s: SlotValues) -> list[Any]:
        memory, shape, dtype = self.memory, self.shape, self.dtype
        if self.offsets:
            return [memory.view(s[0], at, shape, dtype) for at in self.offsets]
        return [memory.allocate(shape, dtype, self.nbytes) for _ in range(self.count)]

    def rotate(self, s: SlotValues, count: int) -> None:
        """Rotate: every level takes the value above it, and the output gets the freed buffer."""
        held = s[self.held]
        # From the oldest level down: each value is passed on before it is replaced.
        for level in range(len(self.slots) - 1, 0, -1):
            buffer = s[self.slots[level]] = s[self.slots[level - 1]]
            self._set_address(s, level, self.memory.address(buffer))
        s[self.slots[0]], address = held[count % self.count]
        self._set_address(s, 0, address)
        s[self.result], address = held[(count + 1) % self.count]
        for table, place in self.written:
            s[table][place] = address

    def _set_address(self, s: SlotValues, level: int, address: int) -> None:
        for table, place in self.read[level]:
            s[table][place] = address

    def end(self, s: SlotValues, count: int) -> None:
        """Bind all levels to result slots, also those that no iteration has written."""
        held = [array for array, _ in s[self.held]]
        initial = [s[slot] for slot in self.slots] if count < len(self.slots) else []
        for level, slot in enumerate(self.slots):
            if level < count:
                s[slot] = held[(count - 1 - level) % self.count]
            else:  # still the initial value, whose buffer is not the loop's: copy it
                self.memory.copy(initial[level], held[level])
                s[slot] = held[level]
        if not self.offsets:
            s[self.held] = None


def native_rounds(
    binder: BlockBinder, test: Code, work: Code, rotations: Sequence[BufferRotation]
) -> Callable[[SlotValues], int] | None:
    """The native loop over all iterations, which returns their number; None if not possible.

    That needs a test and a body of one call each, and a fixed address for the test's result.
    """
    calls = binder.calls
    if calls is None or not isinstance(calls.target.commands(), SupportsLoops):
        return None
    verdict = calls.arena.get(test.results[0])
    one, other = calls.alone_in(test), calls.alone_in(work)
    if verdict is None or one is None or other is None:
        return None

    def rounds(s: SlotValues) -> int:
        moves = np.array(_moves(s, rotations), np.int64)
        buffers = [[s[slot] for slot in rotation.slots] for rotation in rotations]
        run: Callable[..., int] = s[one.commands].repeat
        rest = s[other.commands]
        verdict_at, where = calls.memory.address(s[0]) + verdict, address_of(moves)
        # In chunks, so that Python handles interrupts between native calls. `count` starts at
        # AT_ONCE, which makes the loop run once, and is taken off again below.
        count = last = AT_ONCE
        while last == AT_ONCE:
            last = run(rest, verdict_at, where, AT_ONCE)
            count += last
        count -= AT_ONCE
        # Levels that no iteration has written hold initial values, `count` levels further on.
        for rotation, arrays in zip(rotations, buffers, strict=True):
            for level in range(len(arrays) - 1, count - 1, -1):
                s[rotation.slots[level]] = arrays[level - count]
        return count

    return rounds


def _moves(s: SlotValues, rotations: Sequence[BufferRotation]) -> list[int]:
    """The rotations, in the target's format."""
    # The format of `SupportsLoops.repeat` (weft/target.py).
    listed = [len(rotations)]
    for rotation in rotations:
        listed += [len(rotation.slots), rotation.count, 0]
        listed += [rotation.memory.address(s[slot]) for slot in rotation.slots]
        listed += [address for _, address in s[rotation.held]]
        wanted = [*rotation.read, rotation.written]
        listed += [len(places) for places in wanted]
        for table, place in [place for places in wanted for place in places]:
            listed.append(address_of(np.asarray(s[table])) + 8 * place)
    return listed
