"""Pins in the middle of a function: `weft.constrain(x, P("data", None))`."""

from __future__ import annotations

import sys
from typing import Any

from weft.capture.captured import Leaf
from weft.capture.jax_shardings import Spelled, per_leaf, shardings_of
from weft.errors import Unsupported, WeftError
from weft.mesh import Mesh, Sharding, as_mesh


def constrain(x: Any, sharding: Spelled) -> Any:
    """The same value, split as the sharding says, in a function that Weft captures.

    Where no mesh is there, as when the function runs by itself, the value is as it was.
    """
    jax = sys.modules.get("jax")
    if jax is None:
        raise WeftError(
            f"constrain was given {type(x).__name__}, which is no value of JAX",
            help="call it on the arrays inside a JAX function",
        )
    theirs = jax.sharding.get_abstract_mesh()
    if theirs.empty:
        return x
    mesh = as_mesh(theirs)
    values, tree = jax.tree_util.tree_flatten(x)
    leaves = [Leaf("the value", jax.numpy.shape(v), None) for v in values]
    spelled = per_leaf("constrain", sharding, tree, leaves)
    made = shardings_of("constrain:", spelled, leaves, mesh)
    pinned = [
        v if s is None else jax.lax.with_sharding_constraint(v, _partition_spec(s, mesh))
        for v, s in zip(values, made, strict=True)
    ]
    return jax.tree_util.tree_unflatten(tree, pinned)


def _partition_spec(sharding: Sharding, mesh: Mesh) -> Any:
    """The sharding in JAX's words, which know whole axes and open dims only."""
    import jax

    dims: list[Any] = []
    for dim in sharding.dims:
        partly_open = bool(dim.is_open and dim.axes)
        if partly_open or dim.priority or any(axis.size is not None for axis in dim.axes):
            raise Unsupported(
                f"constrain: {sharding.body()} splits a dim in a way that JAX has no word for",
                help="inside a function, split dims by whole axes; in_shardings and out_shardings "
                "take parts of axes, priorities, and dims that may be split further",
            )
        names = tuple(axis.name for axis in dim.axes)
        dims.append(jax.sharding.PartitionSpec.UNCONSTRAINED if dim.is_open else names or None)
    if sharding.replicated or sharding.unreduced:
        raise Unsupported(
            f"constrain: {sharding.body()} says more than how dims are split",
            help="inside a function, leave out replicated= and unreduced=",
        )
    return jax.sharding.PartitionSpec(*dims)
