"""JAX's callbacks, lowered to calls into the Python functions of this process."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np

from weft.array.host import copied
from weft.capture.jax.calls import LoweringRule, custom_call, rules_of
from weft.ops.custom_calls.callbacks import HOST_CALL, HOST_CALL_ON_PIECES, HostFunction
from weft.records import dataclass


def callback_rules() -> tuple[tuple[Any, LoweringRule], ...]:
    """The lowerings of primitives that call Python at run time."""
    from jax._src import callback, debugging

    called: dict[str, LoweringRule] = {"pure_callback_p": _pure, "io_callback_p": _io}
    shown: dict[str, LoweringRule] = {"debug_callback_p": _debug, "debug_print_p": _print}
    return rules_of(callback, called) + rules_of(debugging, shown)


def _pure(
    ctx: Any, *args: Any, callback: Callable[..., Any], sharding: Any = None, **_: Any
) -> Sequence[Any]:
    place = _place(ctx, sharding)
    call = partial(_call_back, "jax.pure_callback", callback)
    return host_call(ctx, call, args, None, has_side_effect=False, place=place)


def _io(
    ctx: Any,
    *args: Any,
    callback: Callable[..., Any],
    ordered: bool,
    sharding: Any = None,
    **_: Any,
) -> Sequence[Any]:
    from jax._src.callback import _OrderedIOEffect

    place = _place(ctx, sharding)
    call = partial(_call_back, "jax.io_callback", callback)
    return host_call(ctx, call, args, _OrderedIOEffect if ordered else None, place=place)


def _call_back(what: str, callback: Callable[..., Any], *args: Any) -> Sequence[Any]:
    """The results of a callback, on JAX's CPU device.

    As `pure_callback_impl` and `io_callback_impl` of JAX, whose `device_put` takes longer than most
    callbacks.
    """
    device, parts = _cpu_device(what), _parts()
    with parts.default_device(device):
        try:
            return [*map(np.asarray, callback(*_on_device(args, device)))]
        except BaseException:
            parts.logger.exception("%s failed", what)
            raise


def _on_device(args: Sequence[Any], device: Any) -> list[Any]:
    """Operands as JAX's arrays on a device."""
    put = _parts().put
    return [put(*_kind_on(arg.shape, arg.dtype, device), [arg], [device]) for arg in args]


def _cpu_device(what: str) -> Any:
    """JAX's CPU device, or its error that there is none."""
    try:
        return _parts().local_devices(backend="cpu")[0]
    except RuntimeError as error:
        raise RuntimeError(
            f"{what} failed to find a local CPU device to place the inputs on. Make sure "
            '"cpu" is listed in --jax_platforms or the JAX_PLATFORMS environment variable.'
        ) from error


@dataclass(frozen=True, slots=True)
class _Parts:
    """Functions of JAX, imported once: an import statement in each call takes a microsecond."""

    enable_x64: Callable[[bool], AbstractContextManager[Any]]
    default_device: Callable[[Any], AbstractContextManager[Any]]
    without_mesh: Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]
    canonicalize: Callable[[Any], Any]
    put: Callable[..., Any]
    local_devices: Callable[..., Sequence[Any]]
    logger: logging.Logger


@cache
def _parts() -> _Parts:
    import jax
    from jax._src import callback, config, mesh, sharding_impls, xla_bridge
    from jax._src.dtypes import canonicalize_value
    from jax._src.interpreters.pxla import batched_device_put

    def without_mesh() -> tuple[Any, Any]:
        concrete = sharding_impls._internal_use_concrete_mesh(mesh.empty_concrete_mesh)
        return concrete, mesh.use_abstract_mesh(mesh.empty_abstract_mesh)

    return _Parts(
        jax.enable_x64,
        config.default_device,
        without_mesh,
        canonicalize_value,
        batched_device_put,
        xla_bridge.local_devices,
        callback.logger,
    )


@lru_cache(maxsize=1 << 10)
def _kind_on(shape: tuple[int, ...], dtype: np.dtype[Any], device: Any) -> tuple[Any, Any]:
    from jax._src.core import ShapedArray
    from jax._src.sharding_impls import SingleDeviceSharding

    return ShapedArray(shape, dtype), SingleDeviceSharding(device)


def _place(ctx: Any, sharding: Any) -> Any:
    """The calling device as JAX's sharding; None in a manual region, where every device calls.

    Raises JAX's own errors for a missing or an invalid device.
    """
    from jax._src.callback import _callback_op_sharding
    from jax._src.sharding_impls import SPMDAxisContext

    where = ctx.module_context.axis_context
    place = _callback_op_sharding(where, sharding, ctx.avals_out)
    return None if isinstance(where, SPMDAxisContext) else place


def _debug(
    ctx: Any,
    *args: Any,
    callback: Callable[..., Any],
    effect: Any,
    partitioned: bool = False,
    **params: Any,
) -> Sequence[Any]:
    from jax._src import debugging, effects
    from jax._src.interpreters import mlir
    from jax._src.sharding_impls import SPMDAxisContext

    where = ctx.module_context.axis_context
    parameters = {"callback": callback, "effect": effect, "partitioned": partitioned, **params}
    if isinstance(where, SPMDAxisContext) and {*where.mesh.axis_names} - where.manual_axes:
        first = partial(debugging._debug_callback_partial_auto, where, **parameters)
        lowered: Sequence[Any] = mlir.lower_fun(first)(ctx, *args)
        return lowered
    ordered = effect if effects.ordered_effects.contains(effect) else None
    call = partial(_call_back_to_show, debugging.debug_callback_impl, parameters)
    return host_call(ctx, call, args, ordered, on_pieces=partitioned)


def _call_back_to_show(
    theirs: Callable[..., Any], parameters: Mapping[str, Any], *args: Any
) -> tuple[()]:
    """Call back as `debug_callback_impl` of JAX, with JAX's arrays if it has a CPU device."""
    try:
        device = _cpu_device("jax.debug.callback")
    except RuntimeError:
        theirs(*args, **parameters)
        return ()
    parts = _parts()
    with parts.default_device(device):
        try:
            parameters["callback"](*_on_device(args, device))
        except BaseException:
            parts.logger.exception("jax.debug.callback failed")
            raise
    return ()


def _print(
    ctx: Any,
    *args: Any,
    fmt: str,
    ordered: bool,
    in_tree: Any,
    static_args: Any,
    np_printoptions: Any,
    has_placeholders: bool,
    logging_record: Any,
    partitioned: bool = False,
    **_: Any,
) -> Sequence[Any]:
    from jax._src import debugging

    show = partial(
        debugging._format_print_callback,
        fmt,
        dict(np_printoptions),
        has_placeholders,
        logging_record,
    )
    effect = debugging.ordered_debug_effect if ordered else debugging.debug_effect
    callback = debugging._make_flat_callback(in_tree, show, static_args)
    return _debug(ctx, *args, callback=callback, effect=effect, partitioned=partitioned)


def host_call(
    ctx: Any,
    call: Callable[..., Any],
    args: Sequence[Any],
    effect: Any,
    *,
    has_side_effect: bool = True,
    on_pieces: bool = False,
    place: Any = None,
) -> Sequence[Any]:
    """A callback with JAX's semantics; an ordered effect takes a token and returns one."""
    from jax._src.config import enable_x64
    from jax._src.interpreters import mlir

    call = partial(_as_traced, call, enable_x64.value)
    token = None if effect is None else ctx.tokens_in.get(effect)
    kind = {"has_side_effect": has_side_effect, "on_pieces": on_pieces, "place": place}
    results, token = emit_call(ctx, call, token, args, **kind)
    if effect is not None:
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({effect: token})))
    return results


def emit_call(
    ctx: Any,
    call: Callable[..., Any],
    token: Any,
    args: Sequence[Any],
    *,
    has_side_effect: bool,
    on_pieces: bool = False,
    place: Any = None,
) -> tuple[list[Any], Any]:
    """A call of a Python function of arrays: its results, and a token if it takes one.

    In a manual region each device calls with its local values; elsewhere there is one call with
    global values, unless `on_pieces`. `place` is JAX's sharding of the results.
    """
    from jax._src.sharding_impls import SPMDAxisContext

    module = ctx.module_context
    # Numbered in the order of lowering: a serialized program has the number, not the function.
    index = sum(isinstance(held, HostFunction) for held in module.keepalives)
    function = HostFunction(call)
    module.add_keepalive(function)
    manual = isinstance(module.axis_context, SPMDAxisContext)
    tokens = [] if token is None else [token]
    # JAX gives one sharding for each result, and the token is a result of the custom call.
    if place is not None and tokens and ctx.avals_out:  # a token has a sharding, too
        place = type(place)((place.shardings[0], *place.shardings))
    results = custom_call(
        ctx,
        HOST_CALL_ON_PIECES if on_pieces else HOST_CALL,
        (*tokens, *args),
        {"function": function.number, "index": index, "once": not manual and not on_pieces},
        more_types=[token.type for token in tokens],
        has_side_effect=has_side_effect,
        sharding=place,
    )
    return (results, None) if token is None else (results[1:], results[0])


def _as_traced(call: Callable[..., Any], wide: bool, *args: Any) -> tuple[Any, ...]:
    """Wrap a callback as JAX does: operands are arrays on its CPU device, results of any kind.

    The operands are copied: they are buffers of a program, which its next kernels write to, and JAX
    arrays on the CPU may share the memory that they are made of. The config of the tracing thread
    (`enable_x64`) is restored for the call, and no mesh is set.
    """
    parts = _parts()
    concrete, abstract = parts.without_mesh()
    with parts.enable_x64(wide), concrete, abstract:
        made = call(*map(copied, args))
        return tuple([parts.canonicalize(np.asarray(value)) for value in made])
