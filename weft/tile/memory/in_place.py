"""Which operands of a kernel its results may be written over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from weft.kernels.group import Launch
from weft.kernels.kernel import Contract, Kernel, Load, Operand, Pick, Reduce, Store, args_of
from weft.kernels.roles import derived, results_reduced
from weft.kernels.single_node import SingleNode

Pairs: TypeAlias = tuple[tuple[int, int], ...]


def overwritten(kernel: Launch) -> Pairs:
    """Pairs of an input and an output of a kernel, by number of operand, that may be one buffer."""
    match kernel:
        case Kernel():
            return _same_places(kernel)
        case SingleNode():
            return kernel.in_place
        case _:
            return ()


def _same_places(kernel: Kernel) -> Pairs:
    """Pairs that are read and written at the same places, each element before it is written."""
    outputs = [n for n, operand in enumerate(kernel.operands) if operand.output]
    rooms = {_room(kernel.operands[n]) for n in outputs}
    if not any(_room(o) in rooms for o in kernel.operands if not o.output):
        return ()
    inputs = _written_last(kernel, len(outputs))
    stores: dict[int, list[int]] = {}
    for number, step in enumerate(kernel.steps):
        if isinstance(step, Store):
            stores.setdefault(step.operand, []).append(number)
    found = []
    for made in outputs:
        if len(stores.get(made, ())) == 1:
            (store,) = stores[made]
            before = _reached(kernel, store)
            if not _is_written_once(kernel, store, before):
                continue
            found += [
                (given, made)
                for given, loads in inputs.items()
                if _room(kernel.operands[given]) == _room(kernel.operands[made])
                and all(n in before and _matches(kernel, n, store) for n in loads)
            ]
    return tuple(found)


def _written_last(kernel: Kernel, outputs: int) -> dict[int, list[int]]:
    """The loads of each input that no pass reads again after an output is written.

    Without sums along factors there is one pass. A task that has all points of what is summed, and
    no others, reads them again and again, and only its last pass writes if there is one output. A
    product writes when all sums are done: what is read before the sums are is not among the inputs,
    and neither is what passes of their own read that follow reductions of the result.
    """
    sums = [n for n, s in enumerate(kernel.steps) if isinstance(s, Reduce | Pick | Contract)]
    contracts = [n for n in sums if isinstance(kernel.steps[n], Contract)]
    if contracts and contracts != sums[:1]:
        return {}
    if sums and not contracts and (outputs > 1 or not _has_whole_rows(kernel)):
        return {}
    apart = _reached(kernel, sums[0]) | _read_late(kernel) if contracts else set()
    found: dict[int, list[int]] = {}
    for number, step in enumerate(kernel.steps):
        if isinstance(step, Load):
            found.setdefault(step.operand, []).append(number)
    return {operand: loads for operand, loads in found.items() if not apart.intersection(loads)}


def _has_whole_rows(kernel: Kernel) -> bool:
    """Whether the loops inside of a task are just those that are summed along."""
    schedule, steps = kernel.schedule, kernel.steps
    summed = {f for s in steps if isinstance(s, Reduce | Pick | Contract) for f in s.over}
    return summed == {*range(len(kernel.factors))}.difference(schedule.order[: schedule.tasks])


def _read_late(kernel: Kernel) -> set[int]:
    """The steps that what follows a reduction of a product's result is computed from beside it."""
    reduced = results_reduced(kernel)
    found: set[int] = set()
    for n in derived(kernel, reduced) | {*reduced}:
        step = kernel.steps[n]
        given = (step.init,) if isinstance(step, Reduce) else args_of(step)
        for arg in given:
            if arg is not None and arg not in reduced:
                found |= {arg} | _reached(kernel, arg, reduced)
    return found


def _reached(kernel: Kernel, step: int, known: Sequence[int] = ()) -> set[int]:
    """The steps that a step is computed from; nothing beyond those that are known."""
    found = {*known}
    todo = [step]
    while todo:
        for arg in args_of(kernel.steps[todo.pop()]):
            if arg not in found:
                found.add(arg)
                todo.append(arg)
    return found - {*known}


def _room(operand: Operand) -> tuple[int, int]:
    """How many elements there are, and how large they are."""
    return operand.size, operand.dtype.numpy.itemsize


def _matches(kernel: Kernel, load: int, store: int) -> bool:
    """Whether a load is at the place of a store."""
    read, written = kernel.steps[load], kernel.steps[store]
    assert isinstance(read, Load) and isinstance(written, Store)
    return read.at == written.at and not (read.guards or read.shifts or written.guards)


def _is_written_once(kernel: Kernel, store: int, before: set[int]) -> bool:
    """Whether no two points write to one place: factors without a stride are summed along before.

    Where points do, the later ones would read what the earlier ones wrote.
    """
    written = kernel.steps[store]
    assert isinstance(written, Store)
    sums = [s for n in before if isinstance(s := kernel.steps[n], Reduce | Pick | Contract)]
    gone = {factor for step in sums for factor in step.over}
    strides = enumerate(zip(written.at.strides, kernel.factors, strict=True))
    return all(stride or factor.size == 1 or n in gone for n, (stride, factor) in strides)
