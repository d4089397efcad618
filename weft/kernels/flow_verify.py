"""The verifier of flows: values are defined once, before their uses, with the sizes expected."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.ir.types import BOOL
from weft.kernels.flow import ControlFlow, FlowBlock, FlowBranch, FlowLoop, KernelRun, Statement
from weft.kernels.kernel import Operand

Require = Callable[[object, str], None]
MOST_VALUES = 1 << 14


def verify_flow(flow: ControlFlow, require: Require) -> None:
    """Refuse an invalid flow; the kernels inside are verified separately."""
    _Flow(flow, require).run()


class _Flow:
    def __init__(self, flow: ControlFlow, require: Require) -> None:
        self.flow, self.require = flow, require
        self.sizes = [operand.nbytes for operand in flow.values]
        self.made: set[int] = set()  # of all blocks: a value is defined once

    def run(self) -> None:
        flow = self.flow
        self.require(len(flow.values) <= MOST_VALUES, "it has too many values")
        lead = flow.devices
        for operand in flow.operands:
            sizes = operand.shape[: len(lead)]
            # Devices may share an input, with size 1 along some dims, but no output.
            whole = len(sizes) == len(lead) and sizes == lead
            shared = len(sizes) == len(lead) and not operand.output
            shared = shared and all(s in (1, d) for s, d in zip(sizes, lead, strict=True))
            self.require(whole or shared, "an operand has other devices")
        inner = range(len(flow.operands), len(flow.values))
        self.require(
            all(not flow.values[n].output for n in inner), "an inner value is marked as an operand"
        )
        known = {n for n, operand in enumerate(flow.operands) if not operand.output}
        self.part(flow.body, known)
        self.alike(flow.body.results, flow.outputs, "what it gives")

    def part(self, part: FlowBlock, known: set[int]) -> None:
        """A block in which these values are defined; its own are not visible after it."""
        known = {*known}
        for statement in part.statements:
            self.statement(statement, known)
        self.read(part.results, known)

    def statement(self, statement: Statement, known: set[int]) -> None:
        match statement:
            case KernelRun():
                self.kernel(statement, known)
            case FlowLoop():
                self.loop(statement, known)
            case FlowBranch():
                self.branch(statement, known)

    def kernel(self, run: KernelRun, known: set[int]) -> None:
        name, operands = run.kernel.name, run.kernel.operands
        self.require(len(run.values) == len(operands), f"{name} has other operands")
        self.in_range(run.values)
        for value, operand in zip(run.values, operands, strict=True):
            fits = self.sizes[value] == operand.nbytes
            self.require(fits, f"{name} takes a value of {operand.nbytes} bytes")
        self.read(run.read, known)
        self.make(run.made, known)

    def loop(self, loop: FlowLoop, known: set[int]) -> None:
        self.read(loop.given, known)
        # Sizes, not types: buffers are bytes, and each kernel has the types of its own operands.
        self.alike(loop.given, loop.carried, "what a loop is given")
        self.alike(loop.carried, loop.made, "what a loop gives")
        inside = {*known}
        self.make(loop.carried, inside)
        self.part(loop.test, inside)
        self.part(loop.body, inside)
        self.alike(loop.body.results, loop.carried, "what a round gives")
        self.require(len(loop.test.results) == 1, "a test gives one value")
        verdict = self.flow.values[loop.test.results[0]]
        self.require(verdict.dtype is BOOL and verdict.size, "a test gives true or false")
        self.make(loop.made, known)

    def branch(self, choice: FlowBranch, known: set[int]) -> None:
        self.read((choice.chooser,), known)
        chooser = self.flow.values[choice.chooser]
        self.require(chooser.size, "a branch is chosen by a value")
        self.require(_chooses(choice, chooser), "a branch is chosen by a predicate or an index")
        for part in choice.parts:
            self.part(part, known)
            self.alike(part.results, choice.made, "what a part gives")
        self.make(choice.made, known)

    def in_range(self, values: Sequence[int]) -> None:
        count = len(self.sizes)
        self.require(all(0 <= value < count for value in values), "there is no such value")

    def read(self, values: Sequence[int], known: set[int]) -> None:
        self.require(known.issuperset(values), "a value is read before it is made")

    def make(self, values: Sequence[int], known: set[int]) -> None:
        self.in_range(values)
        first = len(self.flow.operands)
        new = all(value >= first and value not in self.made for value in values)
        self.require(new and len({*values}) == len(values), "a value is made twice")
        self.made.update(values)
        known.update(values)

    def alike(self, sources: Sequence[int], targets: Sequence[int], what: str) -> None:
        self.in_range((*sources, *targets))
        same = [self.sizes[n] for n in sources] == [self.sizes[n] for n in targets]
        self.require(same, f"{what} is not of the size that is expected")


def _chooses(choice: FlowBranch, chooser: Operand) -> bool:
    if choice.way == "if":
        return chooser.dtype is BOOL and len(choice.parts) == 2
    return chooser.dtype.is_integer and bool(choice.parts)
