"""Nodes of a stacked program where they stand, and the groups of them that become kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from weft.ir.module import Node, Value

if TYPE_CHECKING:
    from weft.kernels.alone import Alone
    from weft.kernels.attention import Attention
    from weft.kernels.kernel import Kernel

Launch: TypeAlias = "Kernel | Alone | Attention"


@dataclass(frozen=True, slots=True)
class Placed:
    """A node of a lockstep program, and the leading dims (a bit mask) that its values vary along.

    A value is a stack: leading device dims, of size 1 where it does not vary, before its own dims.
    """

    node: Node
    given: tuple[int, ...]  # for each operand
    made: tuple[int, ...]  # for each result
    along: tuple[int, ...] | None = None  # of a collective: the leading dims that meet, major first


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that run together: as one kernel, or (one node, no kernel) as the runtime has it.

    `inputs` are the values that the kernel's input operands hold, in order; `outputs` those of its
    output operands. Nodes may be in several groups: what is cheap is computed again.
    """

    nodes: tuple[Node, ...]
    kernel: Launch | None
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
