"""What had to be gathered before an op could run, and why: nothing is replicated silently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from weft.ir.module import Node
from weft.ir.rule import Factor, Rule
from weft.ir.types import TensorType
from weft.mesh import Mesh
from weft.mesh.algebra import overlaps
from weft.partition.placed import Axes, Split
from weft.partition.reshard import plan


@dataclass(frozen=True, slots=True)
class Note:
    """One dim of an operand that is less split in an op than propagation split it."""

    node: Node  # of the global program
    operand: int
    dim: int
    axes: Axes  # that no longer split anything of the operand
    reason: str
    bytes: float  # sent by each device to have the operand so

    def __str__(self) -> str:
        axes = ", ".join(str(a) for a in self.axes)
        return (
            f"{self.node.op.name}: operand {self.operand} is gathered along dim {self.dim} over "
            f"{axes} ({self.bytes:,.0f} bytes a device): {self.reason} [{self.node.loc}]"
        )


def gathered(
    node: Node, rule: Rule, given: Sequence[Split], used: Sequence[Split], mesh: Mesh
) -> Iterator[Note]:
    """A note for each dim of an operand that loses axes."""
    for n, (value, before, after) in enumerate(zip(node.operands, given, used, strict=True)):
        if before == after or not isinstance(value.type, TensorType):
            continue
        kept = [axis for axes in after for axis in axes]
        for dim, axes in enumerate(before):
            lost = tuple(a for a in axes if not any(overlaps(a, b) for b in kept))
            if lost:
                sent = plan(value.type, before, (), after, (), mesh).bytes
                factors = [rule.factors[f] for f in rule.operands[n][dim]]
                yield Note(node, n, dim, lost, reason(factors), sent)


def reason(factors: Sequence[Factor]) -> str:
    """Why a dim of these factors is gathered."""
    if any(f.role == "whole" for f in factors):
        return "the op needs all of this dim at once"
    if any(f.role == "permutation" for f in factors):
        return "elements move along this dim"
    if any(f.role == "reduction" and f.combine is None for f in factors):
        return "gathering is cheaper than combining partial results"
    if any(f.aided for f in factors):
        return "pieces of this dim do not line up with pieces of the result"
    return "other operands or results are split by these axes elsewhere, and this is cheapest"
