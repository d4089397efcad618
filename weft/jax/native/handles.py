"""Handles: what JAX holds of ours, the Python object behind each, and what becomes of lost ones."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any

from weft.emit.llvm.jit.engine import NativeLibrary
from weft.errors import Unsupported, WeftError
from weft.jax.abi import Api
from weft.jax.native.arrivals import arrive
from weft.jax.native.bridge import all_slots
from weft.jax.native.events import CLOSED
from weft.jax.native.functions import HELPERS, text
from weft.jax.native.records import ERROR, READY, SIZE, STATIC, ErrorRecord, EventRecord, words
from weft.jax.native.state import THUNKS, PluginState
from weft.jax.patches.interrupts import LoopInterrupted, SignalDeferral
from weft.jax.programs.callback_errors import callback_error_message
from weft.native.cpython import pointer_to

CANCELLED, INVALID, EXHAUSTED, PRECONDITION, UNIMPLEMENTED, INTERNAL = 1, 3, 8, 9, 12, 13
_AT_ONCE, _GONE_AT_ONCE = 256, 32  # records that are made, or taken back, at a time
_ARRIVE = arrive.name
_Pointer = ctypes.c_size_t
_Gone = _Pointer * _GONE_AT_ONCE

# Immortal: JAX may still call or read it while the process exits, after Python has ended.
IMMORTAL: list[Any] = []
_EXHAUSTED = (MemoryError, RecursionError)


class PjrtError(Exception):
    """An error with the code that JAX shows before the message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Native:
    """The native functions, and the Python functions that they lead to."""

    def __init__(self, api: Api) -> None:
        names = [*[function.name for function in HELPERS], *all_slots()]
        # The plugin is a front end and may use a target: its functions are compiled by the CPU
        # target's JIT, which shares its cache, its lock across forks and its linker.
        self._library = NativeLibrary(text(api), names)
        self.addresses = self._library.addresses
        size, word = ctypes.c_size_t, ctypes.c_int64
        kinds: dict[str, tuple[Any, ...]] = {
            "home": (size,),
            "push": (None, size),
            "drain": (word, size, word),
            "fresh": (size, word),
            "give": (None, size),
            "finish": (size, size),
            "columns": (None, size, word, word, size),
            "single": (size, size, size, size),
            "spread": (word, size, word, word, size, size, size, size),
            "drop": (None, size, word, word),
            "hide": (None, size),
            "disown": (size, size),
            "bytes_on": (word, size, size, word),
            "take_asked": (size,),
            _ARRIVE: (word, size),
        }
        functions: dict[str, Callable[..., Any]] = {
            name: ctypes.PYFUNCTYPE(*kind)(self.addresses[name]) for name, kind in kinds.items()
        }
        # JAX is called by these, so Python's lock must not be held.
        self.settle: Callable[..., Any] = ctypes.CFUNCTYPE(None, size, word, size)(
            self.addresses["settle"]
        )
        self.destroy: Callable[..., Any] = ctypes.CFUNCTYPE(None, size)(self.addresses["destroy"])
        self.push, self.drain, self.fresh = (
            functions["push"],
            functions["drain"],
            functions["fresh"],
        )
        self.give, self.finish, self.single = (
            functions["give"],
            functions["finish"],
            functions["single"],
        )
        self.columns, self.spread, self.drop = (
            functions["columns"],
            functions["spread"],
            functions["drop"],
        )
        self.hide, self.disown, self.arrive = (
            functions["hide"],
            functions["disown"],
            functions[_ARRIVE],
        )
        self.bytes_on, self.take_asked = functions["bytes_on"], functions["take_asked"]
        room = THUNKS + len(all_slots())
        self.state = (ctypes.c_int64 * room).from_address(functions["home"]())
        self.thunk_at = {name: THUNKS + n for n, name in enumerate(all_slots())}


class Handles:
    """All handles. Only used with Python's lock held, and for a moment each."""

    def __init__(self, native: Native) -> None:
        self.native = native
        self.objects: dict[int, Any] = {}  # by handle
        self.blocks: list[int] = []  # of records: the address and the count of each
        self.ready = self.new(STATIC)
        line = words(self.ready)
        line[EventRecord.state.word], line[EventRecord.waiting.word] = READY, CLOSED
        self.interrupted = self._immortal_error(CANCELLED, "interrupted")
        self.forked = self._immortal_error(
            PRECONDITION,
            "this process was forked from one that uses Weft's devices, whose threads it has not: "
            "start it anew (multiprocessing's method 'spawn' does), or use JAX only in the child",
        )
        known = {
            "ready": self.ready,
            "interrupted": self.interrupted,
            "failed": self._immortal_error(
                EXHAUSTED, "Python could not be called: its stack or its memory is exhausted"
            ),
            "ended": self._immortal_error(CANCELLED, "the process ends"),
            "interrupt": pointer_to(KeyboardInterrupt),
            "exhausted": pointer_to(_EXHAUSTED),
            "main": threading.main_thread().ident or 0,
        }
        for name, value in known.items():
            native.state[PluginState.FIELDS[name].word] = value
        self.shield = SignalDeferral(native.state)

    def close(self) -> None:
        """Call Python no longer: this process is a child that has none of the threads."""
        self.native.state[PluginState.closed.word] = self.forked

    def new(self, what: int) -> int:
        """A record, zeroed but for what it is; held once."""
        address: int = self.native.fresh(what)
        if not address:
            self.more(1)
            address = self.native.fresh(what)
        return address

    def more(self, count: int) -> None:
        """Allocate records, with a reserve: native code falls back to Python when none is free."""
        count += _AT_ONCE
        block = (ctypes.c_int64 * (count * SIZE // 8))()
        IMMORTAL.append(block)
        base = ctypes.addressof(block)
        for n in range(count):
            self.native.give(base + n * SIZE)
        self.blocks += base, count

    def bytes_on(self, device: int) -> int:
        """The bytes of all buffers in the memory of a device."""
        self.drain()
        listed = (_Pointer * len(self.blocks))(*self.blocks)
        found: int = self.native.bytes_on(device, ctypes.addressof(listed), len(listed) // 2)
        return found

    def keep(self, what: int, thing: Any) -> int:
        """A handle of a Python object."""
        address = self.new(what)
        self.objects[address] = thing
        return address

    def drain(self) -> None:
        """Let go of what JAX has destroyed since the last time."""
        state = self.native.state
        while state[_GONE]:
            gone = _Gone()  # its own: another thread may do the same meanwhile
            left = gone[: self.native.drain(ctypes.addressof(gone), _GONE_AT_ONCE)]
            try:
                while left:
                    self._let_go(left.pop())
            except BaseException:
                # A finalizer raised (a KeyboardInterrupt, say): put back what is left, so that it
                # is not leaked.
                for address in left:
                    self.native.push(address)
                raise

    def _let_go(self, address: int) -> None:
        thing = self.objects.pop(address, None)
        released = getattr(thing, "released", None)
        if released is not None:
            released()
        error = self.native.finish(address)
        if error and self.objects.pop(error, None) is not None:
            self.native.give(error)

    def error(self, error: BaseException) -> int:
        """A handle of an error."""
        address = self.new(ERROR)
        self._describe(address, *_code_and_message(error))
        return address

    def error_of_event(self, error: BaseException) -> int:
        """An error record that many callbacks share, and that lives as long as its event."""
        address = self.new(STATIC)
        self._describe(address, *_code_and_message(error))
        return address

    def _immortal_error(self, code: int, message: str) -> int:
        address = self.new(STATIC)
        IMMORTAL.append(self._describe(address, code, message.encode()))
        del self.objects[address]
        return address

    def _describe(self, address: int, code: int, message: bytes) -> Any:
        text = ctypes.create_string_buffer(message)
        self.objects[address] = text
        record = words(address)
        record[ErrorRecord.code.word] = code
        record[ErrorRecord.message.word] = ctypes.addressof(text)
        record[ErrorRecord.message_size.word] = len(message)
        return text


_GONE = PluginState.gone.word


def _code_and_message(error: BaseException) -> tuple[int, bytes]:
    """The code and the message of an error."""
    match error:
        case PjrtError():
            code = error.code
        case WeftError() if isinstance(error.__context__, MemoryError):
            code = EXHAUSTED
        case Unsupported():
            code = UNIMPLEMENTED
        case WeftError():
            code = INVALID
        case MemoryError():
            code = EXHAUSTED
        case KeyboardInterrupt() | LoopInterrupted():
            code = CANCELLED
        case _:
            code = INTERNAL
    message = str(error)
    if not isinstance(error, PjrtError | WeftError | LoopInterrupted):
        message = callback_error_message(error)
    return code, message.encode("utf-8", "replace")


def text_at(text: str) -> tuple[int, int]:
    """An immortal text: its address and length."""
    held = ctypes.create_string_buffer(text.encode())
    IMMORTAL.append(held)
    return ctypes.addressof(held), len(held) - 1


def list_at(handles: Sequence[int]) -> int:
    """An immortal list of handles."""
    held = (_Pointer * max(1, len(handles)))(*handles)
    IMMORTAL.append(held)
    return ctypes.addressof(held)
