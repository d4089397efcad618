"""The launch of a ragged dot: by tensor descriptors, or by pointers."""

from __future__ import annotations

from weft.emit.triton import dtypes
from weft.emit.triton.emitted import GridLaunch
from weft.emit.triton.ragged.described import by_descriptors, refuses_descriptors
from weft.emit.triton.ragged.tiles import RaggedTiles
from weft.kernels.nest.ragged import held_type, refuses_sums
from weft.kernels.single_node import SingleNode


def refuses_ragged(kernel: SingleNode) -> str | None:
    """Why no launch computes a ragged dot, or None if one does."""
    if reason := dtypes.refuses(*[operand.dtype for operand in kernel.operands]):
        return reason
    held = held_type(kernel)
    sides = [operand.dtype for operand in kernel.operands[:2]]
    if held.kind == "bool" or any(side.is_float != held.is_float for side in sides):
        return f"a product of {sides[0]} and {sides[1]} is added up in {held}"
    return refuses_sums(kernel)


def ragged_launch(kernel: SingleNode) -> GridLaunch:
    """The launch of a ragged dot."""
    tiles = RaggedTiles(kernel)
    return tiles.launch() if refuses_descriptors(tiles) else by_descriptors(kernel)
