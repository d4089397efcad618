"""Nodes of a lockstep program with the device dims that their values vary along."""

from __future__ import annotations

from weft.ir.module import Node
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class StackedNode:
    """A node of a lockstep program, and the leading dims (a bit mask) that each value varies along.

    Values are stacks: leading device dims, of size 1 where a value is replicated, before its own.
    """

    node: Node
    given: tuple[int, ...]  # per operand
    made: tuple[int, ...]  # per result
    along: tuple[int, ...] | None = None  # of a collective: its group dims, major first
    # Of a permute: the source index for each index along these dims, -1 for none.
    sources: tuple[int, ...] = ()
    sends: bool = False  # an asynchronous collective with devices of other processes
