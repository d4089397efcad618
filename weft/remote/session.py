"""One client of a server: the arrays and programs that it holds, and its requests in order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import numpy as np

from weft.array import Array, put
from weft.errors import WeftError
from weft.executable import call
from weft.executable.signature import Signature
from weft.ir.types import dtype_of
from weft.machine import bytes_text
from weft.records import dataclass
from weft.remote.limits import ServerLimits
from weft.remote.wire import (
    INLINE,
    MOST_SMALL,
    WireMessage,
    array_from,
    elements_of,
    encoded,
    failed,
    place_in,
    room_for,
    size_of,
    small_elements,
    type_in,
)
from weft.run import LocalProgram, run

REQUESTS = ("put", "reshard", "execute", "fetch", "free", "forget", "context")
_HOLDERS = 3  # the largest that an error names


@dataclass(frozen=True, slots=True)
class ServedProgram:
    """A loaded program, its calling convention, and the bytes that count for it."""

    local: LocalProgram
    signature: Signature
    size: int


@dataclass(slots=True)
class ServedArray:
    """An array of a client, or the error in its place, with the call site that created it."""

    value: Any  # an Array, a numpy array that is split when it is used, or an exception
    size: int
    context: int


@dataclass(slots=True)
class ClientSession:
    """The state of one client, whose requests on its stream are handled in their order."""

    limits: ServerLimits
    reply: Callable[[bytes], None]
    arrays: dict[int, ServedArray] = field(default_factory=dict)
    programs: dict[int, ServedProgram] = field(default_factory=dict)
    contexts: dict[int, str] = field(default_factory=dict)
    held: int = 0  # bytes
    is_open: bool = True
    # Transfers and completions come from other threads. Reentrant: deleting an array under it may
    # run a callback of another.
    lock: Any = field(default_factory=threading.RLock)
    incoming: int = 0  # arrays that are being received; their bytes are held already
    transfers: int = 0  # uploads and downloads under way

    def handle(self, message: WireMessage) -> None:
        """Handle a request; a failure goes into its reply and into its results."""
        # What the client dropped makes room for the request, but for its own arguments.
        fields, free = message.fields, message.fields.get("free", ())
        kept = {*fields.get("arguments", ()), fields.get("array")}
        self.free([handle for handle in free if handle not in kept])
        match message.kind:
            case "execute":
                self._execute(message)
            case "fetch":
                self._fetch(message)
            case "put":
                self._making(message, (message["array"],), lambda: self._put_inline(message))
            case "reshard":
                self._making(message, (message["result"],), lambda: self._reshard(message))
            case "context":
                self.limits.check("arrays", len(self.contexts), "call sites", "use fewer")
                self.contexts[message["context"]] = message["place"][:1000]
            case "forget":
                self.forget(message["program"])
            case _:
                pass
        self.free([handle for handle in free if handle in kept])
        if message.kind == "free":
            self.reply(encoded("done", op=message["op"], sizes=[]))

    # Arrays

    def value(self, handle: int) -> Any:
        """The array of a handle; raises the error that is in its place."""
        with self.lock:
            held = self.arrays.get(handle)
        if held is None:
            raise WeftError(
                f"the server has no array {handle}", help="it was deleted, or is another client's"
            )
        if isinstance(held.value, BaseException):
            raise held.value
        return held.value

    def store(self, handle: int, value: Any, size: int, context: int) -> None:
        """Keep an array, or an error in its place, for a new handle."""
        with self.lock:
            if not self.is_open:
                return
            if handle in self.arrays:
                raise WeftError(f"there is an array {handle}", help="give every array a new number")
            self.arrays[handle] = ServedArray(value, size, context)
            self.held += size

    def reserve(self, count: int, size: int) -> None:
        """Raise if so many more arrays of these bytes in all would be above a limit."""
        with self.lock:
            total, number = self.held + size, len(self.arrays) + self.incoming + count
            if total > self.limits.bytes:
                raise WeftError(
                    f"{bytes_text(size)} do not fit: this client holds {bytes_text(self.held)} of "
                    f"{bytes_text(self.limits.bytes)} on the server{self._holders()}",
                    help="delete arrays, or start the server with --limits bytes=...",
                )
        self.limits.check("arrays", number, "arrays of this client", "delete some")

    def _holders(self) -> str:
        """The call sites whose arrays hold the most, for an error."""
        sums: dict[str, int] = {}
        for array in self.arrays.values():
            place = self.contexts.get(array.context, "")
            if place and array.size:
                sums[place] = sums.get(place, 0) + array.size
        most = sorted(sums.items(), key=lambda pair: -pair[1])[:_HOLDERS]
        listed = ", ".join([f"{bytes_text(size)} of {place}" for place, size in most])
        return f": {listed}" if listed else ""

    def free(self, handles: Sequence[int]) -> None:
        """Forget arrays; running programs keep what they read."""
        for handle in handles:
            with self.lock:
                dropped = self.arrays.pop(handle, None)
                if dropped is not None:
                    self.held -= dropped.size
            if dropped is not None and isinstance(dropped.value, Array):
                # Outside of the lock: runs under way keep the memory they read, and a callback may
                # come back to this session.
                dropped.value.delete()

    def _put_inline(self, message: WireMessage) -> None:
        type = type_in(message)
        size = size_of(type)
        if size != len(message.body):
            raise WeftError(
                f"{len(message.body):,} bytes are not a {type}", help="send all of its elements"
            )
        self.reserve(1, size)
        room = room_for(type)
        room[:] = np.frombuffer(message.body, np.uint8)
        self.put(message, array_from(room, type))

    @contextmanager
    def transferring(self) -> Iterator[None]:
        """Count an upload or download while it is under way; raise if there are too many."""
        with self.lock:
            self.limits.check(
                "transfers", self.transfers + 1, "transfers at a time", "wait for one"
            )
            self.transfers += 1
        try:
            yield
        finally:
            with self.lock:
                self.transfers -= 1

    @contextmanager
    def receiving(self, arrays: int, size: int) -> Iterator[Callable[[], None]]:
        """Hold room for what is received; yields what gives it up, called when it is stored."""
        with self.lock:  # several uploads at a time must not each see the same room
            self.reserve(arrays, size)
            self.held += size
            self.incoming += arrays
        is_held = True

        def release() -> None:
            nonlocal is_held
            with self.lock:
                if is_held and self.is_open:  # `close` has set it to 0
                    self.held -= size
                self.incoming -= arrays * is_held
                is_held = False

        try:
            yield release
        finally:
            release()

    def put(
        self, message: WireMessage, array: Any, release: Callable[[], None] = lambda: None
    ) -> None:
        """Place an array that was received, with the sharding of its message."""
        place = place_in(message, array.ndim)
        if place is not None:
            sharding, mesh = place
            self.limits.check("devices", mesh.size, "devices of the mesh", "use a smaller mesh")
            mesh.check_listed()
            array = put(array, sharding, mesh)
        with self.lock:
            release()
            self.store(message["array"], array, array.nbytes, message["context"])

    def _reshard(self, message: WireMessage) -> None:
        value = self.value(message["array"])
        place = place_in(message, value.ndim)
        if place is None:
            raise WeftError("no sharding is given", help="name a mesh and a sharding")
        self.limits.check("devices", place[1].size, "devices of the mesh", "use a smaller mesh")
        self.reserve(1, value.nbytes)
        result = put(value, *place)
        self.store(message["result"], result, result.nbytes, message["context"])

    def _making(
        self, message: WireMessage, results: Sequence[int], make: Callable[[], None]
    ) -> None:
        """Create arrays; if that fails, their handles hold the error."""
        try:
            make()
        except Exception as error:  # noqa: BLE001  # it is the client's
            self._poison(message, results, error)
            return
        self.reply(encoded("done", op=message["op"], sizes=[]))

    def _poison(self, message: WireMessage, results: Sequence[int], error: BaseException) -> None:
        with self.lock:
            for handle in results:
                # Errors count as arrays: a client that only fails must not fill the server's
                # memory.
                if handle not in self.arrays and len(self.arrays) < self.limits.arrays:
                    self.store(handle, error, 0, message["context"])
        self.reply(failed(message["op"], error))

    def _fetch(self, message: WireMessage) -> None:
        """Send the elements of a small array when they are computed."""
        op = message["op"]
        try:
            value = self.value(message["array"])
            if value.nbytes > INLINE:
                raise WeftError(
                    f"an array of {bytes_text(value.nbytes)} is no part of a message",
                    help="download it",
                )
        except Exception as error:  # noqa: BLE001
            self.reply(failed(op, error))
            return
        if isinstance(value, Array):
            value.then(lambda: self._send_value(op, value))
        else:
            self._send_value(op, value)

    def _send_value(self, op: int, value: Any) -> None:
        try:
            array = value.numpy() if isinstance(value, Array) else value
            data = elements_of(array, dtype_of(value.dtype))
            reply = encoded("value", data, op=op, size=len(data))
        except Exception as error:  # noqa: BLE001
            reply = failed(op, error)
        self.reply(reply)

    # Programs

    def keep(self, handle: int, program: ServedProgram, release: Callable[[], None]) -> None:
        """Keep a program for a new handle, in the room that was held for it."""
        local, limits = program.local, self.limits
        limits.check("devices", local.mesh.size, "devices of the program", "use a smaller mesh")
        limits.check("bytes", local.memory().peak, "memory of a run", "use smaller sizes")
        with self.lock:
            release()
            self.reserve(0, program.size)
            limits.check("programs", len(self.programs) + 1, "programs", "drop some")
            if handle in self.programs:
                raise WeftError(f"there is a program {handle}", help="give each a new number")
            # The client may have gone while its program was compiled.
            if self.is_open:
                self.programs[handle] = program
                self.held += program.size

    def forget(self, handle: int) -> None:
        """Drop a program; runs that have begun keep it."""
        with self.lock:
            gone = self.programs.pop(handle, None)
            if gone is not None:
                self.held -= gone.size

    def _execute(self, message: WireMessage) -> None:
        results = message["results"]
        try:
            arrays = self._run(message)
        except Exception as error:  # noqa: BLE001
            self._poison(message, results, error)
            return
        ExecutionReply(self, message["op"], arrays).begin()

    def _run(self, message: WireMessage) -> Sequence[Array]:
        program = self.programs.get(message["program"])
        if program is None:
            raise WeftError(
                f"the server has no program {message['program']}", help="compile it first"
            )
        specs, handles = program.signature.arguments, message["arguments"]
        counts = (len(handles), len(message["results"]))
        wanted = (len(specs), len(program.signature.results))
        if counts != wanted:
            raise WeftError(
                f"{program.signature.name} takes {wanted[0]} arrays and gives {wanted[1]}, not "
                f"{counts[0]} and {counts[1]}",
                help="give one array for each argument",
            )
        pairs = zip(handles, specs, strict=True)
        arguments = [call.argument(self.value(handle), spec) for handle, spec in pairs]
        sizes = [size_of(spec.type) for spec in program.signature.results]
        donated = [handle for handle, spec in zip(handles, specs, strict=True) if spec.donated]
        with self.lock:
            # The memory of donated arguments is the results' afterwards: a step in place must fit a
            # client at its limit. A set, since one array may be passed twice.
            donated_bytes = sum(self.arrays[h].size for h in {*donated} if h in self.arrays)
            self.reserve(len(sizes), sum(sizes) - donated_bytes)
        # Enqueues only: a reply follows when the results are computed, and the stream goes on to
        # the next request.
        arrays = run(program.local, *arguments)
        with self.lock:
            for handle in {*donated}:
                array = self.arrays.get(handle)
                if array is not None and getattr(array.value, "is_deleted", False):
                    self.held -= array.size
                    array.size = 0
            for handle, result, size in zip(message["results"], arrays, sizes, strict=True):
                self.store(handle, result, size, message["context"])
        return arrays

    def close(self) -> None:
        """Free everything: the client is gone."""
        with self.lock:
            self.is_open = False
            gone, self.arrays, self.programs = self.arrays, {}, {}
            self.held = 0
        for array in gone.values():
            if isinstance(array.value, Array):
                array.value.delete("freed: its client is gone")


@dataclass(slots=True)
class ExecutionReply:
    """The reply to an execution, sent when its last result is computed."""

    session: ClientSession
    op: int
    results: Sequence[Array]
    left: int = 0

    def begin(self) -> None:
        """Watch the results."""
        # One more than there are results: none of them can complete the count while others are not
        # watched yet.
        self.left = len(self.results) + 1
        for array in self.results:
            array.then(self.one_less)
        self.one_less()

    def one_less(self) -> None:
        """Count down, and reply at the end."""
        with self.session.lock:
            self.left -= 1
            if self.left:
                return
        error = next((a.error for a in self.results if a.error is not None), None)
        self.session.reply(self._completion_message() if error is None else failed(self.op, error))

    def _completion_message(self) -> bytes:
        """The news that all is computed, with the elements of small results."""
        parts: list[bytes] = []
        total = 0
        try:
            for array in self.results:
                part = small_elements(array) if total < MOST_SMALL else b""
                total += len(part)
                parts.append(part)
        except WeftError:  # freed in between
            parts = []
        sizes = [len(part) for part in parts] if total else []
        return encoded("done", b"".join(parts) if total else b"", op=self.op, sizes=sizes)
