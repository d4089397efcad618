"""The changes of a program's annotations that are worth trying, each with the text to write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from weft.explain.constraint_edits import FreeAxes, addition_edits, constraint_edits
from weft.explain.edits import AnnotationEdit, argument_edits, mesh_in, result_edits
from weft.explain.width_edits import width_edits
from weft.ir.module import Module
from weft.mesh import Mesh
from weft.records import dataclass


def candidate_edits(module: Module, lines: Sequence[object]) -> Iterator[AnnotationEdit]:
    """Changes that may shorten a step; values of `lines` get constraints."""
    found = mesh_in(module)
    if found is None:
        return
    name, mesh = found
    free = FreeAxes(module, mesh)
    yield from argument_edits(module, name, mesh)
    yield from result_edits(module, name, mesh)
    yield from constraint_edits(module, name, free)
    yield from _orders(module, name, mesh)
    yield from width_edits(module, lines)
    yield from addition_edits(module, name, free, lines)


def _orders(module: Module, name: str, mesh: Mesh) -> Iterator[AnnotationEdit]:
    """Two axes of the mesh in each other's place, which puts another one on the fast links."""
    # An explicit order of devices is the user's choice of links.
    if mesh.device_ids is not None:
        return
    for one in range(len(mesh.axes)):
        for other in range(one + 1, len(mesh.axes)):
            axes = list(mesh.axes)
            axes[one], axes[other] = axes[other], axes[one]
            text = "mesh: " + ", ".join(f"{axis}={size}" for axis, size in axes)
            change = _Order(name, Mesh(axes))
            yield AnnotationEdit("order", module.loc, text, change)


@dataclass(frozen=True, slots=True)
class _Order:
    """Replaces the mesh by one with another order of its axes."""

    name: str
    mesh: Mesh

    def __call__(self, module: Module) -> Module:
        return replace(module, meshes={**module.meshes, self.name: self.mesh})
