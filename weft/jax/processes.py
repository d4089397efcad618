"""The processes of `jax.distributed`, and which devices are of which."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.errors import WeftError
from weft.knobs import DEVICES, TIMEOUT
from weft.records import dataclass

_COUNTS = "weft/devices"  # the prefix of keys in JAX's key-value store


@dataclass(frozen=True, slots=True)
class JaxProcesses:
    """All processes of a job; devices are numbered in their order."""

    here: int  # devices of this process, and of each other
    size: int = 1  # processes
    index: int = 0  # of this process

    @property
    def count(self) -> int:
        """The devices of all processes."""
        return self.here * self.size

    @property
    def first(self) -> int:
        """The number of the first device of this process."""
        return self.here * self.index

    def owner(self, device: int) -> int:
        """The process of a device."""
        return device // self.here

    def default_devices(self, count: int) -> Sequence[int]:
        """The devices of a program without any: those of this process, if they suffice."""
        first = self.first if count <= self.here else 0
        return range(first, first + count)

    def check_same(self) -> None:
        """Raise if `jax.distributed` was initialized after the devices were made."""
        state = _state()
        now = (state.num_processes or 1) if state.client is not None else 1
        if now != self.size:
            raise WeftError(
                f"jax.distributed has {now} processes, and JAX's devices are those of {self.size}",
                help="call jax.distributed.initialize before anything else of JAX",
            )


def find_processes(devices: int) -> JaxProcesses:
    """The processes that `jax.distributed.initialize` has joined; this one has so many devices."""
    state = _state()
    if state.client is None or (state.num_processes or 1) == 1:
        return JaxProcesses(devices)
    keep(f"{_COUNTS}/{state.process_id}", str(devices))
    counts = [int(kept(f"{_COUNTS}/{process}")) for process in range(state.num_processes)]
    if {*counts} != {devices}:
        raise WeftError(
            f"the processes of jax.distributed have {', '.join(map(str, counts[:16]))} devices: "
            "JAX needs the same number in each",
            help=f"set {DEVICES.name} alike in all of them",
        )
    return JaxProcesses(devices, state.num_processes, state.process_id)


def keep(key: str, value: str) -> None:
    """Set a key of JAX's key-value store."""
    _state().client.key_value_set(key, value, allow_overwrite=True)


def kept(key: str) -> str:
    """The value of a key, which some process sets."""
    try:
        found: str = _state().client.blocking_key_value_get(key, int(TIMEOUT.value() * 1000))
    except Exception as error:
        raise WeftError(
            f"{key} was not set by its process within {TIMEOUT.value():g} s: {error}",
            help="every process of jax.distributed uses Weft's devices: set JAX_PLATFORMS=weft in "
            f"all of them, and see their output; {TIMEOUT.name} is the time to wait",
        ) from error
    return found


def coordinator() -> str:
    """The host of process 0."""
    address: str = _state().coordinator_address
    return address.rsplit(":", 1)[0].strip("[]")


def _state() -> Any:
    from jax._src import distributed

    return distributed.global_state
