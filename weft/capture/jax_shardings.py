"""Shardings of a JAX function's arguments and results, spelled as for jax.jit or as Weft does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from weft.capture.captured import Leaf
from weft.errors import WeftError
from weft.ir.attrs import Attrs
from weft.ir.module import Module
from weft.ir.names import DONOR, PARTITIONS, SHARDING
from weft.ir.types import TensorType, Types
from weft.mesh import DimSharding, Mesh, Sharding, as_mesh, as_sharding

Spelled: TypeAlias = Any  # P, JAX's PartitionSpec or NamedSharding, None, or a pytree of these


def per_leaf(word: str, given: Spelled, tree: Any, leaves: Sequence[Leaf]) -> tuple[Spelled, ...]:
    """What a pytree of shardings, which may stop early, says of each leaf; None where nothing."""
    import jax

    if isinstance(given, list) and not isinstance(jax.tree_util.tree_unflatten(tree, leaves), list):
        given = tuple(given)  # as jax.jit reads it
    found: list[Spelled] = []

    def add(spelled: Spelled, below: Any) -> None:
        found.extend([spelled] * jax.tree_util.tree_structure(below).num_leaves)

    full = jax.tree_util.tree_unflatten(tree, [leaf.name for leaf in leaves])
    if reason := _misfit(given, full, ""):
        raise WeftError(
            f"{word} does not fit: {reason}",
            help="give one sharding for all, or one for each, or None where Weft may choose; "
            "a pytree may stop early, and its last entry then holds for all below",
        )
    jax.tree_util.tree_map(add, given, full, is_leaf=lambda spelled: spelled is None)
    return tuple(found)


def _misfit(given: Spelled, full: Any, path: str) -> str | None:
    """Where a pytree of shardings is no prefix of that of the values, or None."""
    import jax

    below = _children(given)
    if below is None:
        return None
    expected = _children(full) or []
    one = jax.tree_util.tree_structure(given, is_leaf=lambda x: x is not given)
    other = jax.tree_util.tree_structure(full, is_leaf=lambda x: x is not full)
    if one != other:
        here = f" at {path}" if path else ""
        if type(given) is type(full) and len(below) != len(expected):
            return f"{len(below)} entries for {len(expected)} values{here}"
        return f"a {type(given).__name__}{here}, where {_shown(full)} is"
    for (key, inner), (_, value) in zip(below, expected, strict=True):
        if reason := _misfit(inner, value, path + jax.tree_util.keystr(key)):
            return reason
    return None


def _children(tree: Any) -> list[tuple[Any, Any]] | None:
    """What a pytree holds one level down; None for a leaf."""
    import jax

    found, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: x is not tree or x is None
    )
    return None if len(found) == 1 and found[0][1] is tree else found


def _shown(full: Any) -> str:
    return f"the array {full}" if isinstance(full, str) else f"a {type(full).__name__}"


def mesh_of(mesh: object, spelled: Sequence[Spelled]) -> Mesh | None:
    """The mesh of a program: the one given, or that of the shardings that know theirs."""
    known = [mesh, *(_held(each) for each in spelled)]
    return next((as_mesh(each) for each in known if each is not None), None)


def _held(spelled: Spelled) -> object:
    """The mesh that a sharding holds, if it does."""
    inner = getattr(spelled, "mesh", None)
    return None if isinstance(inner, str) else inner


def abstract_mesh(mesh: object, spelled: Sequence[Spelled], ours: Mesh | None) -> Any:
    """JAX's AbstractMesh, for which no devices of JAX are needed.

    Where somebody gives a mesh of JAX's, it is that one's: JAX compares the meshes that it meets.
    """
    import jax

    if ours is None:
        return None
    for given in (mesh, *map(_held, spelled)):
        theirs = getattr(given, "abstract_mesh", given)
        if isinstance(theirs, jax.sharding.AbstractMesh) and as_mesh(theirs).axes == ours.axes:
            return theirs
    names, sizes = zip(*ours.axes, strict=True) if ours.axes else ((), ())
    kinds = (jax.sharding.AxisType.Auto,) * len(names)
    return jax.sharding.AbstractMesh(sizes, names, axis_types=kinds)


def abstract_values(
    leaves: Sequence[Leaf], shardings: Sequence[Sharding | None], theirs: Any
) -> list[Any]:
    """What JAX traces; where its mesh makes shardings part of types, those are there too."""
    import jax

    explicit = theirs is not None and not theirs.are_all_axes_auto
    made = []
    for leaf, sharding in zip(leaves, shardings, strict=True):
        split = _named_sharding(theirs, sharding) if explicit and sharding else None
        made.append(
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=split, weak_type=leaf.weak)
        )
    return made


def _named_sharding(theirs: Any, sharding: Sharding) -> Any:
    import jax

    dims = [tuple(axis.name for axis in dim.axes) or None for dim in sharding.dims]
    return jax.sharding.NamedSharding(theirs, jax.sharding.PartitionSpec(*dims))


def shardings_of(
    word: str, spelled: Sequence[Spelled], leaves: Sequence[Leaf], mesh: Mesh | None
) -> tuple[Sharding | None, ...]:
    """The sharding of each leaf, given or its own; refused where it does not fit the leaf."""
    return tuple(map(lambda s, leaf: _sharding_of(word, s, leaf, mesh), spelled, leaves))


def _sharding_of(word: str, spelled: Spelled, leaf: Leaf, mesh: Mesh | None) -> Sharding | None:
    if spelled is None:
        spelled, word = leaf.sharding, "the array given for"
    if spelled is None:
        return None
    try:
        return as_sharding(spelled, len(leaf.shape), mesh)
    except WeftError as error:
        error.args = (f"{word} {leaf.name}: {error.message}",)
        error.message = error.args[0]
        raise


def annotate(
    module: Module,
    mesh: Mesh | None,
    arguments: Sequence[tuple[Leaf, Sharding | None]],
    results: Sequence[tuple[Leaf, Sharding | None]],
) -> Module:
    """The module with the shardings on its arguments and results, and what is donated."""
    main = module.function("main")
    name = "mesh"
    meshes = dict(module.meshes)
    if mesh is not None:
        known = [n for n, m in meshes.items() if m.axes == mesh.axes]
        name = known[0] if known else _fresh(name, meshes)
        meshes[name] = mesh
    arg_attrs = _merged(main.arg_attrs, main.arg_types, arguments, name)
    res_attrs = _merged(main.res_attrs, main.result_types, results, name)
    renewed = replace(main, arg_attrs=arg_attrs, res_attrs=res_attrs)
    attrs = dict(module.attrs)
    if mesh is not None:  # JAX counts the devices only if the program itself names the mesh
        attrs[PARTITIONS] = f"{mesh.size} : i32"
    functions = {**module.functions, "main": renewed}
    return replace(module, functions=functions, meshes=meshes, attrs=tuple(sorted(attrs.items())))


def _fresh(name: str, taken: dict[str, Mesh]) -> str:
    return next(n for n in (name, *(f"{name}_{k}" for k in range(len(taken)))) if n not in taken)


def _merged(
    attrs: tuple[Attrs, ...],
    types: Types,
    leaves: Sequence[tuple[Leaf, Sharding | None]],
    mesh: str,
) -> tuple[Attrs, ...]:
    held = attrs or ((),) * len(types)
    made: list[Attrs] = []
    for old, type, (leaf, sharding) in zip(held, types, leaves, strict=True):
        made.append(tuple(sorted((dict(old) | dict(_added(type, leaf, sharding, mesh))).items())))
    return tuple(made)


def _added(
    type: object, leaf: Leaf, sharding: Sharding | None, mesh: str
) -> Iterator[tuple[str, str]]:
    if leaf.donated:
        yield DONOR, "true"
    if sharding is not None:
        assert isinstance(type, TensorType)
        inner = (DimSharding(),) * (type.rank - len(sharding.dims))  # of a key of random numbers
        yield SHARDING, str(replace(sharding, mesh=mesh, dims=(*sharding.dims, *inner)))
