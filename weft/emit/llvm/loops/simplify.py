"""Simplification of kernels: factors of size 0 and 1 removed, neighbours merged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from weft.emit.llvm.loops.one_hot import one_hot_sum
from weft.ir.op import Op
from weft.ir.types import DType, tensor
from weft.kernels.kernel import (
    Affine,
    Apply,
    Choose,
    Contract,
    Factor,
    Fill,
    Kernel,
    Load,
    Pick,
    Position,
    Reduce,
    Schedule,
    Step,
    Store,
    args_of,
    value_dtype,
)
from weft.kernels.rewriting import map_affines, renumbered
from weft.ops.combiners import COMBINERS, identity
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Multiply


def simplify(kernel: Kernel, order: Sequence[int], apart: Collection[str] = ()) -> Kernel:
    """The same kernel with its factors in loop order, as few and as long as possible.

    Contractions become sums of products, reductions along nothing become ordinary steps, and dead
    steps are removed. The factors named in `apart` are not merged with others.
    """
    kernel = _plain_steps(kernel)
    used = _used_factors(kernel)
    kernel = _with_factors(kernel, [n for n in order if n in used])
    place = 0
    while place + 1 < len(kernel.factors):
        names = {f.name for f in kernel.factors[place : place + 2]}
        if names.isdisjoint(apart) and _joins(kernel, place):
            kernel = _merge_neighbours(kernel, place)
        else:
            place += 1
    return kernel


# Steps


def _plain_steps(kernel: Kernel) -> Kernel:
    """The live steps, without contractions and without empty or single-iteration loops."""
    sizes = [f.size for f in kernel.factors]
    steps: list[Step] = []
    numbers: list[int] = []
    for number, step in enumerate(kernel.steps):
        step = renumbered(step, numbers)
        simplified = _plain(step, steps, sizes, kernel, number)
        if isinstance(simplified, int):
            numbers.append(simplified)
        else:
            steps.append(simplified)
            numbers.append(len(steps) - 1)
    return without_dead(replace(kernel, steps=tuple(steps)))


def _plain(
    step: Step, steps: list[Step], sizes: list[int], kernel: Kernel, number: int
) -> Step | int:
    """A simplified step, or the number of an equal one; may append steps."""

    def add(added: Step) -> int:
        steps.append(added)
        return len(steps) - 1

    match step:
        case Contract(lhs=lhs, rhs=rhs, over=over, dtype=dtype, held=held):
            left, right = (_converted(steps, arg, held, add) for arg in (lhs, rhs))
            product = add(Apply(Multiply(), (left, right), held))
            total = Reduce("add", product, None, over, held)
            made = _plain(total, steps, sizes, kernel, number)
            summed = made if isinstance(made, int) else add(made)
            return _converted(steps, summed, dtype, add)
        case Reduce(how=how, arg=arg, init=init, over=over, dtype=dtype):
            if any(sizes[n] == 0 for n in over):
                return Fill(identity(how, dtype), dtype) if init is None else init
            over = tuple([n for n in over if sizes[n] > 1])
            if over:
                step = replace(step, over=over)
                return one_hot_sum(step, steps, kernel) or step
            return arg if init is None else Apply(COMBINERS[how], (init, arg), dtype)
        case Pick(value=value, over=over, dtype=dtype):
            if any(sizes[n] == 0 for n in over):
                return Fill(0, dtype)
            over = tuple([n for n in over if sizes[n] > 1])
            return replace(step, over=over) if over else value
        case Store() if any(sizes[n] == 0 for n in kernel.spans[number]):
            return Fill(0, kernel.operands[step.operand].dtype)  # nothing is stored
    return step


def _converted(steps: list[Step], number: int, dtype: DType, add: Callable[[Step], int]) -> int:
    if value_dtype(steps[number]) is dtype:
        return number
    to: Op = Convert(tensor(dtype=dtype))
    return add(Apply(to, (number,), dtype))


def without_dead(kernel: Kernel) -> Kernel:
    """Only the steps that stores depend on."""
    live = reachable_steps(
        kernel.steps, [n for n, s in enumerate(kernel.steps) if isinstance(s, Store)]
    )
    numbers: list[int] = []
    steps: list[Step] = []
    for number, step in enumerate(kernel.steps):
        numbers.append(len(steps))
        if number in live:
            steps.append(renumbered(step, numbers))
    return replace(kernel, steps=tuple(steps))


def reachable_steps(
    steps: Sequence[Step], roots: Iterable[int], ready: Collection[int] = ()
) -> set[int]:
    """The transitive inputs of roots, with the roots, up to available values."""
    reached: set[int] = set()
    todo = list(roots)
    while todo:
        number = todo.pop()
        if number not in reached and number not in ready:
            reached.add(number)
            todo += args_of(steps[number])
    return reached


# Factors


def _used_factors(kernel: Kernel) -> set[int]:
    """The factors of more than one point that a step spans or reduces."""
    used: set[int] = set()
    for step, span in zip(kernel.steps, kernel.spans, strict=True):
        used |= span
        if isinstance(step, Reduce | Pick):
            used |= set(step.over)
    return {n for n in used if kernel.factors[n].size > 1}


def _with_factors(kernel: Kernel, order: Sequence[int]) -> Kernel:
    """The kernel with some of its factors, in another order; the others have one point."""

    def affine(at: Affine) -> Affine:
        return Affine(tuple([at.strides[n] for n in order]), at.offset)

    places = {n: place for place, n in enumerate(order)}
    steps = tuple([_mapped(step, affine, places) for step in kernel.steps])
    factors = tuple([kernel.factors[n] for n in order])
    schedule = Schedule(kernel.schedule.kind, tuple(range(len(order))), 0, kernel.schedule.options)
    return replace(kernel, factors=factors, steps=steps, schedule=schedule)


def _mapped(step: Step, affine: Callable[[Affine], Affine], places: dict[int, int]) -> Step:
    """A step in terms of other factors."""
    if isinstance(step, Reduce | Pick):
        return replace(step, over=tuple([places[n] for n in step.over if n in places]))
    return map_affines(step, affine)


def _joins(kernel: Kernel, place: int) -> bool:
    """Whether a factor and the next one are one loop to every step."""
    size = kernel.factors[place + 1].size
    for step in kernel.steps:
        for at in affines(step):
            if at.strides[place] != at.strides[place + 1] * size:
                return False
        if isinstance(step, Reduce | Pick):
            if (place in step.over) != (place + 1 in step.over):
                return False
            if isinstance(step, Pick) and place in step.over:
                # Ties go to the first position in the order of `over`: both must be adjacent there.
                first = step.over.index(place)
                if step.over[first + 1 : first + 2] != (place + 1,):
                    return False
    return True


def affines(step: Step) -> list[Affine]:
    """The affine indices of a step."""
    found = [step.at] if isinstance(step, Load | Store | Position) else []
    if isinstance(step, Load | Store | Choose):
        found += [g.index for g in step.guards]
    return found


def _merge_neighbours(kernel: Kernel, place: int) -> Kernel:
    first, second = kernel.factors[place : place + 2]
    factor = Factor(first.name + second.name, first.size * second.size, first.role, first.device)
    remaining = [n for n in range(len(kernel.factors)) if n != place]

    def affine(at: Affine) -> Affine:
        return Affine(tuple([at.strides[n] for n in remaining]), at.offset)

    places = {n: new for new, n in enumerate(remaining)}
    steps = tuple([_mapped(step, affine, places) for step in kernel.steps])
    factors = (*kernel.factors[:place], factor, *kernel.factors[place + 2 :])
    schedule = replace(kernel.schedule, order=tuple(range(len(factors))))
    return replace(kernel, factors=factors, steps=steps, schedule=schedule)
