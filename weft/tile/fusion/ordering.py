"""The order of groups: dependencies, then program order, then the memory that an order needs."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise

from weft.ir.module import Node, Value
from weft.kernels.group import AnyKernel, Group

_WORTH = 1 << 12  # bytes that a kernel frees at least, if it is moved
_SMALL = 1 << 10  # bytes of results that may live for longer


def in_order(
    groups: Sequence[Group], positions: dict[Node, int], scheduled: bool = False
) -> list[Group]:
    """Groups in topological order, otherwise in program order.

    In a schedule a group is where its last node is. Without one it is where the values are that
    others read: what it computes for the program's results alone, as the update of a bias whose
    gradient it has, may be written far behind.
    """
    needs = _needs(groups)
    read = {v for g in groups for v in g.inputs}
    last = [max([positions[n] for n in g.nodes], default=0) for g in groups]
    effects = sorted([n for n, g in enumerate(groups) if _has_effect(g)], key=last.__getitem__)
    for before, after in pairwise(effects):
        # Effects keep the program's order, even without a value between them.
        needs[after].add(before)
    if scheduled:
        return [groups[n] for n in _sorted(needs, last)]
    ranks = []
    for group, end in zip(groups, last, strict=True):
        makers = [v.node for v in group.outputs if v in read]
        ranks.append(max([positions.get(m, end) if m else end for m in makers], default=end))
    for n in reversed(_sorted(needs, ranks)):  # none is later than its readers
        for other in needs[n]:
            ranks[other] = min(ranks[other], ranks[n])
    return [groups[n] for n in _sorted(needs, ranks)]


def _sorted(needs: Sequence[set[int]], ranks: Sequence[int]) -> list[int]:
    """The numbers of groups in topological order, otherwise by rank."""
    readers: list[list[int]] = [[] for _ in needs]
    for n, wanted in enumerate(needs):
        for other in wanted:
            readers[other].append(n)
    missing = [len(wanted) for wanted in needs]
    ready = [(ranks[n], n) for n, count in enumerate(missing) if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        _, n = heapq.heappop(ready)
        order.append(n)
        for reader in readers[n]:
            missing[reader] -= 1
            if not missing[reader]:
                heapq.heappush(ready, (ranks[reader], reader))
    assert len(order) == len(needs), "groups wait for each other"
    return order


def hoist_kernels(groups: Sequence[Group], results: Sequence[Value]) -> list[Group]:
    """Groups in order, with kernels moved up to their last operand where that frees memory.

    Fusion puts the gradient of a weight into the kernel of the weight's update, whose place in the
    program is its end: the activations and gradients that it reads would live until then.
    """
    moving = _Moving(groups, results)
    for n, group in enumerate(groups):
        if group.kernel is not None and not _has_effect(group):
            moving.consider(n, group.kernel)
    places = moving.places
    return [groups[n] for n in sorted(range(len(groups)), key=lambda n: (places[n], n))]


class _Moving:
    """The places of groups in an order, while some are moved up."""

    def __init__(self, groups: Sequence[Group], results: Sequence[Value]) -> None:
        self.groups, self.needs = groups, _needs(groups)
        self.results = {*results}
        self.made = {v for g in groups for v in g.outputs}
        self.readers: dict[Value, list[int]] = {}
        for n, group in enumerate(groups):
            for value in dict.fromkeys(group.inputs):
                self.readers.setdefault(value, []).append(n)
        self.places = [*range(len(groups))]
        self.early: dict[int, int] = {}  # where a group with small results may move, if asked

    def consider(self, n: int, kernel: AnyKernel) -> None:
        """Move a group up if more memory is freed by then than its results hold."""
        group, places = self.groups[n], self.places
        read = dict(zip(group.inputs, kernel.operands, strict=False))
        stored = [*zip(group.outputs, kernel.operands[len(group.inputs) :], strict=True)]
        # An argument that a result may overwrite is read by the others before.
        types = {(o.nbytes, o.dtype) for value, o in stored if value in self.results}
        over = [v for v, o in read.items() if v not in self.made and (o.nbytes, o.dtype) in types]
        preceding = [self.early.get(m, places[m]) for m in self.needs[n]]
        preceding += [places[r] for value in over for r in self.readers[value] if r < n]
        first = max(preceding, default=-1)
        held = sum([o.nbytes for value, o in stored if value not in self.results])
        freed = sum([o.nbytes for value, o in read.items() if self._dies(value, n, first)])
        if freed > held + _WORTH:
            self._move(n, first)
        elif held <= _SMALL:
            self.early[n] = first

    def _dies(self, value: Value, n: int, place: int) -> bool:
        """Whether a group is the last reader of a temporary, were it at a place."""
        if value not in self.made or value in self.results:
            return False
        return all(reader == n or self.places[reader] <= place for reader in self.readers[value])

    def _move(self, n: int, place: int) -> None:
        """Move a group to a place, after the groups that it reads from."""
        self.places[n] = place
        for other in self.needs[n]:
            if self.places[other] > place:
                self._move(other, self.early[other])


def _needs(groups: Sequence[Group]) -> list[set[int]]:
    """The groups that each one reads from."""
    makers = {v: n for n, g in enumerate(groups) for v in g.outputs}
    return [{makers[v] for v in g.inputs if v in makers} for g in groups]


def _has_effect(group: Group) -> bool:
    return any(not node.op.pure for node in group.nodes)
