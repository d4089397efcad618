"""Shardings of arguments and results as HLO tile assignments, which JAX parses."""

from __future__ import annotations

from collections.abc import Sequence

from weft.array.tiles import OTHER, REPLICATED, Tiles, tiles
from weft.jax.buffers.formats import BufferFormat, buffer_formats
from weft.jax.questions.protos import field, packed
from weft.mesh import Sharding
from weft.run import LocalProgram


def argument_tiles(program: LocalProgram) -> list[str]:
    """The sharding of each argument."""
    return [tiles.text() for tiles in all_tiles(program)[0]]


def result_tiles(program: LocalProgram) -> list[str]:
    """The sharding of each result."""
    return [tiles.text() for tiles in all_tiles(program)[1]]


def all_tiles(program: LocalProgram) -> tuple[list[Tiles], list[Tiles]]:
    """The shardings of the arguments, and those of the results."""
    inside, outside = buffer_formats(program)
    return (
        _tiles(program, program.shardings, inside),
        _tiles(program, program.result_shardings, outside),
    )


def _tiles(
    program: LocalProgram, shardings: Sequence[Sharding | None], at: Sequence[BufferFormat]
) -> list[Tiles]:
    known: dict[tuple[Sharding | None, tuple[int, ...] | None], Tiles] = {}
    assignments: list[Tiles] = []
    for sharding, buffer_format in zip(shardings, at, strict=True):
        shown = buffer_format.shown_sharding or sharding
        key = shown, buffer_format.order
        if key not in known:
            known[key] = tiles(shown, program.mesh, buffer_format.order)
        assignments.append(known[key])
    return assignments


def proto(tiles: Tiles) -> bytes:
    """A tile assignment as an OpSharding."""
    if tiles.kind != OTHER:
        return field(1, tiles.kind) if tiles.kind else b""
    message = field(1, OTHER) + field(3, packed(tiles.shape))
    if tiles.in_order:
        message += field(9, packed([len(tiles.devices)])) + field(10, packed([0]))
    else:
        message += field(4, packed(tiles.devices))
    if tiles.last == (REPLICATED,):
        return message + field(6, 1)
    return message + field(8, packed(tiles.last)) if tiles.last else message
