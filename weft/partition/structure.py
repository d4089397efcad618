"""Ops that hold the program together: control flow, calls, annotations, manual computations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from weft.ir.module import Node, Region, Value
from weft.ir.op import Op
from weft.ir.types import TensorType
from weft.mesh import Sharding
from weft.mesh.algebra import Axes, DimAxes
from weft.ops.batch_norm import BatchNormGrad, BatchNormTraining
from weft.ops.control import Call, Case, If, While
from weft.ops.sharding import ANNOTATIONS, ManualComputation, NamedComputation, ShardingGroup
from weft.ops.slicing import Concatenate, Slice
from weft.partition import batch_norm, loops
from weft.partition.composites import COMPOSED
from weft.partition.outside import OUTSIDE
from weft.partition.piece import Piece, local_type, partial_sum, sharding_of, split_of
from weft.partition.stand_in import STAND_INS
from weft.partition.ways import joins

if TYPE_CHECKING:
    from weft.partition.localize import Localizer


def alias(localizer: Localizer, node: Node) -> None:
    """An annotation: the value itself, from here on to be split as it says."""
    (operand,), (result,) = node.operands, node.results
    entry = localizer.entries[operand]
    asked = localizer.wanted(result) or said(node.op, result)
    localizer.entries[result] = type(entry)(entry.builder, asked, entry.versions, again=entry.again)


def said(op: Op, result: Value) -> DimAxes | None:
    """The split that an annotation itself names."""
    sharding = getattr(op, "sharding", None) or getattr(op, "out_sharding", None)
    if not isinstance(sharding, Sharding) or not isinstance(result.type, TensorType):
        return None
    return split_of(sharding, result.type.rank)


def drop(localizer: Localizer, node: Node) -> None:
    """Nothing is left of it."""


def while_loop(localizer: Localizer, node: Node) -> None:
    """Carried values keep one split and their unreduced axes; the condition is whole everywhere."""
    shardings = [localizer.program.sharding(v) for v in node.results]
    splits = [splits_of(v, s) for v, s in zip(node.results, shardings, strict=True)]
    better = loops.better_splits(localizer, node, splits)
    for n, split in better.items():
        splits[n], shardings[n] = split, sharding_of(split, localizer.mesh_name)
    operands = tuple(
        localizer.fetch_as(v, s).value for v, s in zip(node.operands, shardings, strict=True)
    )
    unreduced = [s.unreduced if s else () for s in shardings]
    condition = localizer.region(node.regions[0], shardings, [()])
    body = localizer.region(node.regions[1], shardings, splits, unreduced)
    finish(localizer, node, operands, (condition, body), splits, unreduced)
    for n in better:
        localizer.entries[node.results[n]] = localizer.entries[node.operands[n]]


def splits_of(value: Value, sharding: Sharding | None) -> DimAxes:
    """The split of a value at a border, whole where nothing is said."""
    return split_of(sharding, value.type.rank) if isinstance(value.type, TensorType) else ()


def branch(localizer: Localizer, node: Node) -> None:
    """Every branch gives results of the same splits; the predicate is whole on every device."""
    (chosen,) = node.operands
    operand = localizer.fetch(chosen, ()).value
    splits = [splits_of(v, localizer.program.sharding(v)) for v in node.results]
    regions = tuple(localizer.region(r, (), splits) for r in node.regions)
    finish(localizer, node, (operand,), regions, splits)


def finish(
    localizer: Localizer,
    node: Node,
    operands: tuple[Value, ...],
    regions: tuple[Region, ...],
    splits: list[DimAxes],
    unreduced: Sequence[Axes] = (),
) -> None:
    """The node on local types, its results of these splits and unreduced axes."""
    types = tuple(
        local_type(v.type, s, localizer.mesh) if isinstance(v.type, TensorType) else v.type
        for v, s in zip(node.results, splits, strict=True)
    )
    op = node.op.local(tuple(v.type for v in operands), types)
    made = Node(op, operands, types, regions, node.attrs, node.loc)
    partials = [partial_sum(axes) for axes in unreduced or ((),) * len(types)]
    values = localizer.builder.add(made)
    for old, new, split, partial in zip(node.results, values, splits, partials, strict=True):
        localizer.define(old, Piece(new, old.type, split, partial), split)  # type: ignore[arg-type]


def call(localizer: Localizer, node: Node) -> None:
    """A call of a function, which is partitioned for arguments that are split as these are."""
    assert isinstance(node.op, Call)
    given = [localizer.first(v) for v in node.operands]
    made = localizer.called(node.op.callee, given)
    types = tuple(v.type for v in made.function.body.results)
    op = Call(made.function.name, types)
    values = localizer.builder.add(
        Node(op, tuple(p.value for p in given), types, (), node.attrs, node.loc)
    )
    for old, new, placed in zip(node.results, values, made.results, strict=True):
        there = Piece(new, placed.type, placed.split, placed.partial)
        localizer.define(old, there, localizer.wanted(old))


def manual(localizer: Localizer, node: Node) -> None:
    """A manual computation: its body is local already, and becomes part of the program."""
    op = node.op
    assert isinstance(op, ManualComputation)
    localizer.inline_manual(node, op)


def named(localizer: Localizer, node: Node) -> None:
    """A named computation becomes part of the program."""
    (region,) = node.regions
    for arg, operand in zip(region.args, node.operands, strict=True):
        localizer.entries[arg] = localizer.entries[operand]
    localizer.nodes(region)
    for result, value in zip(node.results, region.results, strict=True):
        localizer.entries[result] = localizer.entries[value]


STRUCTURE: dict[type[Op], Callable[[Localizer, Node], None]] = {
    **dict.fromkeys(ANNOTATIONS, alias),
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
