"""Fewer loops: factors of one point are dropped, and adjacent ones that every index runs through
as one are merged.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from weft.kernels.kernel import (
    Affine,
    Apply,
    Choose,
    Contract,
    Factor,
    Kernel,
    Load,
    Pick,
    Position,
    Reduce,
    Step,
    Store,
)
from weft.kernels.rewriting import map_affines
from weft.ops.combiners import COMBINERS


def collapsed(kernel: Kernel) -> Kernel:
    """The same kernel with fewer factors, outermost first by the strides of its stores."""
    groups = _groups(kernel)
    factors = tuple(
        [
            replace(kernel.factors[group[-1]], size=math.prod(_size(kernel, f) for f in group))
            for group in groups
        ]
    ) or (Factor("i0", 1),)
    inner = [group[-1] for group in groups]
    steps = tuple([_renumbered(step, inner) for step in kernel.steps])
    return replace(kernel, factors=factors, steps=steps)


def reduced_factors(kernel: Kernel) -> set[int]:
    """The factors that reductions and contractions run along."""
    return {f for s in kernel.steps if isinstance(s, Reduce | Pick | Contract) for f in s.over}


def indices(kernel: Kernel) -> Iterator[Affine]:
    """Every affine index of a kernel."""
    for step in kernel.steps:
        if isinstance(step, Load | Position | Store):
            yield step.at
        if isinstance(step, Load | Choose | Store):
            yield from [guard.index for guard in step.guards]


def _size(kernel: Kernel, factor: int) -> int:
    return kernel.factors[factor].size


def _groups(kernel: Kernel) -> list[list[int]]:
    """The factors that become one, in their order; outer ones first in each."""
    reduced = reduced_factors(kernel)
    sets = [{*s.over} for s in kernel.steps if isinstance(s, Reduce | Pick | Contract)]
    store = next(s for s in kernel.steps if isinstance(s, Store))
    used = [f for f in range(len(kernel.factors)) if _size(kernel, f) != 1]
    weights = _weights(kernel)

    def order(f: int) -> tuple[bool, int, int]:
        stride = weights[f] if f in reduced else abs(store.at.strides[f]) or weights[f]
        return (f in reduced, -stride, f)

    affines = [*indices(kernel)]
    groups: list[list[int]] = []
    for f in sorted(used, key=order):
        last = groups[-1][-1] if groups else None
        if last is not None and _merge(kernel, last, f, affines, sets):
            groups[-1].append(f)
        else:
            groups.append([f])
    return groups


def _weights(kernel: Kernel) -> list[int]:
    """The largest stride of each factor in a load."""
    loads = [s.at for s in kernel.steps if isinstance(s, Load)]
    count = range(len(kernel.factors))
    return [max((abs(at.strides[f]) for at in loads), default=0) for f in count]


def _merge(
    kernel: Kernel, outer: int, inner: int, affines: Sequence[Affine], sets: Sequence[set[int]]
) -> bool:
    """Whether every index runs through two factors as through one."""
    if any((outer in over) != (inner in over) for over in sets):
        return False
    size = _size(kernel, inner)
    return all(at.strides[outer] == at.strides[inner] * size for at in affines)


def _renumbered(step: Step, inner: Sequence[int]) -> Step:
    """A step whose indices have one stride for each remaining factor."""

    def affine(at: Affine) -> Affine:
        return Affine(tuple([at.strides[f] for f in inner]) or (0,), at.offset)

    def over(factors: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([inner.index(f) for f in factors if f in inner])

    moved = map_affines(step, affine)
    if isinstance(moved, Reduce | Pick | Contract):
        return _of_one(replace(moved, over=over(moved.over)))
    return moved


def _of_one(step: Reduce | Pick | Contract) -> Step:
    """A reduction; along one element, the element combined with the initial value."""
    if step.over or isinstance(step, Contract):
        return step
    if isinstance(step, Pick):
        return Choose((), step.value, step.value, step.dtype)
    if step.init is None:
        return Choose((), step.arg, step.arg, step.dtype)
    return Apply(COMBINERS[step.how], (step.init, step.arg), step.dtype)
