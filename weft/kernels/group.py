"""Groups: nodes of a stacked program that run together, most of them as one kernel."""

from __future__ import annotations

from typing import TypeAlias

from weft.ir.module import Node, Value
from weft.kernels.attention import Attention
from weft.kernels.flow import ControlFlow
from weft.kernels.kernel import Kernel
from weft.kernels.single_node import SingleNode
from weft.records import dataclass

AnyKernel: TypeAlias = Kernel | SingleNode | Attention | ControlFlow


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that run together: as one kernel, or (a single node without a kernel) on the host.

    `inputs` are the values of the kernel's input operands, in order; `outputs` those of its output
    operands. A node may be in several groups: cheap values are recomputed.
    """

    nodes: tuple[Node, ...]
    kernel: AnyKernel | None
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
