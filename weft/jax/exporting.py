"""`jax.export`: which calls of Weft's own an exported program may hold."""

from __future__ import annotations

from weft.ops.linalg_calls import CALLS


def allow_own_calls() -> None:
    """Tell JAX that what matrices are decomposed by keeps its meaning."""
    from jax._src.export import _export

    own = {name for name in CALLS if name.startswith("weft.")}
    _export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE.update(own)
