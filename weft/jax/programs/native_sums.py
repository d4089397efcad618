"""Programs that sum over processes by native code, between their kernels (see `native.calls`)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

from weft.array.host import aligned_bytes
from weft.capture.stablehlo.parser import parse
from weft.emit.llvm.flow.interrupts import interruptions
from weft.emit.llvm.jit.engine import LoadedKernel, NativeLibrary
from weft.emit.llvm.jit.processor import host
from weft.emit.numpy.across import combiner_of
from weft.emit.numpy.peers import peers_of
from weft.emit.numpy.stack_reduction import changes_type
from weft.executable.items import Collective, Launch, Stack
from weft.executable.process import Peer, ProcessCollective
from weft.ir.types import DTYPES, Array, TensorType
from weft.jax.programs.placement import LateMessages
from weft.kernels.kernel import Operand
from weft.ops.distributed.collective import AllReduce
from weft.pipeline import compile_module
from weft.records import dataclass
from weft.run.code import Code
from weft.run.direct import Direct, direct_of, one_call_of
from weft.run.launch import Calls
from weft.trace import Trace
from weft.workers.native_sums import EXCHANGE, FINISH, NativeRun, exchange_text

if TYPE_CHECKING:
    from weft.executable.items import Slot, Slots
    from weft.jax.programs.executables import LoadedExecutable
    from weft.run.code import SlotValues
    from weft.run.local import LocalProgram
    from weft.target import Commands, Runtime

_DTYPES = {"f32", "f64", "i32", "i64"}  # whose sums numpy and kernels compute alike
_OPS = {"stablehlo.add", "stablehlo.maximum", "stablehlo.minimum"}
_ALIGNMENT = 64
_WORDS = DTYPES["i64"]  # of plans


@dataclass(frozen=True, eq=False)
class NativeKernel:
    """A native function as a kernel."""

    operands: tuple[Operand, ...]
    name: str


@dataclass(frozen=True, eq=False)
class WithExchanges:
    """A runtime whose kernels may be exchanges."""

    runtime: Runtime

    @property
    def memory(self) -> Any:
        """The memory of kernels' operands."""
        return self.runtime.memory

    @property
    def stream(self) -> Any:
        """The stream of commands."""
        return self.runtime.stream

    def load(self, kernels: Sequence[Any]) -> Sequence[Any]:
        """Load kernels."""
        others = iter(self.runtime.load([k for k in kernels if not isinstance(k, NativeKernel)]))
        return [
            _native_kernels()[kernel.name] if isinstance(kernel, NativeKernel) else next(others)
            for kernel in kernels
        ]

    def commands(self) -> Commands:
        """An empty launch queue."""
        return self.runtime.commands()


@cache
def _native_kernels() -> dict[str, LoadedKernel]:
    library = NativeLibrary(exchange_text(host().triple), [EXCHANGE, FINISH])
    # They end a short run that takes too long, as loops do.
    return {
        name: replace(library.kernel, phases=(phase,), asks=True)
        for name, phase in zip((EXCHANGE, FINISH), library.kernel.phases, strict=True)
    }


@dataclass(frozen=True, eq=False)
class NativeSums:
    """The direct form of a program with sums over processes, and its frames."""

    program: LocalProgram
    direct: Direct
    calls: Calls
    arena: int
    slots: int

    def frame(self) -> SlotValues:
        """A frame for one run."""
        frame: SlotValues = [None] * self.slots
        frame[0] = aligned_bytes(self.arena, self.calls.memory)
        self.calls.fill(frame)
        return frame


def native_sums(loaded: LoadedExecutable) -> NativeSums | None:
    """The program with its exchanges by native code; None if any is of another form."""
    program = loaded.program
    items, block = program.tiled.block.items, program.tiled.block
    others = [item for item in items if not isinstance(item, Launch)]
    if program.recorded is not None or program.runtime is None or not program.is_on_host:
        return None
    sums = [_ExchangedSum.of(program, item) for item in others if isinstance(item, Collective)]
    found = [one for one in sums if one is not None]
    transport = program.host.process and program.host.process.transport
    if not found or len(found) != len(others) or not isinstance(transport, LateMessages):
        return None
    run = transport.native_run([one.site for one in found], interruptions().short_run_at)
    if run is None:
        return None
    layout = _Layout(program, run)
    launches: list[Launch] = []
    for item in items:
        one = next((one for one in found if one.item is item), None)
        launches += [item] if isinstance(item, Launch) else layout.launches(one)
    launches.append(layout.finish())
    tiled = replace(
        program.tiled,
        block=replace(block, items=tuple(launches)),
        stacks=tuple(layout.stacks),
        constants=program.tiled.constants | layout.constants,
    )
    plan = replace(program.plan, places=layout.places, arena=layout.arena)
    counter = itertools.count(len(tiled.stacks))
    calls = Calls(WithExchanges(program.runtime), tiled, plan, counter)
    code = Code([calls.call_of(launches[0])], block.results, tiled.stacks)
    return _direct(program, calls, code, layout.arena, next(counter))


def _direct(
    program: LocalProgram, calls: Calls, code: Code, arena: int, slots: int
) -> NativeSums | None:
    arguments = type(program.arguments)(
        program.function,
        program.masks,
        program.stack_dims,
        program.inputs,
        calls.places,
        program.held_in,
    )
    rest = (arguments, program.results, program.donated, list[Any]())
    one_call = one_call_of(code, calls, *rest)
    direct = None if one_call is None else direct_of(one_call)
    return None if direct is None else NativeSums(program, direct, calls, arena, slots)


@dataclass(frozen=True, eq=False)
class _ExchangedSum:
    """A sum over processes, each of which has one device."""

    item: Collective
    collective: ProcessCollective
    listed: Sequence[Peer]  # all processes, in the order in which they are summed
    here: int
    op: str
    own: Sequence[Stack]

    @classmethod
    def of(cls, program: LocalProgram, item: Collective) -> _ExchangedSum | None:
        """That of an item; None if it is something else."""
        site, process = item.site, program.host.process
        if type(item) is not Collective or not isinstance(site.op, AllReduce):
            return None
        sub_axes, combiner = site.world.group_sub_axes(site.op), combiner_of(site)
        op = None if combiner is None else combiner.name
        if sub_axes is None or op not in _OPS or changes_type(site) or site.stack_dims.has_rows:
            return None
        if any(site.operand(n).dtype.name not in _DTYPES for n in range(len(site.given))):
            return None
        peers = peers_of(site, process, None)
        own = [stack for slot in item.ins if (stack := program.tiled.stacks[slot]) is not None]
        if peers is None or any(stack.shape is None for stack in own):
            return None
        listed, here = peers.along([d for d in sub_axes if d in site.stack_dims.absent])
        return cls(item, peers.collective, listed, here, op, own)

    @property
    def site(self) -> tuple[ProcessCollective, Sequence[Peer], Sequence[Any]]:
        """The exchange: the peers, and the shapes and types of its arrays."""
        kinds = [
            (stack.shape, stack.type.dtype.numpy)
            for stack in self.own
            if isinstance(stack.type, TensorType)
        ]
        others = [peer for n, peer in enumerate(self.listed) if n != self.here]
        return self.collective, others, kinds


class _Layout:
    """The slots of a program with native exchanges: its own, the plans, and peers' arrays."""

    def __init__(self, program: LocalProgram, run: NativeRun) -> None:
        self.program, self.run = program, run
        self.stacks: list[Stack | None] = [*program.tiled.stacks]
        self.places, self.arena = dict(program.plan.places), program.plan.arena
        self.constants: dict[Slot, Any] = {}
        self.results = {*program.tiled.block.results}
        self.plans = iter(run.plans)

    def launches(self, sum: _ExchangedSum | None) -> list[Launch]:
        """The launches of an exchange, and of the kernels that add what comes."""
        assert sum is not None, "all items are launches or sums"
        item, own, peers = sum.item, sum.own, len(sum.listed) - 1
        room = [self._new_slot(stack) for stack in [*own] * peers]
        for slot, stack in zip(item.outs, own, strict=True):
            # A result of the program has a buffer of its own.
            if slot not in self.results:
                self._place(slot, stack)
        operands = [_operand(stack, n >= len(own)) for n, stack in enumerate([*own] * (peers + 1))]
        made = [self._native(EXCHANGE, next(self.plans), item.ins, tuple(room), operands)]
        for n, (slot, out) in enumerate(zip(item.ins, item.outs, strict=True)):
            parts = [room[peer * len(own) + n] for peer in range(peers)]
            parts.insert(sum.here, slot)
            made.append(self._combined(sum.op, parts, out, own[n]))
        return made

    def finish(self) -> Launch:
        """The launch that ends a run."""
        return self._native(FINISH, self.run.words, (), (), ())

    def _native(
        self, name: str, words: Array, ins: Slots, outs: Slots, operands: Sequence[Operand]
    ) -> Launch:
        plan = len(self.stacks)
        self.stacks.append(None)
        self.constants[plan] = words
        kernel: Any = NativeKernel((Operand(_WORDS, words.shape), *operands), name)
        return Launch(kernel, (plan, *ins), outs, self.program.function.loc)

    def _new_slot(self, stack: Stack) -> Slot:
        slot = len(self.stacks)
        self.stacks.append(stack)
        self._place(slot, stack)
        return slot

    def _place(self, slot: Slot, stack: Stack) -> None:
        if slot not in self.places:
            self.places[slot] = -(-self.arena // _ALIGNMENT) * _ALIGNMENT
            self.arena = self.places[slot] + stack.nbytes

    def _combined(self, op: str, parts: Sequence[Slot], out: Slot, stack: Stack) -> Launch:
        """The kernel that adds the parts of all processes, in their order."""
        assert isinstance(stack.type, TensorType) and self.program.target is not None
        size, dtype = stack.type.size, stack.type.dtype.name
        launch, inputs = _sum_kernel(op, len(parts), size, dtype, self.program.target.name)
        given = dict(zip(inputs, parts, strict=True))
        ins = tuple([given[slot] for slot in launch.ins])
        return Launch(launch.kernel, ins, (out,), self.program.function.loc)


def _operand(stack: Stack, output: bool) -> Operand:
    assert isinstance(stack.type, TensorType) and stack.shape is not None
    return Operand(stack.type.dtype, stack.shape, output)


@cache
def _sum_kernel(
    op: str, count: int, size: int, dtype: str, target: str
) -> tuple[Launch, tuple[Slot, ...]]:
    """The launch of a kernel that combines arrays of a size, from the first to the last."""
    kind = f"tensor<{size}x{dtype}>"
    parameters = ", ".join([f"%p{n}: {kind}" for n in range(count)])
    steps = [
        f"  %s{n} = {op} {'%p0' if n == 1 else f'%s{n - 1}'}, %p{n} : {kind}"
        for n in range(1, count)
    ]
    lines = [f"func.func @main({parameters}) -> {kind} {{", *steps]
    text = "\n".join([*lines, f"  return %s{count - 1} : {kind}", "}"])
    made = compile_module(parse(text), target=target, tune="off", trace=Trace(None, "sum"))
    assert made.executable is not None, "it is compiled to the end"
    tiled = made.executable.tiled
    (launch,) = tiled.block.items
    assert isinstance(launch, Launch), "a chain of adds is one kernel"
    return launch, tiled.inputs
