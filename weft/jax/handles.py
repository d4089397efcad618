"""Handles: what JAX holds of ours, the Python object behind each, and what becomes of lost ones."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

from weft.emit.llvm.engine import load
from weft.errors import Unsupported, WeftError
from weft.jax.abi import Api
from weft.jax.native import HELPERS, STATE, THUNKS, native_slots, text
from weft.jax.records import ERROR, READY, SIZE, STATIC, at, words
from weft.kernels.emitted import Emitted, Phase

CANCELLED, INVALID, EXHAUSTED, PRECONDITION, UNIMPLEMENTED, INTERNAL = 1, 3, 8, 9, 12, 13
_AT_ONCE = 1024  # records that are made, or taken back, at a time
_Pointer = ctypes.c_size_t

# Whatever JAX may still call or read when the process ends is held here, for ever.
FOR_EVER: list[Any] = []


class Refused(Exception):
    """An error with the code that JAX shows before the message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Native:
    """The native functions, and the Python functions that they lead to."""

    def __init__(self, api: Api, bridged: Sequence[str]) -> None:
        names = [*HELPERS, *native_slots(), *(n for n in bridged if n not in native_slots())]
        (self._loaded,) = load([Emitted(text(api, bridged), tuple([Phase(n, 1) for n in names]))])
        found = [phase.address for phase in self._loaded.phases]
        self.addresses = dict(zip(names, found, strict=True))
        size, word = ctypes.c_size_t, ctypes.c_int64
        kinds: dict[str, tuple[Any, ...]] = {
            "home": (size,),
            "drain": (word, size, word),
            "take": (size,),
            "give": (None, size),
            "columns": (None, size, word, word, size),
            "spread": (word, size, word, word, size, size, size, size),
            "drop": (None, size, word, word),
        }
        made: dict[str, Callable[..., Any]] = {
            name: ctypes.PYFUNCTYPE(*kind)(self.addresses[name]) for name, kind in kinds.items()
        }
        self.drain, self.take, self.give = made["drain"], made["take"], made["give"]
        self.columns, self.spread, self.drop = made["columns"], made["spread"], made["drop"]
        room = THUNKS + len(bridged)
        self.state = (ctypes.c_int64 * room).from_address(made["home"]())
        self.thunk_at = {name: THUNKS + n for n, name in enumerate(bridged)}


class Handles:
    """All handles. Only used with Python's lock held, and for a moment each."""

    def __init__(self, native: Native) -> None:
        self.native = native
        self.kept: dict[int, Any] = {}  # what is behind a handle
        self.lock = threading.RLock()
        self._gone = (_Pointer * _AT_ONCE)()
        self._gone_at = ctypes.addressof(self._gone)
        self.ready = self._static(EVENT_STATE, READY)
        self.interrupted = self._interrupted()
        native.state[STATE["ready"]] = self.ready
        native.state[STATE["interrupted"]] = self.interrupted

    def _static(self, word: int, value: int) -> int:
        address = self.new(STATIC)
        words(address)[word] = value
        return address

    def _interrupted(self) -> int:
        address = self.new(STATIC)
        self._describe(address, CANCELLED, b"interrupted, or the process ends")
        return address

    def new(self, what: int) -> int:
        """A record, zeroed but for what it is."""
        address: int = self.native.take()
        if not address:
            self.more(_AT_ONCE)
            address = self.native.take()
        ctypes.memset(address, 0, SIZE)
        words(address)[1] = what
        return address

    def more(self, count: int) -> None:
        """Make records."""
        block = (ctypes.c_int64 * (count * SIZE // 8))()
        FOR_EVER.append(block)
        base = ctypes.addressof(block)
        for n in range(count):
            self.native.give(base + n * SIZE)

    def keep(self, what: int, thing: Any) -> int:
        """A handle of a Python object."""
        address = self.new(what)
        self.kept[address] = thing
        return address

    def drain(self) -> None:
        """Let go of what JAX has destroyed since the last time."""
        while True:
            count = self.native.drain(self._gone_at, _AT_ONCE)
            for address in self._gone[:count]:
                thing = self.kept.pop(address, None)
                release = getattr(thing, "released", None)
                if release is None or release():
                    self.native.give(address)
            if count < _AT_ONCE:
                return

    def error(self, error: BaseException) -> int:
        """A handle of an error."""
        address = self.new(ERROR)
        self._describe(address, *_told(error))
        return address

    def _describe(self, address: int, code: int, message: bytes) -> None:
        text = ctypes.create_string_buffer(message)
        self.kept[address] = text
        record = words(address)
        record[at("error", "code") // 8] = code
        record[at("error", "message") // 8] = ctypes.addressof(text)
        record[at("error", "message_size") // 8] = len(message)


EVENT_STATE = at("event", "state") // 8


def _told(error: BaseException) -> tuple[int, bytes]:
    """The code and the message of an error."""
    match error:
        case Refused():
            code = error.code
        case Unsupported():
            code = UNIMPLEMENTED
        case WeftError():
            code = INVALID
        case MemoryError():
            code = EXHAUSTED
        case KeyboardInterrupt():
            code = CANCELLED
        case _:
            code = INTERNAL
    message = str(error)
    if not isinstance(error, Refused | WeftError):
        message = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return code, message.encode("utf-8", "replace")


def text_at(text: str) -> tuple[int, int]:
    """A text that stays for ever: its address and length."""
    held = ctypes.create_string_buffer(text.encode())
    FOR_EVER.append(held)
    return ctypes.addressof(held), len(held) - 1


def list_at(handles: Sequence[int]) -> int:
    """A list of handles that stays for ever."""
    held = (_Pointer * max(1, len(handles)))(*handles)
    FOR_EVER.append(held)
    return ctypes.addressof(held)
