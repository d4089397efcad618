"""Meshes whose devices are in an order of their own: JAX numbers devices by their places in it.

A module numbers them by themselves, also where one asks which it is and where lists say who meets.
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
from weft.ops.shape import Constant, Reshape
from weft.ops.slicing import DynamicSlice
from weft.ops.survey import Surveys

_SCALAR = TensorType((), UI32)


def in_order_of(module: Module, mesh: Mesh) -> Module:
    """The module that JAX has written for the places of a mesh, on its devices."""
    if mesh.device_ids is None:
        return module
    meshes = {name: _ordered(each, mesh) for name, each in module.meshes.items()}
    made = rewrite(module, partial(_renumbered, mesh=mesh))
    made = replace_shardings(made, Surveys(), partial(_on_ordered, mesh=mesh))
    return replace(made, meshes=meshes)


def _ordered(mesh: Any, order: Mesh) -> Any:
    """A mesh of as many devices in that order; by name it is what the module has."""
    if not isinstance(mesh, Mesh) or mesh.size != order.size or mesh.device_ids is not None:
        return mesh
    return Mesh(mesh.axes, order.device_ids)


def _on_ordered(sharding: Sharding, mesh: Mesh) -> Sharding:
    return replace(sharding, mesh=_ordered(sharding.mesh, mesh))


def _renumbered(node: Node, mesh: Mesh) -> tuple[Value, ...] | None:
    """places in a mesh -> its devices; a device's number -> its place."""
    ids = mesh.device_ids
    assert ids is not None, "a mesh in the order of its devices needs no numbers"
    if isinstance(node.op, PartitionId):
        return (_place(node, ids),)
    found: dict[str, object] = {}
    groups = getattr(node.op, "replica_groups", None)
    pairs = getattr(node.op, "source_target_pairs", None)
    if isinstance(groups, MeshAxes):
        found["replica_groups"] = replace(groups, mesh=_ordered(groups.mesh, mesh))
    elif groups:
        found["replica_groups"] = tuple([tuple([ids[n] for n in group]) for group in groups])
    if pairs:
        found["source_target_pairs"] = tuple([(ids[a], ids[b]) for a, b in pairs])
    if not found:
        return None
    op = node.op.replace(**found)
    # Its results, so that it is not offered again.
    return Node(op, node.operands, node.types, node.regions, node.attrs, node.loc).results


def _place(node: Node, ids: Sequence[int]) -> Value:
    """The place of the device that runs a node."""
    places = Dense(np.argsort(ids).astype(np.uint32))
    table = apply(Constant(places), loc=node.loc).results[0]
    device = apply(PartitionId(), loc=node.loc).results[0]
    found = apply(DynamicSlice((1,)), table, device, loc=node.loc).results[0]
    return apply(Reshape(_SCALAR), found, loc=node.loc).results[0]
