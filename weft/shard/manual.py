"""Manual computations: inside, manual axes are hidden from propagation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import dropwhile, takewhile

from weft.errors import WeftError
from weft.ir.module import Module, Node
from weft.ir.rebuild import rewrite
from weft.ir.types import TensorType, Types
from weft.mesh import Axis, Mesh, Sharding
from weft.mesh.algebra import in_mesh_order
from weft.ops.distributed.sharding import ManualComputation
from weft.ops.function_summaries import FunctionSummaries
from weft.records import dataclass
from weft.shard.meshes import common_mesh, is_empty


@dataclass(frozen=True, slots=True)
class ManualFrame:
    """The border of a manual computation, for values that enter or leave it."""

    outer: Sharding
    manual: frozenset[str]
    comes_out: bool  # whether the cell holds the outer sharding, not the inner one

    def before(self, held: Sharding) -> Sharding:
        """The cell's sharding as seen from the other side of the border."""
        return erased(held, self.manual) if self.comes_out else self.extended(held)

    def after(self, made: Sharding) -> Sharding:
        """The cell's new sharding, from the other side's."""
        return self.extended(made) if self.comes_out else erased(made, self.manual)

    def extended(self, inner: Sharding) -> Sharding:
        """The outer sharding: inner axes after the manual ones."""
        dims = tuple(
            replace(free, axes=(*takewhile(self.is_manual, fixed.axes), *free.axes))
            for fixed, free in zip(self.outer.dims, inner.dims, strict=True)
        )
        return Sharding(inner.mesh, dims, self.outer.replicated, self.outer.unreduced)

    def is_manual(self, axis: Axis) -> bool:
        """Whether this axis is manual."""
        return axis.name in self.manual


def erased(outer: Sharding, manual: frozenset[str]) -> Sharding:
    """The inner sharding: without the manual axes, which come first."""

    def is_manual(axis: Axis) -> bool:
        return axis.name in manual

    def free(axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(axis for axis in axes if axis.name not in manual)

    dims = tuple(replace(d, axes=tuple(dropwhile(is_manual, d.axes))) for d in outer.dims)
    return Sharding(outer.mesh, dims, free(outer.replicated), free(outer.unreduced))


def manual_names(op: ManualComputation) -> frozenset[str]:
    """The names of the manual axes."""
    return frozenset(axis.name for axis in op.manual_axes)


def name_manual_axes(module: Module, summaries: FunctionSummaries) -> Module:
    """Mark unused manual axes as replicated on every operand and result."""
    notable = [summaries[function.body].notable for function in module.functions.values()]
    if not any(isinstance(node.op, ManualComputation) for nodes in notable for node in nodes):
        return module

    def renew(node: Node) -> Node | None:
        if not isinstance(node.op, ManualComputation):
            return None
        op = _named(node, node.op, module.meshes)
        if op is node.op:
            return None
        return Node(op, node.operands, node.types, node.regions, node.attrs, node.loc)

    return rewrite(module, renew)


def _named(node: Node, op: ManualComputation, meshes: Mapping[str, Mesh]) -> ManualComputation:
    given = op.in_shardings + op.out_shardings
    if not given:
        return op
    name, mesh = _common_mesh(node, given, meshes)

    def each(shardings: tuple[Sharding, ...], types: Types) -> tuple[Sharding, ...]:
        return tuple(
            _replicated(s, op.manual_axes, name, mesh, meshes) if isinstance(t, TensorType) else s
            for s, t in zip(shardings, types, strict=True)
        )

    result = op.replace(
        in_shardings=each(op.in_shardings, node.operand_types),
        out_shardings=each(op.out_shardings, node.types),
        manual_axes=in_mesh_order(op.manual_axes, mesh),
    )
    assert isinstance(result, ManualComputation)
    return result


def _replicated(
    sharding: Sharding,
    manual: tuple[Axis, ...],
    name: str | Mesh,
    mesh: Mesh,
    meshes: Mapping[str, Mesh],
) -> Sharding:
    used = {a.name for d in sharding.dims for a in d.axes}
    used |= {a.name for a in (*sharding.replicated, *sharding.unreduced)}
    unused = [a for a in manual if a.name not in used]
    if not unused:
        return sharding
    return replace(
        sharding,
        mesh=name if is_empty(sharding.resolve(meshes)) else sharding.mesh,
        replicated=in_mesh_order((*sharding.replicated, *unused), mesh),
    )


def _common_mesh(
    node: Node, shardings: tuple[Sharding, ...], meshes: Mapping[str, Mesh]
) -> tuple[str | Mesh, Mesh]:
    name = common_mesh(shardings, meshes)
    if name is None:
        raise WeftError(
            "sdy.manual_computation: its shardings are on different meshes",
            help="use one mesh for all operands and results",
            loc=node.loc,
        )
    return name, next(s for s in shardings if s.mesh == name).resolve(meshes)
