"""Binding blocks to code: a step for each item, adjacent launches as one native call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from weft.array.host import HOST_MEMORY
from weft.array.memory import on_host
from weft.array.torch_memory import TorchMemory
from weft.executable.items import (
    Block,
    DivergentBranch,
    DivergentLoop,
    Done,
    Host,
    Item,
    Launch,
    Loop,
    Move,
    Slot,
    Start,
    Tiled,
)
from weft.ops.shape import Reshape
from weft.run.code import Code, KernelCall, SlotStep, SlotValues, Unit
from weft.run.dead_slots import dead_slots
from weft.run.divergent import divergent_branch_step, divergent_loop_step
from weft.run.host_step import host_step, move_step, simple_step
from weft.run.uniform import branch_step, loop_step

if TYPE_CHECKING:
    from weft.executable.plan import Plan
    from weft.kernels.host import HostKernel
    from weft.run.binding import HostKernels
    from weft.run.launch import Calls


class Binder:
    """Translates blocks to code."""

    def __init__(
        self, tiled: Tiled, plan: Plan, host: HostKernels, calls: Calls | None, slots: Iterator[int]
    ) -> None:
        self.tiled, self.plan, self.host, self.calls = tiled, plan, host, calls
        self.stacks, self.constants = tiled.stacks, tiled.constants
        self.is_on_host = calls is None or calls.memory.is_host
        self._slots = slots
        self._finish: dict[Slot, Callable[[Any], Any]] = {}  # by the handle of a start

    def new(self) -> Slot:
        """Allocate a runtime-internal slot."""
        return next(self._slots)

    def is_read_by_kernels(self, slot: Slot) -> bool:
        """Whether a kernel reads a slot and needs it dense."""
        return self.calls is not None and slot in self.calls.places

    def settled(self, slots: Iterable[Slot]) -> SlotStep | None:
        """The action that updates kernels' address tables for these slots, or None."""
        return None if self.calls is None else self.calls.settled(slots)

    def code(self, block: Block, owned: Iterable[Slot] = ()) -> Code:
        """The code of a block; `owned` slots are defined before it and die in it."""
        code = Code([], block.results, self.stacks)
        dying = dead_slots(block, owned, self.constants)
        lasting = () if self.calls is None else self.calls.lasting
        waiting: list[Launch] = []
        dead: list[Slot] = []
        for item, slots in zip(block.items, dying, strict=True):
            # Lasting slots are bound to buffers that later outputs or iterations write.
            gone = tuple([slot for slot in slots if slot not in lasting])
            if isinstance(item, Launch):
                waiting.append(item)
                dead += gone
                continue
            self._call(waiting, dead, code)
            waiting, dead = [], []
            self._add(item, _then(self._step(item, gone, code), self.settled(item.outs)), code)
        self._call(waiting, dead, code)
        return code

    def inner(self, block: Block, code: Code, owned: Iterable[Slot] = ()) -> Code:
        """The code of a nested block."""
        nested = self.code(block, owned)
        code.inner.append(nested)
        return nested

    def _call(self, launches: list[Launch], dead: list[Slot], code: Code) -> None:
        if launches:
            assert self.calls is not None, "kernels have a target"
            call = self.calls.call_of(launches[0])
            self._add(call, self.calls.step(call, tuple(dead)), code)

    def _add(self, unit: Unit, step: SlotStep, code: Code) -> None:
        code.units.append(unit)
        code.steps.append(step)

    def _start(self, item: Start, dead: tuple[Slot, ...]) -> SlotStep:
        """The step that starts a collective; its `Done` waits for it."""
        kernel = self.host.kernel(item.site, item.stream)
        memory = self._exchanged_in(kernel)
        if memory is not None:
            kernel = _on_tensors(kernel, memory)
        assert kernel.begin is not None and kernel.finish is not None, (
            "it communicates with other processes"
        )
        self._finish[item.outs[0]] = kernel.finish
        step = simple_step(kernel.begin, item.ins, item.outs, dead)
        return step if memory is not None else self._fetching(item, step)

    def _exchanged_in(self, kernel: HostKernel) -> TorchMemory | None:
        """The memory of a device in which the operands of a collective stay; None for the host."""
        memory = HOST_MEMORY if self.calls is None else self.calls.memory
        process = self.host.process
        # Without other processes a collective is a kernel, or numpy on the stack.
        if process is None or not isinstance(memory, TorchMemory) or kernel.takes_tensors is None:
            return None
        takes = kernel.takes_tensors() and process.transport.reaches(memory.device)
        return memory if takes else None

    def _host(self, item: Host, dead: tuple[Slot, ...]) -> SlotStep:
        """The step of a host node, or of a collective whose operands stay on the device."""
        if not self.is_on_host and item.site.op.collective:
            kernel = self.host.kernel(item.site)
            memory = self._exchanged_in(kernel)
            if memory is not None:
                return simple_step(_on_tensors(kernel, memory).run, item.ins, item.outs, dead)
        return self._fetching(item, host_step(self, item, dead))

    def _step(self, item: Item, dead: tuple[Slot, ...], code: Code) -> SlotStep:
        match item:
            case Start():
                return self._start(item, dead)
            case Done(ins=ins, outs=outs):  # its other operands are only kept alive
                return simple_step(self._finish[ins[0]], ins[:1], outs, dead)
            case Host() if not self.is_on_host and isinstance(item.site.op, Reshape):
                return self._reshaping(item, dead)
            case Host():
                return self._host(item, dead)
            case Move():
                return move_step(item, dead)
            case Loop():
                return loop_step(self, item, dead, code)
            case DivergentLoop():
                return self._fetching(item, divergent_loop_step(self, item, dead, code))
            case DivergentBranch():
                return self._fetching(item, divergent_branch_step(self, item, dead, code))
            case Launch():
                raise AssertionError("launches run in calls")
            case _:
                return branch_step(self, item, dead, code)

    def _reshaping(self, item: Host, dead: tuple[Slot, ...]) -> SlotStep:
        """The step of a reshape in a device's memory: a view of its operand, which is dense."""
        stack = self.stacks[item.outs[0]]
        assert stack is not None and stack.shape is not None
        shape = stack.shape
        return simple_step(lambda value: value.reshape(shape), item.ins, item.outs, dead)

    def _fetching(self, item: Item, step: SlotStep) -> SlotStep:
        """A host step that first copies device-resident operands to the host."""
        if self.is_on_host:
            return step
        ins = tuple(dict.fromkeys(item.ins))

        def fetching(s: SlotValues) -> None:
            held = [s[n] for n in ins]
            read = [on_host(value) for value in held]
            for n, value in zip(ins, read, strict=True):
                s[n] = value
            step(s)
            for n, before, value in zip(ins, held, read, strict=True):
                # Neither dead nor written: kernels go on to read the device's copy.
                if s[n] is value:
                    s[n] = before

        return fetching


def _then(step: SlotStep, after: SlotStep | None) -> SlotStep:
    """Two steps as one."""
    if after is None:
        return step

    def both(s: SlotValues) -> None:
        step(s)
        after(s)

    return both


def all_codes(code: Code) -> Iterator[Code]:
    """A code and its nested codes."""
    yield code
    for inner in code.inner:
        yield from all_codes(inner)


def _on_tensors(kernel: HostKernel, memory: TorchMemory) -> HostKernel:
    # Imported where it is used: most programs start without it.
    from weft.run.on_tensors import on_tensors

    return on_tensors(kernel, memory)


def is_native(code: Code) -> bool:
    """Whether every unit is a kernel."""
    others = [u for c in all_codes(code) for u in c.units if isinstance(u, Host | Done | Move)]
    return not others


def is_enqueued(code: Code) -> bool:
    """Whether a program on a device only enqueues kernels: its other units are views and moves."""
    if code.inner:  # loops and branches read their predicate on the host
        return False
    return all(
        isinstance(unit, KernelCall | Move)
        or (isinstance(unit, Host) and isinstance(unit.site.op, Reshape))
        for unit in code.units
    )


def loaded_kernels(calls: Calls) -> list[tuple[Launch, Any]]:
    """Every launch with its loaded kernel."""
    return [
        (launch, loaded)
        for call in calls.calls
        for launch, loaded in zip(call.launches, call.loaded, strict=True)
    ]
