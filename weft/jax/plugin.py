"""The PJRT plugin: its function table, and its registration with JAX."""

from __future__ import annotations

import atexit
import ctypes
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weft.errors import WeftError
from weft.jax.abi import Api, api
from weft.jax.buffers import client
from weft.jax.buffers.client import PLATFORM, Home, default_home
from weft.jax.buffers.dlpack import exchange_by_dlpack
from weft.jax.buffers.events import settle
from weft.jax.buffers.watching import WATCHING, start_watch
from weft.jax.device_count import check_count, device_count, set_device_count
from weft.jax.joining import start_joining
from weft.jax.native.arrivals import TEMPLATES
from weft.jax.native.bridge import all_slots
from weft.jax.native.functions import asks_python
from weft.jax.native.handles import IMMORTAL, Handles, Native, list_at
from weft.jax.native.slots import thunk
from weft.jax.native.state import PluginState
from weft.jax.patches.guarding import heed_guards
from weft.jax.patches.lowering import register_lowerings
from weft.jax.processes import JaxProcesses, find_processes
from weft.jax.versions import check_versions, too_old, weft_version
from weft.native.cpython import pointer_to
from weft.native.forks import after_fork
from weft.workers.member import PROGRESS

PATIENCE = 0.5  # seconds for threads to park at process exit


class _Table(ctypes.Structure):
    """PJRT_Api: a header, the version, and a pointer for every slot."""

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
    """The function table and the objects behind it."""

    def __init__(self, processes: JaxProcesses, home: Home) -> None:
        spoken = api()
        bridged = [name for name in all_slots() if asks_python(name)]
        self.native = _LOADED.pop() if _LOADED else Native(spoken)
        self.handles = Handles(self.native)
        self.client = client.start(self.handles, processes, f"weft {weft_version()}", home)
        state = self.native.state
        early = dict(client.SLOTS)
        for name in bridged:
            made = thunk(spoken, name, self.handles, early.get(name))
            state[self.native.thunk_at[name]] = made
        state[PluginState.attributes.word], state[PluginState.attribute_count.word] = (
            client.attributes()
        )
        state[PluginState.templates.word] = ctypes.addressof(TEMPLATES)
        self._drain = self.handles.drain
        state[PluginState.drain.word] = pointer_to(self._drain)
        self.table = self._table(spoken)
        self.capsule = _capsule(ctypes.addressof(self.table))
        self._is_daemon = _is_daemon
        _before_threads_are_joined(self.end)
        after_fork(self.close)
        if home.stream is not None:
            start_watch(self.handles, settle)

    def close(self) -> None:
        """Stop calling Python: this process is a forked child, which has no other threads.

        JAX's clients would wait for their threads on destruction, so they are leaked.
        """
        self.handles.close()
        from jax._src import xla_bridge

        for held in xla_bridge._backends.values():
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))

    def end(self) -> None:
        """Process exit: daemon threads park at their next call of Weft."""
        state, until = self.native.state, time.monotonic() + PATIENCE
        daemons = _daemons()
        if not daemons or not state[PluginState.others.word]:
            return
        state[PluginState.ending.word] = pointer_to(self._is_daemon)
        while state[PluginState.parked.word] < len(daemons) and time.monotonic() < until:
            time.sleep(0.002)

    def _table(self, spoken: Api) -> _Table:
        table = _Table()
        table.struct_size = _Table.slots.offset + 8 * len(spoken.slots)
        table.extension_start = _chain(spoken.extensions, self.native.addresses)
        table.version_size = 24
        table.major, table.minor = spoken.version
        for n, name in enumerate(spoken.slots):
            table.slots[n] = self.native.addresses[name]
        return table


def _chain(extensions: Mapping[int, Sequence[str]], addresses: Mapping[str, int]) -> int:
    """The linked list of extensions; returns the first address."""
    first = 0
    for number, names in extensions.items():
        # size, type, next extension, functions
        entries = [8 * (3 + len(names)), number, first, *[addresses[name] for name in names]]
        first = list_at(entries)
    return first


def _daemons() -> list[threading.Thread]:
    """Daemon threads that may call Weft; those created by JAX are not Python's."""
    found = [t for t in threading.enumerate() if t.daemon and t.name not in (WATCHING, PROGRESS)]
    return [t for t in found if not isinstance(t, threading._DummyThread)]


def _is_daemon() -> int:
    here = threading.get_ident()
    return int(any(thread.ident == here for thread in _daemons()))


def _before_threads_are_joined(act: Callable[[], None]) -> None:
    """Register an exit hook that runs while threads are still alive."""
    early: Any = getattr(threading, "_register_atexit", atexit.register)
    early(act)


def _capsule(address: int) -> Any:
    make = ctypes.pythonapi.PyCapsule_New
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    name = ctypes.create_string_buffer(b"pjrt_c_api")
    IMMORTAL.append(name)
    return make(address, ctypes.cast(name, ctypes.c_char_p), None)


_LOCK = threading.Lock()
_MADE: list[Plugin] = []
_LOADED: list[Native] = []  # native functions without a plugin, in a process that is to be forked


def warm_up() -> None:
    """Load the native functions before workers are forked, so that they do not all pay for it."""
    _LOADED.append(Native(api()))


def configure(*, devices: int) -> None:
    """Set the number of virtual devices of this process, before JAX starts its backends."""
    if _MADE and (here := _MADE[0].client.processes.here) != devices:
        raise WeftError(
            f"JAX has {here} devices of Weft already",
            help="call weft.jax.configure before anything runs, or set WEFT_DEVICES",
        )
    set_device_count(devices)


def _check_python() -> None:
    """Raise on a free-threaded Python: records are guarded by the GIL."""
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        raise WeftError(
            "Weft's devices need the GIL, and this Python runs without it",
            help="set PYTHON_GIL=1, or use a build of Python that is not free-threaded",
        )


def the_plugin() -> Plugin:
    """The plugin of this process, created on demand."""
    _check_python()
    with _LOCK:
        if not _MADE:
            count = device_count()
            check_count(count)
            processes = find_processes(count)
            check_count(processes.count)
            plugin = Plugin(processes, default_home())
            IMMORTAL.append(plugin)
            for thing in (IMMORTAL, plugin.handles.objects, plugin):
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))  # also at interpreter exit
            _MADE.append(plugin)
            start_joining(processes)
    return _MADE[0]


def backend() -> Any:
    """JAX's client for the plugin."""
    from jax._src.lib import xla_client
    from jax.errors import JaxRuntimeError

    check_versions()
    plugin = the_plugin()
    plugin.client.processes.check_same()
    register_lowerings()
    exchange_by_dlpack(plugin.handles)
    heed_guards(plugin.native)
    try:
        if not xla_client.pjrt_plugin_loaded(PLATFORM):
            xla_client.load_pjrt_plugin_with_c_api(PLATFORM, plugin.capsule)
        if not xla_client.pjrt_plugin_initialized(PLATFORM):
            xla_client.initialize_pjrt_plugin(PLATFORM)
        # Without the client of jax.distributed: JAX would exchange devices that Weft knows, and
        # watch processes even after their end.
        return xla_client.make_c_api_client(PLATFORM, {}, None)
    except JaxRuntimeError as error:
        refusal = too_old(error)
        if refusal is None:
            raise
        raise refusal from error
