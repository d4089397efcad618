"""Rewrites of steps and kernels: renumbering, other indices, split factors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from weft.kernels.kernel import (
    Affine,
    Apply,
    Choose,
    Contract,
    Factor,
    Fill,
    Guard,
    Kernel,
    Load,
    Pick,
    Position,
    Reduce,
    Step,
    Store,
)


def renumbered(step: Step, numbers: Sequence[int] | Mapping[int, int]) -> Step:
    """A step with its arguments renumbered."""
    match step:
        case Apply(args=args):
            return replace(step, args=tuple([numbers[a] for a in args]))
        case Choose(inside=inside, outside=outside):
            return replace(step, inside=numbers[inside], outside=numbers[outside])
        case Reduce(arg=arg, init=init):
            return replace(step, arg=numbers[arg], init=None if init is None else numbers[init])
        case Pick(key=key, value=value):
            return replace(step, key=numbers[key], value=numbers[value])
        case Contract(lhs=lhs, rhs=rhs):
            return replace(step, lhs=numbers[lhs], rhs=numbers[rhs])
        case Store(arg=arg):
            return replace(step, arg=numbers[arg])
        case Load(shifts=shifts) if shifts:
            moved = tuple([replace(s, index=numbers[s.index]) for s in shifts])
            return replace(step, shifts=moved)
    return step


def map_affines(step: Step, affine: Callable[[Affine], Affine]) -> Step:
    """A step with every affine index mapped."""

    def guards(conditions: tuple[Guard, ...]) -> tuple[Guard, ...]:
        return tuple([replace(g, index=affine(g.index)) for g in conditions])

    match step:
        case Load() | Store():
            return replace(step, at=affine(step.at), guards=guards(step.guards))
        case Position(at=at):
            return replace(step, at=affine(at))
        case Choose():
            return replace(step, guards=guards(step.guards))
    return step


def pad_by_loads(kernel: Kernel) -> Kernel:
    """where(guards, load[guards], 0) -> load[guards]: a load is 0 where a guard fails."""
    equal = [_padded_load(kernel.steps, step) for step in kernel.steps]
    if all(load is None for load in equal):
        return kernel
    # The choices stay, without readers, so that all steps keep their numbers.
    numbers = [n if load is None else load for n, load in enumerate(equal)]
    return replace(kernel, steps=tuple([renumbered(step, numbers) for step in kernel.steps]))


def _padded_load(steps: Sequence[Step], step: Step) -> int | None:
    """The load that a choice is equal to, or None."""
    if not isinstance(step, Choose):
        return None
    load, fill = steps[step.inside], steps[step.outside]
    zero = isinstance(fill, Fill) and repr(fill.value) in ("0", "0.0", "False")  # not -0.0
    if not (isinstance(load, Load) and zero and set(step.guards) <= set(load.guards)):
        return None
    return step.inside


def split_factor(kernel: Kernel, factor: int, inner: int) -> Kernel:
    """The kernel with a factor split in two; the inner one has `inner` points."""
    last = len(kernel.factors)  # the inner factor is appended: all other numbers stay

    def affine(at: Affine) -> Affine:
        stride = at.strides[factor]
        # i = outer * inner_size + inner
        strides = [*at.strides, stride]
        strides[factor] = stride * inner
        return Affine(tuple(strides), at.offset)

    def along(over: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([n for f in over for n in ((f, last) if f == factor else (f,))])

    steps: list[Step] = []
    for step in kernel.steps:
        step = map_affines(step, affine)
        if isinstance(step, Reduce | Pick | Contract):
            step = replace(step, over=along(step.over))
        steps.append(step)
    factors = list(kernel.factors)
    outer = factors[factor]
    factors[factor] = replace(outer, size=outer.size // inner)
    factors.append(Factor(f"{outer.name}_{last}", inner, outer.role, outer.device))
    order = along(kernel.schedule.order)
    tasks = kernel.schedule.tasks + (kernel.schedule.order.index(factor) < kernel.schedule.tasks)
    schedule = replace(kernel.schedule, order=order, tasks=tasks)
    return replace(kernel, factors=tuple(factors), steps=tuple(steps), schedule=schedule)
