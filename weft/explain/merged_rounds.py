"""Loops with fewer rounds: several rounds of independent ones become one, as of larger batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from weft.cost.trips import trips
from weft.explain.findings import line_text
from weft.explain.rounds import independent_rounds
from weft.ir.dense import Dense
from weft.ir.location import Location
from weft.ir.module import Module, Node, Region, Value, apply
from weft.ir.rebuild import rewrite
from weft.ir.types import TensorType
from weft.ops.control import Call, While
from weft.ops.elementwise.pointwise import Add
from weft.ops.shape import Constant

_MOST_NODES = 20_000  # of a loop's merged body
_MOST = 8  # rounds in one


def fewer_rounds(module: Module) -> Iterator[tuple[str, Module]]:
    """The program with half of the rounds of its independent loops, a quarter, an eighth."""
    loops = {rounds.loc: rounds.count for rounds in independent_rounds(module)}
    by = 2
    while loops and by <= _MOST:
        able = {loc: count for loc, count in loops.items() if count % by == 0}
        if not able:
            return
        merged = rewrite(module, _Merging(module, able, by), kinds={While})
        if merged is module:
            return
        places = ", ".join(
            f"{count // by} instead of {count} rounds at {line_text(loc)}"
            for loc, count in able.items()
        )
        # Sums of each round may be sent apart here, which those of one larger batch are not.
        text = f"micro-batches: {places}, each of a batch {by} times as large (this much at least)"
        yield text, merged
        by *= 2


class _Merging:
    """The rule that merges rounds: while i < n: f(i) -> while i < n: f(i); f(i + 1); i += 2."""

    def __init__(self, module: Module, able: dict[Location, int], by: int) -> None:
        self.module, self.able, self.by = module, able, by
        self.merged: set[Location] = set()

    def __call__(self, node: Node) -> Node | None:
        """while -> while with fewer rounds, when it is one of the loops and not merged yet."""
        body = node.regions[1]
        if node.loc not in self.able or node.loc in self.merged or trips(node) is None:
            return None
        if len(body.nodes) * self.by > _MOST_NODES:
            return None
        self.merged.add(node.loc)
        body = _without_calls(self.module, body)
        return node.rebuilt(node.operands, (node.regions[0], _merged(body, self.by)))


def _without_calls(module: Module, body: Region) -> Region:
    """A copy of the body with what it calls in place, whose sums are then its own."""
    args = tuple([Value(value.type, None, n) for n, value in enumerate(body.args)])
    nodes, results = _inlined(module, body, args)
    return Region(args, nodes, results, body.loc, body.arg_locs)


def _inlined(
    module: Module, body: Region, given: Sequence[Value]
) -> tuple[list[Node], tuple[Value, ...]]:
    """The nodes of a body on these values, calls in place, and its results."""
    became, nodes = dict(zip(body.args, given, strict=True)), list[Node]()
    for node in body.nodes:
        callee = module.function(node.op.callee) if isinstance(node.op, Call) else None
        # Annotations of a callee's arguments would be lost.
        if callee is None or any(callee.arg_attrs or ()) or any(callee.res_attrs or ()):
            nodes += _copied([node], became)
            continue
        operands = [became.get(value, value) for value in node.operands]
        inner, results = _inlined(module, callee.body, operands)
        nodes += inner
        became.update(zip(node.results, results, strict=True))
    return nodes, tuple([became.get(value, value) for value in body.results])


def _merged(body: Region, by: int) -> Region:
    """A body that does the work of several rounds; sums are added up before they are carried."""
    counters = {n: made for n, made in enumerate(map(_counted, body.args, body.results)) if made}
    nodes, results = [*body.nodes], [*body.results]
    deltas = [_added(a, r) for a, r in zip(body.args, body.results, strict=True)]
    sums = [*deltas]
    for turn in range(1, by):
        given = [*results]
        for n, (value, step) in counters.items():
            given[n] = _plus(body.args[n], turn * step, value, nodes)
        for n, delta in enumerate(deltas):
            if delta is not None:
                given[n] = body.args[n]  # what is carried is read by its own sum alone
        became = dict(zip(body.args, given, strict=True))
        nodes += _copied(body.nodes, became)
        results = [became.get(v, v) for v in body.results]
        for n, delta in enumerate(deltas):
            total = sums[n]
            if delta is not None and total is not None:
                nodes.append(apply(Add(), total, became.get(delta, delta), loc=body.loc))
                sums[n] = nodes[-1].results[0]
    for n, total in enumerate(sums):
        if total is not None:
            nodes.append(apply(Add(), body.args[n], total, loc=body.loc))
            results[n] = nodes[-1].results[0]
    for n, (value, step) in counters.items():
        results[n] = _plus(body.args[n], by * step, value, nodes)
    return Region(body.args, nodes, tuple(results), body.loc, body.arg_locs)


def _counted(before: Value, after: Value) -> tuple[Value, int] | None:
    """A counter's constant step, and the value that holds it."""
    node = after.node
    if node is None or not isinstance(node.op, Add) or before not in node.operands:
        return None
    step = node.operands[1 if node.operands[0] is before else 0]
    is_number = isinstance(before.type, TensorType) and not before.type.rank
    if not is_number or step.node is None or not isinstance(step.node.op, Constant):
        return None
    return step, int(step.node.op.value.array)


def _plus(counter: Value, count: int, step: Value, nodes: list[Node]) -> Value:
    """A counter some rounds later."""
    assert isinstance(step.type, TensorType) and step.node is not None
    number = np.asarray(count, step.type.dtype.numpy)
    constant = apply(Constant(Dense(number, step.type)), loc=step.node.loc)
    later = apply(Add(), counter, constant.results[0], loc=step.node.loc)
    nodes += [constant, later]
    return later.results[0]


def _added(before: Value, after: Value) -> Value | None:
    """The term of a carried sum of tensors in one round; None without such a sum."""
    node = after.node
    if node is None or not isinstance(node.op, Add) or before not in node.operands:
        return None
    if not (isinstance(before.type, TensorType) and before.type.rank):
        return None
    return node.operands[1 if node.operands[0] is before else 0]


def _copied(nodes: list[Node], became: dict[Value, Value]) -> list[Node]:
    """The nodes once more, on other values."""
    copies = []
    for node in nodes:
        regions = tuple([_copied_region(region, became) for region in node.regions])
        copy = node.rebuilt(tuple([became.get(v, v) for v in node.operands]), regions)
        became.update(zip(node.results, copy.results, strict=True))
        copies.append(copy)
    return copies


def _copied_region(region: Region, became: dict[Value, Value]) -> Region:
    args = tuple([Value(value.type, None, n) for n, value in enumerate(region.args)])
    became.update(zip(region.args, args, strict=True))
    nodes = _copied(region.nodes, became)
    results = tuple([became.get(v, v) for v in region.results])
    return Region(args, nodes, results, region.loc, region.arg_locs)
