"""Verification of tiled programs from files: no access outside of buffers.

Kernels are native code that trusts its operands: their inputs must be defined before, with the
expected shapes, and their outputs must lie inside the arena or a buffer allocated for them. Host
nodes are bounds-checked by numpy at run time.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from weft.errors import WeftError
from weft.executable.items import (
    Block,
    Branch,
    DivergentBranch,
    DivergentLoop,
    Done,
    Host,
    Item,
    Launch,
    Loop,
    Slot,
    Slots,
    Stack,
    Start,
    Tiled,
    all_items,
)
from weft.executable.plan import Plan, RotatingBuffer
from weft.executable.stack_dims import StackDims
from weft.ir.types import TensorType
from weft.kernels.group import AnyKernel
from weft.kernels.verify import verify_kernel
from weft.varying.masks import Masks

ALIGNED = 64  # bytes: the alignment that kernels assume
MOST_BYTES = 1 << 46


def verify_tiled(tiled: Tiled, plan: Plan) -> None:
    """Raise if a kernel could access memory outside of its operands."""
    _Verifier(tiled, plan).run()


class _Verifier:
    def __init__(self, tiled: Tiled, plan: Plan) -> None:
        self.tiled, self.plan, self.stacks = tiled, plan, tiled.stacks
        self.kernels: set[AnyKernel] = set()
        self.makers: dict[Slot, Item] = {}

    def run(self) -> None:
        tiled, plan = self.tiled, self.plan
        # Before anything is allocated by it.
        _require(0 <= plan.arena < MOST_BYTES, f"an arena of {plan.arena} bytes")
        known: set[Slot] = set()
        for slots in (tiled.inputs, tiled.constants):
            self.make(slots, known)
        self.signature()
        for slot, value in tiled.constants.items():
            self.constant(slot, value)
        self.block(tiled.block, known, tiled.stack_dims)
        self.memory()

    def signature(self) -> None:
        tiled = self.tiled
        main = tiled.module.function(tiled.function)
        _require(len(tiled.block.results) == len(main.body.results), "the number of results")
        for slot, type in zip(tiled.inputs, main.arg_types, strict=True):
            _require(self.stack(slot).type == type, f"the type of b{slot}")
        for slot, type in zip(tiled.block.results, main.result_types, strict=True):
            _require(self.stack(slot).type == type, f"the type of b{slot}")
        self.alike(tiled.inputs, tiled.masks, tiled.stack_dims)
        numbers = (*tiled.donated, *plan_numbers(self.plan))
        _require(all(0 <= n < len(tiled.inputs) for n in numbers), "an argument's number")
        _require(all(0 <= n < len(main.body.results) for n in self.plan.lent), "a result's number")

    def constant(self, slot: Slot, value: object) -> None:
        stack = self.stack(slot)
        if isinstance(stack.type, TensorType):
            good = isinstance(value, np.ndarray) and stack.shape in (None, value.shape)
            good = good and value.dtype == stack.type.dtype.numpy  # type: ignore[attr-defined]
            _require(good, f"the constant b{slot} is not {stack.type}")

    def stack(self, slot: Slot) -> Stack:
        stack = self.stacks[slot] if 0 <= slot < len(self.stacks) else None
        if stack is None:
            raise _wrong(f"b{slot} holds nothing")
        return stack

    # Items

    def make(self, slots: Iterable[Slot], known: set[Slot]) -> None:
        for slot in slots:
            _require(slot not in known, f"b{slot} is made twice")
            known.add(slot)

    def block(self, block: Block, before: set[Slot], stack_dims: StackDims) -> set[Slot]:
        """The slots defined after a block, given those defined before it."""
        known = set(before)
        for item in block.items:
            self.reads(item.ins, known)
            self.item(item, known, stack_dims)
            self.make(item.outs, known)
            self.makers.update(dict.fromkeys(item.outs, item))
        self.reads(block.results, known)
        return known

    def reads(self, slots: Slots, known: set[Slot]) -> None:
        for slot in slots:
            _require(slot in known, f"b{slot} is used where it is not defined")

    def item(self, item: Item, known: set[Slot], stack_dims: StackDims) -> None:
        match item:
            case Launch():
                self.launch(item)
            case Loop():
                self.loop(item, known)
            case Branch():
                for block, masks in zip(item.blocks, item.made, strict=True):
                    self.block(block, known, item.stack_dims)
                    _require(len(block.results) == len(item.outs), "the results of a block")
                    self.alike(block.results, masks, item.stack_dims)
                self.alike(item.outs, item.masks, item.stack_dims)
            case DivergentLoop() | DivergentBranch():
                self.apart(item, known)
            case Start():
                _require(len(item.outs) == 1, "results of a start")
                _require(self.stack(item.outs[0]).shape is None, "what a start gives")
            case Done():
                self.check_done(item)
            case Host():
                _require(len(item.outs) == len(item.site.node.results), "results of a host node")

    def launch(self, launch: Launch) -> None:
        kernel = launch.kernel
        if kernel not in self.kernels:
            verify_kernel(kernel)
            # Kernels are frozen and compared by value: a layer's kernel is verified once for all
            # layers.
            self.kernels.add(kernel)
        outputs = sum(operand.output for operand in kernel.operands)
        counts = (len(kernel.operands) - outputs, outputs)
        _require(counts == (len(launch.ins), len(launch.outs)), f"operands of {kernel.name}")
        for slot, operand in zip(launch.operands, kernel.operands, strict=True):
            stack = self.stack(slot)
            # A kernel may see a buffer in another shape, as a view would show it.
            dense = isinstance(stack.type, TensorType) and stack.shape is not None
            _require(
                dense and stack.nbytes == operand.nbytes,
                f"b{slot} does not match the operand of {kernel.name}",
            )

    def check_done(self, done: Done) -> None:
        """Raise unless a done waits for a start and keeps its operands alive."""
        start = self.makers.get(done.ins[0]) if done.ins else None
        if not isinstance(start, Start):
            raise _wrong("a done without a start")
        # A transfer reads its operands until the done: they must be live, or the planner would use
        # their memory again.
        _require(done.ins[1:] == start.ins, "the operands of a start")
        types = tuple([value.type for value in start.site.node.results])
        _require(tuple([self.stack(slot).type for slot in done.outs]) == types, "results of a done")

    def loop(self, loop: Loop, known: set[Slot]) -> None:
        count = len(loop.carried)
        for listed in (loop.ins, loop.outs, loop.body.results, loop.given, loop.made, loop.masks):
            _require(len(listed) == count, "what a loop carries")
        _require(len(loop.test.results) == 1, "the verdict of a loop")
        inside = set(known)
        self.make(loop.carried, inside)
        # Each block sees the carried values, and none of the other block: the test of the first
        # iteration runs before any body.
        for block in loop.blocks:
            self.block(block, inside, loop.stack_dims)
        for slots, masks in (
            (loop.ins, loop.given),
            (loop.body.results, loop.made),
            (loop.carried, loop.masks),
            (loop.outs, loop.masks),
        ):
            self.alike(slots, masks, loop.stack_dims)
        for rotation in self.plan.rotations.get(loop.carried[0], ()) if loop.carried else ():
            self.rotation(rotation, loop)

    def rotation(self, rotation: RotatingBuffer, loop: Loop) -> None:
        count = len(loop.carried)
        good = bool(rotation.indices) and all(0 <= n < count for n in rotation.indices)
        _require(
            good and rotation.slots == tuple([loop.carried[n] for n in rotation.indices]),
            "a rotating buffer",
        )
        written = {slot for i in loop.body.items if isinstance(i, Launch) for slot in i.outs}
        _require(rotation.result in written, "a rotating buffer that no kernel writes")
        result = self.stack(rotation.result)
        slots = (*rotation.slots, *[loop.outs[n] for n in rotation.indices])
        _require(all(self.stack(s) == result for s in slots), "slots of a rotating buffer")
        # At most one more than there are values: the one that the kernel writes while it reads
        # others.
        _require(
            len(rotation.slots) <= rotation.buffers <= len(rotation.slots) + 1,
            "the number of rotating buffers",
        )
        _require(len(rotation.places) in (0, rotation.buffers), "offsets of rotating buffers")
        for place in rotation.places:
            self.inside(place, result)

    def apart(self, item: DivergentLoop | DivergentBranch, known: set[Slot]) -> None:
        inside = set(known)
        active = item.divergence.inner.active
        _require(active is not None and self.stacks[active] is None, "the rows that are active")
        for seen in item.seen:
            self.reads((seen.outer,), known)
        self.make([seen.slot for seen in item.seen], inside)
        if isinstance(item, DivergentLoop):
            self.make(item.carried, inside)
        if active is not None:
            inside.add(active)
        for block in item.blocks:
            # The number of rows is only known at run time, and kernels have fixed sizes.
            _require(not any(isinstance(i, Launch) for i in all_items(block)), "kernels in rows")
            self.block(block, inside, item.divergence.inner)

    def alike(self, slots: Slots, masks: Masks, stack_dims: StackDims) -> None:
        """Raise if shapes contradict the masks."""
        _require(len(slots) == len(masks), "the number of masks")
        for slot, mask in zip(slots, masks, strict=True):
            stack = self.stack(slot)
            if stack.shape is None or not isinstance(stack.type, TensorType):
                continue
            good = isinstance(mask, int) and not stack_dims.has_rows
            good = good and stack_dims.shape(mask) + stack.type.sizes == stack.shape  # type: ignore[arg-type]
            _require(good or stack_dims.has_rows, f"what b{slot} varies along")

    # Memory

    def memory(self) -> None:
        plan, tiled = self.plan, self.tiled
        for slot, place in plan.places.items():
            _require(isinstance(self.makers.get(slot), Launch | Host), f"the place of b{slot}")
            self.inside(place, self.stack(slot))
        donated = {tiled.inputs[n] for n in tiled.donated}
        for slot, donor in plan.donors.items():
            _require(donor in donated, f"b{donor} is not donated")
            # A larger result would be written beyond the end of the donor.
            same = self.stack(slot).nbytes == self.stack(donor).nbytes
            _require(same and isinstance(self.makers.get(slot), Launch), f"b{slot} in b{donor}")
        for slot, (index, _) in plan.over.items():
            maker = self.makers.get(slot)
            good = isinstance(maker, Host) and 0 <= index < len(maker.ins)
            _require(good, f"what b{slot} is written over")
        loops = {i.carried[0] for i in all_items(tiled.block) if isinstance(i, Loop) and i.carried}
        _require({*plan.rotations, *plan.own} <= loops, "a loop's memory")

    def inside(self, place: int, stack: Stack) -> None:
        good = place >= 0 and place % ALIGNED == 0 and place + stack.nbytes <= self.plan.arena
        _require(good and stack.shape is not None, f"place {place} is outside of the arena")


def plan_numbers(plan: Plan) -> list[int]:
    """Argument numbers in a plan."""
    return [*plan.lent.values(), *plan.reused]


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise _wrong(what)


def _wrong(what: str) -> WeftError:
    return WeftError(
        f"the program is invalid: {what}",
        help="the file is damaged, or was not made by weft; compile the program again",
    )
