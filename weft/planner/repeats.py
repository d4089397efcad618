"""Repeated layers of a flat program, found by names and structure; a program with fewer of them.

Layers are corresponding parts that read the parameters `layers.0...`, `layers.1...`: a map from
each value of a layer to that of the next. It is grown from the parameters along uses and operands;
the values that enter the first layer and leave the last one have no counterpart. Forward pass,
backward pass and optimizer are found alike.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from weft.ir.module import Function, Module, Node, Region, Value

_INDEX = re.compile(r"(?<![A-Za-z_0-9])\d+(?![A-Za-z_0-9])")


@dataclass(frozen=True, slots=True)
class Repeats:
    """How often layers repeat, and the layer of each argument, node and value that is in one."""

    count: int
    layer_of: Mapping[Value, int]
    chains: Mapping[Value, tuple[Value, ...]]  # the same value of every layer


@dataclass(frozen=True, slots=True)
class Shortened:
    """A module with fewer layers, and the arguments and results that it keeps."""

    module: Module
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    in_layers: frozenset[Value]  # the values of layers, arguments too


def families(names: Sequence[str]) -> list[list[int]]:
    """Arguments whose names differ in one number only, in its order: 0, 1, 2, ...

    All have the same length, that of most arguments; names with several numbers count them all.
    """
    found: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    for n, name in enumerate(names):
        for match in _INDEX.finditer(name):
            key = name[: match.start()] + "#" + name[match.end() :]
            found[match.start(), key][int(match[0])] = n
    whole = [
        [members[n] for n in range(len(members))]
        for members in found.values()
        if len(members) > 1 and set(members) == set(range(len(members)))
    ]
    totals: dict[int, int] = defaultdict(int)
    for members in whole:
        totals[len(members)] += len(members)
    count = max(totals, key=lambda length: (totals[length], length), default=0)
    return [members for members in whole if len(members) == count]


def repeats(function: Function, names: Sequence[str]) -> Repeats | None:
    """The repeated layers of a function whose arguments have these names; None without any."""
    found = families(names)
    if not found or len(found[0]) < 3:
        return None
    args = function.body.args
    following: dict[Value, Value] = {}
    for members in found:
        types = {args[n].type for n in members}
        if len(types) == 1:
            following.update({args[a]: args[b] for a, b in pairwise(members)})
    _Growth(function.body, following).run()
    return _chained(following, len(found[0]), {args[m[0]] for m in found})


class _Growth:
    """Grows the map from values to those of the next layer, along uses and operands."""

    def __init__(self, body: Region, following: dict[Value, Value]) -> None:
        self.following = following
        self.taken = {after: before for before, after in following.items()}
        self.users: dict[Value, list[tuple[Node, int]]] = defaultdict(list)
        for node in body.nodes:
            for slot, value in enumerate(node.operands):
                self.users[value].append((node, slot))
        self.matched: dict[Node, Node] = {}
        self.ahead = deque(following.items())

    def run(self) -> None:
        """Until nothing more corresponds."""
        while self.ahead:
            before, after = self.ahead.popleft()
            if before.node is not None and after.node is not None:
                self.match(before.node, after.node)
            for one, other in self.paired_users(before, after):
                self.match(one, other)

    def paired_users(self, before: Value, after: Value) -> list[tuple[Node, Node]]:
        """The users of two values in order, where both have as many of a kind."""
        kinds: dict[object, tuple[list[Node], list[Node]]] = {}
        for side, value in enumerate((before, after)):
            for node, slot in self.users[value]:
                key = (node.op, slot, len(node.operands), node.types)
                kinds.setdefault(key, ([], []))[side].append(node)
        return [
            pair
            for one, other in kinds.values()
            if len(one) == len(other)
            for pair in zip(one, other, strict=True)
        ]

    def match(self, one: Node, other: Node) -> None:
        """Let two nodes correspond, if they can, and with them operands and results."""
        if one in self.matched or one is other or not _alike(one, other):
            return
        pairs = [*zip(one.operands, other.operands, strict=True)]
        if any(not self.may_follow(a, b) for a, b in pairs if a is not b):
            return
        results = [*zip(one.results, other.results, strict=True)]
        if any(not self.may_follow(a, b) for a, b in results):
            return
        self.matched[one] = other
        for before, after in [*results, *[(a, b) for a, b in pairs if a is not b]]:
            if before not in self.following:
                self.following[before], self.taken[after] = after, before
                self.ahead.append((before, after))

    def may_follow(self, before: Value, after: Value) -> bool:
        """Whether nothing else corresponds to either value."""
        if before.type is not after.type:
            return False
        return (
            self.following.get(before, after) is after and self.taken.get(after, before) is before
        )


def _alike(one: Node, other: Node) -> bool:
    same = one.op is other.op and one.attrs == other.attrs and one.types == other.types
    return same and len(one.operands) == len(other.operands) and _same_regions(one, other)


def _same_regions(one: Node, other: Node) -> bool:
    """Whether the regions of two nodes compute the same of their arguments and outer values."""
    if len(one.regions) != len(other.regions):
        return False
    return all(map(_same_region, one.regions, other.regions))


def _same_region(one: Region, other: Region) -> bool:
    if len(one.nodes) != len(other.nodes) or len(one.args) != len(other.args):
        return False
    known = dict(zip(one.args, other.args, strict=True))
    for a, b in zip(one.nodes, other.nodes, strict=True):
        if not _alike(a, b):
            return False
        if any(known.get(x, x) is not y for x, y in zip(a.operands, b.operands, strict=True)):
            return False
        known.update(zip(a.results, b.results, strict=True))
    return all(known.get(x, x) is y for x, y in zip(one.results, other.results, strict=True))


def _chained(following: Mapping[Value, Value], count: int, heads: set[Value]) -> Repeats | None:
    """Chains as long as there are layers; their places are the layers of their values.

    Longer chains run through the values between layers: what their first or last node computes
    decides where the layers begin.
    """
    later = set(following.values())
    firsts = [v for v in following if v not in later]
    layer_of: dict[Value, int] = {}
    chains: dict[Value, tuple[Value, ...]] = {}
    for first in firsts:
        chain = [first]
        while (after := following.get(chain[-1])) is not None:
            chain.append(after)
        inner = _layers_of(chain, count)
        if inner is None:
            continue
        for n, value in enumerate(inner):
            layer_of[value] = n
            chains[value] = tuple(inner)
    return Repeats(count, layer_of, chains) if heads <= set(layer_of) else None


def _layers_of(chain: list[Value], count: int) -> list[Value] | None:
    """The part of a chain that the layers make: an end of another kind is outside of them."""
    if len(chain) == count + 1:
        ops = [None if v.node is None else v.node.op for v in chain]
        return chain[1:] if ops[0] is not ops[1] else chain[:-1]
    return chain if len(chain) == count else None


def shorten(module: Module, found: Repeats, keep: int) -> Shortened | None:
    """The module with the first layers only, or None if it cannot be written in this order.

    A kept node that reads a later layer (the backward pass does) reads what the last layer reads
    there; everything outside that reads a dropped layer reads the last kept one.
    """
    function = module.function("main")
    body, layer_of = function.body, found.layer_of
    became: dict[Value, Value] = {}
    dropped = {v for v, n in layer_of.items() if n >= keep}

    def outer(value: Value) -> Value:
        kept = found.chains[value][keep - 1] if value in dropped else value
        return became.get(kept, kept)

    def inner(node: Node, slot: int) -> Value:
        value = node.operands[slot]
        if value in dropped:
            last = found.chains[node.results[0]][-1].node
            assert last is not None
            value = last.operands[slot]
            return outer(value)
        return became.get(value, value)

    nodes: list[Node] = []
    defined: set[Value] = {a for a in body.args if a not in dropped}
    for node in body.nodes:
        if node.results and node.results[0] in dropped:
            continue
        layered = bool(node.results) and node.results[0] in layer_of
        operands = tuple(
            [inner(node, slot) if layered else outer(v) for slot, v in enumerate(node.operands)]
        )
        if any(value not in defined for value in operands):
            return None
        made = node if operands == node.operands else node.rebuilt(operands, node.regions)
        became.update(zip(node.results, made.results, strict=True))
        defined.update(made.results)
        nodes.append(made)
    return _assembled(module, function, found, dropped, nodes, outer, became)


def _assembled(
    module: Module,
    function: Function,
    found: Repeats,
    dropped: set[Value],
    nodes: list[Node],
    outer: object,
    became: Mapping[Value, Value],
) -> Shortened:
    assert callable(outer)
    body = function.body
    arguments = tuple([n for n, a in enumerate(body.args) if a not in dropped])
    held = set(body.results)
    # Of a chain among the results the dropped ones go; the last layer's alone stays.
    results = tuple(
        n
        for n, v in enumerate(body.results)
        if v not in dropped or not any(c in held for c in found.chains[v] if c is not v)
    )
    region = Region(
        tuple([body.args[n] for n in arguments]),
        nodes,
        tuple([outer(body.results[n]) for n in results]),
        body.loc,
        tuple([body.arg_locs[n] for n in arguments]),
    )
    arg_attrs, res_attrs = function.arg_attrs, function.res_attrs
    made = replace(
        function,
        body=region,
        arg_attrs=tuple([arg_attrs[n] for n in arguments]) if arg_attrs else (),
        res_attrs=tuple([res_attrs[n] for n in results]) if res_attrs else (),
    )
    inside = frozenset(became.get(v, v) for v in found.layer_of if v not in dropped)
    shortened = module.with_functions({**module.functions, "main": made})
    return Shortened(shortened, arguments, results, inside)
