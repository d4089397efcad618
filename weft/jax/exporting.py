"""`jax.export`: calls of Weft's own in exported programs, and programs exported for CPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from weft.jax.client import PLATFORM
from weft.ops.linalg_calls import CALLS


def allow_own_calls() -> None:
    """Tell JAX that what matrices are decomposed by keeps its meaning."""
    from jax._src.export import _export

    own = {name for name in CALLS if name.startswith("weft.")}
    _export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE.update(own)


def call_as_on_cpu() -> None:
    """Run programs that were exported for CPUs and not for Weft as they run on CPUs.

    A routine of JAX's CPU in them that Weft does not have is refused by its name when the program
    is compiled.
    """
    from jax._src.export import _export
    from jax._src.interpreters import mlir

    theirs: Callable[..., Any] = _export._call_exported_lowering
    if getattr(theirs, "knows_weft", False):
        return

    def lowering(ctx: Any, *operands: Any, exported: Any) -> Any:
        here = tuple(ctx.module_context.platforms)
        if here == (PLATFORM,) and PLATFORM not in exported.platforms:
            named = tuple([PLATFORM if p == "cpu" else p for p in exported.platforms])
            exported = replace(exported, platforms=named)
        return theirs(ctx, *operands, exported=exported)

    lowering.knows_weft = True  # type: ignore[attr-defined]  # so that it is done once
    _export._call_exported_lowering = lowering
    mlir.register_lowering(_export.call_exported_p, lowering)
