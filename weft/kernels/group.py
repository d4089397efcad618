"""Groups: nodes of a stacked program that run together, most of them as one kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from weft.ir.module import Node, Value
from weft.kernels.attention import Attention
from weft.kernels.kernel import Kernel
from weft.kernels.single_node import SingleNode

Launch: TypeAlias = Kernel | SingleNode | Attention


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
