"""Sharding constraints inside a function: `weft.constrain(x, P("data", None))`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from weft.capture.captured import Leaf
from weft.capture.jax.shardings import per_leaf
from weft.capture.jax.values import leaf_of
from weft.capture.shardings import Spelled, mesh_of, shardings_of
from weft.errors import Unsupported, WeftError, warn
from weft.mesh import Mesh, Sharding, as_mesh, as_spec


def constrain(x: Any, sharding: Spelled) -> Any:
    """Constrain the sharding of a value in a function that Weft captures.

    Without a mesh, as when the function runs eagerly, the value is returned unchanged; a sharding
    that names axes then gives a warning, and an error if it does not fit the value.
    """
    jax = sys.modules.get("jax")
    if jax is None:
        raise WeftError(
            f"constrain: {type(x).__name__} is not a JAX value",
            help="call it on the arrays inside a JAX function",
        )
    values, tree = jax.tree_util.tree_flatten(x)
    leaves = [leaf_of(value, "of constrain") for value in values]
    spelled = per_leaf("constrain", sharding, tree, leaves)
    theirs = jax.sharding.get_abstract_mesh()
    if theirs.empty:
        _check_without_mesh(spelled, leaves)
        return x
    mesh = as_mesh(theirs)
    leaves = [Leaf("the value", leaf.shape, None) for leaf in leaves]
    made = shardings_of("constrain:", spelled, leaves, mesh)
    pinned = [
        v if s is None else jax.lax.with_sharding_constraint(v, _partition_spec(s, mesh))
        for v, s in zip(values, made, strict=True)
    ]
    return jax.tree_util.tree_unflatten(tree, pinned)


def _check_without_mesh(spelled: Sequence[Spelled], leaves: Sequence[Leaf]) -> None:
    """Refuse invalid shardings, and warn that others have no effect."""
    for given, leaf in zip(spelled, leaves, strict=True):
        if given is None:
            continue
        spec = as_spec(given, len(leaf.shape))
        mesh = mesh_of(None, [given, leaf.sharding])
        if mesh is not None:
            spec.sharding(len(leaf.shape), mesh)  # raises for unknown axes
        if any(dim.axes for dim in spec.dims):
            warn(f"weft.constrain: {spec} has no effect here, where nothing is compiled for a mesh")


def _partition_spec(sharding: Sharding, mesh: Mesh) -> Any:
    """The sharding as a PartitionSpec, which has whole axes and open dims only."""
    import jax

    dims: list[Any] = []
    for dim in sharding.dims:
        partly_open = bool(dim.is_open and dim.axes)
        if partly_open or dim.priority or any(axis.size is not None for axis in dim.axes):
            raise Unsupported(
                f"constrain: {sharding.body()} has no equivalent PartitionSpec",
                help="inside a function, split dims by whole axes; in_shardings and out_shardings "
                "take parts of axes, priorities, and dims that may be split further",
            )
        names = tuple(axis.name for axis in dim.axes)
        dims.append(jax.sharding.PartitionSpec.UNCONSTRAINED if dim.is_open else names or None)
    if sharding.replicated or sharding.unreduced:
        raise Unsupported(
            f"constrain: {sharding.body()} has more than dim shardings",
            help="inside a function, leave out replicated= and unreduced=",
        )
    return jax.sharding.PartitionSpec(*dims)
