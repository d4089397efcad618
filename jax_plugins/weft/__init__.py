"""How JAX finds Weft: JAX imports every module of this namespace and calls `initialize`.

Nothing of Weft is imported before its devices are requested: other JAX programs do not pay for it.
"""

from __future__ import annotations

from typing import Any

PLATFORM = "weft"
PRIORITY = -100  # below all of JAX's own: Weft is used only where JAX_PLATFORMS names it
MOST_HOST_DEVICES = 64  # JAX makes threads for each


def initialize() -> None:
    """Tell JAX that there is a platform of that name."""
    from jax._src import xla_bridge

    if PLATFORM not in xla_bridge._backend_factories:
        xla_bridge.register_backend_factory(
            PLATFORM, _backend, priority=PRIORITY, fail_quietly=True
        )
    _pair_host_devices()


def _pair_host_devices() -> None:
    """Ask JAX for a CPU device beside each of Weft's, for `jax.experimental.colocated_python`.

    It runs functions on these, and needs as many. Nothing changes where the user has set a number.
    """
    import contextlib
    import os

    import jax

    asked = (jax.config.jax_platforms or "").split(",")
    flag = "xla_force_host_platform_device_count"
    is_set = jax.config.jax_num_cpu_devices >= 0 or flag in os.environ.get("XLA_FLAGS", "")
    if PLATFORM in asked and not is_set:
        from weft.errors import WeftError
        from weft.jax.device_count import device_count

        with contextlib.suppress(WeftError):  # raised again where devices are made
            if (count := device_count()) <= MOST_HOST_DEVICES:
                jax.config.update("jax_num_cpu_devices", count)


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
