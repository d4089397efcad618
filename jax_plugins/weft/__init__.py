"""How JAX finds Weft: JAX imports every module of this namespace and calls `initialize`.

Nothing of Weft is imported before its devices are requested: other JAX programs do not pay for it.
"""

from __future__ import annotations

from typing import Any

PLATFORM = "weft"
PRIORITY = -100  # below all of JAX's own: Weft is used only where JAX_PLATFORMS names it


def initialize() -> None:
    """Tell JAX that there is a platform of that name."""
    from jax._src import xla_bridge

    if PLATFORM not in xla_bridge._backend_factories:
        xla_bridge.register_backend_factory(
            PLATFORM, _backend, priority=PRIORITY, fail_quietly=True
        )


def _backend() -> Any:
    """JAX's client of Weft, where JAX_PLATFORMS names it."""
    import jax
    from jax._src import xla_bridge

    asked = (jax.config.jax_platforms or "").split(",")
    if PLATFORM not in asked:
        raise RuntimeError("set JAX_PLATFORMS=weft to use Weft's devices")
    from weft.jax.plugin import backend

    made = backend()
    if asked == [PLATFORM]:
        # Programs ask for the host's own device, too, wherever they run. JAX holds its lock here.
        xla_bridge._backends["cpu"] = xla_bridge._init_backend("cpu")
    return made
