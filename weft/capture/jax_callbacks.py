"""JAX's callbacks, lowered to calls into the Python functions of this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from weft.capture.jax_calls import Lowering, custom_call, location_of, rules_of
from weft.errors import Unsupported
from weft.ops.callbacks import HOST_CALL, HostFunction


def callback_rules() -> tuple[tuple[Any, Lowering], ...]:
    """The primitives that call Python while a program runs."""
    from jax._src import callback, debugging

    called: dict[str, Lowering] = {"pure_callback_p": _pure, "io_callback_p": _io}
    shown: dict[str, Lowering] = {"debug_callback_p": _debug, "debug_print_p": _print}
    return rules_of(callback, called) + rules_of(debugging, shown)


def _pure(ctx: Any, *args: Any, callback: Callable[..., Any], **_: Any) -> Sequence[Any]:
    return _emit(ctx, callback, args, None, has_side_effect=False)


def _io(
    ctx: Any, *args: Any, callback: Callable[..., Any], ordered: bool, **_: Any
) -> Sequence[Any]:
    from jax._src.callback import _OrderedIOEffect

    return _emit(ctx, callback, args, _OrderedIOEffect if ordered else None)


def _debug(
    ctx: Any,
    *args: Any,
    callback: Callable[..., Any],
    effect: Any,
    partitioned: bool = False,
    **_: Any,
) -> Sequence[Any]:
    from jax._src import effects

    if partitioned:
        raise Unsupported(
            "a debug callback on the pieces of a value",
            help="leave out partitioned=True: the callback then sees whole values",
            loc=location_of(ctx.traceback),
        )
    ordered = effects.ordered_effects.contains(effect)
    return _emit(ctx, partial(_no_results, callback), args, effect if ordered else None)


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


def _no_results(callback: Callable[..., Any], *args: Any) -> tuple[()]:
    callback(*args)
    return ()


def _emit(
    ctx: Any,
    callback: Callable[..., Any],
    args: Sequence[Any],
    effect: Any,
    *,
    has_side_effect: bool = True,
) -> Sequence[Any]:
    """The call; one that has an effect in an order takes a token and gives one."""
    from jax._src.interpreters import mlir
    from jax._src.sharding_impls import SPMDAxisContext

    function = HostFunction(partial(_on_jax_arrays, callback))
    ctx.module_context.add_keepalive(function)
    manual = isinstance(ctx.module_context.axis_context, SPMDAxisContext)
    tokens = [] if effect is None else [ctx.tokens_in.get(effect)]
    results = custom_call(
        ctx,
        HOST_CALL,
        (*tokens, *args),
        {"function": function.number, "once": not manual},
        more_types=[token.type for token in tokens],
        has_side_effect=has_side_effect,
    )
    if effect is not None:
        token, *results = results
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(mlir.TokenSet({effect: token})))
    return results


def _on_jax_arrays(callback: Callable[..., Any], *args: Any) -> tuple[Any, ...]:
    """Call back as JAX does: with arrays of JAX, for arrays of any kind."""
    import jax

    return tuple(jax.tree_util.tree_leaves(callback(*map(jax.numpy.asarray, args))))
