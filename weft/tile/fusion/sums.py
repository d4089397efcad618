"""Sums over devices of sums of contractions: each contraction absorbs its own all_reduce.

all_reduce(x @ a + y @ b) = all_reduce(x @ a) + all_reduce(y @ b), and in lockstep a contraction
sums over devices together with its own dims: no per-device product is materialized.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from weft.ir.module import Node, Value, apply
from weft.ir.uses import reads
from weft.kernels.stacked_node import StackedNode
from weft.ops.distributed.collective import AllReduce
from weft.ops.elementwise.pointwise import Add
from weft.ops.shape import Reshape, Transpose
from weft.tile.drafts.products import PRODUCTS, is_outer
from weft.tile.drafts.pulls import fusible_combine


def sums_apart(nodes: Sequence[StackedNode], results: Sequence[Value]) -> list[StackedNode]:
    """The nodes, with all_reduce of a sum of contractions as a sum of all_reduces."""
    if not any(isinstance(p.node.op, AllReduce) for p in nodes):
        return list(nodes)
    makers = {v: p for p in nodes for v in p.node.results}
    count = Counter([*(v for p in nodes for v in {*reads(p.node)}), *results])
    out: list[StackedNode] = []
    for p in nodes:
        addends = _addends(p, makers, count)
        out += [p] if addends is None else _apart(p, addends, makers)
    return out


def _addends(
    stacked: StackedNode, makers: dict[Value, StackedNode], count: Counter[Value]
) -> list[Value] | None:
    """The contractions that an all_reduce sums up, if there are two or more and nothing else."""
    node = stacked.node
    if not isinstance(node.op, AllReduce) or len(node.operands) != 1 or stacked.along is None:
        return None
    if fusible_combine(node) != "add":
        return None
    addends: list[Value] = []
    todo = [node.operands[0]]
    while todo:
        value = todo.pop()
        maker = makers.get(value)
        # Another reader needs the per-device value, and would have it computed twice.
        if maker is None or count[value] != 1:
            return None
        if isinstance(maker.node.op, Add):
            todo += reversed(maker.node.operands)
        elif _is_product(value, makers, count):
            addends.append(value)
        else:
            return None
    return addends if len(addends) > 1 else None


def _is_product(value: Value, makers: dict[Value, StackedNode], count: Counter[Value]) -> bool:
    """Whether a value, or its view source, is a contraction without other readers."""
    maker = makers.get(value)
    while (
        maker is not None and count[value] == 1 and isinstance(maker.node.op, Reshape | Transpose)
    ):
        value = maker.node.operands[0]
        maker = makers.get(value)
    if maker is None or count[value] != 1 or is_outer(maker.node):
        return False
    return type(maker.node.op) in PRODUCTS


def _apart(
    stacked: StackedNode, addends: list[Value], makers: dict[Value, StackedNode]
) -> list[StackedNode]:
    """An all_reduce for each addend, and their sum in place of the result."""
    node, (mask,) = stacked.node, stacked.made
    nodes: list[StackedNode] = []
    total: Value | None = None
    for value in addends:
        reduced = node.rebuilt((value,), node.regions)
        given = makers[value].made[value.index]
        nodes.append(StackedNode(reduced, (given,), (mask,), stacked.along))
        (one,) = reduced.results
        if total is None:
            total = one
            continue
        added: Node = apply(Add(), total, one, loc=node.loc)
        nodes.append(StackedNode(added, (mask, mask), (mask,)))
        (total,) = added.results
    # The sum takes over the identity of the result, so that readers need no rewriting. The node is
    # new, and nothing else holds it yet.
    nodes[-1].node.results = node.results
    return nodes
