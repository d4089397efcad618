"""`weft serve-devices`: this machine's devices for clients without any."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from pathlib import Path

from weft.cli.parser import Subparsers, command, natural
from weft.errors import WeftError


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        run,
        "serve-devices",
        "Serve this machine's devices to programs on others, which connect with weft.connect.",
        "weft serve-devices --port 8470 --token-file token.txt",
    )
    parser.add_argument(
        "--host", default="127.0.0.1", help="the address to listen on; else this machine alone"
    )
    parser.add_argument("--port", type=natural, default=8470, help="the port; 0 for any; else 8470")
    parser.add_argument("--token-file", metavar="FILE", help="clients must have the token in it")
    parser.add_argument("--tls-cert", metavar="FILE", help="the certificate for TLS, as PEM")
    parser.add_argument("--tls-key", metavar="FILE", help="its private key, as PEM")
    parser.add_argument(
        "--limits", metavar="NAME=N,...", help="what a client may hold, as bytes=4G,arrays=1000"
    )


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted."""
    from weft.remote.limits import ServerLimits, parse_limits  # a client needs no compiler
    from weft.remote.server import DeviceServer, ServerOptions

    limits = ServerLimits() if arguments.limits is None else parse_limits(arguments.limits)
    server = DeviceServer(
        ServerOptions(
            arguments.host,
            arguments.port,
            None if arguments.token_file is None else token_in(arguments.token_file),
            _read(arguments.tls_cert),
            _read(arguments.tls_key),
            limits,
        )
    )
    port = server.start()
    print(f"serving devices on {arguments.host}:{port}", flush=True)
    try:
        server.wait()
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
    finally:
        server.stop()
    return 0


def token_in(path: str) -> str:
    """The token in a file, which other users must not be able to read."""
    token = (_read(path) or b"").decode("utf-8", "replace").strip()
    if not token.isascii() or not token.isprintable() or len(token) < 8:
        raise WeftError(
            f"{path} has no token: 8 or more letters and digits on one line",
            help="write one: python -c 'import secrets; print(secrets.token_urlsafe())'",
        )
    if os.name == "posix" and os.stat(path).st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise WeftError(f"other users can read {path}", help=f"chmod 600 {path}")
    return token


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise WeftError(f"cannot read {path}: {error.strerror}", help="name a file") from None
