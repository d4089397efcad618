"""Servers of this process's devices, and clients of them."""

from __future__ import annotations

import pytest

pytest.importorskip("grpc", reason="grpcio is an optional package")

from weft.remote.client import connect
from weft.remote.limits import ServerLimits
from weft.remote.server import DeviceServer, ServerOptions


@pytest.fixture
def serving():
    """Start servers, which stop after the test."""
    started = []

    def start(limits: ServerLimits | None = None, **options):
        server = DeviceServer(ServerOptions(limits=limits or ServerLimits(), **options))
        started.append(server)
        return server, f"127.0.0.1:{server.start()}"

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="module")
def address():
    """A server for all tests of a file."""
    server = DeviceServer(ServerOptions())
    yield f"127.0.0.1:{server.start()}"
    server.stop()


@pytest.fixture
def client(address):
    with connect(address) as client:
        yield client
