"""PJRT extensions: layouts and shardings of executables."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from weft.array.tiles import Tiles
from weft.jax.buffers.formats import BufferFormat
from weft.jax.buffers.values import layout_at
from weft.jax.native.handles import Handles
from weft.jax.native.slots import SlotFunction
from weft.jax.programs.executables import Described
from weft.jax.questions.shardings import all_tiles, proto

_Pointer = ctypes.c_size_t


# Layouts


def _default_layout(handles: Handles, args: Any) -> None:
    args.layout = layout_at(tuple(reversed(range(args.num_dims))))


def _topology_layout(handles: Handles, args: Any) -> None:
    args.layout = layout_at(tuple(reversed(range(args.num_dims))))


def _parameter_layouts(handles: Handles, args: Any) -> None:
    described: Described = handles.objects[args.executable]
    args.layouts = described.remembered("inside", lambda _: _layouts(described, described.inside))
    args.num_parameters = len(described.inside)


def _output_layouts(handles: Handles, args: Any) -> None:
    described: Described = handles.objects[args.executable]
    args.layouts = described.remembered("outside", lambda _: _layouts(described, described.outside))
    args.num_outputs = len(described.outside)


def _layouts(described: Described, side: Sequence[BufferFormat]) -> int:
    return described.words(
        _Pointer, [layout_at(buffer_format.minor_to_major) for buffer_format in side]
    )


# Shardings


def _parameter_shardings(handles: Handles, args: Any) -> None:
    args.shardings, args.sharding_sizes, args.num_parameters = _shardings(handles, args, 0)


def _output_shardings(handles: Handles, args: Any) -> None:
    args.shardings, args.sharding_sizes, args.num_outputs = _shardings(handles, args, 1)


def _shardings(handles: Handles, args: Any, side: int) -> tuple[int, int, int]:
    described: Described = handles.objects[args.executable]

    def write(tiles: Sequence[Tiles]) -> tuple[int, int, int]:
        written = [described.bytes(proto(each)) for each in tiles]
        texts = described.words(_Pointer, [at for at, _ in written])
        return texts, described.words(_Pointer, [size for _, size in written]), len(written)

    both = described.remembered("shardings", lambda e: [*map(write, all_tiles(e.local))])
    found: tuple[int, int, int] = both[side]
    return found if found[2] else (0, 0, 0)  # JAX treats an empty list as missing


SLOTS: tuple[tuple[str, SlotFunction], ...] = (
    ("Layouts_Client_GetDefaultLayout", _default_layout),
    ("Layouts_Topology_GetDefaultLayout", _topology_layout),
    ("Layouts_Executable_GetParameterLayouts", _parameter_layouts),
    ("Layouts_Executable_GetOutputLayouts", _output_layouts),
    ("Shardings_Executable_ParameterShardings", _parameter_shardings),
    ("Shardings_Executable_OutputShardings", _output_shardings),
)
