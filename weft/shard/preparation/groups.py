"""Sharding groups: values with one common sharding."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import field

from weft.errors import WeftError
from weft.ir.module import Node, Value
from weft.ir.types import Dim, TensorType
from weft.mesh import DimSharding, Sharding
from weft.ops.distributed.sharding import ShardingConstraint, ShardingGroup
from weft.records import dataclass
from weft.shard.preparation.edits import Edits


@dataclass
class MergedGroup:
    """A group, merged with those that share a value with it."""

    ids: list[int] = field(default_factory=list)
    members: dict[Value, tuple[Node, Edits]] = field(default_factory=dict)  # in program order

    @property
    def id(self) -> int:
        """The group's id: the lowest of the merged ones."""
        return min(self.ids)


def unite_groups(memberships: Iterable[tuple[Node, Node | None, Edits]]) -> list[MergedGroup]:
    """The merged groups of a program's group ops, each with its enclosing manual computation."""
    groups: dict[int, MergedGroup] = {}
    places: dict[int, tuple[Node | None, Value]] = {}
    owner: dict[Value, MergedGroup] = {}
    for node, around, edits in memberships:
        assert isinstance(node.op, ShardingGroup)
        number, value = node.op.group_id, edits.operand(node)
        _check(node, places.setdefault(number, (around, value)), (around, value))
        group = groups.get(number)
        if group is None:
            group = groups[number] = MergedGroup([number])
        other = owner.get(value)
        if other is not None and other is not group:
            other.ids.extend(group.ids)
            other.members.update(group.members)
            groups.update(dict.fromkeys(group.ids, other))
            owner.update(dict.fromkeys(group.members, other))
            group = other
        group.members.setdefault(value, (node, edits))
        owner[value] = group
    distinct = {id(group): group for group in groups.values()}
    return sorted(distinct.values(), key=lambda group: group.id)


def _check(node: Node, known: tuple[Node | None, Value], now: tuple[Node | None, Value]) -> None:
    """Refuse a group of different shapes, or one that reaches into a manual computation."""
    assert isinstance(node.op, ShardingGroup)
    name = f"sharding group {node.op.group_id}"
    if known[0] is not now[0]:
        raise WeftError(
            f"{name}: one value is inside a manual computation and another is not",
            help="use a group of its own on each side",
            loc=node.loc,
        )
    first, second = _shape(known[1]), _shape(now[1])
    if first != second:
        raise WeftError(
            f"{name}: a value of shape {second} among values of shape {first}",
            help="group values of one shape only",
            loc=node.loc,
        )


def _shape(value: Value) -> list[Dim]:
    return list(value.type.shape) if isinstance(value.type, TensorType) else []


def start_groups(groups: Iterable[MergedGroup]) -> list[MergedGroup]:
    """Give the members of each group the sharding that one of them has; returns conflicting groups.

    If two members have different shardings, every member gets an open constraint after it, and the
    group consists of these.
    """
    conflicts = []
    for group in groups:
        given = [edits.sharding(value) for value, (_, edits) in group.members.items()]
        known = [s for s in given if s is not None and not _is_open(s)]
        if not known:
            continue
        if all(s == known[0] for s in known):
            for value, (_, edits) in group.members.items():
                edits.give(value, known[0])
            continue
        conflicts.append(group)
        dims = (DimSharding(is_open=True),) * len(known[0].dims)
        opened = ShardingConstraint(Sharding(known[0].mesh, dims))
        for value, (node, edits) in list(group.members.items()):
            made = Node(opened, (value,), (value.type,), loc=node.loc)
            uses = list(edits.watched[value])
            edits.insert_behind(value, made)
            edits.take_over(value, made.results[0], uses)
    return conflicts


def _is_open(sharding: Sharding) -> bool:
    """Whether a sharding is open in all dims."""
    return all(dim.is_open and not dim.axes for dim in sharding.dims)
