"""Composites, tuples and futures: what they stand for is partitioned in their place.

A composite of whole values stays as it is. One that a user's rule splits becomes the composite of a
piece, as long as its decomposition on pieces needs no other device. Any other is replaced by its
decomposition: on pieces its name would promise something else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from weft.errors import Unsupported
from weft.ir.module import Function, Node, Region, Value, walk
from weft.ir.op import Op
from weft.ir.types import TensorType, TokenType
from weft.mesh import Sharding
from weft.mesh.algebra import DimAxes
from weft.ops.callbacks import HOST_CALL_ON_PIECES, INSPECT
from weft.ops.control import AsyncDone, AsyncStart, Composite, GetTupleElement, Tuple
from weft.ops.custom import CustomCall
from weft.partition.copies import copied
from weft.partition.given_rules import whole_values
from weft.partition.piece import Piece, sharding_of, whole
from weft.partition.stand_in import stand_in

if TYPE_CHECKING:
    from weft.partition.localize import Localizer
    from weft.partition.program import Recipe

CONTROL_DEP = "control_dep"  # of jax.experimental.control_deps
_ANNOTATIONS = ("Sharding", "xla.sdy.FuncResultSharding", "xla.sdy.PropagationBarrier")


def composite(localizer: Localizer, node: Node) -> None:
    """A composite: whole, of pieces, or what it stands for."""
    op = node.op
    assert isinstance(op, Composite)
    function = localizer.program.module.functions.get(op.decomposition)
    if function is None or whole_values(localizer, node):
        keep_whole(localizer, node)
        return
    if localizer.given_rule(node) is not None and _of_pieces(localizer, node, function):
        return
    nodes, results = copied(function.body, node.operands)
    for each in nodes:
        each.loc = node.loc if not each.loc.known else each.loc
    stand_in(localizer, node, nodes, results)


def keep_whole(localizer: Localizer, node: Node) -> None:
    """The node itself, on whole values."""
    operands = tuple(localizer.fetch(v, whole(_rank(v.type))).value for v in node.operands)
    made = Node(node.op, operands, node.types, node.regions, node.attrs, node.loc)
    for old, new in zip(node.results, localizer.builder.add(made), strict=True):
        placed = Piece(new, old.type, whole(_rank(old.type)))  # type: ignore[arg-type]
        localizer.define(old, placed, localizer.wanted(old))


def _of_pieces(localizer: Localizer, node: Node, function: Function) -> bool:
    """Whether the composite could be made one of pieces, by the rule that a user gives."""
    recipe = localizer.recipe(node)
    if recipe.partial is not None:
        return False
    made = _local_function(localizer, function, recipe)
    if any(inner.op.collective for inner in walk(made.body)):
        return False
    operands = [
        localizer.fetch(v, split) for v, split in zip(node.operands, recipe.operands, strict=True)
    ]
    values = tuple(p.value for p in operands)
    name = localizer.program.add_function(made)
    types = tuple(v.type for v in made.body.results)
    op = node.op.replace(decomposition=name, outs=types)
    local = Node(op, values, types, (), node.attrs, node.loc)
    rows = zip(node.results, localizer.builder.add(local), recipe.results, strict=True)
    for old, new, split in rows:
        placed = Piece(new, old.type, split)  # type: ignore[arg-type]
        localizer.define(old, placed, localizer.wanted(old))
    return True


def _local_function(localizer: Localizer, function: Function, recipe: Recipe) -> Function:
    """The decomposition on pieces."""
    args = tuple(Value(a.type, None, a.index) for a in function.body.args)
    nodes, results = copied(function.body, args)
    copy = replace(function, body=Region(args, nodes, results), arg_attrs=(), res_attrs=())
    inner = type(localizer)(localizer.program, copy)

    def shardings(splits: tuple[DimAxes, ...]) -> list[Sharding | None]:
        return [sharding_of(s, localizer.mesh_name) for s in splits]

    body = inner.region(copy.body, shardings(recipe.operands), list(recipe.results))
    return replace(copy, body=body)


def custom_call(localizer: Localizer, node: Node) -> None:
    """A call of something outside; annotations are the value itself."""
    op = node.op
    assert isinstance(op, CustomCall)
    if op.call_target_name in _ANNOTATIONS and len(node.operands) == len(node.results) == 1:
        entry = localizer.entries[node.operands[0]]
        asked = localizer.wanted(node.results[0])
        localizer.entries[node.results[0]] = type(entry)(entry.builder, asked, entry.versions)
        return
    if op.call_target_name in (INSPECT, CONTROL_DEP):
        return  # who asked is told by then; an order of two values is a hint for another scheduler
    if op.call_target_name == HOST_CALL_ON_PIECES:
        _call_on_pieces(localizer, node)
        return
    localizer.compute(node)


def _call_on_pieces(localizer: Localizer, node: Node) -> None:
    """A call of Python by every device, with the pieces of values that it has."""
    given = [localizer.fetch(value, localizer.asked(value)).value for value in node.operands]
    made = Node(node.op, tuple(given), node.types, (), node.attrs, node.loc)
    localizer.builder.nodes.append(made)
    for value, local in zip(node.results, made.results, strict=True):
        assert isinstance(value.type, TokenType), "what is called on pieces gives no values"
        localizer.define(value, Piece(local, value.type, ()), None)  # type: ignore[arg-type]


def tuple_made(localizer: Localizer, node: Node) -> None:
    """A tuple of whole values, unless it is only taken apart again."""
    (result,) = node.results
    body = localizer.old.body
    readers = [n for n in walk(body) if result in n.operands]
    regions = [body, *[r for n in walk(body) for r in n.regions]]
    is_given = any(result in region.results for region in regions)
    if is_given or any(not isinstance(n.op, GetTupleElement) for n in readers):
        localizer.compute(node)


def tuple_element(localizer: Localizer, node: Node) -> None:
    """What was put into a tuple, as it was."""
    op, made = node.op, node.operands[0].node
    assert isinstance(op, GetTupleElement)
    if made is not None and isinstance(made.op, Tuple):
        localizer.entries[node.results[0]] = localizer.entries[made.operands[op.index]]
        return
    localizer.compute(node)


def async_start(localizer: Localizer, node: Node) -> None:
    """What it does, at once: when it runs is decided after partitioning."""
    (region,) = node.regions
    for arg, operand in zip(region.args, node.operands, strict=True):
        localizer.entries[arg] = localizer.entries[operand]
    localizer.nodes(region)
    localizer.builder.loc = node.loc


def async_done(localizer: Localizer, node: Node) -> None:
    """The values that the start has made."""
    start = node.operands[0].node
    if start is None or not isinstance(start.op, AsyncStart):
        raise Unsupported(
            f"{node.op.name}: its future comes from elsewhere than an async_start",
            help="keep an async_start and its async_done in one region",
        )
    for result, value in zip(node.results, start.regions[0].results, strict=True):
        localizer.entries[result] = localizer.entries[value]


def _rank(type: object) -> int:
    return type.rank if isinstance(type, TensorType) else 0


COMPOSED: dict[type[Op], Callable[[Localizer, Node], None]] = {
    Composite: composite,
    CustomCall: custom_call,
    Tuple: tuple_made,
    GetTupleElement: tuple_element,
    AsyncStart: async_start,
    AsyncDone: async_done,
}
