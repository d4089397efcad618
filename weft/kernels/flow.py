"""Control flow that is one launch: loops and branches, and the kernels inside of them.

Values are buffers in SSA form, numbered: the operands first, then the results of statements. Which
of them share memory is the target's decision (`weft.kernels.flow_buffers`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Literal, TypeAlias

from weft.kernels.attention import Attention
from weft.kernels.kernel import Kernel, Operand
from weft.kernels.single_node import SingleNode
from weft.records import dataclass

PlainKernel: TypeAlias = Kernel | SingleNode | Attention
BranchKind: TypeAlias = Literal["if", "case"]


@dataclass(frozen=True, slots=True)
class KernelRun:
    """A kernel on values, one for each of its operands."""

    kernel: PlainKernel
    values: tuple[int, ...]

    @property
    def read(self) -> tuple[int, ...]:
        """The values that the kernel reads."""
        listed = zip(self.values, self.kernel.operands, strict=True)
        return tuple([value for value, operand in listed if not operand.output])

    @property
    def made(self) -> tuple[int, ...]:
        """The values that the kernel writes."""
        listed = zip(self.values, self.kernel.operands, strict=True)
        return tuple([value for value, operand in listed if operand.output])


@dataclass(frozen=True, slots=True)
class FlowBlock:
    """Statements that run one after another, and the values that they yield."""

    statements: tuple[Statement, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FlowLoop:
    """A while loop: the body runs as long as the first element of the test's result is not 0.

    `carried` are the values at the start of an iteration: at first the initial ones (`given`), then
    the results of the body. `made` are the carried values when the test fails: the loop's results.
    """

    given: tuple[int, ...]
    carried: tuple[int, ...]
    test: FlowBlock
    body: FlowBlock
    made: tuple[int, ...]

    @property
    def parts(self) -> tuple[FlowBlock, ...]:
        """The test and the body."""
        return (self.test, self.body)


@dataclass(frozen=True, slots=True)
class FlowBranch:
    """A branch: `if` runs the first of two parts where the chooser is not 0, else the second one.

    `case` runs the part of that index; as in StableHLO, the last one if it is out of range.
    """

    way: BranchKind
    chooser: int
    parts: tuple[FlowBlock, ...]
    made: tuple[int, ...]


Statement: TypeAlias = KernelRun | FlowLoop | FlowBranch


@dataclass(frozen=True, eq=False)
class ControlFlow:
    """One launch of control flow; its output operands get the results of its body."""

    name: str
    operands: tuple[Operand, ...]
    inner: tuple[Operand, ...]  # the results of statements
    body: FlowBlock
    excess_precision: bool = True  # of the kernels inside
    # The sizes of leading dims: every device along them goes through the body on its own pieces.
    devices: tuple[int, ...] = ()
    arithmetic: int = 0  # estimated operations, with assumed trip counts where unknown

    @cached_property
    def _identity(self) -> tuple[object, ...]:
        facts = (self.name, self.operands, self.inner, self.body, self.excess_precision)
        return (*facts, self.devices, self.arithmetic)

    @cached_property
    def _hash(self) -> int:
        return hash(self._identity)

    def __eq__(self, other: object) -> bool:
        return (
            self._identity == other._identity if isinstance(other, ControlFlow) else NotImplemented
        )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def values(self) -> tuple[Operand, ...]:
        """All values: the operands (one device's pieces of them), and the results of statements."""
        lead = (1,) * len(self.devices)
        pieces = [replace(o, shape=lead + o.shape[len(lead) :]) for o in self.operands]
        return (*(pieces if lead else self.operands), *self.inner)

    @property
    def outputs(self) -> tuple[int, ...]:
        """The output operands."""
        return tuple([n for n, operand in enumerate(self.operands) if operand.output])

    @cached_property
    def kernels(self) -> tuple[PlainKernel, ...]:
        """The kernels inside, each once."""
        runs = [s for s in statements_in(self.body) if isinstance(s, KernelRun)]
        return tuple(dict.fromkeys([run.kernel for run in runs]))


def statements_in(part: FlowBlock) -> Iterator[Statement]:
    """Every statement, in pre-order."""
    for statement in part.statements:
        yield statement
        if not isinstance(statement, KernelRun):
            for inner in statement.parts:
                yield from statements_in(inner)
