"""The launcher's key-value store: what workers read and write, and what damaged messages do."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from weft.workers.failure import ERROR_FILE
from weft.workers.forked import CAN_FORK
from weft.workers.launch_store import NAME, LaunchStore, LaunchStoreClient, launch_store

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="Linux")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a store, of more letters than the path of a socket may have."""
    long = tmp_path / ("x" * 120)
    long.mkdir()
    store = LaunchStore(long)
    yield long
    store.close()


def test_values_are_shared(folder: Path):
    one, two = LaunchStoreClient(folder, ""), LaunchStoreClient(folder, "")
    assert not two.check(["a"])
    one.set("a", "ä\n" * 100_000)
    assert two.check(["a"]) and not two.check(["a", "b"])
    assert two.get("a").decode() == "ä\n" * 100_000
    assert one.compare_set("c", "", "first") == b"first"
    assert two.compare_set("c", "", "second") == b"first"
    assert two.compare_set("c", "first", "third") == b"third" == one.get("c")
    with pytest.raises(KeyError):
        one.get("nothing")


def test_a_wait_blocks_its_own_connection_only(folder: Path):
    one = LaunchStoreClient(folder, "")
    other = one.clone()
    timer = threading.Timer(0.1, lambda: other.set("late", "x"))
    timer.start()
    one.wait(["late"], timedelta(seconds=10))
    assert one.get("late") == b"x"
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match=r"not set within 0\.05 s: late, never"):
        one.wait(["late", "never"], timedelta(seconds=0.05))
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 8,
        struct.pack("<Q", 5) + b"wrong",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'["what"]',
        struct.pack("<Q", 13) + b'["set", 1, 2]',
        struct.pack("<Q", 100) + b"short",
    ],
)
def test_a_damaged_message_ends_its_connection_only(folder: Path, data: bytes):
    well = LaunchStoreClient(folder, "")
    damaged = LaunchStoreClient(folder, "")
    damaged.connection.sendall(data)
    damaged.connection.shutdown(socket.SHUT_WR)
    with suppress(ConnectionResetError):
        assert damaged.connection.recv(1) == b""
    well.set("a", "b")
    assert well.get("a") == b"b"


def test_a_store_that_ends(tmp_path: Path):
    store = LaunchStore(tmp_path)
    client = LaunchStoreClient(tmp_path, "")
    client.set("a", "b")
    store.close()
    with pytest.raises(OSError):
        client.get("a")
    with pytest.raises(OSError):
        client.clone()


def test_workers_of_other_launchers_have_none(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(ERROR_FILE, raising=False)
    assert launch_store(1.0) is None
    monkeypatch.setenv(ERROR_FILE, str(folder.parent / "0.json"))
    assert launch_store(1.0) is None
    monkeypatch.setenv(ERROR_FILE, str(folder / "0.json"))
    found = launch_store(1.0)
    assert found is not None and (folder / NAME).is_socket()
