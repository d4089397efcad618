"""Executable queries: text, costs, memory, fingerprints and serialization."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from weft.cost.counted import counts_by_name
from weft.jax.abi import api
from weft.jax.buffers.client import the_client
from weft.jax.native.handles import Handles, text_at
from weft.jax.native.slots import SlotFunction
from weft.jax.patches.caching import functions_looked_up
from weft.jax.programs.executables import Described, LoadedExecutable, load
from weft.jax.programs.own_stack import on_own_stack
from weft.jax.programs.serialized import check_storable, restored, serialized
from weft.jax.questions.device_program import device_program

_FORMAT: list[tuple[int, int]] = []
_FLOAT = 3  # PJRT_NamedValue type: float


def _optimized(handles: Handles, args: Any) -> None:
    """The program's text; requested twice, first for its size."""
    described: Described = handles.objects[args.executable]
    program: Any = api().structs["Program"].from_address(args.program)
    code = described.remembered("text", lambda e: device_program(e).encode())
    if not _FORMAT:
        _FORMAT.append(text_at("mlir"))
    program.format, program.format_size = _FORMAT[0]
    if program.code:
        ctypes.memmove(program.code, code, len(code))
        described.cached.pop("text", None)  # freed at once: long, and rarely requested again
    program.code_size = len(code)


def _costs(handles: Handles, args: Any) -> None:
    described: Described = handles.objects[args.executable]
    named = described.remembered("costs", lambda e: _named(described, counts_by_name(e.module)))
    args.properties, args.num_properties = ctypes.addressof(named), len(named)


def _named(described: Described, numbers: dict[str, float]) -> Any:
    """Numbers by name, as PJRT_NamedValues."""
    kind: Any = api().structs["NamedValue"]
    values = (kind * len(numbers))()
    for entry, (name, number) in zip(values, numbers.items(), strict=True):
        entry.struct_size = ctypes.sizeof(kind)
        entry.name, entry.name_size = described.bytes(name.encode())
        entry.type, entry.value_size = _FLOAT, 1
        (entry.u,) = struct.unpack("<Q", struct.pack("<fI", number, 0))
    return values


def _memory(handles: Handles, args: Any) -> None:
    described: Described = handles.objects[args.executable]
    memory = described.executable.local.memory_of_one()
    args.generated_code_size_in_bytes = len(described.executable.code)
    args.argument_size_in_bytes = memory.arguments
    args.output_size_in_bytes = memory.results
    args.alias_size_in_bytes = memory.aliased
    args.temp_size_in_bytes = memory.temporaries
    args.peak_memory_in_bytes = memory.peak
    args.total_size_in_bytes = memory.peak
    args.total_allocation_bytes = memory.peak
    args.indefinite_allocations = 0
    args.peak_unpadded_heap_bytes = memory.peak
    args.host_generated_code_size_in_bytes = 0
    args.host_argument_size_in_bytes = args.host_output_size_in_bytes = 0
    args.host_alias_size_in_bytes = args.host_temp_size_in_bytes = 0


# As bytes


def _fingerprint(handles: Handles, args: Any) -> None:
    _tell_fingerprint(handles.objects[args.executable], args)


def _loaded_fingerprint(handles: Handles, args: Any) -> None:
    loaded: LoadedExecutable = handles.objects[args.executable]
    _tell_fingerprint(loaded.described, args)


def _tell_fingerprint(described: Described, args: Any) -> None:
    found = described.remembered("fingerprint", lambda e: described.bytes(e.fingerprint))
    args.executable_fingerprint, args.executable_fingerprint_size = found


def _serialize(handles: Handles, args: Any) -> None:
    described: Described = handles.objects[args.executable]
    check_storable(described.executable, functions_looked_up())
    content = described.remembered("serialized", lambda e: described.bytes(serialized(e)))
    args.serialized_bytes, args.serialized_bytes_size = content
    args.serialized_executable = 0
    args.serialized_executable_deleter = handles.native.addresses["nothing"]


def _deserialize(handles: Handles, args: Any) -> None:
    handles.drain()
    content = ctypes.string_at(args.serialized_executable, args.serialized_executable_size)
    size = args.overridden_serialized_compile_options_size
    options = ctypes.string_at(args.overridden_serialized_compile_options, size) if size else None
    functions = functions_looked_up()
    made = on_own_stack(lambda: restored(content, options, functions))
    args.loaded_executable = load(handles, made)


def _topology(handles: Handles, args: Any) -> None:
    """The topology that programs are compiled for: uniform devices."""
    args.fingerprint = len(the_client().devices)


SLOTS: tuple[tuple[str, SlotFunction], ...] = (
    ("Executable_OptimizedProgram", _optimized),
    ("Executable_GetCostAnalysis", _costs),
    ("Executable_GetCompiledMemoryStats", _memory),
    ("Executable_Fingerprint", _fingerprint),
    ("LoadedExecutable_Fingerprint", _loaded_fingerprint),
    ("Executable_Serialize", _serialize),
    ("Executable_DeserializeAndLoad", _deserialize),
    ("TopologyDescription_Fingerprint", _topology),
)
