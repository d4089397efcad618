"""What a kernel is: a function of stacked arrays, made once for a node where it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from weft.ir.module import Node, Value
from weft.ir.op import Op
from weft.ir.types import Array, TensorType
from weft.run.scope import Scope
from weft.varying.masks import Masks, union


@dataclass(frozen=True, slots=True)
class Site:
    """A node where it stands: what is known of the place, of its operands and of its results."""

    node: Node
    scope: Scope
    given: Masks
    made: Masks

    @property
    def op(self) -> Op:
        """The op."""
        return self.node.op

    @property
    def lead(self) -> int:
        """The number of leading dims."""
        return self.scope.layout.lead

    def operand(self, index: int) -> TensorType:
        """The type of an operand, on one device."""
        type = self.node.operands[index].type
        assert isinstance(type, TensorType)
        return type

    def result(self, index: int = 0) -> TensorType:
        """The type of a result, on one device."""
        type = self.node.results[index].type
        assert isinstance(type, TensorType)
        return type

    def mask(self, index: int) -> int:
        """What an operand varies along."""
        return union(self.given[index])

    def out(self, index: int = 0) -> int:
        """What a result varies along."""
        return union(self.made[index])


@dataclass(frozen=True, slots=True)
class Kernel:
    """How a node is computed.

    `run` takes the operands and gives the result, or all results where there are several; `into`,
    if there is one, takes the operands and the array that the result is to be written into.
    """

    run: Callable[..., Any]
    into: Callable[..., object] | None = None
    shares: bool = False  # a result may share the memory of an operand
    in_place: tuple[int, ...] = ()  # operands in whose memory the result may be written
    extra: tuple[Value, ...] = ()  # values that regions read; they follow the operands
    reads_active: bool = False  # the rows that are active follow all operands


Maker: TypeAlias = Callable[[Site], Kernel]


def local(array: Array, lead: int) -> tuple[int, ...]:
    """The shape of one device's piece."""
    return array.shape[lead:]


def several(run: Callable[..., tuple[Any, ...]], count: int) -> Callable[..., Any]:
    """A function of one result as kernels want it: without the tuple."""
    if count != 1:
        return run

    def one(*arrays: Any) -> Any:
        (made,) = run(*arrays)
        return made

    return one
