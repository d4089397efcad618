"""Composites, tuples and futures.

A composite on replicated values is kept. One with a user's rule becomes a composite on local
shards, if its decomposition on shards needs no communication. Any other is replaced by its
decomposition: on shards its name would mean something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from weft.errors import Unsupported
from weft.ir.module import Function, Node, Region, Value, walk
from weft.ir.op import Op
from weft.ir.types import TensorType, TokenType
from weft.mesh import Sharding
from weft.mesh.algebra import DimAxes
from weft.ops.control import AsyncDone, AsyncStart, Composite, GetTupleElement, Tuple
from weft.ops.custom_calls.callbacks import HOST_CALL_ON_PIECES, INSPECT
from weft.ops.custom_calls.custom import CustomCall
from weft.partition.context import Context
from weft.partition.piece import Piece, replicated, sharding_of
from weft.partition.program import NodeStrategy
from weft.partition.structural.regions import copied
from weft.partition.structural.stand_in import stand_in

CONTROL_DEP = "control_dep"  # of jax.experimental.control_deps
_ANNOTATIONS = ("Sharding", "xla.sdy.FuncResultSharding", "xla.sdy.PropagationBarrier")


def composite(context: Context, node: Node) -> None:
    """A composite: replicated, on local shards, or decomposed."""
    op = node.op
    assert isinstance(op, Composite)
    function = context.program.module.functions.get(op.decomposition)
    if function is None or _whole_values(context, node):
        keep_whole(context, node)
        return
    if context.given_rule(node) is not None and _of_pieces(context, node, function):
        return
    nodes, results = copied(function.body, node.operands)
    for each in nodes:
        # Errors inside of a decomposition without lines of its own name the user's call.
        each.loc = node.loc if not each.loc.known else each.loc
    stand_in(context, node, nodes, results)


def _whole_values(context: Context, node: Node) -> bool:
    """Whether no operand is split, and no result is requested split."""
    splits = [context.requested_split(v) for v in node.operands]
    wanted = [context.wanted(v) for v in node.results]
    return not any(axes for split in (*splits, *wanted) for axes in split or ())


def keep_whole(context: Context, node: Node) -> None:
    """The node itself, on replicated values."""
    operands = tuple(context.fetch(v, replicated(_rank(v.type))).value for v in node.operands)
    made = Node(node.op, operands, node.types, node.regions, node.attrs, node.loc)
    for old, new in zip(node.results, context.builder.add(made), strict=True):
        placed = Piece(new, old.type, replicated(_rank(old.type)))  # type: ignore[arg-type]
        context.define(old, placed, context.wanted(old))


def _of_pieces(context: Context, node: Node, function: Function) -> bool:
    """Whether the composite was emitted on local shards, by the user's rule."""
    strategy = context.strategy(node)
    # A partial sum would have to be reduced after the composite, and its name promises the result.
    if strategy.partial is not None:
        return False
    local_body = _local_function(context, function, strategy)
    # With communication inside it is no longer the same composite on shards: a library's kernel for
    # that name would not communicate.
    if any(inner.op.collective for inner in walk(local_body.body)):
        return False
    operands = [
        context.fetch(v, split) for v, split in zip(node.operands, strategy.operands, strict=True)
    ]
    values = tuple(p.value for p in operands)
    name = context.program.add_function(local_body)
    types = tuple(v.type for v in local_body.body.results)
    op = node.op.replace(decomposition=name, outs=types)
    local = Node(op, values, types, (), node.attrs, node.loc)
    rows = zip(node.results, context.builder.add(local), strategy.results, strict=True)
    for old, new, split in rows:
        placed = Piece(new, old.type, split)  # type: ignore[arg-type]
        context.define(old, placed, context.wanted(old))
    return True


def _local_function(context: Context, function: Function, strategy: NodeStrategy) -> Function:
    """The decomposition on local shards."""
    args = tuple(Value(a.type, None, a.index) for a in function.body.args)
    nodes, results = copied(function.body, args)
    copy = replace(function, body=Region(args, nodes, results), arg_attrs=(), res_attrs=())
    inner = context.inner(copy)

    def shardings(splits: tuple[DimAxes, ...]) -> list[Sharding | None]:
        return [sharding_of(s, context.mesh_name) for s in splits]

    body = inner.region(copy.body, shardings(strategy.operands), list(strategy.results))
    return replace(copy, body=body)


def custom_call(context: Context, node: Node) -> None:
    """A custom call; annotations are the identity."""
    op = node.op
    assert isinstance(op, CustomCall)
    if op.call_target_name in _ANNOTATIONS and len(node.operands) == len(node.results) == 1:
        entry = context.entries[node.operands[0]]
        asked = context.wanted(node.results[0])
        # Shares the versions of the operand: an annotation must not cost a copy or a second
        # reshard.
        context.entries[node.results[0]] = type(entry)(entry.builder, asked, entry.versions)
        return
    if op.call_target_name in (INSPECT, CONTROL_DEP):
        # inspect_array_sharding has reported by now; control_dep is a hint for XLA's scheduler
        return
    if op.call_target_name == HOST_CALL_ON_PIECES:
        _call_on_pieces(context, node)
        return
    context.compute(node)


def _call_on_pieces(context: Context, node: Node) -> None:
    """A callback on every device with its local shards."""
    given = [context.fetch(value, context.requested_split(value)).value for value in node.operands]
    made = Node(node.op, tuple(given), node.types, (), node.attrs, node.loc)
    context.builder.nodes.append(made)
    for value, local in zip(node.results, made.results, strict=True):
        assert isinstance(value.type, TokenType), "a callback on shards has no results"
        context.define(value, Piece(local, value.type, ()), None)  # type: ignore[arg-type]


def make_tuple(context: Context, node: Node) -> None:
    """A tuple of replicated values, unless all its uses are get_tuple_element."""
    (result,) = node.results
    body = context.old.body
    readers = [n for n in walk(body) if result in n.operands]
    regions = [body, *[r for n in walk(body) for r in n.regions]]
    # A tuple that leaves its region has to exist; one that is only taken apart again has not.
    is_given = any(result in region.results for region in regions)
    if is_given or any(not isinstance(n.op, GetTupleElement) for n in readers):
        context.compute(node)


def tuple_element(context: Context, node: Node) -> None:
    """The original element of a tuple."""
    op, made = node.op, node.operands[0].node
    assert isinstance(op, GetTupleElement)
    if made is not None and isinstance(made.op, Tuple):
        context.entries[node.results[0]] = context.entries[made.operands[op.index]]
        return
    context.compute(node)


def async_start(context: Context, node: Node) -> None:
    """The op itself, synchronously: scheduling comes after partitioning."""
    (region,) = node.regions
    for arg, operand in zip(region.args, node.operands, strict=True):
        context.entries[arg] = context.entries[operand]
    context.nodes(region)
    context.builder.loc = node.loc


def async_done(context: Context, node: Node) -> None:
    """The results of the start."""
    start = node.operands[0].node
    if start is None or not isinstance(start.op, AsyncStart):
        raise Unsupported(
            f"{node.op.name}: its future comes from elsewhere than an async_start",
            help="keep an async_start and its async_done in one region",
        )
    for result, value in zip(node.results, start.regions[0].results, strict=True):
        context.entries[result] = context.entries[value]


def _rank(type: object) -> int:
    return type.rank if isinstance(type, TensorType) else 0


COMPOSED: dict[type[Op], Callable[[Context, Node], None]] = {
    Composite: composite,
    CustomCall: custom_call,
    Tuple: make_tuple,
    GetTupleElement: tuple_element,
    AsyncStart: async_start,
    AsyncDone: async_done,
}
