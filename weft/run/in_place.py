"""Which operands of a kernel its results may be written over."""

from __future__ import annotations

from typing import Any

from weft.kernels.kernel import Contract, Kernel, Load, Pick, Reduce, Store


def overwritten(kernel: Any) -> tuple[tuple[int, int], ...]:
    """Pairs of an input and an output of a kernel, by number of operand, that may be one buffer."""
    if isinstance(kernel, Kernel):
        return _same_places(kernel)
    pairs: tuple[tuple[int, int], ...] = getattr(kernel, "in_place", ())
    return pairs


def _same_places(kernel: Kernel) -> tuple[tuple[int, int], ...]:
    """Pairs that are read and written at the same places, each element before it is written.

    A pass that reduces reads elements again later on: then only the last pass may write, and
    there is one output.
    """
    reduces = any(isinstance(s, Reduce | Pick | Contract) for s in kernel.steps)
    outputs = [n for n, operand in enumerate(kernel.operands) if operand.output]
    if reduces and (kernel.schedule.kind != "rows" or len(outputs) > 1):
        return ()
    stores: dict[int, list[int]] = {}
    loads: dict[int, list[int]] = {}
    for number, step in enumerate(kernel.steps):
        if isinstance(step, Store):
            stores.setdefault(step.operand, []).append(number)
        elif isinstance(step, Load):
            loads.setdefault(step.operand, []).append(number)
    return tuple(
        [
            (given, made)
            for made in outputs
            if len(stores.get(made, ())) == 1
            for given, read in loads.items()
            if _fits(kernel, given, made) and _matches(kernel, read, stores[made][0])
        ]
    )


def _fits(kernel: Kernel, given: int, made: int) -> bool:
    one, other = kernel.operands[given], kernel.operands[made]
    same_size = one.dtype.numpy.itemsize == other.dtype.numpy.itemsize
    return same_size and one.size == other.size


def _matches(kernel: Kernel, loads: list[int], store: int) -> bool:
    """Whether all loads are at the place of a store, and before it."""
    written = kernel.steps[store]
    assert isinstance(written, Store)
    if written.guards:
        return False
    for number in loads:
        read = kernel.steps[number]
        assert isinstance(read, Load)
        if number > store or read.at != written.at or read.guards or read.shifts:
            return False
    return True
