"""Repeated layers of a flat program, found by names and structure; a program with fewer of them.

Layers are corresponding parts that read the parameters `layers.0...`, `layers.1...`: a map from
each value of a layer to that of the next. It is grown from the parameters along uses and operands;
the values that enter the first layer and leave the last one have no counterpart. Forward pass,
backward pass and optimizer are found alike.

`weft.cost.repeated` finds layers by position, in programs without names. A search needs more: which
argument of one layer is which of the next, since they get the same sharding.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeAlias

from weft.ir.module import Function, Module, Node, Region, Value
from weft.records import dataclass

Chain: TypeAlias = tuple[Value | None, ...]  # None for the first or last layer without a value
# A number that is a name's part of its own, as in `layers.0.w` and `x[3]`, not in `w1`.
LAYER_NUMBER = re.compile(r"(?<![A-Za-z_0-9])\d+(?![A-Za-z_0-9])")


@dataclass(frozen=True, slots=True)
class LayerChains:
    """The number of layers, and the layer of each argument and value that is in one."""

    count: int
    layer_of: Mapping[Value, int]
    chains: Mapping[Value, Chain]  # the same value of every layer


@dataclass(frozen=True, slots=True)
class Shortened:
    """A module with fewer layers, and the arguments and results that it keeps."""

    module: Module
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    in_layers: frozenset[Value]  # the values of layers, arguments too


def layer_parameters(names: Sequence[str]) -> list[list[int]]:
    """Arguments whose names differ in one number only, in its order: 0, 1, 2, ...

    All have the same length, that of most arguments; names with several numbers count them all.
    """
    series: dict[tuple[int, str], dict[int, int]] = defaultdict(dict)
    for n, name in enumerate(names):
        for match in LAYER_NUMBER.finditer(name):
            key = name[: match.start()] + "#" + name[match.end() :]
            series[match.start(), key][int(match[0])] = n
    whole = [
        [members[n] for n in range(len(members))]
        for members in series.values()
        if len(members) > 1 and set(members) == set(range(len(members)))
    ]
    totals: dict[int, int] = defaultdict(int)
    for members in whole:
        totals[len(members)] += len(members)
    # Of several stacks of layers (an encoder and a decoder) the one with most arguments.
    count = max(totals, key=lambda length: (totals[length], length), default=0)
    return [members for members in whole if len(members) == count]


def repeated_layers(function: Function, names: Sequence[str]) -> LayerChains | None:
    """The repeated layers of a function whose arguments have these names; None without any."""
    series = layer_parameters(names)
    # Of two layers, the program with one and with two of them is no shorter.
    if not series or len(series[0]) < 3:
        return None
    args = function.body.args
    following: dict[Value, Value] = {}
    for members in series:
        types = {args[n].type for n in members}
        if len(types) == 1:
            following.update({args[a]: args[b] for a, b in pairwise(members)})
    heads = {args[members[0]] for members in series}
    known = dict(following)
    growth = _Growth(function.body, following)
    growth.run()
    known.update(growth.supported(known))
    return _chained(known, len(series[0]), heads)


class _Growth:
    """Grows the map from values to those of the next layer, along uses and operands."""

    def __init__(self, body: Region, following: dict[Value, Value]) -> None:
        self.following = following
        self.taken = {after: before for before, after in following.items()}  # the inverse map
        self.users: dict[Value, list[tuple[Node, int]]] = defaultdict(list)
        for node in body.nodes:
            for slot, value in enumerate(node.operands):
                self.users[value].append((node, slot))
        self.matched: dict[Node, Node] = {}
        self.ahead = deque(following.items())

    def run(self) -> None:
        """Propagate until no more nodes correspond."""
        while self.ahead:
            before, after = self.ahead.popleft()
            if before.node is not None and after.node is not None:
                self.match(before.node, after.node)
            for one, other in self.paired_users(before, after):
                self.match(one, other)

    def supported(self, arguments: Mapping[Value, Value]) -> dict[Value, Value]:
        """The results of matched nodes some of whose operands correspond, too.

        The values that enter or leave the stack of layers are computed unlike those
        between layers, though perhaps by the same op on values of the same types.
        """
        matched = dict(self.matched)
        while True:
            following = {
                a: b for n, m in matched.items() for a, b in zip(n.results, m.results, strict=True)
            }
            lost = [n for n, m in matched.items() if not _has_support(n, m, following, arguments)]
            if not lost:
                return following
            for node in lost:
                del matched[node]

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
        """Match two nodes, if they can correspond, and with them operands and results."""
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


def _has_support(
    one: Node, other: Node, following: Mapping[Value, Value], arguments: Mapping[Value, Value]
) -> bool:
    pairs = [(a, b) for a, b in zip(one.operands, other.operands, strict=True) if a is not b]
    supported = any(following.get(a) is b or arguments.get(a) is b for a, b in pairs)
    return supported or not pairs


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


def _chained(following: Mapping[Value, Value], count: int, heads: set[Value]) -> LayerChains | None:
    """Chains of as many values as there are layers, or of all layers but the first or the last."""
    later = set(following.values())
    layer_of: dict[Value, int] = {}
    chains: dict[Value, Chain] = {}
    partly: list[list[Value]] = []
    for first in following:
        if first in later:
            continue
        chain = [first]
        while (after := following.get(chain[-1])) is not None:
            chain.append(after)
        if len(chain) == count:
            _place(chain, 0, count, layer_of, chains)
        elif len(chain) == count - 1:
            partly.append(chain)
    # Each placed chain may tell the layer of others that read it.
    while placed := [(c, at) for c in partly if (at := _first_layer(c, layer_of)) is not None]:
        for chain, at in placed:
            _place(chain, at, count, layer_of, chains)
            partly.remove(chain)
    return LayerChains(count, layer_of, chains) if heads <= set(layer_of) else None


def _place(
    chain: list[Value],
    first: int,
    count: int,
    layer_of: dict[Value, int],
    chains: dict[Value, Chain],
) -> None:
    """Enter a chain that begins at a layer, the first one or the second."""
    whole = (*[None] * first, *chain, *[None] * (count - len(chain) - first))
    for n, value in enumerate(chain, first):
        layer_of[value] = n
        chains[value] = whole


def _first_layer(chain: list[Value], layer_of: Mapping[Value, int]) -> int | None:
    """The layer of a chain's first value, by the operands that are in layers; parameters first."""
    node = chain[0].node
    known = [v for v in node.operands if v in layer_of] if node is not None else []
    for some in ([v for v in known if v.node is None], known):
        layers = {layer_of[v] for v in some}
        if len(layers) == 1:
            (layer,) = layers
            return layer if layer in (0, 1) else None
    return None


class _Unordered(Exception):
    """A shortened program would read a value before it is computed: the whole one is used."""


def shorten(module: Module, chains: LayerChains, keep: int) -> Shortened | None:
    """The module with the first layers only, or None if it cannot be written in this order.

    A kept node that reads a later layer (the backward pass does) reads what the last layer reads
    there; everything outside that reads a dropped layer reads the last kept one.
    """
    try:
        return _Shortening(module, chains, keep).run()
    except _Unordered:
        return None


class _Shortening:
    """One shortening: the nodes that are kept, on the new values of their operands."""

    def __init__(self, module: Module, chains: LayerChains, keep: int) -> None:
        self.module, self.chains, self.keep = module, chains, keep
        self.function = module.function("main")
        self.dropped = {v for v, n in chains.layer_of.items() if n >= keep}
        self.became: dict[Value, Value] = {}

    def outer(self, value: Value) -> Value:
        """The replacement of a value read outside of layers: that of the last kept layer."""
        last = self.chains.chains[value][self.keep - 1] if value in self.dropped else value
        if last is None:
            raise _Unordered
        return self.became.get(last, last)

    def inner(self, node: Node, slot: int) -> Value:
        """The replacement of an operand of a kept layer."""
        value = node.operands[slot]
        if value not in self.dropped:
            return self.became.get(value, value)
        # The backward pass of layer n reads layer n + 1. In the last kept layer it reads what the
        # last layer of the whole program reads there, from outside of all layers.
        last = self.chains.chains[node.results[0]][-1]
        if last is None or last.node is None:
            raise _Unordered
        return self.outer(last.node.operands[slot])

    def run(self) -> Shortened:
        """The nodes in their order, each after its operands."""
        body = self.function.body
        defined: set[Value] = {a for a in body.args if a not in self.dropped}
        nodes: list[Node] = []
        for node in body.nodes:
            if node.results and node.results[0] in self.dropped:
                continue
            layered = bool(node.results) and node.results[0] in self.chains.layer_of
            operands = tuple(
                [
                    self.inner(node, slot) if layered else self.outer(v)
                    for slot, v in enumerate(node.operands)
                ]
            )
            if any(value not in defined for value in operands):
                raise _Unordered
            new = node if operands == node.operands else node.rebuilt(operands, node.regions)
            self.became.update(zip(node.results, new.results, strict=True))
            defined.update(new.results)
            nodes.append(new)
        return _assembled(self, nodes)


def _assembled(shortening: _Shortening, nodes: list[Node]) -> Shortened:
    module, function, chains = shortening.module, shortening.function, shortening.chains
    dropped, outer, became = shortening.dropped, shortening.outer, shortening.became
    body = function.body
    arguments = tuple([n for n, a in enumerate(body.args) if a not in dropped])
    held = set(body.results)
    # Of a chain among the results the dropped ones go; the last layer's alone stays.
    results = tuple(
        n
        for n, v in enumerate(body.results)
        if v not in dropped or not any(c in held for c in chains.chains[v] if c is not v)
    )
    region = Region(
        tuple([body.args[n] for n in arguments]),
        nodes,
        tuple([outer(body.results[n]) for n in results]),
        body.loc,
        tuple([body.arg_locs[n] for n in arguments]),
    )
    main = function.restricted(region, arguments, results)
    inside = frozenset(became.get(v, v) for v in chains.layer_of if v not in dropped)
    shortened = module.with_functions({**module.functions, "main": main})
    return Shortened(shortened, arguments, results, inside)
