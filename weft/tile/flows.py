"""Loops and branches whose items are all small kernels become launches of one kernel: a flow.

One thread runs a flow from its beginning to its end, so a kernel that several threads would share
keeps the loop around it out of one; inner loops and branches may still be flows then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from weft.executable.items import (
    Block,
    Branch,
    Host,
    Item,
    Launch,
    Loop,
    Move,
    Slot,
    Slots,
    Stack,
    all_items,
    blocks_of,
    is_view,
)
from weft.ir.types import DTYPES, TensorType
from weft.kernels.digest import content_digest
from weft.kernels.flow import ControlFlow, FlowBlock, FlowBranch, FlowLoop, KernelRun, Statement
from weft.kernels.flow_buffers import Buffers
from weft.kernels.group import Group
from weft.kernels.kernel import (
    Affine,
    Factor,
    Fill,
    Kernel,
    Load,
    Operand,
    Store,
)
from weft.kernels.single_node import SingleNode
from weft.kernels.work import flow_steps, work_of
from weft.target import Target

# Operations of a kernel that one thread finishes no later than several would.
ONE_THREAD_WORK = 1 << 21
_BYTE = 6  # operations in the time of a byte
MOST_BYTES = 1 << 20  # of a flow's own buffers: they are in a thread's scratch, not in the plan
COPIED = 1 << 14  # bytes of a view that are copied sooner than Python would show it
StackList = Sequence[Stack | None]
KnownConstants = Mapping[Slot, object]


def with_flows(block: Block, stacks: StackList, constants: KnownConstants, target: Target) -> Block:
    """The same block with flows in place of control flow, as far as the target takes them.

    Where launches are all that is left then, small views are copied by launches, too: the whole
    block is one native call.
    """
    known = KnownScalars(block, constants)
    result = _with_flows(block, stacks, known, target)
    views = [i for i in result.items if isinstance(i, Host) and _is_small_view(i, stacks)]
    launches = [item for item in result.items if isinstance(item, Launch)]
    if not views or not launches or len(views) + len(launches) < len(result.items):
        return result
    items = [_copied(i, stacks, target) if isinstance(i, Host) else i for i in result.items]
    return Block(tuple(items), result.results)


def _with_flows(block: Block, stacks: StackList, known: KnownScalars, target: Target) -> Block:
    items = [_item(item, stacks, known, target) for item in block.items]
    return Block(tuple(items), block.results)


def flow_of(
    item: Loop | Branch, stacks: StackList, known: KnownScalars, target: Target
) -> tuple[ControlFlow, Slots] | None:
    """An item as a flow, and the slots that it reads; None if the target cannot run it as one."""
    try:
        flow, ins = _Flowing(stacks, known, target).flow(item)
    except _Refused:
        return None
    # Its own buffers are scratch of the thread that runs it, outside of the memory plan: nothing
    # else could reuse large ones.
    if Buffers(flow).own_bytes > MOST_BYTES or target.unsupported_kernel(flow) is not None:
        return None
    return flow, ins


def launch_of(flow: ControlFlow, ins: Slots, outs: Slots, item: Loop | Branch) -> Launch:
    """The launch of a flow in place of an item."""
    node = item.node
    group = None if node is None else Group((node,), flow, (), node.results)
    return Launch(flow, ins, outs, item.loc, group)


def _item(item: Item, stacks: StackList, known: KnownScalars, target: Target) -> Item:
    if not isinstance(item, Loop | Branch):
        return item
    if (found := flow_of(item, stacks, known, target)) is not None:
        return launch_of(*found, item.outs, item)
    inner = tuple([_with_flows(block, stacks, known, target) for block in item.blocks])
    if isinstance(item, Branch):
        return replace(item, blocks=inner)
    return replace(item, test=inner[0], body=inner[1])


class KnownScalars:
    """Scalars that are known before the program runs, by slot: loops may count up to them."""

    def __init__(self, block: Block, constants: KnownConstants) -> None:
        self.of: dict[Slot, int] = {}
        for slot, value in constants.items():
            if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "iu":
                self.of[slot] = int(value.reshape(-1)[0])
        for item in all_items(block):
            if isinstance(item, Launch) and isinstance(item.kernel, Kernel):
                match item.kernel.steps:
                    # A constant may be a kernel of its own by now: scalars of one fill are as known
                    # as constants.
                    case (Fill(value=int() as value), Store()) if not item.ins:
                        self.of[item.outs[0]] = int(value)


class _Refused(Exception):
    """An item that cannot be part of a flow."""


class _Flowing:
    """An item as a flow; slots become values."""

    def __init__(self, stacks: StackList, known: KnownScalars, target: Target) -> None:
        self.stacks, self.known, self.target = stacks, known, target
        self.values: dict[Slot, int] = {}
        self.operands: list[Operand] = []
        self.inner: list[Operand] = []

    def flow(self, item: Loop | Branch) -> tuple[ControlFlow, Slots]:
        """The flow, and the slots that it reads."""
        ins = tuple(dict.fromkeys(slots_read(item)))
        for slot in ins:
            self.values[slot] = len(self.operands)
            self.operands.append(self.operand(slot))
        self.operands += [replace(self.operand(slot), output=True) for slot in item.outs]
        statements = [*self.item(item)]
        body = FlowBlock(tuple(statements), tuple([self.values[slot] for slot in item.outs]))
        # The name is a digest of the content: equal flows of a program are compiled once.
        exact = not self.target.options.excess_precision
        word = "while" if isinstance(item, Loop) else item.way
        facts = (self.operands, self.inner, body)
        name = f"{word}_{content_digest(facts)}"
        made = ControlFlow(name, tuple(self.operands), tuple(self.inner), body, not exact)
        limits = {self.values[s]: n for s, n in self.known.of.items() if s in self.values}
        return replace(made, arithmetic=flow_steps(made, limits)), ins

    def operand(self, slot: Slot) -> Operand:
        """The buffer of a slot."""
        return _operand(self.stacks[slot])

    def new(self, operand: Operand) -> int:
        """A value that a statement makes."""
        self.inner.append(operand)
        return len(self.operands) + len(self.inner) - 1

    def output_values(self, slots: Sequence[Slot]) -> tuple[int, ...]:
        """Values for slots that an item makes."""
        for slot in slots:
            self.values[slot] = self.new(self.operand(slot))
        return tuple([self.values[slot] for slot in slots])

    def part(self, block: Block) -> FlowBlock:
        """A block."""
        statements = [made for item in block.items for made in self.item(item)]
        return FlowBlock(tuple(statements), tuple([self.values[slot] for slot in block.results]))

    def item(self, item: Item) -> Iterator[Statement]:
        """The statements of an item."""
        match item:
            case Launch(kernel=kernel) if not isinstance(kernel, ControlFlow) and is_small(kernel):
                self.output_values(item.outs)
                yield KernelRun(kernel, tuple([self.values[slot] for slot in item.operands]))
            # Names only: the value stays in its buffer.
            case Move(how="same"):
                listed = zip(item.ins, item.outs, strict=True)
                self.values.update({out: self.values[slot] for slot, out in listed})
            case Host() if is_view(item, self.stacks):
                self.values[item.outs[0]] = self.values[item.ins[0]]
            case Loop() if not item.stack_dims.has_rows:
                yield from self.loop(item)
            case Branch() if not item.stack_dims.has_rows:
                yield from self.branch(item)
            case _:
                raise _Refused

    def loop(self, loop: Loop) -> Iterator[Statement]:
        operands: list[int] = []
        for slot, where in zip(loop.ins, loop.carried, strict=True):
            yield from self.widened(self.values[slot], self.operand(where), operands)
        carried = self.output_values(loop.carried)
        test, body = self.part(loop.test), self.part(loop.body)
        more: list[Statement] = []
        results: list[int] = []
        for value, slot in zip(body.results, loop.carried, strict=True):
            more += self.widened(value, self.operand(slot), results)
        body = FlowBlock((*body.statements, *more), tuple(results))
        yield FlowLoop(tuple(operands), carried, test, body, self.output_values(loop.outs))

    def branch(self, branch: Branch) -> Iterator[Statement]:
        chooser = self.values[branch.ins[0]]
        parts = []
        for block in branch.blocks:
            part = self.part(block)
            more: list[Statement] = []
            results: list[int] = []
            for value, slot in zip(part.results, branch.outs, strict=True):
                more += self.widened(value, self.operand(slot), results)
            parts.append(FlowBlock((*part.statements, *more), tuple(results)))
        yield FlowBranch(branch.way, chooser, tuple(parts), self.output_values(branch.outs))

    def widened(self, value: int, wanted: Operand, values: list[int]) -> Iterator[Statement]:
        """A value spelled out along more leading dims, where it has to be."""
        operand = (*self.operands, *self.inner)[value]
        wanted = replace(wanted, output=False)
        # A loop's carried value has one buffer for all rounds: if the body makes it vary along more
        # device dims than the initial value does, that one is repeated before the first round.
        if operand.nbytes == wanted.nbytes:  # a view may have another shape, or another type
            values.append(value)
            return
        if len(operand.shape) != len(wanted.shape) or operand.dtype is not wanted.dtype:
            raise _Refused
        made = self.new(wanted)
        values.append(made)
        yield KernelRun(_spread(replace(operand, output=False), wanted, self.target), (value, made))


def slots_read(item: Item) -> Iterator[Slot]:
    """The slots that an item reads and that nothing inside of it makes, once for each read."""
    written: set[Slot] = set()

    def look(item: Item) -> Iterator[Slot]:
        yield from [slot for slot in item.ins if slot not in written]
        if isinstance(item, Loop):
            written.update(item.carried)
        for block in blocks_of(item):
            for inner in block.items:
                yield from look(inner)
                written.update(inner.outs)
            yield from [slot for slot in block.results if slot not in written]

    return look(item)


def is_small(kernel: object) -> bool:
    """Whether one thread finishes a kernel no later than several would."""
    if isinstance(kernel, SingleNode) and kernel.in_place:
        written = [o.nbytes for o in kernel.inputs[len(kernel.outputs) :]]
        return _BYTE * sum(written) <= ONE_THREAD_WORK
    work = work_of(kernel)  # type: ignore[arg-type]
    return work.flops + _BYTE * work.bytes + 16 * work.transcendentals <= ONE_THREAD_WORK


def _is_small_view(item: Host, stacks: StackList) -> bool:
    stack = stacks[item.outs[0]] if item.outs else None
    return is_view(item, stacks) and stack is not None and 0 < stack.nbytes <= COPIED


def _copied(item: Host, stacks: StackList, target: Target) -> Launch:
    """The launch that materializes a view by a copy."""
    # As bytes: elements of a bitcast may have another width, and a float's NaN keeps its bits.
    view = Operand(DTYPES["ui8"], (_operand(stacks[item.outs[0]]).nbytes,))
    steps = (Load(0, Affine((1,)), view.dtype), Store(1, Affine((1,)), 0))
    operands = (view, replace(view, output=True))
    factors = (Factor("i0", view.size),)
    kernel = _scheduled(Kernel(f"view_{view.size}", factors, operands, steps), target)
    group = Group((item.node,), kernel, item.node.operands, item.node.results)
    return Launch(kernel, item.ins, item.outs, item.loc, group)


def _operand(stack: Stack | None) -> Operand:
    """The buffer of a stack."""
    if stack is None or stack.shape is None or not isinstance(stack.type, TensorType):
        raise _Refused
    return Operand(stack.type.dtype, stack.shape)


def _scheduled(kernel: Kernel, target: Target) -> Kernel:
    exact = not target.options.excess_precision
    return replace(kernel, schedule=target.schedule(kernel), excess_precision=not exact)


def _spread(operand: Operand, wanted: Operand, target: Target) -> Kernel:
    """The kernel that repeats a value along dims of size 1."""
    sizes = [(n, size) for n, size in enumerate(wanted.shape) if size != 1]
    factors = tuple([Factor(f"i{n}", size) for n, size in sizes])
    loads = [_stride(operand.shape, n) if operand.shape[n] != 1 else 0 for n, _ in sizes]
    stores = [_stride(wanted.shape, n) for n, _ in sizes]
    load = Load(0, Affine(tuple(loads)), operand.dtype)
    store = Store(1, Affine(tuple(stores)), 0)
    operands = (operand, replace(wanted, output=True))
    digest = content_digest((operand, wanted))
    kernel = Kernel(f"spread_{digest}", factors, operands, (load, store))
    return _scheduled(kernel, target)


def _stride(shape: Sequence[int], dim: int) -> int:
    made = 1
    for size in shape[dim + 1 :]:
        made *= size
    return made
