"""The text of a flow: one function with its loops and branches, into which kernels are inlined.

A buffer of few bytes is on the stack, where LLVM makes registers of it; a larger one is in the
thread's scratch. Loop-carried values are copied between buffers at the back edge if they are small;
otherwise the buffers are exchanged, and a variable points to each of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.flow.inlined import Inlined
from weft.emit.llvm.flow.interrupt_poll import InterruptPoll, round_work
from weft.emit.llvm.flow.moves import BufferExchange, BufferMove, exchanges, in_sequence
from weft.emit.llvm.writer.code import Writer
from weft.kernels.flow import ControlFlow, FlowBlock, FlowBranch, FlowLoop, KernelRun
from weft.kernels.flow_buffers import Buffer, Buffers
from weft.kernels.kernel import Operand

PARAMS = ["ptr %operands", "ptr %scratch", "i64 %begin", "i64 %end"]
ON_STACK, STACK = 1 << 11, 1 << 15  # bytes of a buffer, and of all of them
ALIGNED = 64


def emit_flow(flow: ControlFlow, emit: Callable[..., Emitted]) -> Emitted:
    """A flow as LLVM text; `emit` gives the text of the kernels inside."""
    return _Flow(flow, emit).emitted()


class _Flow:
    def __init__(self, flow: ControlFlow, emit: Callable[..., Emitted]) -> None:
        one = f"{flow.name}_one" if flow.devices else flow.name
        self.flow, self.code = flow, Writer(one, PARAMS, internal=bool(flow.devices))
        self.inlined = Inlined([(kernel, emit(kernel)) for kernel in flow.kernels])
        self.buffers = Buffers(flow)
        self.turning = self._turning()
        self.ticks = InterruptPoll(self.code) if _has_loop(flow.body) else None
        self.entry: list[str] = []  # allocations
        self.stacked = self.scratch = 0
        self.places: dict[Buffer, str] = {}  # where a buffer is, or the variable that says so

    def emitted(self) -> Emitted:
        code, flow = self.code, self.flow
        if not flow.outputs:
            return Emitted("", ())
        for buffer in self.buffers.all:
            self._place(buffer)
        self.part(flow.body)
        self._give_all()
        declared = dict.fromkeys([*code.declared, *self.inlined.declared])
        lines = [*declared, "", *self.inlined.functions, self._function()]
        if flow.devices:
            lines.append(_each(flow, self.code.name).text())
        most = self.scratch + self.inlined.scratch
        tasks = math.prod(flow.devices)
        return Emitted("\n".join(lines), (Phase(flow.name, tasks),), most, optimized=True)

    def _function(self) -> str:
        head, rest = self.code.text().split("entry:\n", 1)
        inner = f"  %inner = getelementptr i8, ptr %scratch, i64 {self.scratch}"
        return f"{head}entry:\n" + "\n".join([*self.entry, inner, ""]) + rest

    # Buffers

    def _turning(self) -> set[Buffer]:
        """The buffers that change places with others.

        Of those that may be in each other's place at the end, one is an operand at most.
        """
        rotated: list[set[Buffer]] = []
        for loop in _loops(self.flow.body):
            for exchange in self._back(loop)[1]:
                met = [other for other in rotated if other.intersection(exchange)]
                rotated = [other for other in rotated if other not in met]
                rotated.append({*exchange}.union(*met))
        for together in rotated:
            operands = [b for b in self.buffers.all if b in together and b.operand is not None]
            for buffer in operands[1:]:
                buffer.operand = None
        return set().union(*rotated)

    def _back(self, loop: FlowLoop) -> tuple[list[BufferMove], list[BufferExchange]]:
        """The copies and the exchanges at the end of a round."""
        of = self.buffers.of
        pairs = zip(loop.body.results, loop.carried, strict=True)
        moves = [(of[source], of[target]) for source, target in pairs]
        return exchanges(moves, self.buffers.lives.spans[id(loop)])

    def _place(self, buffer: Buffer) -> None:
        code = self.code
        if buffer.operand is not None:
            at = code.let(f"getelementptr ptr, ptr %operands, i64 {buffer.operand}")
            place = code.let(f"load ptr, ptr {at}, align 8", "p")
        else:
            place = self._local(buffer.nbytes)
        if buffer in self.turning:
            variable = f"%{code.fresh('at')}"
            self.entry.append(f"  {variable} = alloca ptr, align 8")
            code.do(f"store ptr {place}, ptr {variable}, align 8")
            place = variable
        self.places[buffer] = place

    def _local(self, nbytes: int) -> str:
        """Memory on the stack, or in the scratch."""
        size = -(-max(nbytes, 1) // ALIGNED) * ALIGNED
        if nbytes <= ON_STACK and self.stacked + size <= STACK:
            self.stacked += size
            name = f"%{self.code.fresh('b')}"
            self.entry.append(f"  {name} = alloca [{max(nbytes, 1)} x i8], align {ALIGNED}")
            return name
        self.scratch += size
        return self.code.let(f"getelementptr i8, ptr %scratch, i64 {self.scratch - size}", "s")

    def at(self, value: int) -> str:
        """The pointer to a value, here and now."""
        return self.at_buffer(self.buffers.of[value])

    def at_buffer(self, buffer: Buffer) -> str:
        place = self.places[buffer]
        if buffer in self.turning:
            return self.code.let(f"load ptr, ptr {place}, align 8", "p")
        return place

    def _give_all(self) -> None:
        """Have all results in their operands.

        Where buffers are exchanged, an operand may hold another result: it is written last.
        """
        of, last = self.buffers.of, list[tuple[int, Buffer]]()
        for output, result in zip(self.flow.outputs, self.flow.body.results, strict=True):
            if of[result].operand != output:
                self._give(output, self.at_buffer(of[result]))
            elif of[result] in self.turning:
                last.append((output, of[result]))
        for output, buffer in last:
            self._give(output, self.at_buffer(buffer))

    def _give(self, output: int, source: str) -> None:
        """Have a result in its operand, where it is not already."""
        code = self.code
        at = code.let(f"getelementptr ptr, ptr %operands, i64 {output}")
        to = code.let(f"load ptr, ptr {at}, align 8", "p")
        # After an odd number of rounds, buffers that change places may have swapped the operand
        # away.
        with code.when(code.let(f"icmp ne ptr {to}, {source}")):
            self.copy(to, source, self.flow.values[output].nbytes)

    # Statements

    def part(self, part: FlowBlock) -> None:
        for statement in part.statements:
            match statement:
                case KernelRun():
                    self.run(statement)
                case FlowLoop():
                    self.repeat(statement)
                case FlowBranch():
                    self.choice(statement)

    def run(self, run: KernelRun) -> None:
        """Call a kernel on a table of pointers."""
        code, called = self.code, self.inlined.of[run.kernel]
        if not called.phases:
            return
        pointers = [self.at(value) for value in run.values]
        if called.shared:
            pointers.append(self._own(called.shared, self.scratch_of_inner(0)))
        # In the entry block, once for each call: LLVM forwards the pointers after inlining, and an
        # alloca in the loop would grow the stack with each round.
        table = f"%{code.fresh('table')}"
        self.entry.append(f"  {table} = alloca [{len(pointers)} x ptr], align 16")
        for n, pointer in enumerate(pointers):
            at = code.let(f"getelementptr ptr, ptr {table}, i64 {n}")
            code.do(f"store ptr {pointer}, ptr {at}, align 8")
        scratch = "null"
        if called.scratch:
            scratch = self._own(called.scratch, self.scratch_of_inner(called.shared))
        for function, tasks in called.phases:
            given = f"ptr {table}, ptr {scratch}, i64 0, i64 {tasks}"
            code.do(f"call void @{function}({given})")

    def _own(self, nbytes: int, otherwise: Callable[[], str]) -> str:
        """Bytes of a kernel's own: on the stack if they are few."""
        if nbytes <= ON_STACK and self.stacked + nbytes <= STACK:
            return self._local(nbytes)
        return otherwise()

    def scratch_of_inner(self, after: int) -> Callable[[], str]:
        """Scratch behind that of the flow's own buffers, whose size is known at the end."""
        aligned = -(-after // ALIGNED) * ALIGNED
        return lambda: self.code.let(f"getelementptr i8, ptr %inner, i64 {aligned}")

    def repeat(self, loop: FlowLoop) -> None:
        code = self.code
        of = self.buffers.of
        self.moves([(of[a], of[b]) for a, b in zip(loop.given, loop.carried, strict=True)])
        head, body, done = code.fresh("head"), code.fresh("body"), code.fresh("done")
        code.do(f"br label %{head}")
        code.start(head)
        self.part(loop.test)
        says = code.let(f"load i8, ptr {self.at(loop.test.results[0])}, align 1")
        more = code.let(f"icmp ne i8 {says}, 0")
        code.do(f"br i1 {more}, label %{body}, label %{done}")
        code.start(body)
        self.part(loop.body)
        moves, turned = self._back(loop)
        self.moves(moves)
        for exchange in turned:
            self.exchange(exchange)
        assert self.ticks is not None, "a flow with a loop looks at the clock"
        self.ticks.count(round_work(loop))
        code.do(f"br label %{head}")
        code.start(done)
        self.moves([(of[a], of[b]) for a, b in zip(loop.carried, loop.made, strict=True)])

    def choice(self, choice: FlowBranch) -> None:
        code, of = self.code, self.buffers.of
        labels = [code.fresh("part") for _ in choice.parts]
        after = code.fresh("after")
        operand = self.flow.values[choice.chooser]
        self._dispatch(choice, operand, labels)
        for label, part in zip(labels, choice.parts, strict=True):
            code.start(label)
            self.part(part)
            self.moves([(of[a], of[b]) for a, b in zip(part.results, choice.made, strict=True)])
            code.do(f"br label %{after}")
        code.start(after)

    def _dispatch(self, choice: FlowBranch, operand: Operand, labels: Sequence[str]) -> None:
        code = self.code
        type = f"i{8 * operand.dtype.numpy.itemsize}"
        selector = code.let(f"load {type}, ptr {self.at(choice.chooser)}, align 1")
        if choice.way == "if":
            yes = code.let(f"icmp ne {type} {selector}, 0")
            code.do(f"br i1 {yes}, label %{labels[0]}, label %{labels[1]}")
            return
        cases = [f"{type} {n}, label %{label}" for n, label in enumerate(labels[:-1])]
        code.do(f"switch {type} {selector}, label %{labels[-1]} [{' '.join(cases)}]")

    # Moves

    def moves(self, moves: Sequence[BufferMove]) -> None:
        """Copy buffers to others, all at once."""
        aside = ""
        for source, target in in_sequence(moves):
            if target is None:
                assert source is not None, "something is copied"
                aside = self._local(source.nbytes)
                self.copy(aside, self.at_buffer(source), source.nbytes)
            else:
                given = aside if source is None else self.at_buffer(source)
                self.copy(self.at_buffer(target), given, target.nbytes)

    def copy(self, to: str, source: str, nbytes: int) -> None:
        """Copy bytes."""
        if nbytes:
            self.code.declare("declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)")
            given = f"ptr align 1 {to}, ptr align 1 {source}, i64 {nbytes}, i1 false"
            self.code.do(f"call void @llvm.memcpy.p0.p0.i64({given})")

    def exchange(self, exchange: BufferExchange) -> None:
        """Rotate buffers: each takes the place of the next one, the last that of the first."""
        held = [self.at_buffer(buffer) for buffer in exchange]
        for buffer, pointer in zip(exchange, [*held[1:], held[0]], strict=True):
            self.code.do(f"store ptr {pointer}, ptr {self.places[buffer]}, align 8")


def _each(flow: ControlFlow, one: str) -> Writer:
    """The function that runs another one for devices, each on its pieces of the operands."""
    code = Writer(flow.name, PARAMS)
    table = code.let(f"alloca [{len(flow.operands)} x ptr], align 16")
    lead = len(flow.devices)
    with code.loop("%begin", "%end") as devices:
        left, coordinates = devices.index, list[str]()
        for size in reversed(flow.devices):
            coordinates.insert(0, code.let(f"urem i64 {left}, {size}"))
            left = code.let(f"udiv i64 {left}, {size}")
        for n, operand in enumerate(flow.operands):
            at = code.let(f"getelementptr ptr, ptr %operands, i64 {n}")
            pointer = code.let(f"load ptr, ptr {at}, align 8", "p")
            for dim in range(lead):
                if operand.shape[dim] > 1:
                    stride = math.prod(operand.shape[dim + 1 :]) * operand.dtype.numpy.itemsize
                    offset = code.let(f"mul i64 {coordinates[dim]}, {stride}")
                    pointer = code.let(f"getelementptr i8, ptr {pointer}, i64 {offset}", "p")
            to = code.let(f"getelementptr ptr, ptr {table}, i64 {n}")
            code.do(f"store ptr {pointer}, ptr {to}, align 8")
        code.do(f"call void @{one}(ptr {table}, ptr %scratch, i64 0, i64 1)")
    return code


def _loops(part: FlowBlock) -> list[FlowLoop]:
    flow_loops: list[FlowLoop] = []
    for statement in part.statements:
        if isinstance(statement, FlowLoop):
            flow_loops.append(statement)
        if not isinstance(statement, KernelRun):
            flow_loops += [loop for inner in statement.parts for loop in _loops(inner)]
    return flow_loops


def _has_loop(part: FlowBlock) -> bool:
    return bool(_loops(part))
