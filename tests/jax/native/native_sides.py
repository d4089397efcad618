"""The door's native functions twice: as machine code with a state of its own, and as Python."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from tests.native.machine import Machine
from weft.jax.native import fast_path, record_code, state
from weft.jax.native.arrivals import arrive, is_dense, template_of
from weft.jax.native.blocks import block, release
from weft.jax.native.bridge import all_slots
from weft.jax.native.calls import execute
from weft.jax.native.events import on_ready, settle
from weft.jax.native.records import SIZE, ArrayRecord, BufferRecord, HandleRecord
from weft.jax.native.state import SYMBOL, THUNKS, PluginState
from weft.native.builder import NativeModule
from weft.native.function import NativeFunction
from weft.native.lower import lower
from weft.native.memory import Pointer, address, number

_RECORDS = "home push destroy give fresh finish drain columns single spread drop hide disown"
FUNCTIONS: tuple[NativeFunction[..., Any], ...] = (
    *[getattr(record_code, name) for name in _RECORDS.split()],
    *(fast_path.sweep, settle, on_ready, arrive, is_dense, template_of, execute, block, release),
)


@functools.cache
def machine_code() -> Machine:
    """The functions that a test calls, exported, over a state that no plugin has."""
    module = NativeModule("")
    room = THUNKS + len(all_slots())
    module.declare(f"@{SYMBOL} = internal global [{room} x i64] zeroinitializer, align 128")
    lower(module, FUNCTIONS)
    return Machine(module.text(), FUNCTIONS)


class Side:
    """Records of one's own, and the functions that work on them."""

    def __init__(self, native: bool, count: int) -> None:
        self.native, self.count = native, count
        self.functions: Any = machine_code() if native else _Python()
        self.state: PluginState = machine_code().home() if native else state.state
        ctypes.memset(address(self.state), 0, PluginState.SIZE)
        self.records = HandleRecord.new(count)
        for n in reversed(range(count)):
            self.functions.give(self.records.nth(n))
        self.names: dict[int, str] = {}  # of memory that is no record

    def call(self, name: str, *args: Any) -> Any:
        """Call a function; a record is its number, before which is an @."""
        given = [self.at(one) if isinstance(one, str) else one for one in args]
        return self.name(getattr(self.functions, name)(*given))

    def at(self, name: str) -> HandleRecord:
        return self.records.nth(int(name[1:]))

    def name(self, value: Any) -> Any:
        """What a value is on both sides: records by number, other memory in order of its sight."""
        if isinstance(value, bool) or value is None:
            return value
        found = number(value)
        offset = found - address(self.records)
        if 0 <= offset < SIZE * self.count:
            whole, rest = divmod(offset, SIZE)
            return f"@{whole}" + (f"+{rest}" if rest else "")
        if found > 1 << 20:
            return self.names.setdefault(found, f"memory {len(self.names)}")
        return found

    def words(self) -> list[Any]:
        """All records, and the state but for what Python's thread is told."""
        base = address(self.records)
        held = (ctypes.c_int64 * (self.count * SIZE // 8)).from_address(base)
        named = [getattr(self.state, n) for n in ("gone", "free", "count", "closed", "failed")]
        return [self.name(word) for word in (*named, *held)]

    def listed(self, first: HandleRecord) -> list[str]:
        """The records of a list."""
        found: list[str] = []
        while first:
            assert len(found) <= self.count, "the list is a ring"
            found.append(self.name(first))
            first = first.next
        return found


class _Python:
    """The functions as Python."""

    def __getattr__(self, name: str) -> Any:
        function = next(f for f in FUNCTIONS if f.python.__name__ == name)
        given, _ = function.signature

        def call(*args: Any) -> Any:
            pairs = zip(args, given, strict=True)
            return function(*[kind(a) if isinstance(a, Pointer) else a for a, kind in pairs])

        return call


def array_record(side: Side, buffer: str) -> ArrayRecord:
    return BufferRecord(side.at(buffer)).array


def pointers(held: Any) -> Pointer:
    return Pointer(ctypes.addressof(held))
