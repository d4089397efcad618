"""Formats of arguments and results: the layouts, memories and device orders that JAX requests."""

from __future__ import annotations

from collections.abc import Sequence

from weft.capture.normalize.cross_meshes import caller_sharding
from weft.capture.normalize.join_meshes import noted_order
from weft.capture.normalize.layouts import DimOrder, layout_in, row_major
from weft.executable.items import piece_bytes
from weft.ir.attrs import Attrs
from weft.ir.names import ALIASED, MEMORY_KIND
from weft.ir.types import TensorType, Type
from weft.jax.buffers.client import KINDS
from weft.mesh import Sharding
from weft.records import dataclass
from weft.run import LocalProgram


@dataclass(frozen=True, slots=True)
class BufferFormat:
    """The format of one argument or result."""

    order: tuple[int, ...] | None  # index in the stack of each partition's piece; None: identity
    memory: str  # memory kind
    minor_to_major: DimOrder
    # The sharding shown to JAX, if it differs from the program's.
    shown_sharding: Sharding | None = None

    @property
    def is_row_major(self) -> bool:
        """Whether the layout is row-major."""
        return self.minor_to_major == row_major(len(self.minor_to_major))


def buffer_formats(program: LocalProgram) -> tuple[list[BufferFormat], list[BufferFormat]]:
    """The formats of the arguments and of the results."""
    function = program.function
    places: DimOrder = tuple(program.world.places().tolist())
    return (
        _formats(function.arg_attrs, program.arg_types, places),
        _formats(function.res_attrs, program.result_types, places),
    )


def _formats(shown: Sequence[Attrs], types: Sequence[Type], places: DimOrder) -> list[BufferFormat]:
    plain = [_format((), type, places) for type in types]
    if not any(shown):
        return plain
    return [
        _format(attrs, type, places) if attrs else buffer_format
        for attrs, type, buffer_format in zip(shown, types, plain, strict=True)
    ]


def _format(attrs: Attrs, type: Type, places: DimOrder) -> BufferFormat:
    by_name = dict(attrs)
    order: DimOrder | None = noted_order(attrs) or places
    if order == tuple(range(len(places))):
        order = None
    memory = by_name.get(MEMORY_KIND, f'"{KINDS[0]}"').strip('"')
    assert isinstance(type, TensorType), "JAX keeps tokens to itself"
    return BufferFormat(order, memory, layout_in(attrs, type.rank), caller_sharding(attrs))


def taken_over(program: LocalProgram) -> tuple[int, ...]:
    """The donated arguments whose memory a result can take; JAX keeps the others alive."""
    attrs = program.function.arg_attrs
    free = [*map(piece_bytes, program.result_types)]
    numbers: list[int] = []
    for n in program.donated:
        size = piece_bytes(program.arg_types[n])
        if ALIASED in dict(attrs[n]) or size in free:
            numbers.append(n)
        if size in free:
            free.remove(size)
    return tuple(numbers)
