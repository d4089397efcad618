"""The number of virtual devices that JAX has of Weft, in this process."""

from __future__ import annotations

from weft.errors import WeftError
from weft.knobs import DEVICES

MOST_DEVICES = 1 << 14  # jaxlib spends 14 us on each at startup, used or not
_CONFIGURED: list[int] = []


def device_count() -> int:
    """As configured, else the value of the knob."""
    return _CONFIGURED[0] if _CONFIGURED else DEVICES.value()


def set_device_count(devices: int) -> None:
    """Configure the number."""
    if devices < 1:
        raise WeftError(f"{devices} devices", help="ask for at least one")
    check_count(devices)
    _CONFIGURED[:] = [devices]


def check_count(devices: int) -> None:
    """Raise for more devices than JAX can enumerate quickly at startup."""
    if devices > MOST_DEVICES:
        raise WeftError(
            f"{devices:,} devices for JAX: at most {MOST_DEVICES:,}",
            help=f"set {DEVICES.name} to at most {MOST_DEVICES}; a mesh of more: weft.compile",
        )
