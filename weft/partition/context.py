"""The context of a function that is being partitioned, as the handlers of ops see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from weft.ir.module import Function, Node, Region, Value
from weft.ir.rule import Rule
from weft.mesh import Mesh, Sharding
from weft.mesh.algebra import Axes, DimAxes
from weft.ops.distributed.sharding import ManualComputation
from weft.partition.builder import Builder
from weft.partition.piece import Piece
from weft.partition.program import Called, GlobalValue, ModuleState, Recipe


class Context(Protocol):
    """One function: its global values and where they are, and the local nodes built so far."""

    program: ModuleState
    mesh: Mesh
    mesh_name: str
    old: Function
    entries: dict[Value, GlobalValue]
    builder: Builder
    manual: frozenset[str]  # the axes of the manual computations around
    loose: set[Value]  # slices that may be left to those that read them
    waiting: set[Value]  # those that are

    def define(
        self, value: Value, placed: Piece, asked: DimAxes | None, again: Node | None = None
    ) -> None:
        """Say where a global value is."""

    def wanted(self, value: Value) -> DimAxes | None:
        """The split that propagation gave a value; None where it gave none."""

    def first(self, value: Value) -> Piece:
        """A value as it was made."""

    def asked(self, value: Value) -> DimAxes:
        """How a value is to be split, or else how it is."""

    def fetch(self, value: Value, split: DimAxes, unreduced: Axes = ()) -> Piece:
        """A value in that split, from the cheapest place it is in; made once."""

    def fetch_as(self, value: Value, sharding: Sharding | None) -> Piece:
        """A value as a sharding says, unreduced axes included."""

    def compute(self, node: Node) -> None:
        """Partition a node by its factors."""

    def node(self, node: Node) -> None:
        """Partition one node."""

    def nodes(self, region: Region) -> None:
        """Partition the nodes of a region, in order."""

    def region(
        self,
        region: Region,
        shardings: Sequence[Sharding | None],
        results: Sequence[DimAxes | None],
        unreduced: Sequence[Axes] = (),
    ) -> Region:
        """A region with arguments and results of these splits, on local types."""

    def regions(self, node: Node) -> tuple[Region, ...]:
        """The regions of a node that run on scalars: as they are, on local values from outside."""

    def inner(self, function: Function) -> Context:
        """A context of its own for another function."""

    def called(self, name: str, given: list[Piece]) -> Called:
        """A function for arguments that are split so; made once for all calls alike."""

    def inline_manual(self, node: Node, op: ManualComputation) -> None:
        """The body of a manual computation, on the pieces that its shardings make."""

    def recipe(self, node: Node) -> Recipe:
        """How a node is computed."""

    def given_rule(self, node: Node) -> Rule | None:
        """The rule that a user gives a custom call or composite; what it reduces is summed."""
