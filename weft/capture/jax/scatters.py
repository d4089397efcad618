"""JAX's scatters: a window that is partly out of bounds is dropped as a whole.

StableHLO drops only the elements whose own index is out of bounds. JAX promises XLA's behaviour,
and its gradients rely on it: that of `gather(mode="fill")`, which fills whole windows, is a scatter
that drops whole windows. So the lowering moves the start of such a window to where all of it is out
of bounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from weft.capture.jax.calls import LoweringRule, rules_of
from weft.errors import warn

_PRIMITIVES = ("scatter", "scatter_add", "scatter_sub", "scatter_mul", "scatter_min", "scatter_max")


def scatter_rules() -> tuple[tuple[Any, LoweringRule], ...]:
    """Lowerings of all scatters, wrapped around JAX's own."""
    from jax._src.lax import slicing

    if not hasattr(slicing, "_scatter_lower"):
        warn("an untried JAX: scatter windows that are partly out of bounds are written in part")
        return ()
    return rules_of(slicing, {f"{name}_p": _scatter for name in _PRIMITIVES})


def _scatter(ctx: Any, operand: Any, indices: Any, updates: Any, **how: Any) -> Any:
    from jax._src.interpreters import mlir
    from jax._src.lax import slicing

    dims = how["dimension_numbers"]
    drops = how["mode"] == slicing.GatherScatterMode.FILL_OR_DROP
    window = dict(_windows(dims, ctx.avals_in[0].shape, ctx.avals_in[2].shape))
    if drops and any(size != 1 for size in window.values()):
        move = mlir.lower_fun(_moved_outside, multiple_results=False)
        inner = ctx.replace(avals_in=[ctx.avals_in[1]], avals_out=None)
        shape = ctx.avals_in[0].shape
        (indices,) = move(inner, indices, dims=dims, shape=shape, window=window)
    return slicing._scatter_lower(ctx, operand, indices, updates, **how)


def _windows(dims: Any, shape: Any, updates: Any) -> Iterator[tuple[int, Any]]:
    """The indexed dims of the operand, with the window size along each."""
    left_out = {*dims.inserted_window_dims, *dims.operand_batching_dims}
    kept = [d for d in range(len(shape)) if d not in left_out]
    sizes = {d: updates[n] for d, n in zip(kept, sorted(dims.update_window_dims), strict=True)}
    for dim in dims.scatter_dims_to_operand_dims:
        yield dim, sizes.get(dim, 1)


def _moved_outside(indices: Any, *, dims: Any, shape: Any, window: dict[int, Any]) -> Any:
    """The indices, with windows that are partly out of bounds moved out of bounds entirely."""
    import jax.numpy as jnp

    ends = [shape[d] for d in dims.scatter_dims_to_operand_dims]
    largest = max([end for end in ends if isinstance(end, int)], default=0)
    if jnp.iinfo(indices.dtype).max < largest:  # the size of the dim must be representable, too
        indices = indices.astype(jnp.int32)
    lasts = [shape[d] - window[d] for d in dims.scatter_dims_to_operand_dims]
    # Explicit broadcast: jax_numpy_rank_promotion may be set to raise for implicit ones.
    last, end = (
        jnp.broadcast_to(jnp.array(each, indices.dtype), indices.shape) for each in (lasts, ends)
    )
    inside = ((indices >= 0) & (indices <= last)).all(-1, keepdims=True)
    return jnp.where(inside, indices, end)
