"""Nodes of a stacked program where they stand."""

from __future__ import annotations

from dataclasses import dataclass

from weft.ir.module import Node


@dataclass(frozen=True, slots=True)
class StackedNode:
    """A node of a lockstep program, and the leading dims (a bit mask) that its values vary along.

    A value is a stack: leading device dims, of size 1 where it does not vary, before its own dims.
    """

    node: Node
    given: tuple[int, ...]  # for each operand
    made: tuple[int, ...]  # for each result
    along: tuple[int, ...] | None = None  # of a collective: the leading dims that meet, major first
    # Of a permute: for each index along these dims the one that sends to it, -1 for none.
    sources: tuple[int, ...] = ()
    sends: bool = False  # the start of a collective that leaves the process
