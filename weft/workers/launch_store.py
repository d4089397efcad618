"""The launcher's key-value store: a Unix socket in a folder that only its user can enter.

Workers of one host that `weft launch` started need no PyTorch for their control plane, and the
store outlives each of them.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from weft.workers.failure import ERROR_FILE

NAME = "weft-store"  # the socket, beside the files of failures
LARGEST = 1 << 30  # bytes of a message
_LENGTH = struct.Struct("<Q")


class LaunchStore:
    """The server: a thread for each connection."""

    def __init__(self, folder: Path) -> None:
        self.values: dict[str, str] = {}
        self.changed = threading.Condition()
        self.connections: set[socket.socket] = set()
        self.listener = socket.socket(socket.AF_UNIX)
        with _short_path(folder) as path:
            self.listener.bind(path)
        self.listener.listen(1024)
        threading.Thread(target=self._accept, name="weft-launch-store", daemon=True).start()

    def close(self) -> None:
        """End all connections."""
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self.listener.close()
        for connection in [*self.connections]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.connections.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError, TypeError, KeyError):
            while True:
                _send(connection, self._answer(*_receive(connection)))
        self.connections.discard(connection)

    def _answer(self, action: str, keys: Sequence[str], value: Any = None) -> Any:
        with self.changed:
            match action:
                case "set":
                    self._set(keys[0], str(value))
                    return True
                case "compare_set":
                    expected, desired = value
                    # An absent key counts as empty, as in PyTorch's store.
                    if self.values.get(keys[0], "") == expected:
                        self._set(keys[0], str(desired))
                    return self.values.get(keys[0], expected)
                case "get":
                    return [self.values.get(key) for key in keys]
                case "wait":
                    return self.changed.wait_for(lambda: self._has(keys), float(value))
        raise ValueError(f"unknown action {action!r}")

    def _set(self, key: str, value: str) -> None:
        self.values[key] = value
        self.changed.notify_all()

    def _has(self, keys: Sequence[str]) -> bool:
        return all(key in self.values for key in keys)


class LaunchStoreClient:
    """A worker's connection to the store of its launcher."""

    def __init__(self, folder: Path, prefix: str) -> None:
        self.folder, self.prefix, self.lock = folder, prefix, threading.Lock()
        self.connection = socket.socket(socket.AF_UNIX)
        with _short_path(folder) as path:
            self.connection.connect(path)

    def set(self, key: str, value: str) -> None:
        """Set a key."""
        self._ask("set", [key], value)

    def get(self, key: str) -> bytes:
        """The value of a key that was set."""
        (found,) = self._ask("get", [key])
        if found is None:
            raise KeyError(key)
        return str(found).encode()

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are set."""
        return None not in self._ask("get", keys)

    def wait(self, keys: Sequence[str], timeout: timedelta) -> None:
        """Wait until all keys are set."""
        seconds = timeout.total_seconds()
        if not self._ask("wait", keys, seconds):
            raise TimeoutError(f"not set within {seconds:g} s: {', '.join(keys)[:200]}")

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        """Set a key that has the expected value, or none for an empty one; its value then."""
        return str(self._ask("compare_set", [key], [expected, desired])).encode()

    def clone(self) -> LaunchStoreClient:
        """Another connection: a wait blocks its own."""
        return LaunchStoreClient(self.folder, self.prefix)

    def _ask(self, action: str, keys: Sequence[str], value: Any = None) -> Any:
        with self.lock:
            _send(self.connection, [action, [self.prefix + key for key in keys], value])
            return _receive(self.connection)


def launch_store(timeout: float) -> LaunchStoreClient | None:
    """The store of the launcher of this worker; None if another one started it."""
    named = os.environ.get(ERROR_FILE)
    if not named or not (Path(named).parent / NAME).is_socket():
        return None
    end = time.monotonic() + timeout
    while True:  # many workers connect at once
        try:
            return LaunchStoreClient(Path(named).parent, "")
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


@contextmanager
def _short_path(folder: Path) -> Iterator[str]:
    """The path of the socket within the 107 bytes that the system allows, however long it is."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{fd}/{NAME}"
    finally:
        os.close(fd)


def _send(connection: socket.socket, message: Any) -> None:
    data = json.dumps(message).encode()
    connection.sendall(_LENGTH.pack(len(data)) + data)


def _receive(connection: socket.socket) -> Any:
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    if length > LARGEST:
        raise ValueError(f"a message of {length} bytes")
    return json.loads(_exactly(connection, length))


def _exactly(connection: socket.socket, count: int) -> bytes:
    received = bytearray()
    while len(received) < count:
        part = connection.recv(min(count - len(received), 1 << 20))
        if not part:
            raise ConnectionError("the connection to the launcher is closed")
        received += part
    return bytes(received)
