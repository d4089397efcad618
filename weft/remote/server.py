"""`weft serve-devices`: the devices of this process for clients, over gRPC."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np

import weft
from weft.array import Array
from weft.capture import parse
from weft.compiled import compile as weft_compile
from weft.errors import Unsupported, WeftError, warn
from weft.ir.types import dtype_of
from weft.ir.write import node_text
from weft.knobs import TUNES
from weft.loaded import load
from weft.ops.custom_calls.callbacks import INSPECT, calls_python
from weft.records import dataclass
from weft.remote.channel import import_grpc, server_channel_options
from weft.remote.limits import ServerLimits
from weft.remote.session import REQUESTS, ClientSession, ServedProgram
from weft.remote.streams import FirstMessages, Replies, Turns, chunks_of, read_ahead
from weft.remote.wire import (
    DOWNLOAD,
    KINDS,
    LARGEST_MESSAGE,
    SESSION,
    UPLOAD,
    WireMessage,
    agreed_version,
    array_from,
    batches,
    check_byte_order,
    decoded,
    elements_of,
    encoded,
    failed,
    messages,
    room_for,
    size_of,
    type_in,
)

# The options of `weft.compile` that a client may give, and their values.
OPTIONS: Mapping[str, Callable[[object], bool]] = {
    "level": lambda value: value in (0, 1, 2),
    "target": lambda value: value in (None, "llvm", "numpy", "triton"),
    "fold_sums": lambda value: isinstance(value, bool),
    "tune": lambda value: value is None or value in TUNES,
    "excess_precision": lambda value: isinstance(value, bool),
    "approximate": lambda value: isinstance(value, str),  # names with commas between them
}


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The address, credentials and limits of a server."""

    host: str = "127.0.0.1"
    port: int = 0  # 0: any that is free
    token: str | None = None
    certificate: bytes | None = None  # PEM, with its key: TLS
    key: bytes | None = None
    limits: ServerLimits = ServerLimits()

    def check(self) -> None:
        """Refuse a server that other machines reach without a token, and half of a certificate."""
        if (self.certificate is None) != (self.key is None):
            raise WeftError("TLS needs a certificate and its key", help="give both, or neither")
        if is_loopback(self.host):
            return
        if not self.token:
            raise WeftError(
                f"{self.host} is reached from other machines, and no token is set",
                help="give a token, or listen on 127.0.0.1",
            )
        if self.certificate is None:
            warn(
                f"{self.host} is served without TLS: token, programs and arrays travel in the "
                "clear; give a certificate, or use a network that you trust"
            )


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class DeviceServer:
    """A server of this process's devices; `start` returns its port."""

    def __init__(self, options: ServerOptions) -> None:
        check_byte_order()
        options.check()
        self.options, self.limits = options, options.limits
        self.sessions: dict[str, ClientSession] = {}
        self._lock = threading.Lock()
        self._server: Any = None
        self._first = FirstMessages()

    def start(self) -> int:
        """Listen; returns the port."""
        grpc, options = import_grpc("serving devices"), self.options
        # A session and its transfers for each client, and as many streams of none yet.
        threads = (self.limits.clients + 1) * (self.limits.transfers + 1)
        self._server = grpc.server(
            ThreadPoolExecutor(threads, thread_name_prefix="weft-serve"),
            options=server_channel_options(),
            maximum_concurrent_rpcs=threads,  # more are refused, not left waiting
        )
        self._server.add_generic_rpc_handlers((_handlers(grpc, self),))
        address = f"{options.host}:{options.port}"
        try:
            if options.certificate is None:
                port = self._server.add_insecure_port(address)
            else:
                pair = (options.key, options.certificate)
                port = self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        except RuntimeError as error:
            raise WeftError(
                f"cannot listen on {address}: {error}"[:300],
                help="another process may use the port; give --port 0 for any that is free",
            ) from None
        self._server.start()
        return int(port)

    def wait(self) -> None:
        """Serve until `stop` is called."""
        self._server.wait_for_termination()

    def stop(self, grace: float = 0.0) -> None:
        """End all sessions after so many seconds."""
        self._first.close()
        if self._server is not None:
            self._server.stop(grace).wait()

    def is_allowed(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a call has the token; the time that takes does not depend on the token."""
        if self.options.token is None:
            return True
        header = metadata.get("authorization", "")
        sent = header if isinstance(header, bytes) else str(header).encode()
        return hmac.compare_digest(sent, f"Bearer {self.options.token}".encode())

    # Sessions

    def session(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """One client: its requests are handled, and replies sent."""
        replies = Replies(self.limits.pending)
        session = ClientSession(self.limits, replies.put)
        name = secrets.token_hex(16)
        try:
            if not (first := self._first.next(requests, context)):
                return
            hello = decoded(first, "hello")
            version = agreed_version(hello["oldest"], hello["newest"], f"weft {weft.__version__}")
            with self._lock:
                self.limits.check("clients", len(self.sessions) + 1, "clients", "wait for one")
                self.sessions[name] = session
        except Exception as error:  # noqa: BLE001  # the client's
            yield failed(0, error)
            return
        try:
            limits = self.limits.as_fields()
            yield encoded(
                "welcome", version=version, session=name, weft=weft.__version__, limits=limits
            )
            handled = SessionRequests(requests, session, replies)
            yield from batches(Turns(handled, replies))
        finally:
            with self._lock:
                del self.sessions[name]
            session.close()
            replies.close()

    def _session(self, name: str) -> ClientSession:
        found = self.sessions.get(name)
        if found is None:
            raise WeftError("there is no such session", help="connect again")
        return found

    # Transfers

    def upload(self, requests: Iterator[bytes], context: Any) -> bytes:
        """Receive an array or a program."""
        try:
            first = decoded(self._first.next(requests, context), "array", "program")
            session = self._session(first["session"])
            with session.transferring():
                if first.kind == "array":
                    self._receive_array(session, first, requests)
                    return encoded("done", op=0, sizes=[])
                signature = self._receive_program(session, first, requests)
                return encoded("compiled", signature.encode(), op=0)
        except Exception as error:  # noqa: BLE001  # the client's
            return failed(0, error)

    def _receive_array(
        self, session: ClientSession, first: WireMessage, requests: Iterator[bytes]
    ) -> None:
        type = type_in(first)
        _check_size(first, size_of(type))
        with session.receiving(1, size_of(type)) as release:  # before memory is taken for it
            room = room_for(type)
            _fill(room, requests)
            session.put(first, array_from(room, type), release)

    def _receive_program(
        self, session: ClientSession, first: WireMessage, requests: Iterator[bytes]
    ) -> str:
        size, form, options = first["size"], first["form"], first["options"]
        self.limits.check("program_bytes", size, "bytes of a program", "pass constants as arrays")
        unknown = [n for n, value in options.items() if n not in OPTIONS or not OPTIONS[n](value)]
        if unknown or form not in ("module", "executable"):
            raise WeftError(
                f"unknown option of a program: {', '.join([*unknown, form])}"[:200],
                help=f"known options are {', '.join(OPTIONS)}",
            )
        with session.receiving(0, size) as release:
            room = np.empty(size, np.uint8)
            _fill(room, requests)
            data = room.tobytes()
            served = _loaded(data) if form == "executable" else _compiled(data, options)
            session.keep(first["program"], served, release)
        text = str(served.signature)
        if len(text) > LARGEST_MESSAGE // 2:
            raise Unsupported(
                f"the signature of {len(served.signature.arguments):,} arguments exceeds a message",
                help="stack some of them into one array",
            )
        return text

    def download(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Send the elements of an array, when they are computed, in chunks."""
        with ExitStack() as stack:
            try:
                asked = decoded(self._first.next(requests, context), "download")
                session = self._session(asked["session"])
                stack.enter_context(session.transferring())
                value = session.value(asked["array"])
                dtype = value.element_type if isinstance(value, Array) else dtype_of(value.dtype)
                data = elements_of(np.asarray(value), dtype)
            except Exception as error:  # noqa: BLE001  # the client's
                yield failed(0, error)
                return
            yield encoded("value", op=0, size=len(data))
            yield from chunks_of(data)


class SessionRequests:
    """The requests of a session; a malformed one ends it."""

    def __init__(self, data: Iterator[bytes], session: ClientSession, replies: Replies) -> None:
        self._data, self._session, self._replies = data, session, replies
        self._batch: Iterator[WireMessage] = iter(())
        self._next: WireMessage | None = None  # received, and not yet handled
        self._has_ended = False

    @property
    def are_here(self) -> bool:
        """Whether another one has been received."""
        return self._next is not None

    def handle_next(self, may_wait: bool) -> bool:
        """Handle one; False at the end, or if it must wait for a slot and may not."""
        if self._has_ended:
            return False
        try:
            if self._next is None:
                self._next = self._received()
            if "op" in KINDS[self._next.kind] and not self._replies.admit(may_wait):
                return False
            message, self._next = self._next, None
            self._session.handle(message)
            self._next = next(self._batch, None)
        except (StopIteration, import_grpc("serving devices").RpcError):
            self._end()  # the client is gone
        except Exception as error:  # noqa: BLE001  # reported to the client
            self._replies.put(failed(0, error))
            self._end()
        return not self._has_ended

    def _received(self) -> WireMessage:
        """The first message of the next batch; raises StopIteration at the end."""
        while True:
            self._batch = messages(next(self._data), *REQUESTS)
            if (first := next(self._batch, None)) is not None:
                return first

    def _end(self) -> None:
        self._has_ended, self._next = True, None
        self._replies.put(None)


def _check_size(first: WireMessage, size: int) -> None:
    if first["size"] != size:
        raise WeftError(
            f"{first['size']:,} bytes are not a {first['type'][:80]}",
            help="send all of its elements",
        )


def _fill(room: Any, chunks: Iterator[bytes]) -> None:
    """Receive as many bytes as there is room for."""
    at, size = 0, len(room)
    for chunk in read_ahead(chunks, size):
        end = at + len(chunk)
        if end > size:
            raise WeftError(f"more than {size:,} bytes were sent", help=f"send {size:,} bytes")
        room[at:end] = np.frombuffer(chunk, np.uint8)
        at = end
    if at < size:
        raise WeftError(f"{at:,} of {size:,} bytes were sent", help=f"send {size:,} bytes")


def _loaded(data: bytes) -> ServedProgram:
    """A saved executable: its kernels are verified, and none of its native code is used."""
    loaded = load(data)
    return ServedProgram(loaded.program, loaded.signature, len(data))


def _compiled(data: bytes, options: Mapping[str, Any]) -> ServedProgram:
    """StableHLO, read by the parser in its own process, and compiled."""
    module = parse(data)
    for node in module.nodes():
        # An id in the text would name a Python function of this process.
        if calls_python(node.op) or getattr(node.op, "call_target_name", None) == INSPECT:
            raise Unsupported(
                "a program for a server cannot call Python functions",
                help="leave out callbacks and debug prints",
                loc=node.loc,
                node=node_text(node),
            )
    compiled = weft_compile(module, **options)
    return ServedProgram(compiled.program.local, compiled.signature, len(data))


def _handlers(grpc: Any, server: DeviceServer) -> Any:
    """gRPC's table of the server's methods; without the token each refuses."""
    methods = {
        SESSION: (grpc.stream_stream_rpc_method_handler, server.session),
        UPLOAD: (grpc.stream_unary_rpc_method_handler, server.upload),
        # As a stream, too, whose first message can be awaited for some seconds only.
        DOWNLOAD: (grpc.stream_stream_rpc_method_handler, server.download),
    }
    allowed = {name: make(serve) for name, (make, serve) in methods.items()}

    def refuse(requests: Any, context: Any) -> Any:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is missing or wrong")

    # As a stream: one of a single message would be refused only when that has come.
    refused = grpc.stream_stream_rpc_method_handler(refuse)

    class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            if not server.is_allowed(dict(details.invocation_metadata)):
                return refused
            return allowed.get(details.method)

    return Handlers()
