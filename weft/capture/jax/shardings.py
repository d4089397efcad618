"""Shardings in JAX's terms: pytrees of them, abstract meshes, and types with shardings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.capture.captured import Leaf
from weft.capture.shardings import Spelled
from weft.errors import WeftError
from weft.mesh import Mesh, Sharding, as_mesh
from weft.mesh.spelling import held_mesh


def per_leaf(word: str, prefix: Spelled, tree: Any, leaves: Sequence[Leaf]) -> tuple[Spelled, ...]:
    """The sharding of each leaf by a prefix pytree of shardings; None for unspecified ones."""
    import jax

    if isinstance(prefix, list) and not isinstance(
        jax.tree_util.tree_unflatten(tree, leaves), list
    ):
        prefix = tuple(prefix)  # as in jax.jit
    by_leaf: list[Spelled] = []

    def add(spelled: Spelled, below: Any) -> None:
        by_leaf.extend([spelled] * jax.tree_util.tree_structure(below).num_leaves)

    full = jax.tree_util.tree_unflatten(tree, [leaf.name for leaf in leaves])
    if reason := _misfit(prefix, full, ""):
        raise WeftError(
            f"{word} does not fit: {reason}",
            help="give one sharding for all, or one for each, or None where Weft may choose; "
            "the pytree may be a prefix, whose leaves apply to all values below them",
        )
    jax.tree_util.tree_map(add, prefix, full, is_leaf=lambda spelled: spelled is None)
    return tuple(by_leaf)


def _misfit(spelled: Spelled, full: Any, path: str) -> str | None:
    """The first mismatch between a pytree of shardings and the values' tree, or None."""
    import jax

    below = _children(spelled)
    if below is None:
        return None
    expected = _children(full) or []
    # The outermost level alone, so that the path of the first difference is known.
    one = jax.tree_util.tree_structure(spelled, is_leaf=lambda x: x is not spelled)
    other = jax.tree_util.tree_structure(full, is_leaf=lambda x: x is not full)
    if one != other:
        here = f" at {path}" if path else ""
        if type(spelled) is type(full) and len(below) != len(expected):
            return f"{len(below)} entries for {len(expected)} values{here}"
        return f"a {type(spelled).__name__}{here}, where {_shown(full)} is"
    for (key, inner), (_, value) in zip(below, expected, strict=True):
        if reason := _misfit(inner, value, path + jax.tree_util.keystr(key)):
            return reason
    return None


def _children(tree: Any) -> list[tuple[Any, Any]] | None:
    """The children of a pytree; None for a leaf."""
    import jax

    found, _ = jax.tree_util.tree_flatten_with_path(
        tree, is_leaf=lambda x: x is not tree or x is None
    )
    return None if len(found) == 1 and found[0][1] is tree else found


def _shown(full: Any) -> str:
    return f"the array {full}" if isinstance(full, str) else f"a {type(full).__name__}"


def abstract_mesh(mesh: object, spelled: Sequence[Spelled], ours: Mesh | None) -> Any:
    """JAX's AbstractMesh, which needs no JAX devices.

    For a mesh of JAX's it is that mesh's own: JAX compares meshes for equality while tracing.
    """
    import jax

    if ours is None:
        return None
    for given in (mesh, *map(held_mesh, spelled)):
        theirs = getattr(given, "abstract_mesh", given)
        # The same object where possible: its axis types (Explicit, Auto) are part of JAX's
        # equality.
        if isinstance(theirs, jax.sharding.AbstractMesh) and as_mesh(theirs).axes == ours.axes:
            return theirs
    names, sizes = zip(*ours.axes, strict=True) if ours.axes else ((), ())
    kinds = (jax.sharding.AxisType.Auto,) * len(names)
    return jax.sharding.AbstractMesh(sizes, names, axis_types=kinds)


def abstract_values(
    leaves: Sequence[Leaf], shardings: Sequence[Sharding | None], theirs: Any
) -> list[Any]:
    """The abstract values to trace, with shardings if the mesh has explicit axes."""
    import jax

    explicit = theirs is not None and not theirs.are_all_axes_auto
    values = []
    for leaf, sharding in zip(leaves, shardings, strict=True):
        split = _named_sharding(theirs, sharding) if explicit and sharding else None
        values.append(
            jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=split, weak_type=leaf.weak)
        )
    return values


def _named_sharding(theirs: Any, sharding: Sharding) -> Any:
    import jax

    dims = [tuple(axis.name for axis in dim.axes) or None for dim in sharding.dims]
    return jax.sharding.NamedSharding(theirs, jax.sharding.PartitionSpec(*dims))
