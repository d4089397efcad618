"""Device-dependent ops: made uniform, or refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from weft.errors import Unsupported
from weft.ir.module import Node
from weft.ir.op import Op
from weft.ir.types import TensorType
from weft.mesh import Axis, Mesh, MeshAxes
from weft.ops.combiners import in_dtype
from weft.ops.custom_calls.custom import Infeed, Outfeed, Recv, Send
from weft.ops.distributed.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectiveBroadcast,
    CollectivePermute,
    PartitionId,
    ReduceScatter,
)
from weft.ops.distributed.ragged import RaggedAllToAll
from weft.ops.random import Rng
from weft.ops.shape import GetDimensionSize
from weft.partition.context import Context
from weft.partition.piece import Partial, Piece, replicated

_MANUAL = "put it into a manual computation (jax.shard_map), where devices are those of the mesh"


def refused(why: str, help: str) -> Callable[[Context, Node], None]:  # as in WeftError
    """The handler of an op that is not supported in a global program."""

    def partition(context: Context, node: Node) -> None:
        if context.mesh.size > 1:
            raise Unsupported(f"{node.op.name}: {why}", help=help)
        context.compute(node)

    return partition


def manual_only(why: str) -> Callable[[Context, Node], None]:
    """The handler of an op that is valid only in manual computations."""

    def partition(context: Context, node: Node) -> None:
        if not context.manual and context.mesh.size > 1:
            raise Unsupported(f"{node.op.name}: {why}", help=_MANUAL)
        context.compute(node)

    return partition


def collective(context: Context, node: Node) -> None:
    """A collective in a global program, valid only on groups of one device."""
    if context.manual or context.mesh.size == 1:
        context.compute(node)
        return
    if not is_alone(node.op, context.program.module.meshes) or node.types != node.operand_types:
        raise Unsupported(
            f"{node.op.name}: a collective in a global program",
            help=_MANUAL,
        )
    for result, operand in zip(node.results, node.operands, strict=True):
        context.entries[result] = context.entries[operand]


def is_alone(op: Any, meshes: Mapping[str, Mesh]) -> bool:
    """Whether all groups are of one device, in a program of one device."""
    if isinstance(op, CollectivePermute):
        return op.source_target_pairs == ((0, 0),)
    return not isinstance(op.replica_groups, MeshAxes) and op.groups(1, 1, meshes) == ((0,),)


def random_numbers(context: Context, node: Node) -> None:
    """`stablehlo.rng`, which has hidden state: the first device draws them for all devices."""
    axes = tuple(
        Axis(name) for name, size in context.mesh.axes if size > 1 and name not in context.manual
    )
    builder = context.builder
    operands = [context.fetch(v, replicated(_rank(v.type))).value for v in node.operands]
    samples = builder.emit(node.op, *operands)
    (type,) = node.types
    assert isinstance(type, TensorType)
    partial = None
    if axes:
        # Samples on the first device and zeros elsewhere are partial sums: readers that reduce
        # them anyway pay nothing for the broadcast.
        samples = builder.only_first(samples, axes, 0)
        partial = Partial(axes, in_dtype("add", type.dtype))
    (result,) = node.results
    context.define(
        result, Piece(samples, type, replicated(type.rank), partial), context.wanted(result)
    )


def dimension_size(context: Context, node: Node) -> None:
    """The global size of a dim, a constant if static."""
    op, type = node.op, node.operands[0].type
    assert isinstance(op, GetDimensionSize) and isinstance(type, TensorType)
    if not isinstance(type.shape[op.dimension], int):
        context.compute(node)
        return
    size = context.builder.constant(np.asarray(type.sizes[op.dimension], np.int32))
    (result,) = node.results
    out = result.type
    assert isinstance(out, TensorType)
    context.define(result, Piece(size, out, ()), context.wanted(result))


def _rank(type: object) -> int:
    return type.rank if isinstance(type, TensorType) else 0


_FEED = refused(
    "host transfers belong to one device",
    "pass values as arguments and return results",
)
_MESSAGE = refused(
    "point-to-point transfers have no meaning in a global program",
    "put it into a manual computation, or use shardings",
)
OUTSIDE: dict[type[Op], Callable[[Context, Node], None]] = {
    Infeed: _FEED,
    Outfeed: _FEED,
    Send: _MESSAGE,
    Recv: _MESSAGE,
    PartitionId: manual_only("there is one number for each device, but one value for all"),
    AllGather: collective,
    AllReduce: collective,
    AllToAll: collective,
    ReduceScatter: collective,
    CollectiveBroadcast: collective,
    CollectivePermute: collective,
    RaggedAllToAll: collective,
    Rng: random_numbers,
    GetDimensionSize: dimension_size,
}
