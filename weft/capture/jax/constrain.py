"""Sharding constraints on JAX values: JAX's own for whole axes, a primitive for all others."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

from weft.capture.captured import Leaf
from weft.capture.jax.shardings import per_leaf
from weft.capture.jax.values import leaf_of
from weft.capture.shardings import Spelled, check_without_mesh, shardings_of
from weft.errors import WeftError
from weft.mesh import DimSharding, Sharding, as_mesh


def constrain_arrays(x: Any, sharding: Spelled) -> Any:
    """A pytree of JAX values with constrained shardings; unchanged where no mesh is set."""
    import jax

    values, tree = jax.tree_util.tree_flatten(x)
    leaves = [leaf_of(value, "of constrain") for value in values]
    spelled = per_leaf("constrain", sharding, tree, leaves)
    theirs = jax.sharding.get_abstract_mesh()
    if theirs.empty:
        check_without_mesh(spelled, leaves)
        return x
    leaves = [Leaf("the value", leaf.shape, None) for leaf in leaves]
    made = shardings_of("constrain:", spelled, leaves, as_mesh(theirs))
    pinned = [
        v if s is None else _constrained(v, s, theirs) for v, s in zip(values, made, strict=True)
    ]
    return jax.tree_util.tree_unflatten(tree, pinned)


def _constrained(value: Any, sharding: Sharding, theirs: Any) -> Any:
    import jax

    if _is_plain(sharding):
        dims = [
            jax.sharding.PartitionSpec.UNCONSTRAINED
            if dim.is_open
            else tuple(axis.name for axis in dim.axes) or None
            for dim in sharding.dims
        ]
        return jax.lax.with_sharding_constraint(value, jax.sharding.PartitionSpec(*dims))
    _check_auto(sharding, theirs)
    return _primitive().bind(value, sharding=sharding)


def _is_plain(sharding: Sharding) -> bool:
    """Whether JAX's PartitionSpec can express a sharding: whole axes, and dims that are open."""
    return not (sharding.replicated or sharding.unreduced) and all(
        not dim.priority
        and not (dim.is_open and dim.axes)
        and all(axis.size is None for axis in dim.axes)
        for dim in sharding.dims
    )


def _check_auto(sharding: Sharding, theirs: Any) -> None:
    """Refuse axes that JAX itself splits by: explicit ones, and manual ones of shard_map."""
    listed = (*(a for d in sharding.dims for a in d.axes), *sharding.replicated)
    for axis in (*listed, *sharding.unreduced):
        kind = theirs._name_to_type[axis.name].name
        if kind != "Auto":
            raise WeftError(
                f"constrain: {sharding.body()} names {axis.name!r}, an axis of type {kind}",
                help="parts of axes, priorities and partial sums are for axes of type Auto",
            )


@cache
def _primitive() -> Any:
    """The constraint as a primitive: the identity, whose gradient is split in the same way."""
    from jax.extend.core import Primitive
    from jax.interpreters import ad, batching, mlir

    constrain_p = Primitive("weft_constrain")

    def transposed(cotangent: Any, _: Any, *, sharding: Sharding) -> Any:
        # The cotangent of a partial sum is the whole value on every device.
        return (constrain_p.bind(cotangent, sharding=replace(sharding, unreduced=())),)

    def batched(values: Any, dims: Any, *, sharding: Sharding) -> Any:
        at = dims[0]
        split = (*sharding.dims[:at], DimSharding(is_open=True), *sharding.dims[at:])
        return constrain_p.bind(values[0], sharding=replace(sharding, dims=split)), at

    constrain_p.def_impl(lambda value, **_: value)
    constrain_p.def_abstract_eval(lambda value, **_: value)
    # The identity is linear: a JVP or a transposition rule of its own would lose the constraint on
    # tangents and cotangents.
    ad.deflinear2(constrain_p, transposed)
    batching.primitive_batchers[constrain_p] = batched
    mlir.register_lowering(constrain_p, _lowered)
    return constrain_p


def _lowered(ctx: Any, value: Any, *, sharding: Sharding) -> Any:
    """sdy.sharding_constraint with the mesh inline, as JAX writes its own."""
    from jaxlib.mlir import ir
    from jaxlib.mlir.dialects import sdy

    inner = ir.RankedTensorType(value.type).rank - len(sharding.dims)  # of random keys
    physical = replace(sharding, dims=(*sharding.dims, *[DimSharding()] * inner))
    return [sdy.ShardingConstraintOp(value, ir.Attribute.parse(str(physical))).result]
