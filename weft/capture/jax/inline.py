"""Compiled functions inside JAX's transformations: JAX traces the original function."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from typing import Any

from weft.capture.jax.constrain import constrain_arrays
from weft.capture.jax.trace import flatten
from weft.capture.options import Positions
from weft.capture.shardings import Spelled, mesh_of
from weft.errors import WeftError
from weft.mesh import as_mesh


def is_traced(values: Iterable[Any]) -> bool:
    """Whether one of the leaves is a JAX tracer, of grad, vmap or jit."""
    jax = sys.modules.get("jax")
    return jax is not None and any(
        isinstance(leaf, jax.core.Tracer) for leaf in jax.tree_util.tree_leaves(list(values))
    )


def function_of(name: str) -> Any:
    """A function of jax.numpy by name, `divmod` and `ptp` among them."""
    import jax

    return getattr(jax.numpy, name)


def inlined(
    fn: Callable[..., Any],
    mesh: object,
    inside: Spelled,
    outside: Spelled,
    static_argnums: Positions,
) -> Callable[..., Any]:
    """The function as JAX traces it: with static arguments, and shardings as constraints.

    A sharding becomes a constraint only if the surrounding program is on the same mesh. Donation is
    left to the surrounding program.
    """
    import jax

    all_spelled = jax.tree_util.tree_leaves((inside, outside), is_leaf=lambda x: x is None)
    ours = mesh_of(mesh, all_spelled)

    def pinned(values: Any, sharding: Spelled) -> Any:
        theirs = jax.sharding.get_abstract_mesh()
        auto = not theirs.empty and theirs.are_all_axes_auto
        if sharding is None or ours is None or not auto or as_mesh(theirs).axes != ours.axes:
            return values
        return constrain_arrays(values, sharding)

    @functools.wraps(fn)
    def traced(*args: Any, **kwargs: Any) -> Any:
        call = flatten(args, kwargs, (), static_argnums)
        positional, keywords = jax.tree_util.tree_unflatten(call.tree, call.values)
        values, _ = jax.tree_util.tree_flatten((pinned(positional, inside), keywords))
        positional, keywords = call.rebuilt(values)
        return pinned(fn(*positional, **keywords), outside)

    made: Callable[..., Any] = jax.jit(traced, static_argnums=static_argnums, inline=True)
    return made


def refuse_module() -> WeftError:
    """The error of a module called with JAX tracers."""
    return WeftError(
        "a module was called with values that JAX traces: it is StableHLO, which JAX cannot "
        "differentiate, batch or inline",
        help="transform the JAX function that it comes from and compile that, or call the module "
        "outside of jit, grad and vmap",
    )
