"""Setting the mesh of a module."""

from __future__ import annotations

from dataclasses import replace

from weft.errors import WeftError
from weft.ir.module import Module
from weft.mesh import Mesh


def with_mesh(module: Module, mesh: Mesh) -> Module:
    """The module on this mesh: its own meshes take the sizes of the axes with the same names."""
    own_meshes = {name: m for name, m in module.meshes.items() if m.axes}
    if not own_meshes:
        return replace(module, meshes={**module.meshes, "mesh": mesh})
    sizes = mesh.axis_sizes
    meshes = dict(module.meshes)
    for name, old in own_meshes.items():
        if {axis for axis, _ in old.axes} != sizes.keys():
            axes = ", ".join(axis for axis, _ in old.axes)
            raise WeftError(
                f"the mesh {name!r} of the module has the axes {axes}, not {', '.join(sizes)}",
                help=f"give a size for each of {axes}",
            )
        meshes[name] = Mesh(tuple((axis, sizes[axis]) for axis, _ in old.axes), mesh.device_ids)
    return replace(module, meshes=meshes)
