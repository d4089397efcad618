"""Shardings of a program's arguments and results: spelled by users, written into the module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from weft.capture.captured import Leaf
from weft.errors import WeftError, warn
from weft.ir.attrs import Attrs
from weft.ir.module import Module
from weft.ir.names import DONOR, PARTITIONS, SHARDING, UPDATED
from weft.ir.types import TensorType, Type, Types
from weft.mesh import DimSharding, Mesh, Sharding, as_mesh, as_sharding, as_spec
from weft.mesh.spelling import held_mesh, is_same_mesh

Spelled: TypeAlias = Any  # P, JAX's PartitionSpec or NamedSharding, None, or a pytree of these
LeafShardings: TypeAlias = Sequence[tuple[Leaf, Sharding | None]]  # the leaves of a program


def mesh_of(mesh: object, spelled: Sequence[Spelled]) -> Mesh | None:
    """The mesh of a program: the explicit one, or that of the shardings that hold one."""
    known = [mesh, *(held_mesh(each) for each in spelled)]
    return next((as_mesh(each) for each in known if each is not None), None)


def shardings_of(
    word: str,
    spelled: Sequence[Spelled],
    leaves: Sequence[Leaf],
    mesh: Mesh | None,
    *,
    only: bool = True,
) -> tuple[Sharding | None, ...]:
    """The sharding of each leaf, explicit or its own, or an error if it does not fit.

    Unless `only`, a sharding that holds another mesh than the program's stays on that one.
    """
    pairs = zip(spelled, leaves, strict=True)
    return tuple([_sharding_of(word, each, leaf, mesh, only) for each, leaf in pairs])


def _sharding_of(
    word: str, spelled: Spelled, leaf: Leaf, mesh: Mesh | None, only: bool
) -> Sharding | None:
    if spelled is None:
        spelled, word = leaf.sharding, "the array given for"
    if spelled is None:
        return None
    try:
        if not only and mesh is not None and (own := held_mesh(spelled)) is not None:
            mesh = mesh if is_same_mesh(as_mesh(own), mesh) else None
        return as_sharding(spelled, len(leaf.shape), mesh)
    except WeftError as error:
        error.args = (f"{word} {leaf.name}: {error.message}",)
        error.message = error.args[0]
        raise


def check_without_mesh(spelled: Sequence[Spelled], leaves: Sequence[Leaf]) -> None:
    """Refuse invalid constraints, and warn that others have no effect."""
    for sharding, leaf in zip(spelled, leaves, strict=True):
        if sharding is None:
            continue
        spec = as_spec(sharding, len(leaf.shape))
        mesh = mesh_of(None, [sharding, leaf.sharding])
        if mesh is not None:
            spec.sharding(len(leaf.shape), mesh)  # raises for unknown axes
        if any(dim.axes for dim in spec.dims) or spec.replicated or spec.unreduced:
            warn(f"weft.constrain: {spec} has no effect here, where nothing is compiled for a mesh")


def annotate(
    module: Module, mesh: Mesh | None, arguments: LeafShardings, results: LeafShardings
) -> Module:
    """The module with the shardings and donations of its arguments and results as attributes."""
    main = module.function("main")
    names = _Meshes(module, mesh)
    arg_attrs = _merged(main.arg_attrs, main.arg_types, arguments, names)
    res_attrs = _merged(main.res_attrs, main.result_types, results, names)
    renewed = replace(main, arg_attrs=arg_attrs, res_attrs=res_attrs)
    attrs = dict(module.attrs)
    if mesh is not None:  # JAX writes the partition count only if the program itself names a mesh
        attrs[PARTITIONS] = f"{mesh.size} : i32"
    functions = {**module.functions, "main": renewed}
    listed = tuple(sorted(attrs.items()))
    return replace(module, functions=functions, meshes=names.meshes, attrs=listed)


class _Meshes:
    """The meshes of a module by name: its own, that of its signature, and those of shardings."""

    def __init__(self, module: Module, mesh: Mesh | None) -> None:
        self.meshes = dict(module.meshes)
        self.mesh, self.name = mesh, "mesh"
        if mesh is not None:
            known = [name for name, m in self.meshes.items() if m.axes == mesh.axes]
            self.name = known[0] if known else self._fresh()
            self.meshes[self.name] = mesh

    def named(self, mesh: str | Mesh) -> str:
        """The name of a sharding's mesh, which is added to the module."""
        if not isinstance(mesh, Mesh) or self.mesh is None or is_same_mesh(mesh, self.mesh):
            return self.name
        known = next((name for name, m in self.meshes.items() if m == mesh), None)
        name = known or self._fresh()
        self.meshes[name] = mesh
        return name

    def _fresh(self) -> str:
        tried = ("mesh", *(f"mesh_{k}" for k in range(len(self.meshes))))
        return next(name for name in tried if name not in self.meshes)


def _merged(
    attrs: tuple[Attrs, ...], types: Types, leaves: LeafShardings, meshes: _Meshes
) -> tuple[Attrs, ...]:
    merged_attrs: list[Attrs] = []
    held = attrs or ((),) * len(types)
    for old, type, (leaf, sharding) in zip(held, types, leaves, strict=True):
        added = dict(_added(type, leaf, sharding, meshes))
        merged_attrs.append(tuple(sorted((dict(old) | added).items())))
    return tuple(merged_attrs)


def _added(
    type: Type, leaf: Leaf, sharding: Sharding | None, meshes: _Meshes
) -> Iterator[tuple[str, str]]:
    if leaf.updated_by is not None:
        yield UPDATED, f"{leaf.updated_by} : i32"
    elif leaf.donated:
        yield DONOR, "true"
    if sharding is not None:
        assert isinstance(type, TensorType)
        inner = (DimSharding(),) * (type.rank - len(sharding.dims))  # of a random key
        name = meshes.named(sharding.mesh)
        yield SHARDING, str(replace(sharding, mesh=name, dims=(*sharding.dims, *inner)))
