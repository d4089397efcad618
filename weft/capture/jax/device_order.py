"""Meshes with an explicit device order: JAX numbers devices by their position in the mesh.

A module numbers them by device id, also in `partition_id` and in replica groups.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from weft.ir.dense import Dense
from weft.ir.module import Module, Node, Value, apply
from weft.ir.rebuild import rewrite
from weft.ir.types import UI32, TensorType
from weft.mesh import Mesh, MeshAxes, Sharding
from weft.ops.distributed.annotations import replace_shardings
from weft.ops.distributed.collective import PartitionId
from weft.ops.function_summaries import FunctionSummaries
from weft.ops.shape import Constant, Reshape
from weft.ops.slicing import DynamicSlice

_SCALAR = TensorType((), UI32)


def in_order_of(module: Module, mesh: Mesh) -> Module:
    """The module that JAX lowered for mesh positions, renumbered to device ids."""
    if mesh.device_ids is None:
        return module
    meshes = {name: _ordered(each, mesh) for name, each in module.meshes.items()}
    made = rewrite(module, partial(_renumbered, mesh=mesh))
    made = replace_shardings(made, FunctionSummaries(), partial(_on_ordered, mesh=mesh))
    return replace(made, meshes=meshes)


def _ordered(mesh: Any, order: Mesh) -> Any:
    """The mesh with this device order, if it has as many devices."""
    if not isinstance(mesh, Mesh) or mesh.size != order.size or mesh.device_ids is not None:
        return mesh
    return Mesh(mesh.axes, order.device_ids)


def _on_ordered(sharding: Sharding, mesh: Mesh) -> Sharding:
    return replace(sharding, mesh=_ordered(sharding.mesh, mesh))


def _renumbered(node: Node, mesh: Mesh) -> tuple[Value, ...] | None:
    """replica groups: positions -> device ids; partition_id: device id -> position."""
    ids = mesh.device_ids
    assert ids is not None, "a mesh in device order needs no renumbering"
    if isinstance(node.op, PartitionId):
        return (_place(node, ids),)
    attributes: dict[str, object] = {}
    groups = getattr(node.op, "replica_groups", None)
    pairs = getattr(node.op, "source_target_pairs", None)
    if isinstance(groups, MeshAxes):
        attributes["replica_groups"] = replace(groups, mesh=_ordered(groups.mesh, mesh))
    elif groups:
        attributes["replica_groups"] = tuple([tuple([ids[n] for n in group]) for group in groups])
    if pairs:
        attributes["source_target_pairs"] = tuple([(ids[a], ids[b]) for a, b in pairs])
    if not attributes:
        return None
    op = node.op.replace(**attributes)
    # The results and not the node, so that the rule is not applied to it again.
    return Node(op, node.operands, node.types, node.regions, node.attrs, node.loc).results


def _place(node: Node, ids: Sequence[int]) -> Value:
    """The mesh position of the device that runs a node."""
    # ids[position] is a device: argsort inverts the permutation.
    places = Dense(np.argsort(ids).astype(np.uint32))
    table = apply(Constant(places), loc=node.loc).results[0]
    device = apply(PartitionId(), loc=node.loc).results[0]
    found = apply(DynamicSlice((1,)), table, device, loc=node.loc).results[0]
    return apply(Reshape(_SCALAR), found, loc=node.loc).results[0]
