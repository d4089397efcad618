"""Control flow that is one launch: loops and branches, and the kernels inside of them.

Values are buffers, numbered: the operands first, then what statements make. Every value is made by
one statement, and none is written again: where values share memory is for the target to decide.
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
        """The values that it makes."""
        listed = zip(self.values, self.kernel.operands, strict=True)
        return tuple([value for value, operand in listed if operand.output])


@dataclass(frozen=True, slots=True)
class FlowBlock:
    """Statements that run one after another, and the values that they end with."""

    statements: tuple[Statement, ...]
    results: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class FlowLoop:
    """A loop: as long as the first element of the test's result is not 0, the body runs.

    `carried` are the values when a round begins, at first those that are `given`, then the results
    of the body; `made` are the values when the test says no.
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
    """A branch: the first of two parts if a value is not 0, or the part of a number.

    The last part is for numbers that none has.
    """

    way: BranchKind
    chooser: int
    parts: tuple[FlowBlock, ...]
    made: tuple[int, ...]


Statement: TypeAlias = KernelRun | FlowLoop | FlowBranch


@dataclass(frozen=True, eq=False)
class ControlFlow:
    """One launch of control flow; the results of its body are what its output operands get."""

    name: str
    operands: tuple[Operand, ...]
    inner: tuple[Operand, ...]  # the values that statements make
    body: FlowBlock
    excess_precision: bool = True  # of the kernels inside
    # The sizes of leading dims: every device along them goes through the body on its own pieces.
    devices: tuple[int, ...] = ()
    arithmetic: int = 0  # about how many steps it takes, with a guess of how often loops run

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
        """All values: the operands, or a device's pieces of them, and what statements make."""
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
    """Every statement, inner ones after what encloses them."""
    for statement in part.statements:
        yield statement
        if not isinstance(statement, KernelRun):
            for inner in statement.parts:
                yield from statements_in(inner)
