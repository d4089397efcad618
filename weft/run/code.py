"""Code: blocks as Python closures over slots, built once and run many times."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import Any, TypeAlias

from weft.errors import Unsupported, WeftError
from weft.executable.items import Item, Launch, Stack, Start, blocks_of, item_text
from weft.ir.module import Node
from weft.ir.types import TensorType
from weft.records import dataclass

SlotValues: TypeAlias = list[Any]  # arrays; None for tokens and dead slots; tuples of these
SlotStep: TypeAlias = Callable[[SlotValues], None]
Watch: TypeAlias = Callable[[Node, tuple[Any, ...]], None]  # called with a node and its results
Stacks: TypeAlias = Sequence[Stack | None]  # type of each slot


@dataclass(slots=True, eq=False)
class KernelCall:
    """Kernels launched by one native call."""

    launches: list[Launch]
    loaded: list[Any]
    commands: int  # slot of the bound commands in a frame
    table: int  # slot of their address table


Unit: TypeAlias = "Item | KernelCall"


class _Checks(threading.local):
    """Thread-local state: whether ops are checked one by one, and the observer."""

    on = False
    watch: Watch | None = None


_CHECKS = _Checks()


@contextmanager
def checking(watch: Watch | None = None) -> Iterator[None]:
    """Check the results of every op in this context, and show them to `watch`."""
    before, _CHECKS.on = _CHECKS.on, True
    watched, _CHECKS.watch = _CHECKS.watch, watch
    try:
        yield
    finally:
        _CHECKS.on = before
        _CHECKS.watch = watched


@dataclass(eq=False)
class Code:
    """The units of a block, and a step that runs each."""

    units: list[Unit]
    results: tuple[int, ...]
    stacks: Stacks
    steps: list[SlotStep] = field(default_factory=list)
    inner: list[Code] = field(default_factory=list)

    def run(self, slots: SlotValues) -> None:
        """Run all steps in order."""
        step: SlotStep | None = None
        try:
            if _CHECKS.on:
                for step, unit in zip(self.steps, self.units, strict=True):
                    step(slots)
                    self._look(unit, slots)
            else:
                for step in self.steps:
                    step(slots)
        except BaseException as error:
            # The position is looked up only now: the loops above keep no count.
            explained = self.explained(error, self.units[self.steps.index(step)])  # type: ignore[arg-type]
            if explained is error:
                raise
            raise explained from None

    def explained(self, error: BaseException, unit: Unit) -> BaseException:
        """The user-facing form of an error in a unit."""
        item = unit.launches[0] if isinstance(unit, KernelCall) else unit
        loc, text = item.loc, item_text(item)
        if isinstance(error, WeftError):
            return error.at(loc, text)
        if isinstance(error, MemoryError):
            return out_of_memory_error([unit], self.stacks, "a result")
        place = f"\n  --> {loc.describe()}" if loc.known else ""
        error.add_note(f"while running {text}{place}")
        return error

    def _look(self, unit: Unit, slots: SlotValues) -> None:
        """Check a result against the analysis: a mismatch would corrupt later steps."""
        if isinstance(unit, KernelCall | Start):  # a start's handle has no type
            return
        for slot in unit.outs:
            stack, array = self.stacks[slot], slots[slot]
            if stack is None or stack.shape is None or array is None:
                continue
            message = f"{item_text(unit)} gave {array.shape} of {array.dtype}"
            assert array.shape == stack.shape, f"{message}, expected {stack.shape}"
            assert isinstance(stack.type, TensorType)
            assert array.dtype == stack.type.dtype.numpy, f"{message}, expected {stack.type}"
        if _CHECKS.watch is not None and unit.node is not None:
            _CHECKS.watch(unit.node, tuple([slots[slot] for slot in unit.outs]))


def out_of_memory_error(
    units: Iterable[Unit], stacks: Stacks, what: str, needed: int | None = None
) -> WeftError:
    """The out-of-memory error, at the source line of the largest value.

    `what` names the values; `needed` is their bytes over all devices, by default those of the
    largest.
    """
    sizes = [
        (stack.nbytes, item)
        for item in _every(units)
        for slot in item.outs
        if (stack := stacks[slot]) is not None
    ]
    most, item = max(sizes, key=lambda one: one[0], default=(0, None))
    from weft.machine import bytes_text

    message = f"out of memory: {what} of {bytes_text(most if needed is None else needed)}"
    advice = "use smaller sizes, donate arguments that are not needed again, or recompute values"
    if item is None:
        return Unsupported(message, help=advice)
    if needed is not None:
        message += f"; the largest value, of {bytes_text(most)}, is of this line"
    return Unsupported(message, help=advice, loc=item.loc, node=item_text(item))


def _every(units: Iterable[Unit]) -> Iterator[Item]:
    """All items, nested ones and those of native calls included."""
    for unit in units:
        if isinstance(unit, KernelCall):
            yield from unit.launches
            continue
        yield unit
        for inner in blocks_of(unit):
            yield from _every(inner.items)
