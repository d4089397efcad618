"""Patches for Python callbacks, which JAX supports on its own devices only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.jax.buffers.client import PLATFORM
from weft.patches import replace_in_jax


def emit_callbacks() -> None:
    """Make `emit_python_callback` support Weft, for primitives with custom lowerings."""
    replace_in_jax("jax._src.callback:emit_python_callback", _emitting)
    replace_in_jax("jax.interpreters.mlir:emit_python_callback", _emitting)


def _emitting(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def emit_python_callback(
        ctx: Any,
        callback: Callable[..., Any],
        token: Any,
        operands: Sequence[Any],
        operand_avals: Sequence[Any],
        result_avals: Sequence[Any],
        *,
        has_side_effect: bool,
        partitioned: bool = False,
        **more: Any,
    ) -> tuple[Sequence[Any], Any, Any]:
        if tuple(ctx.module_context.platforms) != (PLATFORM,):
            kind = {"has_side_effect": has_side_effect, "partitioned": partitioned}
            given = (callback, token, operands, operand_avals, result_avals)
            found: tuple[Sequence[Any], Any, Any] = theirs(ctx, *given, **kind, **more)
            return found
        # imported late: jax.devices() does not need it
        from weft.capture.jax.callbacks import emit_call

        inner = ctx.replace(avals_in=operand_avals, avals_out=result_avals)
        kind = {"has_side_effect": has_side_effect, "on_pieces": partitioned}
        results, after = emit_call(inner, _numpy_results(callback), token, operands, **kind)
        return results, after, None

    return emit_python_callback


def _numpy_results(callback: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> tuple[Any, ...]:
        from jax._src.dtypes import canonicalize_value

        made = callback(*map(np.array, args))  # copies: the callback may keep its arguments
        return tuple([canonicalize_value(np.asarray(value)) for value in made])

    return call


def call_back_at_once() -> None:
    """Make `jax.debug` call back directly: JAX itself looks for a CPU device first."""
    replace_in_jax("jax._src.debugging:debug_callback_impl", _at_once)
    replace_in_jax("jax._src.debugging:debug_callback_p.impl", _at_once)


def _at_once(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, callback: Callable[..., Any], **params: Any) -> tuple[()]:
        import jax
        from jax._src import dispatch, xla_bridge

        known = xla_bridge.backends()
        before = dispatch.runtime_tokens.current_tokens.get(params["effect"])
        if PLATFORM in known and before is not None:  # programs that precede it in its effect order
            before.block_until_ready()
        if PLATFORM not in known or "cpu" in known:
            theirs(*args, callback=callback, **params)
        else:
            callback(*map(jax.numpy.asarray, args))
        return ()

    return call
