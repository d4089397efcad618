"""What JAX lowers otherwise for Weft: callbacks, decompositions, and what donation allows."""

from __future__ import annotations

from typing import Any

from weft.capture.jax_lowerings import lowering_rules
from weft.jax.caching import use_cache
from weft.jax.client import PLATFORM
from weft.jax.effects import call_back_at_once, emit_callbacks
from weft.jax.exporting import allow_own_calls
from weft.jax.inspecting import inspect_lowering
from weft.jax.interrupts import hold_interrupted
from weft.jax.lowered import count_lowered


class _Rules(dict[Any, Any]):
    """How primitives are lowered for Weft, those of parts of JAX that are imported late, too."""

    known: object = None  # what has been entered

    def __contains__(self, primitive: object) -> bool:
        rules = lowering_rules()
        if rules is not self.known:
            from jax._src.interpreters import mlir

            for each, rule in rules:
                mlir.register_lowering(each, rule, platform=PLATFORM)
            self.known = rules
        return super().__contains__(primitive)


def register_lowerings() -> None:
    """Tell JAX how its primitives are lowered for Weft, where it has no rule for all platforms."""
    from jax._src import debugging
    from jax._src.interpreters import mlir

    if not isinstance(mlir._platform_specific_lowerings[PLATFORM], _Rules):
        mlir._platform_specific_lowerings[PLATFORM] = _Rules()
    mlir.register_lowering(debugging.inspect_sharding_p, inspect_lowering, platform=PLATFORM)
    call_back_at_once()
    emit_callbacks()
    use_cache()
    hold_interrupted()
    allow_own_calls()
    count_lowered()
    if PLATFORM not in mlir._platforms_with_donation:
        mlir._platforms_with_donation.append(PLATFORM)
