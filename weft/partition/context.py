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
from weft.partition.program import GlobalValue, LocalFunction, ModuleState, NodeStrategy


class Context(Protocol):
    """One function: the pieces of its global values, and the local nodes built so far."""

    program: ModuleState
    mesh: Mesh
    mesh_name: str
    old: Function
    entries: dict[Value, GlobalValue]
    builder: Builder
    manual: frozenset[str]  # manual axes of the enclosing computations
    fusible_slices: set[Value]  # slices that may be fused into the concatenations that read them
    deferred_slices: set[Value]  # those that are

    def define(
        self, value: Value, placed: Piece, asked: DimAxes | None, again: Node | None = None
    ) -> None:
        """Set the piece of a global value."""

    def wanted(self, value: Value) -> DimAxes | None:
        """The split that the policy sets for a value, or else the propagated one; None without."""

    def first(self, value: Value) -> Piece:
        """The piece of a value as first computed."""

    def requested_split(self, value: Value) -> DimAxes:
        """The requested split of a value, or else its current one."""

    def fetch(self, value: Value, split: DimAxes, unreduced: Axes = ()) -> Piece:
        """A value in that split, resharded from its cheapest version; cached."""

    def fetch_as(self, value: Value, sharding: Sharding | None) -> Piece:
        """A value in a sharding, unreduced axes included."""

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
        """A region on local types, with arguments and results of these splits."""

    def regions(self, node: Node) -> tuple[Region, ...]:
        """The scalar regions of a node, with free variables replaced by local values."""

    def inner(self, function: Function) -> Context:
        """A new context for another function."""

    def called(self, name: str, given: list[Piece]) -> LocalFunction:
        """The specialization of a function for these argument splits; cached."""

    def inline_manual(self, node: Node, op: ManualComputation) -> None:
        """Inline the body of a manual computation on local shards."""

    def strategy(self, node: Node) -> NodeStrategy:
        """The strategy of a node: its factor axes and local op."""

    def given_rule(self, node: Node) -> Rule | None:
        """The user's rule of a custom call or composite; its reductions are sums."""
