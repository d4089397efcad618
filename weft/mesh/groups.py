"""The groups of a collective: mesh axes where they are known, lists of device ids otherwise."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np

from weft.ir.dense import Dense, parse_dense
from weft.mesh.axes import Axis, Mesh, named
from weft.records import dataclass

Lists: TypeAlias = tuple[tuple[int, ...], ...]

_MESH_NAME = re.compile(r"mesh = @(?:\"([^\"]+)\"|([\w.$-]+))")
_MESH_AXIS = re.compile(r'<name = "([^"]+)", size = (\d+)>')
_MESH_DEVICES = re.compile(r"device_ids ?= ?(dense<.*?> : tensor<\d+xi64>)")
# StableHLO's own axis reference, or sdy's.
_AXIS = re.compile(
    r'#stablehlo\.axis_ref<name = "([^"]+)"(?:, sub_axis_info = \((\d+)\)(\d+))?>'
    r'|#sdy<axis_ref\s*"([^"]+)"(?::\((\d+)\)(\d+))?>'
)


@dataclass(frozen=True, slots=True)
class MeshAxes:
    """Groups along axes of a mesh, by its name in the module or in full."""

    mesh: str | Mesh
    axes: tuple[Axis, ...]

    def lists(self, meshes: Mapping[str, Mesh]) -> Lists:
        """The groups as lists of device ids."""
        return named(self.mesh, meshes).groups(self.axes)

    def __str__(self) -> str:
        if isinstance(self.mesh, str):
            mesh = f"@{self.mesh}"
        else:
            axes = [f'<name = "{n}", size = {s}>' for n, s in self.mesh.axes]
            ids = self.mesh.device_ids
            order = "" if ids is None else f", device_ids={Dense(np.array(ids, np.int64))}"
            mesh = f"#stablehlo.mesh<axes=[{', '.join(axes)}]{order}>"
        shown = ", ".join(_axis_text(a) for a in self.axes)
        return f"#stablehlo.replica_group_mesh_axes<mesh = {mesh}, axes = [{shown}]>"


def _axis_text(axis: Axis) -> str:
    part = "" if axis.size is None else f", sub_axis_info = ({axis.before}){axis.size}"
    return f'#stablehlo.axis_ref<name = "{axis.name}"{part}>'


Groups: TypeAlias = MeshAxes | Lists


def parse_mesh_axes(text: str) -> MeshAxes:
    """`#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [...]>`."""
    head, _, tail = text.rpartition("axes = [")
    axes = tuple(
        Axis(m[1] or m[4], int(m[2] or m[5] or 1), int(m[3] or m[6]) if m[3] or m[6] else None)
        for m in _AXIS.finditer(tail)
    )
    if name := _MESH_NAME.search(head):
        return MeshAxes(name[1] or name[2], axes)
    ids = _MESH_DEVICES.search(head)
    order = tuple(parse_dense(ids[1]).array.tolist()) if ids else None
    mesh = Mesh(tuple((n, int(s)) for n, s in _MESH_AXIS.findall(head)), order)
    return MeshAxes(mesh, axes)


def cross_replica(groups: Lists, replicas: int, partitions: int) -> Lists:
    """Groups of replicas, one per partition; a device is replica * partitions + partition."""
    return tuple(
        tuple(r * partitions + p for r in group) for group in groups for p in range(partitions)
    )


def cross_partition(groups: Lists, replicas: int, partitions: int) -> Lists:
    """Groups of partitions, one per replica."""
    return tuple(
        tuple(r * partitions + p for p in group) for group in groups for r in range(replicas)
    )


def cross_replica_and_partition(groups: Lists, replicas: int, partitions: int) -> Lists:
    """Groups of replicas with all their partitions, in partition-major order."""
    return tuple(
        tuple(r * partitions + p for p in range(partitions) for r in group) for group in groups
    )
