"""Control flow, calls, annotations and manual computations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from weft.ir.module import Node, Region, Value
from weft.ir.op import Op
from weft.ir.types import TensorType
from weft.mesh import Sharding
from weft.mesh.algebra import Axes, DimAxes
from weft.ops.batch_norm import BatchNormGrad, BatchNormTraining
from weft.ops.control import Call, Case, If, OptimizationBarrier, While
from weft.ops.distributed.sharding import (
    ANNOTATIONS,
    ManualComputation,
    NamedComputation,
    ShardingGroup,
)
from weft.ops.slicing import Concatenate, Slice
from weft.partition.context import Context
from weft.partition.partitioners import joins
from weft.partition.piece import Piece, local_type, partial_sum, sharding_of, split_of
from weft.partition.structural import batch_norm, loops
from weft.partition.structural.composites import COMPOSED
from weft.partition.structural.outside import OUTSIDE
from weft.partition.structural.stand_in import STAND_INS


def alias(context: Context, node: Node) -> None:
    """An annotation: the identity, with a requested split."""
    (operand,), (result,) = node.operands, node.results
    entry = context.entries[operand]
    asked = context.wanted(result) or annotated_split(node.op, result)
    # One list of versions for both: a reshard of either serves the other.
    context.entries[result] = type(entry)(entry.builder, asked, entry.versions, again=entry.again)


def annotated_split(op: Op, result: Value) -> DimAxes | None:
    """The split in an annotation."""
    sharding = getattr(op, "sharding", None) or getattr(op, "out_sharding", None)
    if not isinstance(sharding, Sharding) or not isinstance(result.type, TensorType):
        return None
    return split_of(sharding, result.type.rank)


def barrier(context: Context, node: Node) -> None:
    """A barrier: reshards that the program asks for before it are done before it."""
    pieces = []
    for value in node.operands:
        annotated = value.node is not None and isinstance(value.node.op, ANNOTATIONS)
        placed = context.first(value)
        pieces.append(context.fetch(value, context.requested_split(value)) if annotated else placed)
    operands = tuple([piece.value for piece in pieces])
    types = tuple([value.type for value in operands])
    values = context.builder.add(Node(node.op, operands, types, (), node.attrs, node.loc))
    for old, new, piece in zip(node.results, values, pieces, strict=True):
        context.define(old, replace(piece, value=new), context.wanted(old))


def drop(context: Context, node: Node) -> None:
    """Drop the node."""


def while_loop(context: Context, node: Node) -> None:
    """Carried values keep one split and their unreduced axes; the predicate is replicated."""
    shardings = [context.program.sharding(v) for v in node.results]
    splits = [splits_of(v, s) for v, s in zip(node.results, shardings, strict=True)]
    better = loops.better_splits(context, node, splits)
    for n, split in better.items():
        splits[n], shardings[n] = split, sharding_of(split, context.mesh_name)
    operands = tuple(
        context.fetch_as(v, s).value for v, s in zip(node.operands, shardings, strict=True)
    )
    unreduced = [s.unreduced if s else () for s in shardings]
    # The predicate must be the same on all devices: the body has collectives, which all have to
    # enter.
    condition = context.region(node.regions[0], shardings, [()])
    body = context.region(node.regions[1], shardings, splits, unreduced)
    finish(context, node, operands, (condition, body), splits, unreduced)
    # An invariant value is after the loop what it was before, in all its versions.
    for n in better:
        context.entries[node.results[n]] = context.entries[node.operands[n]]


def splits_of(value: Value, sharding: Sharding | None) -> DimAxes:
    """The split of a sharding, unsplit without one."""
    return split_of(sharding, value.type.rank) if isinstance(value.type, TensorType) else ()


def branch(context: Context, node: Node) -> None:
    """All branches return results of the same splits; the predicate is replicated."""
    (chosen,) = node.operands
    operand = context.fetch(chosen, ()).value
    splits = [splits_of(v, context.program.sharding(v)) for v in node.results]
    regions = tuple(context.region(r, (), splits) for r in node.regions)
    finish(context, node, (operand,), regions, splits)


def finish(
    context: Context,
    node: Node,
    operands: tuple[Value, ...],
    regions: tuple[Region, ...],
    splits: list[DimAxes],
    unreduced: Sequence[Axes] = (),
) -> None:
    """The node on local types, its results of these splits and unreduced axes."""
    types = tuple(
        local_type(v.type, s, context.mesh) if isinstance(v.type, TensorType) else v.type
        for v, s in zip(node.results, splits, strict=True)
    )
    op = node.op.local(tuple(v.type for v in operands), types)
    made = Node(op, operands, types, regions, node.attrs, node.loc)
    partials = [partial_sum(axes) for axes in unreduced or ((),) * len(types)]
    values = context.builder.add(made)
    for old, new, split, partial in zip(node.results, values, splits, partials, strict=True):
        context.define(old, Piece(new, old.type, split, partial), split)  # type: ignore[arg-type]


def call(context: Context, node: Node) -> None:
    """A call of the function's specialization for these argument splits."""
    assert isinstance(node.op, Call)
    # As they are, without a reshard: the body reshards what it reads, and a function is specialized
    # for each combination.
    arguments = [context.first(v) for v in node.operands]
    callee = context.called(node.op.callee, arguments)
    types = tuple(v.type for v in callee.function.body.results)
    op = Call(callee.function.name, types)
    values = context.builder.add(
        Node(op, tuple(p.value for p in arguments), types, (), node.attrs, node.loc)
    )
    for old, new, placed in zip(node.results, values, callee.results, strict=True):
        there = Piece(new, placed.type, placed.split, placed.partial)
        context.define(old, there, context.wanted(old))


def manual(context: Context, node: Node) -> None:
    """A manual computation, local along its manual axes: inlined, and partitioned along others."""
    op = node.op
    assert isinstance(op, ManualComputation)
    context.inline_manual(node, op)


def named(context: Context, node: Node) -> None:
    """A named computation, inlined."""
    (region,) = node.regions
    for arg, operand in zip(region.args, node.operands, strict=True):
        context.entries[arg] = context.entries[operand]
    context.nodes(region)
    for result, value in zip(node.results, region.results, strict=True):
        context.entries[result] = context.entries[value]


STRUCTURE: dict[type[Op], Callable[[Context, Node], None]] = {
    **dict.fromkeys(ANNOTATIONS, alias),
    OptimizationBarrier: barrier,
    ShardingGroup: drop,
    While: while_loop,
    If: branch,
    Case: branch,
    Call: call,
    ManualComputation: manual,
    NamedComputation: named,
    Slice: joins.wait,
    Concatenate: joins.concatenation,
    BatchNormTraining: batch_norm.training,
    BatchNormGrad: batch_norm.gradient,
    **COMPOSED,
    **OUTSIDE,
    **STAND_INS,
}
