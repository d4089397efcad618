"""Merging of two kernels: the second reads the first's stores, or both the same value, at the same
points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from weft.ir.module import Value
from weft.kernels.group import Group
from weft.kernels.kernel import (
    Affine,
    Factor,
    Kernel,
    Load,
    Operand,
    Pick,
    Reduce,
    Step,
    Store,
)
from weft.kernels.rewriting import map_affines, renumbered, split_factor
from weft.target import Target
from weft.tile.drafts.finish import named


def merge_groups(first: Group, second: Group, unread: set[Value], target: Target) -> Group | None:
    """The merged group of two, without stores of values that are unread then.

    None if the second does not read the first's stores element by element, or has additional loops.
    """
    one, two = first.kernel, second.kernel
    assert isinstance(one, Kernel) and isinstance(two, Kernel)
    passed = [v for v in second.inputs if v in first.outputs]
    stores = {v: _store(one, len(first.inputs) + first.outputs.index(v)) for v in passed}
    loads = {v: _load(two, second.inputs.index(v)) for v in passed}
    matched: tuple[Kernel, Kernel, dict[int, int]] | None = None
    for value in passed:
        store, load = stores[value], loads[value]
        if store is None or load is None:
            return None
        matched = _matched(one, two, store, load)
        if matched is None:
            return None
        one, two, _ = matched
    if matched is None:
        return None
    steps = _Steps(first, second, one, two, matched[2], target)
    return steps.group(stores, unread) if steps.agree(stores, loads) else None


def joined_loops(
    first: Group, second: Group, shared: Value, unread: set[Value], target: Target
) -> Group | None:
    """The merged group of two that access a value element by element in the same loops.

    The first reads or stores it. None if their loops or the factors of their reductions differ (and
    the target has no kernels of both), or if the second reads one of the first's stores at other
    points.
    """
    one, two = first.kernel, second.kernel
    assert isinstance(one, Kernel) and isinstance(two, Kernel)
    here = (
        _load(one, first.inputs.index(shared))
        if shared in first.inputs
        else _store(one, len(first.inputs) + first.outputs.index(shared))
    )
    there = _load(two, second.inputs.index(shared))
    if here is None or there is None:
        return None
    matched = _matched(one, two, here, there)
    if matched is None:
        return None
    one, two, factors = matched
    given = [v for v in second.inputs if v in first.outputs]
    stores = {v: _store(one, len(first.inputs) + first.outputs.index(v)) for v in given}
    loads = {v: _load(two, second.inputs.index(v)) for v in given}
    if None in stores.values() or None in loads.values():
        return None
    steps = _Steps(first, second, one, two, factors, target)
    own = {f: f for f in range(len(one.factors))}
    ours, theirs = _reduced(one, own), _reduced(two, factors)
    alike = ours == theirs or bool(target.limits.crossed and ours and theirs)
    return steps.group(stores, unread) if alike and steps.agree(stores, loads) else None


def _reduced(kernel: Kernel, factors: Mapping[int, int]) -> set[int]:
    """The factors that reductions run along, renumbered; -1 for those without a number."""
    over = {f for s in kernel.steps if isinstance(s, Reduce) for f in s.over}
    return {factors.get(f, -1) for f in over if kernel.factors[f].size > 1}


def _store(kernel: Kernel, operand: int) -> int | None:
    """The only store to an operand, unguarded."""
    found = [n for n, s in enumerate(kernel.steps) if isinstance(s, Store) and s.operand == operand]
    step = kernel.steps[found[0]]
    assert isinstance(step, Store)
    return None if len(found) > 1 or step.guards else found[0]


def _load(kernel: Kernel, operand: int) -> int | None:
    """The only load of an operand, at static indices."""
    loads = [n for n, s in enumerate(kernel.steps) if isinstance(s, Load) and s.operand == operand]
    if len(loads) != 1:
        return None
    step = kernel.steps[loads[0]]
    assert isinstance(step, Load)
    return None if step.guards or step.shifts else loads[0]


def _matched(
    one: Kernel, two: Kernel, store: int, load: int
) -> tuple[Kernel, Kernel, dict[int, int]] | None:
    """Two kernels with factors split to match, and the second's factors by the first's.

    The store and the load cover every element of the operand once.
    """
    while True:
        ours, theirs = (_runs(k, n) for k, n in ((one, store), (two, load)))
        if ours is None or theirs is None:
            return None
        # From the fastest factor on: a row-major index determines how the others have to be split.
        for f, g in zip(ours, theirs, strict=False):
            size, other = one.factors[f].size, two.factors[g].size
            if size == other:
                continue
            if max(size, other) % min(size, other):
                return None
            if size > other:
                one = split_factor(one, f, other)
            else:
                two = split_factor(two, g, size)
            break
        else:
            same = len(ours) == len(theirs)
            return (one, two, dict(zip(theirs, ours, strict=True))) if same else None


def _runs(kernel: Kernel, number: int) -> list[int] | None:
    """The factors of an index, fastest first, if it covers its operand exactly once."""
    step = kernel.steps[number]
    assert isinstance(step, Load | Store)
    strides = step.at.strides
    factors = [f for f, s in enumerate(strides) if s and kernel.factors[f].size > 1]
    factors.sort(key=lambda f: strides[f])
    expected = 1
    for f in factors:
        # A gap or an overlap: the index does not cover its operand exactly once.
        if strides[f] != expected:
            return None
        expected *= kernel.factors[f].size
    return (
        factors if not step.at.offset and expected == kernel.operands[step.operand].size else None
    )


class _Steps:
    """The steps of two kernels merged, in the factors of the first."""

    def __init__(
        self,
        first: Group,
        second: Group,
        one: Kernel,
        two: Kernel,
        factors: Mapping[int, int],
        target: Target,
    ) -> None:
        self.target = target
        self.first, self.second, self.one, self.two = first, second, one, two
        self.factors = factors  # the first's factors by the second's

    def agree(self, stores: Mapping[Value, int | None], loads: Mapping[Value, int | None]) -> bool:
        """Whether all passed values are at the same points, and the second has no others."""
        for step, span in zip(self.two.steps, self.two.spans, strict=True):
            over = step.over if isinstance(step, Reduce | Pick) else ()
            used = {f for f in (*span, *over) if self.two.factors[f].size > 1}
            if not used <= self.factors.keys():
                return False
        for value, number in stores.items():
            read = loads[value]
            assert number is not None and read is not None
            store, load = self.one.steps[number], self.two.steps[read]
            assert isinstance(store, Store) and isinstance(load, Load)
            if self._affine(load.at) != _long_factors(store.at, self.one):
                return False
        return True

    def _affine(self, at: Affine) -> Affine:
        """An index of the second kernel in the factors of the first."""
        strides = [0] * len(self.one.factors)
        for f, stride in enumerate(at.strides):
            if f in self.factors:
                strides[self.factors[f]] = stride
        return Affine(tuple(strides), at.offset)

    def group(self, stores: Mapping[Value, int | None], unread: set[Value]) -> Group:
        """The merged group."""
        first, second = self.first, self.second
        given = [v for v in second.inputs if v not in first.outputs]
        inputs = tuple(dict.fromkeys((*first.inputs, *given)))
        outputs = (*(v for v in first.outputs if v not in unread), *second.outputs)
        operands = self._operands(inputs, outputs)
        steps = self._steps(stores, unread, {v: n for n, v in enumerate((*inputs, *outputs))})
        # A factor along which nothing is stored is reduced in the merged kernel.
        stored = {f for s in steps if isinstance(s, Store) for f, n in enumerate(s.at.strides) if n}
        factors = tuple(
            [
                replace(factor, role="parallel" if n in stored else "reduction")
                for n, factor in enumerate(self.one.factors)
            ]
        )
        kernel = named(Kernel("", factors, operands, steps), self.target)
        nodes = tuple(dict.fromkeys((*first.nodes, *second.nodes)))
        return Group(nodes, kernel, inputs, outputs)

    def _operands(
        self, inputs: tuple[Value, ...], outputs: tuple[Value, ...]
    ) -> tuple[Operand, ...]:
        # The first kernel's operands last: what it stores and the second reads stays an output.
        known = {
            value: operand
            for group, kernel in ((self.second, self.two), (self.first, self.one))
            for value, operand in zip((*group.inputs, *group.outputs), kernel.operands, strict=True)
        }
        return tuple([known[v] for v in (*inputs, *outputs)])

    def _steps(
        self, stores: Mapping[Value, int | None], unread: set[Value], places: Mapping[Value, int]
    ) -> tuple[Step, ...]:
        """All steps, deduplicated; passed values are not loaded again."""
        # Equal steps of the two become one: these are the reads that merging saves.
        numbers_of: dict[Step, int] = {}
        dropped = {stores[v] for v in unread}
        values = (*self.first.inputs, *self.first.outputs)
        numbers: list[int] = []
        handed: dict[Value, int] = {}
        for n, step in enumerate(self.one.steps):
            if isinstance(step, Store):
                handed[values[step.operand]] = numbers[step.arg]
            if n in dropped:
                numbers.append(-1)
                continue
            moved = _at_operands(renumbered(step, numbers), values, places)
            numbers.append(numbers_of.setdefault(moved, len(numbers_of)))
        values, numbers = (*self.second.inputs, *self.second.outputs), []
        for step in self.two.steps:
            if isinstance(step, Load) and values[step.operand] in handed:
                numbers.append(handed[values[step.operand]])
                continue
            moved = _at_operands(renumbered(step, numbers), values, places)
            moved = map_affines(moved, self._affine)
            if isinstance(moved, Reduce):
                over = [self.factors[f] for f in moved.over if f in self.factors]
                moved = replace(moved, over=tuple(sorted(over)))
            numbers.append(numbers_of.setdefault(moved, len(numbers_of)))
        return tuple(numbers_of)


def _at_operands(step: Step, values: Sequence[Value], places: Mapping[Value, int]) -> Step:
    """A step renumbered to the merged operands."""
    if isinstance(step, Load | Store):
        return replace(step, operand=places[values[step.operand]])
    return step


def _long_factors(at: Affine, kernel: Kernel) -> Affine:
    """An index without size-1 factors."""
    sizes: tuple[Factor, ...] = kernel.factors
    pairs = zip(at.strides, sizes, strict=True)
    return Affine(tuple([n if f.size > 1 else 0 for n, f in pairs]), at.offset)
