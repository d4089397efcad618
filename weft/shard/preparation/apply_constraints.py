"""Applying sharding constraints and manual computations to their operands."""

from __future__ import annotations

from dataclasses import replace

from weft.ir.module import Node, Region, Value
from weft.mesh import Sharding
from weft.ops.distributed.sharding import ManualComputation, ShardingConstraint
from weft.shard.closing import unsplit
from weft.shard.preparation.edits import Edits, Use, ValueUser


def apply_constraints(edits: Edits, nodes: list[Node]) -> None:
    """Copy the sharding of a constraint to its operand, if that has none.

    `nodes` are the constraints and manual computations of the function, inner before outer. An
    operand with a data flow edge stays open: its other uses are redirected to the constraint.
    """
    for node in nodes:
        if isinstance(node.op, ShardingConstraint):
            pass_over_chain(edits, node)
            value = edits.operand(node)
            if not should_apply(edits, value, node.op.sharding):
                continue
            if edits.edge_of(value) is None:
                edits.give(value, node.op.sharding)
            else:
                pass_unreduced(edits, value, node.op.sharding)
                edits.move_behind(value, node)
                take_all(edits, value, node)
        elif isinstance(node.op, ManualComputation):
            for n, sharding in enumerate(node.op.in_shardings):
                constrain_operand(edits, edits.operand(node, n), sharding, node)


def constrain_operand(edits: Edits, value: Value, sharding: Sharding, node: Node) -> None:
    """Treat the in_sharding of a manual computation as a constraint on its operand."""
    if not should_apply(edits, value, sharding):
        return
    if edits.edge_of(value) is None:
        edits.give(value, sharding)
        return
    pass_unreduced(edits, value, sharding)
    made = Node(ShardingConstraint(sharding), (value,), (value.type,), loc=node.loc)
    edits.insert_behind(value, made)
    take_all(edits, value, made)


def pass_unreduced(edits: Edits, value: Value, sharding: Sharding) -> None:
    """Copy unreduced axes to an edge, which is otherwise open."""
    if sharding.unreduced:
        opened = unsplit(value.type, sharding.mesh, is_open=True)
        edits.give(value, replace(opened, unreduced=sharding.unreduced))


def take_all(edits: Edits, value: Value, node: Node) -> None:
    """Redirect all uses of a value but the node's own to the node."""
    uses = [use for use in edits.watched[value] if use[0] is not node]
    edits.take_over(value, node.results[0], uses)


def should_apply(edits: Edits, value: Value, sharding: Sharding) -> bool:
    """Whether a closed sharding is the only annotation of a value."""
    if not edits.can_be_split(value) or edits.sharding(value) is not None:
        return False
    if any(dim.is_open for dim in sharding.dims):
        return False
    return not any(_differs(use, sharding) for use in edits.watched[value])


def _differs(use: Use, sharding: Sharding) -> bool:
    reader, index = use
    match reader:
        case Node(op=ShardingConstraint(sharding=other)):
            return other != sharding
        case Node(op=ManualComputation(in_shardings=shardings)):
            return shardings[index] != sharding
    return False


def pass_over_chain(edits: Edits, head: Node) -> None:
    """Redirect uses of a constraint chain's operand that come after the chain to its end."""
    tail = end_of_chain(edits, head)
    if tail is None:
        return
    value = edits.operand(head)
    place, after = edits.places[tail]

    def is_behind(use: Use) -> bool:
        reader = use[0]
        if reader is head or (reader is edits.function.body and not edits.called):
            return False
        region, position = edits.places[reader]
        return region is place and position > after

    edits.take_over(value, tail.results[0], [u for u in edits.watched[value] if is_behind(u)])


def end_of_chain(edits: Edits, head: Node) -> Node | None:
    """The last of a chain of constraints, if the values in between have no other uses."""
    value = edits.operand(head)
    if value.node is not None and isinstance(value.node.op, ShardingConstraint):
        return None
    if edits.sharding(value) is not None:
        return None
    if any(is_constraint(r) for r in edits.readers(value) if r is not head):
        return None
    tail = head
    while (following := _only_reader(edits, tail)) is not None:
        tail = following
    if tail is head or any(is_constraint(r) for r in edits.readers(tail.results[0])):
        return None
    return tail


def _only_reader(edits: Edits, node: Node) -> Node | None:
    uses = edits.watched[node.results[0]]
    if len(uses) != 1:
        return None
    reader = uses[0][0]
    if isinstance(reader, Region) or not isinstance(reader.op, ShardingConstraint):
        return None
    return reader


def is_constraint(reader: ValueUser) -> bool:
    """Whether a user annotates the sharding of its operand."""
    return isinstance(reader, Node) and isinstance(
        reader.op, ShardingConstraint | ManualComputation
    )
