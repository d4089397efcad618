"""In-place results: which operands a kernel's outputs may overwrite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from weft.kernels.group import AnyKernel
from weft.kernels.kernel import Contract, Kernel, Load, Operand, Pick, Reduce, Store, args_of
from weft.kernels.roles import derived, results_reduced
from weft.kernels.single_node import SingleNode

Pairs: TypeAlias = tuple[tuple[int, int], ...]


def overwritten(kernel: AnyKernel) -> Pairs:
    """Input and output numbers of a kernel that may share one buffer."""
    match kernel:
        case Kernel():
            return _same_places(kernel)
        case SingleNode():
            return kernel.in_place
        case _:
            return ()


def _same_places(kernel: Kernel) -> Pairs:
    """Pairs read and written at the same index, each element read before it is written."""
    outputs = [n for n, operand in enumerate(kernel.operands) if operand.output]
    # A quick exit where no input has the size of an output.
    rooms = {_room(kernel.operands[n]) for n in outputs}
    if not any(_room(o) in rooms for o in kernel.operands if not o.output):
        return ()
    inputs = _written_last(kernel, len(outputs))
    stores: dict[int, list[int]] = {}
    for number, step in enumerate(kernel.steps):
        if isinstance(step, Store):
            stores.setdefault(step.operand, []).append(number)
    pairs = []
    for output in outputs:
        # Of several stores, the first would overwrite elements that loads for the second read.
        if len(stores.get(output, ())) == 1:
            (store,) = stores[output]
            before = _reached(kernel, store)
            if not _is_written_once(kernel, store, before):
                continue
            # Every load of the operand must feed this store: one that feeds another output may run
            # after it.
            pairs += [
                (source, output)
                for source, loads in inputs.items()
                if _room(kernel.operands[source]) == _room(kernel.operands[output])
                and all(n in before and _matches(kernel, n, store) for n in loads)
            ]
    return tuple(pairs)


def _written_last(kernel: Kernel, outputs: int) -> dict[int, list[int]]:
    """The loads of each input that no pass repeats after an output is written.

    Without reductions there is one pass. A task with exactly the points of one reduction reads them
    several times, but only its last pass writes, if there is one output. A contraction writes when
    all sums are done: this excludes inputs read before the sums are complete, and those read by
    later passes after reductions of the result.
    """
    sums = [n for n, s in enumerate(kernel.steps) if isinstance(s, Reduce | Pick | Contract)]
    contracts = [n for n in sums if isinstance(kernel.steps[n], Contract)]
    # A reduction before the contraction would read inputs in a pass of its own.
    if contracts and contracts != sums[:1]:
        return {}
    # Another task's rows, or another output's pass, might still read what this one has overwritten.
    if sums and not contracts and (outputs > 1 or not _has_whole_rows(kernel)):
        return {}
    apart = _reached(kernel, sums[0]) | _read_late(kernel) if contracts else set()
    loads_of: dict[int, list[int]] = {}
    for number, step in enumerate(kernel.steps):
        if isinstance(step, Load):
            loads_of.setdefault(step.operand, []).append(number)
    return {operand: loads for operand, loads in loads_of.items() if not apart.intersection(loads)}


def _has_whole_rows(kernel: Kernel) -> bool:
    """Whether the loops inside of a task are exactly the reduced ones."""
    # Then no task reads an element that another one writes.
    schedule, steps = kernel.schedule, kernel.steps
    summed = {f for s in steps if isinstance(s, Reduce | Pick | Contract) for f in s.over}
    return summed == {*range(len(kernel.factors))}.difference(schedule.order[: schedule.tasks])


def _read_late(kernel: Kernel) -> set[int]:
    """The other inputs of steps that follow a reduction of a contraction's result."""
    reduced = results_reduced(kernel)
    late: set[int] = set()
    for n in derived(kernel, reduced) | {*reduced}:
        step = kernel.steps[n]
        # The result itself, which the reduction reads, is in registers: only its other inputs
        # count.
        arguments = (step.init,) if isinstance(step, Reduce) else args_of(step)
        for arg in arguments:
            if arg is not None and arg not in reduced:
                late |= {arg} | _reached(kernel, arg, reduced)
    return late


def _reached(kernel: Kernel, step: int, known: Sequence[int] = ()) -> set[int]:
    """The transitive inputs of a step, up to known ones."""
    reached = {*known}
    todo = [step]
    while todo:
        for arg in args_of(kernel.steps[todo.pop()]):
            if arg not in reached:
                reached.add(arg)
                todo.append(arg)
    return reached - {*known}


def _room(operand: Operand) -> tuple[int, int]:
    """The element count and size."""
    return operand.size, operand.dtype.numpy.itemsize


def _matches(kernel: Kernel, load: int, store: int) -> bool:
    """Whether a load has the index of a store."""
    read, written = kernel.steps[load], kernel.steps[store]
    assert isinstance(read, Load) and isinstance(written, Store)
    return read.at == written.at and not (read.guards or read.shifts or written.guards)


def _is_written_once(kernel: Kernel, store: int, before: set[int]) -> bool:
    """Whether no two points store to one index: factors without a stride are reduced before.

    Otherwise later points would read what earlier ones wrote.
    """
    written = kernel.steps[store]
    assert isinstance(written, Store)
    sums = [s for n in before if isinstance(s := kernel.steps[n], Reduce | Pick | Contract)]
    gone = {factor for step in sums for factor in step.over}
    strides = enumerate(zip(written.at.strides, kernel.factors, strict=True))
    return all(stride or factor.size == 1 or n in gone for n, (stride, factor) in strides)
