"""Kernels that read the same large values in the same loops, merged to read them once.

Gradients of norms read a row for its statistics and again for their results; those of gated units
read all operands for each of their results. The second kernel may read the first's stores, as an
optimizer's new parameters read its new state, which follows the product that is their gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.ir.module import Value
from weft.kernels.group import Group
from weft.kernels.kernel import Contract, Kernel, Pick, Reduce, Store
from weft.target import Target
from weft.tile.fusion.joining import joined_loops


def shared_reads(groups: Sequence[Group], results: Sequence[Value], target: Target) -> list[Group]:
    """The groups with pairs merged that share enough bytes."""
    merging = _Merging(groups, results, target)
    for n in range(len(groups)):
        while merging.merge(n):  # the merged group may share reads with more
            pass
    return [g for g in merging.groups if g is not None]


class _Merging:
    """Groups, some of which are merged into earlier ones."""

    def __init__(
        self,
        groups: Sequence[Group],
        results: Sequence[Value],
        target: Target,
    ) -> None:
        self.groups: list[Group | None] = [*groups]
        self.results, self.target = {*results}, target
        self.makers = {v: n for n, g in enumerate(groups) for v in g.outputs}
        self.readers: dict[Value, set[int]] = {}
        for n, group in enumerate(groups):
            for value in group.inputs:
                self.readers.setdefault(value, set()).add(n)

    def merge(self, number: int) -> bool:
        """Merge one later group into a group; whether there was one."""
        first = self.groups[number]
        if first is None or not _is_loops(first, products=True):
            return False
        for other, shared in self._others(number, first):
            second = self.groups[other]
            if second is None or not _is_loops(second) or self._is_cycle(number, other):
                continue
            if _contracts(first) and not (shared in first.outputs and _is_pointwise(second)):
                continue
            made = self._merge_pair(first, second, shared, other)
            if made is not None:
                self._replace(number, other, made)
                return True
        return False

    def _others(self, number: int, group: Group) -> list[tuple[int, Value]]:
        """Later groups that read a large operand of a group, in order, with the largest one."""
        assert isinstance(group.kernel, Kernel)
        sizes = [operand.nbytes for operand in group.kernel.operands]
        least, largest = self.target.limits.shared, dict[int, tuple[int, Value]]()
        for value, size in zip((*group.inputs, *group.outputs), sizes, strict=True):
            for other in self.readers.get(value, ()) if size >= least else ():
                if other > number and largest.get(other, (0, value))[0] < size:
                    largest[other] = (size, value)
        return [(other, largest[other][1]) for other in sorted(largest)]

    def _is_cycle(self, number: int, other: int) -> bool:
        """Whether one group depends on the other through a third, or the first on the second."""
        third = [n for n in self._before(other) if n != number]
        return self._reach(third, number) or self._reach(self._before(number), other)

    def _reach(self, todo: list[int], wanted: int) -> bool:
        """Whether groups are, or depend on, another."""
        todo, seen = [*todo], set[int]()
        while todo:
            at = todo.pop()
            if at == wanted:
                return True
            if at not in seen:
                seen.add(at)
                todo += self._before(at)
        return False

    def _before(self, number: int) -> list[int]:
        """The groups that a group reads."""
        group = self.groups[number]
        assert group is not None, "readers follow merged groups"
        return [self.makers[v] for v in group.inputs if v in self.makers]

    def _replace(self, number: int, other: int, group: Group) -> None:
        self.groups[number], self.groups[other] = group, None
        self.makers.update(dict.fromkeys(group.outputs, number))
        for readers in self.readers.values():
            readers.discard(other)
        for value in group.inputs:
            self.readers[value].add(number)

    def _merge_pair(self, first: Group, second: Group, shared: Value, other: int) -> Group | None:
        passed = {v for v in first.outputs if v in second.inputs} - self.results
        unread = {v for v in passed if self.readers[v] == {other}}
        group = joined_loops(first, second, shared, unread, self.target)
        if group is None:
            return None
        kernel = group.kernel
        assert isinstance(kernel, Kernel)
        limits = self.target.limits
        if _is_serial(kernel, limits.rows):
            return None
        is_small = len(kernel.steps) <= limits.steps and len(kernel.operands) <= limits.steps // 4
        return group if is_small and self.target.unsupported_kernel(kernel) is None else None


def _is_serial(kernel: Kernel, least: int) -> bool:
    """Whether few long rows are written along, which leaves little to run in parallel."""
    sets = {frozenset(s.over) for s in kernel.steps if isinstance(s, Reduce)}
    if len(sets) > 1:  # the target takes it only if there are enough rows
        return False
    over = {f for one in sets for f in one}
    rows = math.prod(f.size for n, f in enumerate(kernel.factors) if n not in over)
    written = {f for s in kernel.steps if isinstance(s, Store) for f in _factors(s)}
    return bool(over & written) and rows < least


def _factors(store: Store) -> list[int]:
    return [f for f, stride in enumerate(store.at.strides) if stride]


def _is_loops(group: Group, *, products: bool = False) -> bool:
    """Whether a group is a kernel of loops, of static reads; without products unless allowed."""
    kernel = group.kernel
    if not isinstance(kernel, Kernel) or not all(node.op.pure for node in group.nodes):
        return False
    refused = Pick if products else Contract | Pick
    return not any(isinstance(step, refused) for step in kernel.steps)


def _contracts(group: Group) -> bool:
    assert isinstance(group.kernel, Kernel)
    return any(isinstance(step, Contract) for step in group.kernel.steps)


def _is_pointwise(group: Group) -> bool:
    assert isinstance(group.kernel, Kernel)
    return not any(isinstance(step, Reduce) for step in group.kernel.steps)
