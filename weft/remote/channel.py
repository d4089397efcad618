"""gRPC, the transport of the proxy: channels, their options, and its errors."""

from __future__ import annotations

from typing import Any

from weft.errors import WeftError, missing_extra
from weft.remote.wire import LARGEST_MESSAGE

IDLE = 20  # seconds until a server closes a connection that has no session


def import_grpc(purpose: str) -> Any:
    """The package, or an error that says how to install it."""
    try:
        import grpc
    except ImportError:
        raise missing_extra("grpcio", "remote", purpose) from None
    return grpc


def server_channel_options() -> list[tuple[str, int]]:
    """gRPC's options of a server."""
    return [
        *_channel_options(20.0),
        # Connections without a session, of which anybody may open many, do not stay.
        ("grpc.server_handshake_timeout_ms", IDLE * 1000),
        ("grpc.max_connection_idle_ms", IDLE * 1000),
        ("grpc.so_reuseport", 0),  # a second server on the port is an error
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 100),
    ]


def open_channel(address: str, certificates: bytes | bool, timeout: float) -> Any:
    """A channel to a server, with TLS if there are certificates to check it by."""
    grpc = import_grpc("connecting to a server")
    options = [*_channel_options(timeout), ("grpc.enable_http_proxy", 0)]
    if certificates is False:
        return grpc.insecure_channel(address, options)
    roots = None if certificates is True else certificates
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(roots), options)


def token_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    """The metadata of calls with a token."""
    if token is None:
        return ()
    if not token.isascii() or not token.isprintable():
        raise WeftError(
            "the token has characters that no token has, as the end of a line",
            help="strip what is read from a file: Path(...).read_text().strip()",
        )
    return (("authorization", f"Bearer {token}"),)


def _channel_options(timeout: float) -> list[tuple[str, int]]:
    """WireMessage sizes, and pings that find within a time that the other side is gone."""
    half = max(int(timeout * 500), 1)  # milliseconds: until a ping, and until it has failed
    return [
        ("grpc.max_receive_message_length", LARGEST_MESSAGE),
        ("grpc.max_send_message_length", LARGEST_MESSAGE),
        ("grpc.keepalive_time_ms", half),
        ("grpc.keepalive_timeout_ms", half),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_time_between_pings_ms", half),
        ("grpc.http2.ping_timeout_ms", half),  # a minute without it
    ]


def connection_error(address: str, error: Any) -> WeftError:
    """The error for a call that gRPC has ended."""
    code = getattr(error, "code", lambda: None)()
    name = "" if code is None else code.name
    details = getattr(error, "details", lambda: "")() or str(error)
    if name == "UNAUTHENTICATED":
        return WeftError(
            f"{address} refused the connection: the token is missing or wrong",
            help="give weft.connect the token that the server was started with",
        )
    if name == "RESOURCE_EXHAUSTED":
        return WeftError(
            f"{address} is busy: {details}"[:300], help="try again, or raise its limit of clients"
        )
    return WeftError(
        f"there is no connection to {address}: {details or name}"[:300],
        help="start `weft serve-devices` there, and connect again; older arrays are gone",
    )
