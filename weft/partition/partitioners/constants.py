"""Constants and iotas: local values from the device's index."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from weft.ir.dense import Dense
from weft.ir.types import I32, Array
from weft.mesh import Mesh
from weft.mesh.algebra import DimAxes, total_size
from weft.ops.elementwise.convert import Convert
from weft.ops.shape import Constant, Iota
from weft.partition.piece import Piece, local_type, replicated
from weft.partition.site import NodeSite, tensor


def iota(site: NodeSite) -> tuple[Piece, ...]:
    """An iota from the shard's offset, in integers wide enough for any element type."""
    op, (split,) = site.node.op, site.splits
    assert isinstance(op, Iota)
    local = tensor(site.local_types()[0])
    axes = split[op.iota_dimension]
    if not axes:
        return site.result_pieces(site.builder.emit(Iota(op.iota_dimension, local)))
    start = site.start(axes, local.sizes[op.iota_dimension])
    # Offset and iota are added before the conversion: in bf16 neither would be exact beyond 256.
    value = site.builder.counted(local.with_dtype(I32), op.iota_dimension, start)
    if local.dtype is not I32:
        value = site.builder.emit(Convert(local), value)
    return site.result_pieces(value)


def constant(site: NodeSite) -> tuple[Piece, ...]:
    """A constant of one block if all shards are equal; else a slice of the global constant."""
    value: Dense = site.node.op.value  # type: ignore[attr-defined]
    (split,) = site.splits
    local = tensor(site.local_types()[0])
    if value.is_splat:
        return site.result_pieces(site.builder.emit(Constant(Dense(value.elements, local))))
    block = repeated_block(value, split, site.mesh)
    if block is not None:
        return site.result_pieces(site.builder.emit(Constant(block)))
    everything = site.builder.emit(Constant(value))
    placed = Piece(everything, value.type, replicated(value.type.rank))
    return (site.builder.reshard(placed, split),)


# Results by constant, weakly: constants may be large.
_BLOCKS: WeakKeyDictionary[Dense, dict[tuple[DimAxes, Mesh], Dense | None]] = WeakKeyDictionary()


def repeated_block(value: Dense, split: DimAxes, mesh: Mesh) -> Dense | None:
    """The shard of a constant, if it is the same on all devices."""
    known = _BLOCKS.setdefault(value, {})
    if (split, mesh) in known:
        return known[split, mesh]
    found = _repeated_block(value, split, mesh)
    if found is not value:  # a strong reference would keep the key alive
        known[split, mesh] = found
    return found


def _repeated_block(value: Dense, split: DimAxes, mesh: Mesh) -> Dense | None:
    local = local_type(value.type, split, mesh)
    array: Array = value.array
    for dim, axes in enumerate(split):
        count, size = total_size(axes, mesh), local.sizes[dim]
        if array.shape[dim] != count * size:
            return None
        blocks = np.split(array, count, dim)
        raw = blocks[0].tobytes()
        if any(block.tobytes() != raw for block in blocks[1:]):
            return None
        array = blocks[0]
    return Dense(np.ascontiguousarray(array), local)
