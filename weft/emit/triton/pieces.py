"""Kernels by points whose results are concatenated from equal pieces: all pieces of a point.

Along a concatenated dim each element is computed in one of several ways, chosen by its position.
The piece's position becomes fixed: choices are decided, guards vanish, and what pieces share, such
as both halves that a rotary embedding reads for each of its halves, is loaded once.
"""

from __future__ import annotations

from dataclasses import replace

from weft.kernels.kernel import (
    Affine,
    Choose,
    Fill,
    Guard,
    Kernel,
    Load,
    Position,
    Step,
    Store,
    args_of,
)
from weft.kernels.rewriting import map_affines, renumbered

MOST = 4  # pieces


def in_pieces(kernel: Kernel) -> Kernel:
    """The kernel with the factor of a concatenation cut, or as it is."""
    for factor in range(len(kernel.factors)):
        count = _count(kernel, factor)
        if count > 1:
            return _Pieces(kernel, factor, count).kernel()
    return kernel


def _guards(kernel: Kernel) -> list[Guard]:
    return [g for s in kernel.steps if isinstance(s, Load | Choose | Store) for g in s.guards]


def _count(kernel: Kernel, factor: int) -> int:
    """Into how many pieces the guards of a factor cut it; 1 if they are not equal."""
    size = kernel.factors[factor].size
    cuts: set[int] = set()
    for guard in _guards(kernel):
        strides = guard.index.strides
        if not strides[factor]:
            continue
        # A guard of several factors changes at another place for each point of the others.
        if strides[factor] != 1 or sum(map(abs, strides)) != 1:
            return 1
        ends = (guard.low - guard.index.offset, guard.high - guard.index.offset)
        cuts.update([end for end in ends if 0 < end < size])
    for count in range(2, MOST + 1):
        if cuts and size % count == 0 and all(cut % (size // count) == 0 for cut in cuts):
            return count
    return 1


class _Pieces:
    """The steps of all pieces, deduplicated."""

    def __init__(self, kernel: Kernel, factor: int, count: int) -> None:
        self.old, self.factor, self.count = kernel, factor, count
        self.size = kernel.factors[factor].size // count
        self.steps: dict[Step, int] = {}

    def kernel(self) -> Kernel:
        """The kernel of all pieces."""
        for piece in range(self.count):
            numbers: dict[int, int] = {}
            for step in self.old.steps:
                if isinstance(step, Store) and self._holds(step.guards, piece):
                    value = self._value(step.arg, piece, numbers)
                    self._add(self._moved(replace(step, arg=value), piece))
        factors = [*self.old.factors]
        factors[self.factor] = replace(factors[self.factor], size=self.size)
        return replace(self.old, factors=tuple(factors), steps=tuple(self.steps))

    def _add(self, step: Step) -> int:
        return self.steps.setdefault(step, len(self.steps))

    def _value(self, number: int, piece: int, numbers: dict[int, int]) -> int:
        """The number of a step's value in a piece."""
        if number in numbers:
            return numbers[number]
        step = self.old.steps[number]
        if isinstance(step, Choose):
            taken_arm = step.inside if self._holds(step.guards, piece) else step.outside
            left = self._others(step.guards)
            if not left or taken_arm == step.outside:
                rebuilt = self._value(taken_arm, piece, numbers)
            else:
                inside = self._value(step.inside, piece, numbers)
                outside = self._value(step.outside, piece, numbers)
                guards = tuple([self._guard(g, piece) for g in left])
                rebuilt = self._add(Choose(guards, inside, outside, step.dtype))
        elif isinstance(step, Load) and not self._holds(step.guards, piece):
            rebuilt = self._add(Fill(0, step.dtype))
        else:
            known = {arg: self._value(arg, piece, numbers) for arg in args_of(step)}
            rebuilt = self._add(self._moved(renumbered(step, known), piece))
        numbers[number] = rebuilt
        return rebuilt

    def _holds(self, guards: tuple[Guard, ...], piece: int) -> bool:
        """Whether the guards of the factor hold in a piece: in all of it, or nowhere."""
        mine = [g for g in guards if g.index.strides[self.factor]]
        return all(g.low <= piece * self.size + g.index.offset < g.high for g in mine)

    def _others(self, guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
        return tuple([g for g in guards if not g.index.strides[self.factor]])

    def _guard(self, guard: Guard, piece: int) -> Guard:
        return replace(guard, index=self._affine(guard.index, piece))

    def _affine(self, at: Affine, piece: int) -> Affine:
        return Affine(at.strides, at.offset + at.strides[self.factor] * piece * self.size)

    def _moved(self, step: Step, piece: int) -> Step:
        """A step at a piece's position, without the guards of the factor."""
        if isinstance(step, Load | Store):
            step = replace(step, guards=self._others(step.guards))
        if isinstance(step, Load | Store | Position):
            return map_affines(step, lambda at: self._affine(at, piece))
        return step
