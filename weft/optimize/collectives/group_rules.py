"""Rules on groups: lists of devices become mesh axes, and groups of one device vanish."""

from __future__ import annotations

import numpy as np

from weft.ir.dense import Dense
from weft.ir.module import Module, Node, apply
from weft.ir.names import REPLICAS
from weft.ir.rebuild import Rewritten
from weft.ir.types import TensorType, Type
from weft.mesh import Axis, DimSharding, Lists, Mesh, MeshAxes, Sharding
from weft.mesh.algebra import merged_axes, total_size
from weft.mesh.axes import named
from weft.mesh.cuts import as_set
from weft.mesh.groups import cross_partition, cross_replica_and_partition
from weft.mesh.matching import matching_axes
from weft.mesh.pieces import index_along
from weft.ops.distributed.collective import (
    AllReduce,
    CollectiveOp,
    CollectivePermute,
    GlobalGroups,
)
from weft.ops.distributed.local import (
    CHANNEL,
    INDEX,
    AllSlice,
    AxisIndex,
    PermuteAlongAxes,
    VariadicReduceScatter,
)
from weft.ops.shape import Constant
from weft.optimize.collectives.facts import Facts
from weft.varying.world import axes_of


def one_replica(module: Module) -> bool:
    """Whether the devices of a module are the partitions of one replica."""
    text = dict(module.attrs).get(REPLICAS, "1")
    return text.split(":")[0].strip() == "1"


def lists_to_axes(node: Node, facts: Facts) -> Rewritten:
    """collective over lists of devices -> the same over axes, when they are those of a mesh."""
    op = node.op
    if not isinstance(op, CollectiveOp) or axes_of(op) is not None:
        return None
    for name, mesh in facts.module.meshes.items():
        lists = _partitions(op, mesh)
        if lists is None:
            continue
        # The order of the devices in a group matters to all collectives but a sum.
        axes = matching_axes(lists, mesh, ordered=not isinstance(op, AllReduce))
        if axes is not None:
            return _regrouped(node, MeshAxes(name, axes))
    return None


def _partitions(op: CollectiveOp, mesh: Mesh) -> Lists | None:
    """The groups of an op as lists of partitions, if they are static and within one replica."""
    if isinstance(op.replica_groups, MeshAxes) or op.channel <= 0:
        return None
    ids = mesh.device_ids or tuple(range(mesh.size))
    lists = op.replica_groups
    if not isinstance(op, GlobalGroups):
        return cross_partition(lists or (tuple(sorted(ids)),), 1, mesh.size)
    if op.use_global_device_ids:
        return lists or (tuple(sorted(ids)),)
    # Groups of replicas, of which a program of one replica has one.
    if lists not in ((), ((0,),)):
        return None
    return cross_replica_and_partition(((0,),), 1, mesh.size)


def _regrouped(node: Node, groups: MeshAxes) -> Node:
    """The same collective over other groups."""
    changes: dict[str, object] = {"replica_groups": groups, "channel_handle": CHANNEL}
    if isinstance(node.op, GlobalGroups):
        changes["use_global_device_ids"] = True
    made = node.op.replace(**changes)
    return apply(made, *node.operands, regions=node.regions, loc=node.loc)


def permute_along_axes(node: Node, facts: Facts) -> Rewritten:
    """collective_permute by device -> one along axes, when all groups along them do the same."""
    op = node.op
    if not isinstance(op, CollectivePermute) or not op.channel_handle:
        return None
    if op.channel_handle.handle <= 0:
        return None
    for name, mesh in facts.module.meshes.items():
        found = _moves(op.source_target_pairs, mesh)
        if found is not None:
            axes, sources = found
            made = PermuteAlongAxes(MeshAxes(name, axes), sources)
            return apply(made, *node.operands, loc=node.loc)
    return None


def _moves(
    pairs: tuple[tuple[int, int], ...], mesh: Mesh
) -> tuple[tuple[Axis, ...], tuple[int, ...]] | None:
    """The axes that pairs of devices move along, and the sources, if all groups agree."""
    ids = mesh.device_ids or tuple(range(mesh.size))
    if not mesh.axes or not {d for pair in pairs for d in pair} <= set(ids):
        return None
    at = {device: mesh.position(device) for device in ids}
    names = [name for name, _ in mesh.axes]
    moved = [n for n in range(len(names)) if any(at[s][n] != at[t][n] for s, t in pairs)]
    axes = tuple(Axis(names[n]) for n in moved)
    count = total_size(axes, mesh)
    sources = [-1] * count
    for source, target in pairs:
        sources[index_along(axes, mesh, at[target])] = index_along(axes, mesh, at[source])
    # Expanded again and compared: groups along the axes may move in different ways.
    made = PermuteAlongAxes(MeshAxes(mesh, axes), tuple(sources))
    if made.pairs({}) != tuple(sorted(pairs)):
        return None
    return axes, tuple(sources)


def tidy_axes(node: Node, facts: Facts) -> Rewritten:
    """collective over axes -> without axes of size 1, neighbouring parts merged; removed over none.

    The axes of an all_reduce are put in mesh order.
    """
    groups = axes_of(node.op)
    if groups is None or isinstance(node.op, AllSlice):
        return None
    mesh = facts.mesh(groups)
    order = as_set if isinstance(node.op, AllReduce) else merged_axes
    axes = order(groups.axes, mesh)
    if not axes:
        return _alone(node)
    if axes == groups.axes:
        return None
    field = "replica_groups" if isinstance(node.op, CollectiveOp) else "axes"
    made = node.op.replace(**{field: MeshAxes(groups.mesh, axes)})
    return apply(made, *node.operands, regions=node.regions, loc=node.loc)


def _alone(node: Node) -> Rewritten:
    """The result of a collective on a group of one device."""
    match node.op:
        case AxisIndex():
            return zeros(INDEX, node)
        case PermuteAlongAxes(sources=sources) if sources != (0,):
            return tuple([zeros(t, node).results[0] for t in node.types])
        case VariadicReduceScatter() | PermuteAlongAxes() | CollectiveOp():
            if node.operand_types == node.types:  # else a reduction in a wider type
                return node.operands
    return None


def zeros(type: Type, node: Node) -> Node:
    """A constant of zeros in the place of a node."""
    assert isinstance(type, TensorType)
    return apply(Constant(Dense(np.zeros((), type.dtype.numpy), type)), loc=node.loc)


def tidy_pieces(node: Node, facts: Facts) -> Rewritten:
    """all_slice -> without axes of size 1; its operand, when no axis is left."""
    op = node.op
    assert isinstance(op, AllSlice)
    mesh = named(op.pieces.mesh, facts.module.meshes)
    dims = tuple(merged_axes(dim.axes, mesh) for dim in op.pieces.dims)
    if not any(dims):
        return node.operands
    if dims == tuple(dim.axes for dim in op.pieces.dims):
        return None
    pieces = Sharding(op.pieces.mesh, tuple(DimSharding(axes) for axes in dims))
    return apply(AllSlice(pieces, op.out), *node.operands, loc=node.loc)
