"""Loop-invariant carried values: resharded before the loop for the slices its body takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.cost.trips import trips
from weft.ir.module import Node, Region, Value
from weft.ir.types import TensorType
from weft.mesh.algebra import DimAxes
from weft.ops.control import Call
from weft.ops.distributed.sharding import Reshard, ShardingConstraint
from weft.ops.slicing import DynamicSlice
from weft.partition.context import Context
from weft.partition.reshard import plan


def better_splits(context: Context, node: Node, splits: Sequence[DimAxes]) -> dict[int, DimAxes]:
    """Better splits for invariant carried values, where the loop then sends less.

    A slice along a split dim, such as the weights of a layer, is sent in every iteration; one
    reshard of all slices before the loop sends half of that or less.
    """
    rounds, body = trips(node), node.regions[1]
    targets: dict[int, DimAxes] = {}
    for n, (arg, result) in enumerate(zip(body.args, body.results, strict=True)):
        # Without a trip count there is nothing to weigh, and only an invariant value can be
        # resharded once, before the loop.
        if rounds is None or arg is not result or not any(splits[n]):
            continue
        cuts = list(_slices(context, body, arg))
        # Two slices may want two splits; the case that matters, scanned layers, has one.
        if len(cuts) == 1:
            (cut,) = cuts
            target = _uncut(context, cut, splits[n])
            if target is not None and _is_better(context, cut, splits[n], target, rounds):
                targets[n] = target
    return targets


def _slices(context: Context, region: Region, value: Value) -> Iterator[Node | None]:
    """The slices that are the only uses of a value, through calls too; None if there are others."""
    for node in region.nodes:
        for number, operand in enumerate(node.operands):
            if operand is not value:
                continue
            match node.op:
                case DynamicSlice() if number == 0:
                    yield node
                case Reshard() | ShardingConstraint():
                    yield from _slices(context, region, node.results[0])
                case Call(callee=callee):
                    body = context.program.module.function(callee).body
                    yield from _slices(context, body, body.args[number])
                case _:
                    yield None
        # Read inside of a nested region: a use that this search does not understand.
        if any(value in inner for inner in _read_inside(node)):
            yield None


def _read_inside(node: Node) -> Iterator[tuple[Value, ...]]:
    for region in node.regions:
        yield region.results
        for inner in region.nodes:
            yield inner.operands
            yield from _read_inside(inner)


def _uncut(context: Context, cut: Node | None, split: DimAxes) -> DimAxes | None:
    """The wanted split of a slice, as a split of its source."""
    if cut is None:
        return None
    given, made = cut.operands[0].type, cut.results[0].type
    assert isinstance(given, TensorType) and isinstance(made, TensorType)
    wanted = context.wanted(cut.results[0])
    dims = [d for d, (a, b) in enumerate(zip(given.sizes, made.sizes, strict=True)) if a != b]
    if wanted is None or not any(split[d] for d in dims):
        return None
    return tuple(() if d in dims else axes for d, axes in enumerate(wanted))


def _is_better(
    context: Context, cut: Node | None, split: DimAxes, target: DimAxes, rounds: int
) -> bool:
    assert cut is not None
    whole, sliced = cut.operands[0].type, cut.results[0].type
    assert isinstance(whole, TensorType) and isinstance(sliced, TensorType)
    prices = context.program.prices
    once = plan(whole, split, (), target, (), context.mesh, prices).cost
    slice_split = tuple(
        () if a != b else axes for a, b, axes in zip(whole.sizes, sliced.sizes, split, strict=True)
    )
    unreduced = tuple(
        x for a, b, s in zip(whole.sizes, sliced.sizes, split, strict=True) for x in s if a != b
    )
    each = plan(sliced, slice_split, unreduced, target, (), context.mesh, prices).cost
    return once < each * rounds
