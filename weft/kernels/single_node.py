"""Kernels of a single node, for ops whose loops the steps of a `Kernel` cannot express."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cached_property
from typing import Any, TypeAlias

from weft.ir.module import Node, Region, Value
from weft.ir.op import Op
from weft.ir.types import TensorType, Type
from weft.ir.uses import free_variables
from weft.ir.write import generic_lines
from weft.kernels.kernel import Operand
from weft.kernels.stacked_node import StackedNode
from weft.ops.scatter import Scatter
from weft.ops.shape import Constant
from weft.ops.slicing import DynamicUpdateSlice
from weft.records import dataclass

Scalar: TypeAlias = bool | int | float | complex

# Ops whose results start as copies of their first operands.
_IN_PLACE: frozenset[type[Op]] = frozenset({DynamicUpdateSlice, Scatter})


@dataclass(frozen=True, eq=False)
class SingleNode:
    """One launch of one node on stacks: its op, its regions, and its buffers.

    The operands are those of the node, then its results; each has `lead` device dims before its
    own, of size 1 where devices share it.
    """

    name: str
    op: Op
    operands: tuple[Operand, ...]
    lead: int
    regions: tuple[Region, ...] = ()
    known: tuple[Scalar | None, ...] = ()  # per input: its value if it is a constant scalar
    excess_precision: bool = True  # as in `Kernel`

    @cached_property
    def node(self) -> Node:
        """The node on values without device dims."""
        operand_types, result_types = (
            tuple([TensorType(o.shape[self.lead :], o.dtype) for o in operands])
            for operands in (self.inputs, self.outputs)
        )
        return Node(self.op, tuple(map(Value, operand_types)), result_types, self.regions)

    @cached_property
    def lines(self) -> tuple[str, ...]:
        """The node in generic form, after the constants that its regions read."""
        around = [value.node for value in free_variables(self.node) if value.node is not None]
        return tuple(generic_lines(self.node, around))

    @cached_property
    def _identity(self) -> tuple[object, ...]:
        """The equality key: regions by their text, constant scalars with their sign."""
        known = repr([k for k in enumerate(self.known) if k[1] is not None])
        facts = (self.name, self.op, self.operands, self.lead, self.excess_precision, known)
        return (*facts, self.lines if self.regions else ())

    def __repr__(self) -> str:
        """The fields, with regions by their text: the same in every process, as digests of it."""
        shown = {field.name: getattr(self, field.name) for field in fields(self)}
        shown["regions"] = self.lines if self.regions else ()
        return f"SingleNode({', '.join([f'{name}={value!r}' for name, value in shown.items()])})"

    def __eq__(self, other: object) -> bool:
        return (
            self._identity == other._identity if isinstance(other, SingleNode) else NotImplemented
        )

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def inputs(self) -> tuple[Operand, ...]:
        """The operands that are read."""
        return tuple([o for o in self.operands if not o.output])

    @property
    def outputs(self) -> tuple[Operand, ...]:
        """The operands that are written."""
        return tuple([o for o in self.operands if o.output])

    @property
    def devices(self) -> tuple[int, ...]:
        """The sizes of the device dims."""
        shapes = [o.shape[: self.lead] for o in self.operands]
        return tuple([max(sizes) for sizes in zip(*shapes, strict=True)])

    @property
    def in_place(self) -> tuple[tuple[int, int], ...]:
        """Input and output numbers that may share one buffer.

        Elements that the op leaves unwritten then need no copy. No other input may be in that
        buffer.
        """
        inputs, outputs = self.inputs, self.outputs
        count = len(outputs) if type(self.op) in _IN_PLACE else 0
        first = len(inputs)
        # Shapes differ where devices share an operand whose update they do not share.
        same = [n for n in range(count) if inputs[n].shape == outputs[n].shape]
        return tuple([(n, first + n) for n in same])


def single_node_kernel(stacked: StackedNode, sizes: Sequence[int]) -> SingleNode | None:
    """The kernel of a node on its stacks, or None if the node does not qualify.

    All results must vary along the same dims, and no operand along more; sizes must be static,
    and regions may capture constants only.
    """
    node = stacked.node
    varying = stacked.made[0] if stacked.made else 0
    is_call = node.op.pure and not node.regions  # a custom call of a known function
    if node.op.collective or (node.op.control and not is_call):
        return None
    if any(mask != varying for mask in stacked.made):
        return None
    if any(mask & ~varying for mask in stacked.given) or not all(
        map(is_constant, free_variables(node))
    ):
        return None
    inputs = [_operand(v.type, m, sizes) for v, m in zip(node.operands, stacked.given, strict=True)]
    outputs = [
        _operand(v.type, m, sizes, output=True)
        for v, m in zip(node.results, stacked.made, strict=True)
    ]
    operands = [o for o in (*inputs, *outputs) if o is not None]
    if len(operands) < len(inputs) + len(outputs):
        return None
    name = node.op.name.rpartition(".")[2]
    # Emitters decide by known scalars: a reduction from 0, say, may be a library call.
    known = tuple([_scalar_of(value) for value in node.operands])
    return SingleNode(name, node.op, tuple(operands), len(sizes), node.regions, known)


def _scalar_of(value: Value) -> Scalar | None:
    """The value of a constant without dims, or None."""
    if value.node is None or not isinstance(value.node.op, Constant):
        return None
    dense = value.node.op.value
    kinds: dict[str, Callable[[Any], Scalar]] = {"bool": bool, "float": float, "complex": complex}
    return None if dense.type.shape else kinds.get(dense.type.dtype.kind, int)(dense.elements[0])


def is_constant(value: Value) -> bool:
    """Whether a value is that of a constant."""
    return value.node is not None and isinstance(value.node.op, Constant)


def _operand(
    type: Type, mask: int, sizes: Sequence[int], *, output: bool = False
) -> Operand | None:
    """The operand for a value's stack, or None if its sizes are dynamic or it is no tensor."""
    if not isinstance(type, TensorType) or not all(isinstance(n, int) for n in type.shape):
        return None
    lead = [size if mask >> n & 1 else 1 for n, size in enumerate(sizes)]  # 1 where it is shared
    return Operand(type.dtype, (*lead, *type.sizes), output)


def strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements, row-major; 0 along dims of size 1, so that devices share one element."""
    return tuple([math.prod(shape[n + 1 :]) if size > 1 else 0 for n, size in enumerate(shape)])
