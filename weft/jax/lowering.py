"""What JAX lowers otherwise for Weft: callbacks, decompositions, and what donation allows."""

from __future__ import annotations

from weft.capture.jax_lowerings import lowering_rules
from weft.jax.client import PLATFORM


def register_lowerings() -> None:
    """Tell JAX how its primitives are lowered for Weft, where it has no rule for all platforms."""
    from jax._src.interpreters import mlir

    for primitive, rule in lowering_rules():
        mlir.register_lowering(primitive, rule, platform=PLATFORM)
    if PLATFORM not in mlir._platforms_with_donation:
        mlir._platforms_with_donation.append(PLATFORM)
