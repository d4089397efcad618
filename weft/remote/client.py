"""`weft.connect`: a client of a server's devices."""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from weft.array import Array, Device
from weft.array.array import array_spec
from weft.array.context import CONTEXTS, UserContext
from weft.array.device import device_at
from weft.array.exchange import to_numpy
from weft.array.put import mesh_of
from weft.capture import source_of
from weft.capture.options import CallOptions, Positions, as_positions
from weft.capture.shardings import Spelled
from weft.errors import WeftError
from weft.executable.container import open_container
from weft.ir.types import dtype_of
from weft.knobs import Tune
from weft.mesh import P, as_mesh, as_sharding
from weft.ops.elementwise.approximate import approximable
from weft.optimize import Level
from weft.remote.array import RemoteArray
from weft.remote.connection import Completed, Connection
from weft.remote.program import RemoteCompiled, RemoteProgram, program_from
from weft.remote.wire import (
    INLINE,
    WireMessage,
    check_byte_order,
    elements_of,
    place_fields,
    placed_fields,
)

TIMEOUT = 20.0  # seconds


def connect(
    address: str,
    *,
    token: str | None = None,
    tls: bool | str | os.PathLike[str] = False,
    timeout: float = TIMEOUT,
) -> DeviceClient:
    """Connect to the devices of `weft serve-devices` at "host:port".

    With `tls` the server is checked by the system's certificates, or by those of a PEM file. It is
    pinged about every `timeout` seconds; once gRPC finds that it is gone, everything that waits for
    it raises an error.
    """
    check_byte_order()
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise WeftError(f"{address!r} is not an address", help='give "host:port"')
    return DeviceClient(Connection(address, token, _certificates(tls), timeout))


def _certificates(tls: bool | str | os.PathLike[str]) -> bytes | bool:
    if isinstance(tls, bool):
        return tls
    try:
        return Path(tls).read_bytes()
    except OSError as error:
        raise WeftError(
            f"cannot read {os.fspath(tls)}: {error.strerror}",
            help="give the PEM file of the server's certificate, or of its authority",
        ) from None


class DeviceClient:
    """A connection to a server's devices: put arrays there, compile programs, run them.

    Use it in a `with`, or `close` it: the server then frees what it holds.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._told: set[int] = {0}  # contexts that the server knows
        _OPEN.add(self)

    @property
    def address(self) -> str:
        """The server's host and port."""
        return self.connection.address

    def devices(self, wanted: object = None) -> tuple[Device, ...]:
        """The server's devices of a mesh, in its order; or a number of them, by default one."""
        self.connection.check()
        if wanted is None or isinstance(wanted, int):
            count = wanted or 1
            places = [Device(n, platform="remote") for n in range(count)]
        else:
            mesh = as_mesh(wanted)
            mesh.check_listed()
            listed = [device_at(mesh, n) for n in range(mesh.size)]
            places = [Device(d.id, d.position, platform="remote") for d in listed]
        most = int(self.connection.limits.get("devices", len(places)))
        if len(places) > most:
            raise WeftError(f"the server has {most:,} devices", help="use a smaller mesh")
        return tuple(places)

    def put(self, array: Any, sharding: Any = None, mesh: Any = None) -> RemoteArray:
        """An array on the server's devices with a sharding; replicated without one."""
        if self._is_here(array):
            if sharding is None and mesh is None:
                assert isinstance(array, RemoteArray)
                return array
            return self._resharded(array, sharding, array.mesh if mesh is None else mesh)
        held = to_numpy(array.numpy() if isinstance(array, Array) else array)
        ours = as_mesh(mesh) if mesh is not None else mesh_of(sharding)
        resolved = as_sharding(P() if sharding is None else sharding, held.ndim, ours)
        return self._sent(held, resolved, ours)

    def place_argument(self, value: Any) -> RemoteArray:
        """An argument of a program, at the server; a new array is split there by its sharding."""
        if self._is_here(value):
            value.check_alive()
            assert isinstance(value, RemoteArray)
            return value
        held = to_numpy(value.numpy() if isinstance(value, Array) else value)
        return self._sent(held, None, None)

    def _is_here(self, value: Any) -> bool:
        return type(value) is RemoteArray and value.connection is self.connection

    def _sent(self, held: Any, sharding: Any, mesh: Any) -> RemoteArray:
        dtype, handle = dtype_of(held.dtype), self.new_handle()
        fields: dict[str, Any] = {**placed_fields(held.shape, dtype, sharding, mesh)}
        on = mesh_of(None) if mesh is None else mesh
        spec = array_spec(held.shape, dtype, sharding or as_sharding(P(), held.ndim, on), on)
        array, data = RemoteArray.at(self.connection, handle, spec), elements_of(held, dtype)
        array.context = self.context()
        fields |= {"array": handle, "context": array.context.id}
        if len(data) <= INLINE:
            self.connection.request("put", data, _completing(array), **fields)
        else:
            self.connection.upload("array", data, **fields)
            array.complete(None)
        return array

    def _resharded(self, array: RemoteArray, sharding: Any, mesh: Any) -> RemoteArray:
        array.check_alive()
        ours, handle = as_mesh(mesh), self.new_handle()
        split = as_sharding(P() if sharding is None else sharding, array.ndim, ours)
        spec = array_spec(array.shape, array.element_type, split, ours)
        result = RemoteArray.at(self.connection, handle, spec)
        fields: dict[str, Any] = {**place_fields(split, ours)}
        fields |= {"array": array.handle, "result": handle}
        result.context, done = self.context(), _completing(result)
        self.connection.request("reshard", b"", done, context=result.context.id, **fields)
        return result

    def compile(
        self,
        fn: Any,
        *args: Any,
        mesh: object = None,
        in_shardings: Spelled = None,
        out_shardings: Spelled = None,
        donate_argnums: Positions = (),
        static_argnums: Positions = (),
        plan: object = None,
        level: Level = 1,
        target: str | None = None,
        fold_sums: bool = True,
        tune: Tune | None = None,
        excess_precision: bool = True,
        approximate: str | Iterable[str] = (),
        **kwargs: Any,
    ) -> RemoteCompiled:
        """`weft.compile` for the server's devices: it is captured here, and compiled there."""
        donated = as_positions("donate_argnums", donate_argnums)
        static = as_positions("static_argnums", static_argnums)
        call_options = CallOptions(mesh, in_shardings, out_shardings, donated, static, plan)
        options = {"level": level, "target": target, "fold_sums": fold_sums, "tune": tune}
        options |= {"excess_precision": excess_precision}
        if names := approximable(approximate):
            options |= {"approximate": ",".join(names)}
        source = source_of(fn, call_options)
        compiled = RemoteCompiled(self, source, call_options, options)
        if args or kwargs or not source.needs_arguments:
            compiled.prepare(*args, **kwargs)
        return compiled

    def load(self, path: str | os.PathLike[str] | bytes) -> RemoteProgram:
        """The executable of a file that `Compiled.save` wrote, or of its bytes, at the server.

        No compiler and no framework is needed here.
        """
        open_container(path)  # an error of this file is one of this machine
        data = path if isinstance(path, bytes) else Path(path).read_bytes()
        return self.send_program("executable", data, {})

    def send_program(self, form: str, data: bytes, options: dict[str, Any]) -> RemoteProgram:
        """Have the server compile or load a program."""
        handle = self.new_handle()
        fields: dict[str, Any] = {"program": handle, "form": form, "options": options}
        answer = self.connection.upload("program", memoryview(data), **fields)
        return program_from(self, handle, bytes(answer.body).decode())

    def new_handle(self) -> int:
        """A number for a new array or program."""
        return self.connection.new_handle()

    def context(self) -> UserContext:
        """The user's call, which the server knows by its number."""
        context = CONTEXTS.here()
        if context.id not in self._told:
            self._told.add(context.id)
            self.connection.tell("context", context=context.id, place=context.place)
        return context

    def close(self) -> None:
        """End the session; the server frees what it holds."""
        _OPEN.discard(self)
        self.connection.end(
            WeftError(f"the connection to {self.address} was closed", help="connect again")
        )

    def __enter__(self) -> DeviceClient:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "" if self.connection.error is None else ", disconnected"
        return f"<weft.connect {self.address}{state}>"


def _completing(array: RemoteArray) -> Completed:
    """A callback that completes an array, and does not keep it alive."""
    held = weakref.ref(array)

    def complete(message: WireMessage | None, error: BaseException | None) -> None:
        if (array := held()) is not None:
            array.complete(error)

    return complete


_OPEN: weakref.WeakSet[DeviceClient] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for client in [*_OPEN]:
        client.close()
