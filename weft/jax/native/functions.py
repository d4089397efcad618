"""The functions that JAX calls without Python: made as machine code when the plugin is loaded.

JAX reads shapes, devices and states while it holds locks of its own, and frees buffers while a
Python exception is on its way: then no Python may run. So whatever only reads a record, and
whatever destroys one, is native. What is destroyed goes onto a list; Python empties it when it is
called the next time. Native, too, are functions for whose errors JAX ends the process, and calls of
small programs, where entering Python would dominate. Everything else goes through a bridge.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

from weft.jax.abi import Api
from weft.jax.native.arrivals import ARRIVE, arrive
from weft.jax.native.bridge import all_slots, bridge_of, python_bridge
from weft.jax.native.calls import CALL
from weft.jax.native.events import ASKING, EVENTS, settle, take_asked
from weft.jax.native.lending import drop_capsule, take_back
from weft.jax.native.record_code import (
    bytes_on,
    columns,
    destroy,
    disown,
    drain,
    drop,
    finish,
    fresh,
    give,
    hide,
    home,
    nothing,
    push,
    single,
    spread,
)
from weft.jax.native.records import (
    ArrayRecord,
    BufferRecord,
    CountedRecord,
    ExecutableRecord,
    offsets_of,
)
from weft.jax.native.slot_tables import add_slots, table_slots
from weft.jax.native.state import SYMBOL, THUNKS, PluginState, state
from weft.native.function import NativeFunction, native
from weft.native.memory import Items, Member, Offsets, Pointer, Struct, i32
from weft.native.text import remembered_text


class GetExecutableArgs(Struct, offsets=offsets_of("LoadedExecutable_GetExecutable_Args")):
    """The arguments of `LoadedExecutable_GetExecutable`."""

    loaded_executable: Member[ExecutableRecord]
    executable: Member[ExecutableRecord]


class AttributesArgs(Struct, offsets=offsets_of("Plugin_Attributes_Args")):
    """The arguments of `Plugin_Attributes`."""

    attributes: Member[Pointer]
    num_attributes: Member[int]


class IsOnCpuArgs(Struct, offsets=offsets_of("Buffer_IsOnCpu_Args")):
    """The arguments of `Buffer_IsOnCpu`."""

    buffer: Member[BufferRecord]
    is_on_cpu: Member[bool]


class HoldArgs(Struct, offsets=offsets_of("Buffer_IncreaseExternalReferenceCount_Args")):
    """The arguments of `Buffer_IncreaseExternalReferenceCount`."""

    buffer: Member[BufferRecord]


class OpaquePointerArgs(Struct, offsets=offsets_of("Buffer_OpaqueDeviceMemoryDataPointer_Args")):
    """The arguments of `Buffer_OpaqueDeviceMemoryDataPointer`."""

    buffer: Member[BufferRecord]
    device_memory_ptr: Member[int]


class UnsafePointerArgs(Struct, offsets=offsets_of("Buffer_UnsafePointer_Args")):
    """The arguments of `Buffer_UnsafePointer`."""

    buffer: Member[BufferRecord]
    buffer_pointer: Member[int]


def _layout_offsets() -> Offsets:
    """Where `Buffer_GetMemoryLayout` wants the parts of a layout, which is a structure inside."""
    args = offsets_of("Buffer_GetMemoryLayout_Args")
    outer, inner = offsets_of("Buffer_MemoryLayout"), offsets_of("Buffer_MemoryLayout_Tiled")
    base = args["layout"][0]
    tiled = {name: (base + outer["tiled"][0] + at, size) for name, (at, size) in inner.items()}
    kind, size = outer["type"]
    return {**tiled, "type": (base + kind, size), "buffer": args["buffer"]}


class LayoutArgs(Struct, offsets=_layout_offsets()):
    """The arguments of `Buffer_GetMemoryLayout`."""

    buffer: Member[BufferRecord]
    minor_to_major: Member[Items[int]]
    minor_to_major_size: Member[int]
    num_tiles: Member[int]
    type: Member[i32]


@native(name="LoadedExecutable_GetExecutable")
def get_executable(args: GetExecutableArgs) -> Pointer:
    """The executable behind a loaded one, which is held once more."""
    executable = args.loaded_executable.executable
    CountedRecord.live.add(executable, 1, "acq_rel")
    args.executable = executable
    return Pointer(0)


@native(name="Plugin_Attributes")
def attributes(args: AttributesArgs) -> Pointer:
    """The plugin's attributes, which JAX reads before there is a client."""
    args.attributes = PluginState.attributes.load(state, "acquire")
    args.num_attributes = PluginState.attribute_count.load(state, "acquire")
    return Pointer(0)


@native(name="Buffer_IsOnCpu")
def is_on_cpu(args: IsOnCpuArgs) -> Pointer:
    """Whether JAX reads a buffer where it is: unless it guards what comes from devices."""
    is_readable = args.buffer.memory.on_host != 0
    args.is_on_cpu = is_readable and PluginState.guarded.load(state, "acquire") == 0
    return Pointer(0)


@native(name="Buffer_GetMemoryLayout")
def memory_layout(args: LayoutArgs) -> Pointer:
    """Row-major: the dims from the last to the first."""
    array = args.buffer.array
    args.minor_to_major = array.order
    args.minor_to_major_size = array.rank
    args.num_tiles = 0
    args.type = 0
    return Pointer(0)


@native
def lent_at(buffer: BufferRecord) -> int:
    """Lend a piece and return its address; 0 if Python has to lend it."""
    array = buffer.array
    # Store, then load: a call that writes over a donated argument marks it deleted and then looks
    # for loans (`calls.mark_donated`, `calls.donor`). With both sides seq_cst at least one sees the
    # other, so memory is never lent and overwritten at once; acquire/release would allow both to
    # miss.
    ArrayRecord.lent.store(array, 1, "seq_cst")
    deleted = BufferRecord.deleted.load(buffer, "seq_cst")
    data = ArrayRecord.data.load(array, "seq_cst")
    if data == 0 or deleted != 0:
        return 0
    return data + array.step * buffer.place


_hold_in_python = python_bridge("Buffer_IncreaseExternalReferenceCount")
_opaque_in_python = python_bridge("Buffer_OpaqueDeviceMemoryDataPointer")
_unsafe_in_python = python_bridge("Buffer_UnsafePointer")


@native(name="Buffer_IncreaseExternalReferenceCount")
def hold(args: HoldArgs) -> Pointer:
    """Lend a piece."""
    if lent_at(args.buffer) == 0:
        return _hold_in_python(args)
    return Pointer(0)


@native(name="Buffer_OpaqueDeviceMemoryDataPointer")
def opaque_pointer(args: OpaquePointerArgs) -> Pointer:
    """Lend a piece, and say where it is."""
    at = lent_at(args.buffer)
    if at == 0:
        return _opaque_in_python(args)
    args.device_memory_ptr = at
    return Pointer(0)


@native(name="Buffer_UnsafePointer")
def unsafe_pointer(args: UnsafePointerArgs) -> Pointer:
    """Lend a piece, and say where it is."""
    at = lent_at(args.buffer)
    if at == 0:
        return _unsafe_in_python(args)
    args.buffer_pointer = at
    return Pointer(0)


HELPERS: tuple[NativeFunction[..., Any], ...] = (
    *(home, push, destroy, drain, fresh, give, finish, settle, columns, single, spread, drop),
    *(hide, disown, bytes_on, nothing, take_back, drop_capsule, arrive, take_asked),
)
_POINTERS: tuple[NativeFunction[..., Any], ...] = (hold, opaque_pointer, unsafe_pointer)
_OTHERS: tuple[NativeFunction[..., Any], ...] = (
    *(memory_layout, is_on_cpu, get_executable, attributes),
    *(*_POINTERS, *EVENTS, ARRIVE, CALL),
)


@cache
def native_slots() -> tuple[str, ...]:
    """The slots that native code fills."""
    return (*table_slots(), *[function.name for function in _OTHERS])


def asks_python(name: str) -> bool:
    """Whether a slot needs Python: it has no native function, or one that falls back to Python."""
    asking = {*ASKING, ARRIVE.name, CALL.name, *[function.name for function in _POINTERS]}
    return name not in native_slots() or name in asking


def text(api: Api) -> str:
    """All functions: those of slots are called as their slots are, bridges too."""
    parts = {"python": ".".join(map(str, sys.version_info[:2])), "api": str(api.version)}
    return remembered_text("door", [Path(__file__).parents[1]], parts, lambda: _text(api))


def _text(api: Api) -> str:
    from weft.native.builder import NativeModule  # what is remembered needs no compiler
    from weft.native.lower import lower

    module = NativeModule("")
    room = THUNKS + len(all_slots())
    module.declare(f"@{SYMBOL} = internal global [{room} x i64] zeroinitializer, align 128")
    bridges = [bridge_of(name, name) for name in all_slots() if name not in native_slots()]
    lower(module, (*HELPERS, *_OTHERS, *bridges))
    add_slots(module, api)
    return module.text()
