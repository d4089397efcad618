"""Extensions: functions that JAX finds beside the table, about layouts and shardings."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from weft.array.tiles import Tiles
from weft.jax.borders import Border
from weft.jax.executables import Described
from weft.jax.handles import Handles
from weft.jax.shardings import all_tiles, proto
from weft.jax.slots import slot
from weft.jax.values import layout_at

_Pointer = ctypes.c_size_t


# Layouts


@slot("Layouts_Client_GetDefaultLayout")
def _default_layout(handles: Handles, args: Any) -> None:
    args.layout = layout_at(tuple(reversed(range(args.num_dims))))


@slot("Layouts_Topology_GetDefaultLayout")
def _topology_layout(handles: Handles, args: Any) -> None:
    args.layout = layout_at(tuple(reversed(range(args.num_dims))))


@slot("Layouts_Executable_GetParameterLayouts")
def _parameter_layouts(handles: Handles, args: Any) -> None:
    described: Described = handles.kept[args.executable]
    args.layouts = described.remembered("inside", lambda _: _layouts(described, described.inside))
    args.num_parameters = len(described.inside)


@slot("Layouts_Executable_GetOutputLayouts")
def _output_layouts(handles: Handles, args: Any) -> None:
    described: Described = handles.kept[args.executable]
    args.layouts = described.remembered("outside", lambda _: _layouts(described, described.outside))
    args.num_outputs = len(described.outside)


def _layouts(described: Described, side: Sequence[Border]) -> int:
    return described.words(_Pointer, [layout_at(border.minor_to_major) for border in side])


# Shardings


@slot("Shardings_Executable_ParameterShardings")
def _parameter_shardings(handles: Handles, args: Any) -> None:
    args.shardings, args.sharding_sizes, args.num_parameters = _shardings(handles, args, 0)


@slot("Shardings_Executable_OutputShardings")
def _output_shardings(handles: Handles, args: Any) -> None:
    args.shardings, args.sharding_sizes, args.num_outputs = _shardings(handles, args, 1)


def _shardings(handles: Handles, args: Any, side: int) -> tuple[int, int, int]:
    described: Described = handles.kept[args.executable]

    def write(tiles: Sequence[Tiles]) -> tuple[int, int, int]:
        written = [described.bytes(proto(each)) for each in tiles]
        texts = described.words(_Pointer, [at for at, _ in written])
        return texts, described.words(_Pointer, [size for _, size in written]), len(written)

    both = described.remembered("shardings", lambda e: [*map(write, all_tiles(e.local))])
    found: tuple[int, int, int] = both[side]
    return found if found[2] else (0, 0, 0)  # JAX takes a list of none for one that is missing
