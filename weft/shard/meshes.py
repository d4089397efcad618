"""Mesh normalization: one name per distinct mesh, no axes of size 1 in shardings."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import count

from weft.ir.module import Module, Node
from weft.ir.rebuild import rewrite
from weft.mesh import DimSharding, Mesh, MeshAxes, Sharding
from weft.mesh.algebra import merged_axes
from weft.ops.distributed.annotations import all_shardings, replace_shardings
from weft.ops.function_summaries import FunctionSummaries


def lift_meshes(module: Module, summaries: FunctionSummaries) -> Module:
    """Give every mesh a name, and equal meshes the same one."""
    names: dict[Mesh, str] = {}  # the name of every distinct mesh
    renamed: dict[str | Mesh, str] = {}
    for name, mesh in module.meshes.items():
        renamed[name] = names.setdefault(mesh, name)
    fresh = count()
    used = {*module.functions, *module.meshes} - {n for n, kept in renamed.items() if n != kept}
    for sharding in all_shardings(module, summaries):
        inlined = sharding.mesh
        if isinstance(inlined, Mesh):
            if inlined not in names:
                names[inlined] = _unique(_name(inlined), used, fresh)
                used.add(names[inlined])
            renamed[inlined] = names[inlined]
    if all(old == new for old, new in renamed.items()):
        return module
    made = replace_shardings(
        module, summaries, lambda s: replace(s, mesh=renamed.get(s.mesh, s.mesh))
    )
    return replace(_renamed_groups(made, renamed), meshes={n: m for m, n in names.items()})


def _name(mesh: Mesh) -> str:
    if mesh.axes or not mesh.device_ids:
        return "mesh" if mesh.axes else "empty_mesh"
    return f"maximal_mesh_{mesh.device_ids[0]}"


def _unique(name: str, taken: Container[str], fresh: count[int]) -> str:
    candidate = name
    while candidate in taken:
        candidate = f"{name}_{next(fresh)}"
    return candidate


def _renamed_groups(module: Module, renamed: Mapping[str | Mesh, str]) -> Module:
    """Rename the meshes in the groups of collectives."""

    def renew(node: Node) -> Node | None:
        groups = getattr(node.op, "replica_groups", None)
        if not isinstance(groups, MeshAxes) or renamed.get(groups.mesh) in (None, groups.mesh):
            return None
        groups = replace(groups, mesh=renamed[groups.mesh])
        op = node.op.replace(replica_groups=groups)
        return Node(op, node.operands, node.types, node.regions, node.attrs, node.loc)

    return rewrite(module, renew)


def drop_size_one_axes(module: Module, summaries: FunctionSummaries) -> Module:
    """Remove axes of size 1 from all shardings."""
    if not any(size == 1 for mesh in module.meshes.values() for _, size in mesh.axes):
        return module
    return replace_shardings(
        module, summaries, lambda s: _without_size_one(s, s.resolve(module.meshes))
    )


def _without_size_one(sharding: Sharding, mesh: Mesh) -> Sharding:
    dims = []
    for dim in sharding.dims:
        axes = merged_axes(dim.axes, mesh)
        # An empty closed dim has nothing to propagate, so that a priority would mean nothing.
        priority = dim.priority if axes or dim.is_open else None
        dims.append(DimSharding(axes, dim.is_open, priority))
    return replace(
        sharding,
        dims=tuple(dims),
        replicated=merged_axes(sharding.replicated, mesh),
        unreduced=merged_axes(sharding.unreduced, mesh),
    )


def is_empty(mesh: Mesh) -> bool:
    """Whether a mesh has neither axes nor a device, so that it is compatible with any mesh."""
    return not mesh.axes and not mesh.device_ids


def common_mesh(
    shardings: Sequence[Sharding | None], meshes: Mapping[str, Mesh]
) -> str | Mesh | None:
    """The common mesh of all shardings, except empty meshes; None if there is not exactly one."""
    first: Sharding | None = None
    for sharding in shardings:
        if sharding is None or (first is not None and sharding.mesh == first.mesh):
            continue
        if first is None or is_empty(first.resolve(meshes)):
            first = sharding
        elif not is_empty(sharding.resolve(meshes)):
            return None
    return None if first is None else first.mesh
