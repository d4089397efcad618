"""The plugin: a table of functions that JAX calls, and how JAX learns of it."""

from __future__ import annotations

import atexit
import ctypes
import threading
from typing import Any

from weft.errors import WeftError
from weft.jax import buffers, client, events, executables, executing, facts
from weft.jax.abi import Api, api
from weft.jax.client import PLATFORM
from weft.jax.handles import FOR_EVER, Handles, Native
from weft.jax.lowering import register_lowerings
from weft.jax.native import STATE, native_slots
from weft.jax.slots import SLOTS, thunk
from weft.knobs import DEVICES

_PARTS = (buffers, client, events, executables, executing, facts)  # whose slots are filled


class _Table(ctypes.Structure):
    """What JAX is given: a head, the version, and a pointer for every slot."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t),
        ("extension_start", ctypes.c_size_t),
        ("version_size", ctypes.c_size_t),
        ("version_extension", ctypes.c_size_t),
        ("major", ctypes.c_int32),
        ("minor", ctypes.c_int32),
        ("slots", ctypes.c_size_t * 256),
    ]


class Plugin:
    """The table, and what it leads to."""

    def __init__(self, devices: int) -> None:
        spoken = api()
        natively = native_slots()
        bridged = [name for name in spoken.slots if name not in natively or name in SLOTS]
        self.native = Native(spoken, bridged)
        self.handles = Handles(self.native)
        self.client = client.start(self.handles, devices, _version())
        for name in bridged:
            self.native.state[self.native.thunk_at[name]] = thunk(spoken, name, self.handles)
        self.table = self._table(spoken)
        self.capsule = _capsule(ctypes.addressof(self.table))
        atexit.register(self.close)

    def _table(self, spoken: Api) -> _Table:
        table = _Table()
        table.struct_size = _Table.slots.offset + 8 * len(spoken.slots)
        table.version_size = 24
        table.major, table.minor = spoken.version
        for n, name in enumerate(spoken.slots):
            table.slots[n] = self.native.addresses[name]
        return table

    def close(self) -> None:
        """The process ends: Python is not called any longer."""
        self.native.state[STATE["closed"]] = 1


def _version() -> str:
    from weft import __version__

    return f"weft {__version__}"


def _capsule(address: int) -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    name = ctypes.create_string_buffer(b"pjrt_c_api")
    FOR_EVER.append(name)
    return make(address, ctypes.cast(name, ctypes.c_char_p), None)


_LOCK = threading.Lock()
_MADE: list[Plugin] = []
_devices: list[int] = []


def configure(*, devices: int) -> None:
    """Set the number of virtual devices, before JAX asks for them."""
    if _MADE and len(_MADE[0].client.devices) != devices:
        raise WeftError(
            f"JAX has {len(_MADE[0].client.devices)} devices of Weft already",
            help="call weft.jax.configure before anything runs, or set WEFT_DEVICES",
        )
    if devices < 1:
        raise WeftError(f"{devices} devices", help="ask for at least one")
    _devices[:] = [devices]


def the_plugin() -> Plugin:
    """The plugin of this process, made when it is first needed."""
    with _LOCK:
        if not _MADE:
            made = Plugin(_devices[0] if _devices else DEVICES.value())
            FOR_EVER.append(made)
            for thing in (FOR_EVER, made.handles.kept, made):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))  # also when Python ends
            _MADE.append(made)
    return _MADE[0]


def backend() -> Any:
    """JAX's client of the plugin."""
    from jax._src import xla_bridge
    from jax._src.lib import xla_client

    made = the_plugin()
    register_lowerings()
    if not xla_client.pjrt_plugin_loaded(PLATFORM):
        xla_client.load_pjrt_plugin_with_c_api(PLATFORM, made.capsule)
    return xla_bridge.make_pjrt_c_api_client(PLATFORM)
