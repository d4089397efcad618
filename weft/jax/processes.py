"""The processes of `jax.distributed`, and which devices are of which."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
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
    set_key(f"{_COUNTS}/{state.process_id}", str(devices))
    counts = [int(value_of(f"{_COUNTS}/{process}")) for process in range(state.num_processes)]
    if {*counts} != {devices}:
        raise WeftError(
            f"the processes of jax.distributed have {', '.join(map(str, counts[:16]))} devices: "
            "JAX needs the same number in each",
            help=f"set {DEVICES.name} alike in all of them",
        )
    return JaxProcesses(devices, state.num_processes, state.process_id)


def set_key(key: str, value: str) -> None:
    """Set a key of JAX's key-value store."""
    _state().client.key_value_set(key, value, allow_overwrite=True)


def value_of(key: str) -> str:
    """The value of a key, which some process sets."""
    try:
        value: str = _state().client.blocking_key_value_get(key, int(TIMEOUT.value() * 1000))
    except Exception as error:
        raise WeftError(
            f"{key} was not set by its process within {TIMEOUT.value():g} s: {error}",
            help="every process of jax.distributed uses Weft's devices: set JAX_PLATFORMS=weft in "
            f"all of them, and see their output; {TIMEOUT.name} is the time to wait",
        ) from error
    return value


class JaxStore:
    """JAX's key-value store as that of Weft's workers."""

    prefix = "weft/board/"

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        set_key(self.prefix + key, value)

    def get(self, key: str) -> bytes:
        """The value of a key that was set."""
        found = self._try_get(key)
        if found is None:
            raise KeyError(key)
        return found.encode()

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are set."""
        return all(self._try_get(key) is not None for key in keys)

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        """Wait until all keys are set."""
        end = time.monotonic() + timeout.total_seconds()
        for key in keys:
            left = max(end - time.monotonic(), 0.001)
            _state().client.blocking_key_value_get(self.prefix + key, int(left * 1000) + 1)

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a key that is not set; its value then."""
        assert not expected, "JAX's store compares with nothing"
        try:
            _state().client.key_value_set(self.prefix + key, desired)
        except Exception as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
        return self.get(key)

    def clone(self) -> JaxStore:
        """The same one: its calls do not wait for each other."""
        return self

    def _try_get(self, key: str) -> str | None:
        try:
            value: str = _state().client.key_value_try_get(self.prefix + key)
        except Exception as error:
            if "NOT_FOUND" in str(error):
                return None
            raise
        return value


def coordinator() -> str:
    """The host of process 0."""
    address: str = _state().coordinator_address
    return address.rsplit(":", 1)[0].strip("[]")


def _state() -> Any:
    from jax._src import distributed

    return distributed.global_state
