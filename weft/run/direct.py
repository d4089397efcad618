"""Direct programs: one native call that reads and writes stacks, with little Python around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from weft.array.host import HOST_MEMORY, SMALL
from weft.array.memory import Memory
from weft.array.stacked import Kind, Stacked, kind_of
from weft.native.cpython import reads_objects
from weft.records import dataclass
from weft.run.code import Code, KernelCall, SlotValues
from weft.run.launch import Calls, TablePlace, reshaped
from weft.target import SupportsStacks

if TYPE_CHECKING:
    from weft.ir.types import Array
    from weft.run.arguments import Arguments

# The source of a result: an output, an argument, or a constant's slot; whether the result is owned.
Picked: TypeAlias = tuple[int | None, int | None, int, bool]


@dataclass(frozen=True, slots=True)
class Output:
    """A buffer that a kernel writes and a run allocates, or takes over from a donated argument."""

    slot: int
    kind: Kind
    nbytes: int
    owned: bool
    places: Sequence[TablePlace]  # in address tables
    donor: int | None  # the argument


@dataclass(eq=False)
class OneCall:
    """The parts of a program that is one call of kernels; none of its arguments is a token."""

    code: Code
    call: KernelCall
    calls: Calls
    arguments: Arguments
    results: Sequence[tuple[int, bool]]
    donated: Sequence[int]
    frames: list[SlotValues]
    kinds: list[Kind] = field(init=False)

    def __post_init__(self) -> None:
        self.kinds = [kind for kind, *_ in self.arguments.listed if kind is not None]

    @cached_property
    def outputs(self) -> list[Output]:
        """In the order of the results; where each is one result, none need be assembled."""
        calls, arguments, owned = self.calls, self.arguments, dict(self.results)
        memory = HOST_MEMORY if calls.memory.is_host else calls.memory
        argument_of = {slot: n for n, slot in enumerate(arguments.slots)}
        order = {slot: n for n, (slot, _) in enumerate(self.results)}
        rows = [row for launch in self.call.launches for row in calls.fresh_of(launch)]
        rows.sort(key=lambda row: order.get(row[0], len(order)))
        fresh: list[Output] = []
        for slot, donor, shape, dtype, nbytes, places in rows:
            kind = kind_of(arguments.sub_axes, shape, dtype, memory)
            fresh.append(
                Output(slot, kind, nbytes, owned.get(slot, False), places, argument_of.get(donor))
            )
        return fresh

    @property
    def made(self) -> list[tuple[Kind, int, bool]]:
        """Kind and bytes of the outputs, and whether they are owned."""
        return [(output.kind, output.nbytes, output.owned) for output in self.outputs]

    @property
    def over(self) -> dict[int, int]:
        """By output: the argument that is its donor."""
        return {n: o.donor for n, o in enumerate(self.outputs) if o.donor is not None}


def one_call_of(
    code: Code,
    calls: Calls,
    arguments: Arguments,
    results: Sequence[tuple[int, bool]],
    donated: Sequence[int],
    frames: list[SlotValues],
) -> OneCall | None:
    """The parts of a program; None unless it is one call of kernels on tensors."""
    if len(code.units) != 1 or not isinstance(code.units[0], KernelCall):
        return None
    if any(kind is None for kind, *_ in arguments.listed):  # tokens
        return None
    return OneCall(code, code.units[0], calls, arguments, results, donated, frames)


class Direct:
    """A program whose kernels run in one native call, which reads the stacks' memory by itself.

    A stack with an unsupported layout is converted, and the call retried.
    """

    def __init__(self, program: OneCall) -> None:
        self.code, self.call, self.arguments = program.code, program.call, program.arguments
        self.memory = memory = program.calls.memory
        self.constants = program.calls.constants
        self.donated, self.frames, self.kinds = program.donated, program.frames, program.kinds
        places = [places for _, _, places in self.arguments.listed]
        self.given = [*zip(self.kinds, map(_numbers, places), strict=True)]
        self.made, self.over = program.made, program.over
        self.written = [(output.kind, _numbers(output.places)) for output in program.outputs]
        self.taken = [
            (*_taking(kind, nbytes, memory), own, kind) for kind, nbytes, own in self.made
        ]
        slots = {slot: n for n, slot in enumerate(self.arguments.slots)}
        numbers = {output.slot: n for n, output in enumerate(program.outputs)}
        self.is_whole = [slot for slot, _ in program.results] == [*numbers]
        self.picked: list[Picked] = [
            (numbers.get(slot), slots.get(slot), slot, own) for slot, own in program.results
        ]

    def ready(self, slots: SlotValues) -> SlotValues:
        """A new frame with its bound commands in place of the address table."""
        commands: SupportsStacks = slots[self.call.commands]
        slots[self.call.table] = commands.on_stacks(self.given, self.written)
        return slots

    def raw_launch(self, new: Callable[[], SlotValues]) -> Any:
        """Handles for native code to launch the kernels without Python, in a frame of its own."""
        slots = new()
        commands: SupportsStacks = slots[self.call.commands]
        return commands.raw_launch(slots)

    def __call__(
        self, stacks: tuple[Stacked | None, ...], new: Callable[[], SlotValues]
    ) -> tuple[Stacked, ...]:
        """Run on all devices; `new` allocates a frame."""
        if len(stacks) != len(self.given):
            raise self.arguments.miscounted(len(stacks))
        if self.over:
            # First: a donor must have its final layout before an output is put into it.
            stacks = self._fitted(stacks)
        ran = self._launched(stacks, new)
        # The native call compares kinds before it runs anything: usually they match, and Python
        # need not look at the arguments at all. Else nothing has run: convert the layouts, and
        # retry.
        if ran is None:
            return self(self._fitted(stacks), new)
        return ran if self.is_whole else self._results(stacks, ran)

    def on_arrays(
        self, arguments: tuple[Stacked | Array | None, ...], new: Callable[[], SlotValues]
    ) -> tuple[Stacked, ...] | None:
        """Run on stacks and dense numpy arrays of one device; None, without a run, if unfit."""
        return self._launched(arguments, new)

    def _launched(
        self, arguments: tuple[Any, ...], new: Callable[[], SlotValues]
    ) -> tuple[Stacked, ...] | None:
        """The outputs of a run; None, without a run, if an argument is unfit."""
        # A call owns its frame: list.pop and append are atomic, so that threads never share one.
        try:
            slots = self.frames.pop()
        except IndexError:
            slots = self.ready(new())
        try:
            stacks_out = self._taken_over(arguments) if self.over else self._allocate_outputs()
            ran: bool = slots[self.call.table](arguments, stacks_out)
        except BaseException as error:
            # The frame is not given back: after an exception its tables may be half written.
            explained = self.code.explained(error, self.code.units[0])
            if explained is error:
                raise
            raise explained from None
        self.frames.append(slots)
        return stacks_out if ran else None

    def _allocate_outputs(self) -> tuple[Stacked, ...]:
        """Allocate all outputs."""
        sub_axes = self.arguments.sub_axes
        return tuple(
            [
                Stacked(take(*needed), sub_axes, owned, kind)
                for take, needed, owned, kind in self.taken
            ]
        )

    def _taken_over(self, stacks: Sequence[Stacked | None]) -> tuple[Stacked, ...]:
        """Allocate all outputs, reusing donated arguments."""
        writable = {*self.arguments.writable(stacks, self.donated)}
        outputs: list[Stacked] = []
        for number, (kind, nbytes, owned) in enumerate(self.made):
            donor = stacks[self.over[number]] if self.over.get(number) in writable else None
            if donor is None:
                data = self.memory.allocate(kind.shape, kind.dtype, nbytes)
            else:
                data = reshaped(donor.data, kind.shape, kind.dtype, self.memory)
            outputs.append(Stacked(data, self.arguments.sub_axes, owned, kind))
        return tuple(outputs)

    def _fitted(self, stacks: tuple[Stacked | None, ...]) -> tuple[Stacked | None, ...]:
        """The arguments in layouts that native code can read."""
        if [stack and stack.kind for stack in stacks] == self.kinds:
            return stacks
        return tuple([self._fit(n, stack) for n, stack in enumerate(stacks)])

    def _fit(self, index: int, stack: Stacked | None) -> Stacked:
        kind, _ = self.given[index]
        if stack is not None and stack.kind is kind:
            return stack
        return self.arguments.fitted(index, stack, kind)

    def _results(
        self, stacks: Sequence[Stacked | None], outputs: Sequence[Stacked]
    ) -> tuple[Stacked, ...]:
        """Assemble the results when they are not exactly the outputs."""
        return tuple([self._result(stacks, outputs, *picked) for picked in self.picked])

    def _result(
        self,
        stacks: Sequence[Stacked | None],
        outputs: Sequence[Stacked],
        number: int | None,
        argument: int | None,
        slot: int,
        owned: bool,
    ) -> Stacked:
        if number is not None:
            return outputs[number]
        stack = stacks[argument] if argument is not None else None
        data = self.constants[slot] if stack is None else stack.data
        return Stacked(data, self.arguments.sub_axes, owned)


def direct_of(program: OneCall) -> Direct | None:
    """The direct form of a program, or None if it does not qualify."""
    calls = program.calls
    if not calls.memory.is_host:  # native code reads ndarray-backed stacks
        return None
    # Not in the arena, which the next run overwrites.
    known = {*calls.fresh, *program.arguments.slots, *calls.constants}
    if not known.issuperset(slot for slot, _ in program.results):
        return None
    if not reads_objects() or not isinstance(calls.target.commands(), SupportsStacks):
        return None
    return Direct(program)


def _taking(
    kind: Kind, nbytes: int, memory: Memory
) -> tuple[Callable[..., Array], tuple[Any, ...]]:
    """The allocator of an output and its argument."""
    needed = (kind.shape, kind.dtype)
    if memory is HOST_MEMORY and nbytes < SMALL:  # as `allocate` would, without its call
        return np.empty, needed
    return memory.allocate, (*needed, nbytes)


def _numbers(places: Sequence[TablePlace]) -> list[int]:
    """Positions in the only address table."""
    return [place for _, place in places]
