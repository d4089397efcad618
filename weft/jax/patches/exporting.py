"""Patches of `jax.export`: Weft's custom calls, and programs exported for CPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from weft.jax.buffers.client import PLATFORM
from weft.ops.custom_calls.linalg import CALLS
from weft.patches import replace_in_jax, table_of_jax


def allow_own_calls() -> None:
    """Register Weft's linear algebra calls as stable for export."""
    stable = "jax._src.export._export:_CUSTOM_CALL_TARGETS_GUARANTEED_STABLE"
    table_of_jax(stable).update(name for name in CALLS if name.startswith("weft."))


def call_as_on_cpu() -> None:
    """Run programs that were exported for CPUs, and not for Weft, like on CPUs.

    A CPU custom call in them that Weft lacks is an error at compile time, with its name.
    """
    from jax._src.export import _export
    from jax._src.interpreters import mlir

    replace_in_jax("jax._src.export._export:_call_exported_lowering", _as_on_cpu)
    mlir.register_lowering(_export.call_exported_p, _export._call_exported_lowering)


def _as_on_cpu(theirs: Callable[..., Any]) -> Callable[..., Any]:
    def lowering(ctx: Any, *operands: Any, exported: Any) -> Any:
        here = tuple(ctx.module_context.platforms)
        if here == (PLATFORM,) and PLATFORM not in exported.platforms:
            named = tuple([PLATFORM if p == "cpu" else p for p in exported.platforms])
            exported = replace(exported, platforms=named)
        return theirs(ctx, *operands, exported=exported)

    return lowering
