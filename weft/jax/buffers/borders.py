"""Borders: what JAX asks of each argument and result, besides its type and its sharding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from weft.capture.normalize.cross_meshes import caller_sharding
from weft.capture.normalize.join_meshes import noted_order
from weft.capture.normalize.layouts import DimOrder, layout_in, row_major
from weft.executable.items import piece_bytes
from weft.ir.attrs import Attrs
from weft.ir.names import ALIASED, MEMORY_KIND
from weft.ir.types import TensorType, Type
from weft.jax.buffers.client import KINDS
from weft.mesh import Sharding
from weft.run import LocalProgram


@dataclass(frozen=True, slots=True)
class BufferFormat:
    """How an argument or a result goes in or out."""

    order: tuple[int, ...] | None  # the place in a stack of each partition's piece; None: its own
    memory: str  # its kind
    minor_to_major: DimOrder
    told: Sharding | None = None  # how it is split in JAX's eyes, if not as the program says

    @property
    def is_row_major(self) -> bool:
        """Whether the last dim is the minor one, and so on."""
        return self.minor_to_major == row_major(len(self.minor_to_major))


def borders(program: LocalProgram) -> tuple[list[BufferFormat], list[BufferFormat]]:
    """The borders of the arguments, and those of the results."""
    function = program.function
    places: DimOrder = tuple(program.world.places().tolist())
    return (
        _borders(function.arg_attrs, program.arg_types, places),
        _borders(function.res_attrs, program.result_types, places),
    )


def _borders(shown: Sequence[Attrs], types: Sequence[Type], places: DimOrder) -> list[BufferFormat]:
    plain = [_border((), type, places) for type in types]
    if not any(shown):
        return plain
    return [
        _border(attrs, type, places) if attrs else border
        for attrs, type, border in zip(shown, types, plain, strict=True)
    ]


def _border(attrs: Attrs, type: Type, places: DimOrder) -> BufferFormat:
    found = dict(attrs)
    order: DimOrder | None = noted_order(attrs) or places
    if order == tuple(range(len(places))):
        order = None
    memory = found.get(MEMORY_KIND, f'"{KINDS[0]}"').strip('"')
    assert isinstance(type, TensorType), "JAX keeps tokens to itself"
    return BufferFormat(order, memory, layout_in(attrs, type.rank), caller_sharding(attrs))


def taken_over(program: LocalProgram) -> tuple[int, ...]:
    """The donated arguments whose memory a result can have; JAX keeps the others as they are."""
    attrs = program.function.arg_attrs
    free = [*map(piece_bytes, program.result_types)]
    found: list[int] = []
    for n in program.donated:
        size = piece_bytes(program.arg_types[n])
        if ALIASED in dict(attrs[n]) or size in free:
            found.append(n)
        if size in free:
            free.remove(size)
    return tuple(found)
