"""Notes on gathers and replication that an op needs, with reasons: none is silent."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal

from weft.ir.module import Node
from weft.ir.rule import Rule, RuleFactor
from weft.ir.types import TensorType
from weft.mesh import Mesh
from weft.mesh.algebra import Axes, DimAxes, overlaps
from weft.partition.reshard import plan
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Note:
    """One dim of a tensor that is less split in an op than after propagation."""

    node: Node  # the node of the global program
    what: Literal["operand", "result"]
    number: int  # of the operand or result
    dim: int
    axes: Axes  # the axes that do not split the tensor in the op
    reason: str
    bytes: float = 0.0  # bytes sent by each device for it

    def __str__(self) -> str:
        axes = ", ".join(str(a) for a in self.axes)
        done = "gathered" if self.what == "operand" else "computed on every device"
        sent = f" ({self.bytes:,.0f} bytes a device)" if self.what == "operand" else ""
        return (
            f"{self.node.op.name}: {self.what} {self.number} is {done} along dim {self.dim} over "
            f"{axes}{sent}: {self.reason} [{self.node.loc}]"
        )


def gather_notes(
    node: Node, rule: Rule, given: Sequence[DimAxes], used: Sequence[DimAxes], mesh: Mesh
) -> Iterator[Note]:
    """A note for each dim of an operand that loses axes."""
    for n, (value, before, after) in enumerate(zip(node.operands, given, used, strict=True)):
        if before == after or not isinstance(value.type, TensorType):
            continue
        for dim, lost in _lost(before, after):
            sent = plan(value.type, before, (), after, (), mesh).bytes
            factors = [rule.factors[f] for f in rule.operands[n][dim]]
            yield Note(node, "operand", n, dim, lost, reason(factors), sent)


def replication_notes(
    node: Node,
    rule: Rule,
    wanted: Sequence[DimAxes | None],
    splits: Sequence[DimAxes],
    free: Collection[int],
) -> Iterator[Note]:
    """A note for each dim of a result that is computed replicated and then sliced."""
    for n, (before, after) in enumerate(zip(wanted, splits, strict=True)):
        for dim, lost in _lost(before or (), after):
            factors = rule.results[n][dim]
            if not any(f in free for f in factors):
                why = reason([rule.factors[f] for f in factors])
                yield Note(node, "result", n, dim, lost, why)


def _lost(before: DimAxes, after: DimAxes) -> Iterator[tuple[int, Axes]]:
    """The axes of each dim that split no dim afterwards."""
    kept = [axis for axes in after for axis in axes]
    for dim, axes in enumerate(before):
        lost = tuple(a for a in axes if not any(overlaps(a, b) for b in kept))
        if lost:
            yield dim, lost


def reason(factors: Sequence[RuleFactor]) -> str:
    """The reason that a dim of these factors is gathered."""
    if any(f.role == "whole" for f in factors):
        return "the op needs all of this dim at once"
    if any(f.role == "permutation" for f in factors):
        return "elements move along this dim"
    if any(f.role == "reduction" and f.combine is None for f in factors):
        return "gathering is cheaper than combining partial results"
    if any(f.needs_offset for f in factors):
        return "pieces of this dim do not line up with pieces of the result"
    return "other operands or results are split by these axes elsewhere, and this is cheapest"
