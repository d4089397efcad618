"""JAX functions: traced without devices, lowered for Weft's platform, read as a module."""

from __future__ import annotations

import importlib.util
import inspect
import io
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from weft.array import Array
from weft.array.jax_types import make_known_to_jax
from weft.capture.captured import Captured, Leaf
from weft.capture.jax.device_order import in_order_of
from weft.capture.jax.lowerings import lowering_rules, unsupported_primitive
from weft.capture.jax.shardings import abstract_mesh, abstract_values, per_leaf
from weft.capture.jax.values import argument_names, leaf_of, own_sharding, result_of, type_of_value
from weft.capture.normalize.tokens import keep_tokens_inside
from weft.capture.options import Positions, check_apart, counted_positions
from weft.capture.shardings import Spelled, annotate, mesh_of, shardings_of
from weft.capture.stablehlo.bytecode import read_bytecode
from weft.errors import Unsupported, WeftError, missing_extra
from weft.ir.module import Module
from weft.mesh.plans import ShardingPlan
from weft.ops.custom_calls.callbacks import host_functions
from weft.records import dataclass

PLATFORM = "weft"


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The arguments of a call: static values, and the leaves of the others."""

    values: tuple[Any, ...]  # one a leaf
    tree: Any  # of (positional arguments that are not static, keyword arguments)
    positions: tuple[int, ...]  # those of the arguments that are not static
    static: tuple[tuple[int, Any], ...]
    donated: frozenset[int]  # positions

    @property
    def keywords(self) -> list[str]:
        """The names of the keyword arguments."""
        _, named = self.tree.children()
        return [*named.node_data()[1]]

    @property
    def is_wide(self) -> bool:
        """Whether JAX keeps 64-bit types as they are."""
        import jax

        return bool(jax.config.jax_enable_x64)

    @property
    def key(self) -> tuple[object, ...]:
        """The cache key: calls with equal keys run the same program."""
        from jax._src.config import trace_context

        # With the type: 1, 1.0 and True are equal and hash alike, and trace differently.
        static = tuple((n, type(value), value) for n, value in self.static)
        try:
            types = tuple(map(type_of_value, self.values))
        except TypeError:
            # Matches no program; capture then reports the argument that is not an array.
            return (object(),)
        shardings = tuple(map(own_sharding, self.values))
        return (self.tree, static, types, shardings, trace_context())

    def leaves(self, fn: Callable[..., Any]) -> tuple[Leaf, ...]:
        """Every leaf by its name in the function."""
        import jax

        whole = jax.tree_util.tree_unflatten(self.tree, self.values)
        paths, _ = jax.tree_util.tree_flatten_with_path(whole)
        names = argument_names(fn, self.positions, paths)
        return tuple(
            leaf_of(value, name, path[0].idx == 0 and self.positions[path[1].idx] in self.donated)
            for (path, value), name in zip(paths, names, strict=True)
        )

    def rebuilt(self, values: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """The positional and keyword arguments with other values for the leaves."""
        import jax

        positional, keywords = jax.tree_util.tree_unflatten(self.tree, values)
        dynamic, static = iter(positional), dict(self.static)
        count = len(self.positions) + len(static)
        return [static[n] if n in static else next(dynamic) for n in range(count)], keywords


def quick_key(
    args: tuple[Any, ...], kwargs: dict[str, Any], static_argnums: tuple[int, ...] = ()
) -> tuple[Hashable, list[Any]]:
    """A cheap cache key for arguments, and their leaves; None if only the full key will do.

    It is finer than the full key: a numpy array and a JAX array of one type trace alike, but differ
    in this.
    """
    tree_flatten, settings, jax_array = _of_jax()
    static: tuple[object, ...] = ()
    if static_argnums != ():
        count = len(args)
        # The full path raises the error, with its explanation.
        if not all(-count <= n < count for n in static_argnums):
            return None, []
        named = {n % count for n in static_argnums}
        static = tuple([(n, args[n].__class__, args[n]) for n in sorted(named)])
        args = tuple([value for n, value in enumerate(args) if n not in named])
    values, tree = tree_flatten((args, kwargs))
    marks: list[object] = []
    for value in values:
        kind = type(value)
        if kind is Array:
            marks.append(value.spec)
        elif kind is np.ndarray:
            # Not the strides or the address: they are no part of the program.
            marks.append((value.shape, value.dtype))
        elif kind is jax_array:
            marks.append((value.aval, value.sharding))
        # The values of Python's scalars are arguments, not part of the program; only their types
        # are.
        elif kind in _SCALARS:
            marks.append(kind)
        elif issubclass(kind, Array):  # at a server
            marks.append((kind, value.spec))
        else:
            return None, []
    return (tree, tuple(marks), static, settings()), values


def settings_of_jax() -> Callable[[], Hashable]:
    """Reads JAX's settings that traced programs depend on."""
    return _of_jax()[1]


_SCALARS = {bool, int, float, complex}


@cache
def _of_jax() -> tuple[Callable[[Any], tuple[list[Any], Any]], Callable[[], Any], Any]:
    """JAX's flattening function, its tracing context and its array class."""
    jax = _import_jax()
    from jax._src.array import ArrayImpl
    from jax._src.config import trace_context

    return jax.tree_util.tree_flatten, trace_context, ArrayImpl


def flatten(
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    donate_argnums: Positions = (),
    static_argnums: Positions = (),
) -> CallArguments:
    """Flatten the arguments of a function."""
    jax = _import_jax()
    if static_argnums == () == donate_argnums:
        values, tree = jax.tree_util.tree_flatten((tuple(args), dict(kwargs or {})))
        return CallArguments(tuple(values), tree, tuple(range(len(args))), (), frozenset())
    static = counted_positions("static_argnums", static_argnums, len(args))
    donated = counted_positions("donate_argnums", donate_argnums, len(args))
    check_apart(static, donated)
    for n in sorted(static):
        _check_hashable(n, args[n])
    positions = tuple(n for n in range(len(args)) if n not in static)
    dynamic = tuple(args[n] for n in positions)
    values, tree = jax.tree_util.tree_flatten((dynamic, dict(kwargs or {})))
    fixed = tuple((n, args[n]) for n in sorted(static))
    return CallArguments(tuple(values), tree, positions, fixed, frozenset(donated))


def capture_flat(
    fn: Callable[..., Any],
    call: CallArguments,
    mesh: object,
    inside: Spelled,
    outside: Spelled,
    plan: ShardingPlan | None = None,
) -> Captured:
    """Trace a JAX function on flattened arguments; a plan has what the shardings leave open."""
    jax = _import_jax()
    leaves = call.leaves(fn)
    positional, keywords = call.tree.children()
    if isinstance(inside, (tuple, list)):
        _check_call(fn, call, len(inside))
    spelled = per_leaf("in_shardings", inside, positional, leaves[: positional.num_leaves])
    spelled += (None,) * keywords.num_leaves
    if plan is not None:
        pairs = zip(spelled, leaves, strict=True)
        spelled = tuple([plan(leaf.name) if s is None else s for s, leaf in pairs])
    all_spelled = [
        *spelled,
        *(leaf.sharding for leaf in leaves),
        *jax.tree_util.tree_leaves(outside),
    ]
    ours = mesh_of(mesh, all_spelled)
    # Meshes named by arguments count as well as the option: an array of a JAX mesh brings its own.
    theirs = abstract_mesh(mesh, all_spelled, ours)
    only = mesh is not None
    shardings = shardings_of("in_shardings:", spelled, leaves, ours, only=only)
    filled, named = call.rebuilt(abstract_values(leaves, shardings, theirs))
    context = nullcontext() if theirs is None else jax.sharding.use_abstract_mesh(theirs)
    with context:
        static = tuple(n for n, _ in call.static)
        # Unused arguments are kept: the module's arguments are the leaves, one for one.
        traced = jax.jit(fn, static_argnums=static, keep_unused=True).trace(*filled, **named)
        lowered = _lowered(traced)
    results = _results(traced)
    module = read_lowered(lowered)
    _evict_lowered(traced)
    # JAX numbers devices by their place in the mesh; modules, by their ids.
    if ours is not None:
        module = in_order_of(module, ours)
    spelled = per_leaf("out_shardings", outside, lowered.out_tree, results)
    if plan is not None:
        pairs = zip(spelled, results, strict=True)
        spelled = tuple([plan.result(leaf.name) if s is None else s for s, leaf in pairs])
    made = shardings_of("out_shardings:", spelled, results, ours, only=only)
    paired = partial(zip, strict=True)
    module = annotate(module, ours, [*paired(leaves, shardings)], [*paired(results, made)])
    host = host_functions(module)
    tree = lowered.out_tree
    # Host functions of callbacks live in JAX's lowering, which is dropped here.
    kept = getattr(lowered._lowering, "compile_args", {}).get("keepalive") or ()
    is_one = bool(tree.num_leaves == 1 == tree.num_nodes)
    return Captured(module, ours, call.tree, tree, leaves, results, is_one, host, tuple(kept))


def _lowered(traced: Any) -> Any:
    """JAX's lowering, with Weft's rules for primitives that it lowers to platform libraries."""
    from jax._src.interpreters.mlir import LoweringParameters

    # Constants stay inline: hoisted, they would be extra arguments of the module.
    parameters = LoweringParameters(
        override_lowering_rules=lowering_rules(), hoist_constants_as_args=False
    )
    try:
        return traced.lower(lowering_platforms=(PLATFORM,), _private_parameters=parameters)
    except Unsupported:
        raise
    except NotImplementedError as error:
        raise unsupported_primitive(traced.jaxpr, error) from error
    except ValueError as error:
        raise WeftError(
            f"JAX cannot lower the function: {error}",
            help="shardings inside it must be on the mesh that it is compiled for",
        ) from error


def _evict_lowered(traced: Any) -> None:
    """Drop the lowered module from JAX's cache, where it would live as long as the function.

    Its MLIR context alone is more than a megabyte; what was read from it is all that is needed.
    """
    from jax._src import pjit
    from jax._src.interpreters import pxla

    for module, name in ((pjit, "_pjit_lower"), (pxla, "_dce_jaxpr")):
        evict = getattr(getattr(module, name, None), "evict_weakref", None)
        if evict is not None:  # no version of JAX promises it
            evict(traced.jaxpr)


def read_lowered(lowered: Any) -> Module:
    """JAX's lowered module, read in this process: its bytecode is trusted."""
    buffer = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(file=buffer)
    return keep_tokens_inside(read_bytecode(buffer.getvalue()))


def _check_call(fn: Callable[..., Any], call: CallArguments, count: int) -> None:
    """Refuse arguments that the function does not take, or that shardings by position miss."""
    positional, keywords = call.rebuilt(call.values)
    try:
        inspect.signature(fn).bind(*positional, **keywords)
    except TypeError as error:
        name = getattr(fn, "__name__", type(fn).__name__)
        raise TypeError(f"{name}(): {error}") from None
    except ValueError:
        return  # a builtin has no signature; its call checks the arguments
    if keywords and len(call.positions) < count <= len(call.positions) + len(keywords):
        raise WeftError(
            f"in_shardings are for arguments by position, and {', '.join(keywords)} is by keyword",
            help="give every argument of in_shardings by position",
        )


def _results(traced: Any) -> tuple[Leaf, ...]:
    import jax

    paths, _ = jax.tree_util.tree_flatten_with_path(traced.out_info)
    return tuple(result_of(t, f"result{jax.tree_util.keystr(path)}") for path, t in paths)


def _import_jax() -> Any:
    if importlib.util.find_spec("jax") is None:
        raise missing_extra("jax", "jax", "capturing a JAX function")
    import jax

    _hide_own_frames()
    make_known_to_jax()
    return jax


@cache
def _hide_own_frames() -> None:
    """Exclude Weft's own frames from the locations that JAX writes."""
    from jax._src import source_info_util

    source_info_util.register_exclusion(str(Path(__file__).parents[2]))


def _check_hashable(position: int, value: object) -> None:
    try:
        hash(value)
    except TypeError:
        raise WeftError(
            f"static argument {position} is {type(value).__name__}, which cannot be hashed",
            help="static arguments are part of the cache key: pass a tuple, a frozen "
            "dataclass or another value with a hash",
        ) from None
