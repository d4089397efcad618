"""Instructions: a program as lists of Python closures over slots, made once and run many times."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from weft.errors import Unsupported, WeftError
from weft.ir.module import Node, Value
from weft.ir.types import TensorType
from weft.ir.write import node_text
from weft.kernels.group import Group
from weft.machine import bytes_text
from weft.run.kernel import Kernel

Slots: TypeAlias = list[Any]  # arrays; None for tokens and for what is dead; tuples of these
Step: TypeAlias = Callable[[Slots], None]
Settled: TypeAlias = "Callable[[Sequence[int]], Step | None]"
Watch: TypeAlias = Callable[[Node, tuple[Any, ...]], None]  # a node, and what it gave


class _Checks(threading.local):
    """Whether the program that this thread runs is looked at op by op, and by whom."""

    on = False
    watch: Watch | None = None


_CHECKS = _Checks()


@contextmanager
def checking(watch: Watch | None = None) -> Iterator[None]:
    """Look at what every op gives, as long as this lasts; `watch` sees it, too."""
    before, _CHECKS.on = _CHECKS.on, True
    watched, _CHECKS.watch = _CHECKS.watch, watch
    try:
        yield
    finally:
        _CHECKS.on = before
        _CHECKS.watch = watched


def look(item: Item, slots: Slots) -> None:
    """Refuse a result that is not what the analysis said: it would be wrong later on."""
    for slot, shape, value in zip(item.outs, item.shapes, item.values, strict=False):
        made = slots[slot]
        if shape is None or made is None:
            continue
        assert made.shape == shape, f"{item.node!r} gave {made.shape}, expected {shape}"
        type = value.type
        assert isinstance(type, TensorType)
        assert made.dtype == type.dtype.numpy, f"{item.node!r} gave {made.dtype}, expected {type}"
    if _CHECKS.watch is not None and item.values:
        _CHECKS.watch(item.node, tuple([slots[slot] for slot in item.outs]))


@dataclass
class Item:
    """One instruction before it is bound: its node, what it reads and what it writes."""

    node: Node
    bind: Callable[[Item], Step]
    kernel: Kernel | None = None  # of numpy
    ins: tuple[int, ...] = ()
    outs: tuple[int, ...] = ()
    values: tuple[Value, ...] = ()  # the results
    shapes: tuple[tuple[int, ...] | None, ...] = ()  # of the results, where they are known
    dead: tuple[int, ...] = ()  # slots that nothing reads after it
    inner: tuple[Code, ...] = ()
    buffer: int | None = None  # the slot that keeps the memory of the result from run to run
    places: dict[int, int] = field(default_factory=dict)  # of results, by number, in the arena
    over: int | None = None  # the operand that the result may be written over
    over_carried: bool = False  # that operand is what a loop carries, and its own
    dense: bool = False  # a target's kernels read the result
    only_reads: bool = False  # control flow that hands none of its operands on
    # Of a target's kernel: what it is, the arguments whose memory its results take, by number, and
    # the results that a loop has memory for.
    group: Group | None = None
    donors: dict[int, int] = field(default_factory=dict)
    turning: frozenset[int] = frozenset()
    launch: Any = None  # of kernels that run in one call: these
    # Of a loop: where each carried value is when its body begins, and whether it is the loop's own;
    # what a target's kernels make in turns, if a target runs it.
    carried: tuple[int, ...] = ()
    own: frozenset[int] = frozenset()
    turns: list[Turn] | None = None


@dataclass
class Turn:
    """A value that a kernel of the body makes anew in every round, in one of several buffers.

    It is carried as such, and perhaps for more rounds: a loop may hand on what it has handed on.
    """

    indices: tuple[int, ...]  # among the carried values, the newest first
    slots: tuple[int, ...]  # where each of these is when the body begins
    result: int  # where the next one is
    maker: Item
    number: int  # among the results of its maker
    nbytes: int
    piece: int  # the bytes that one device has
    buffers: int = 0
    places: tuple[int, ...] = ()  # in the arena; none if the memory is new in every run


@dataclass
class Code:
    """A list of instructions."""

    items: list[Item] = field(default_factory=list)
    results: tuple[int, ...] = ()
    steps: list[Step] = field(default_factory=list)

    def bind(self, settled: Settled) -> None:
        """Make closures of the instructions, inner ones first.

        `settled` gives what is to be done once slots are written, if something is.
        """
        for item in self.items:
            for inner in item.inner:
                inner.bind(settled)
        self.steps = [_then(item.bind(item), settled(item.outs)) for item in self.items]

    def run(self, slots: Slots) -> None:
        """Run all instructions in order."""
        step: Step | None = None
        try:
            if _CHECKS.on:
                for step, item in zip(self.steps, self.items, strict=True):
                    step(slots)
                    look(item, slots)
            else:
                for step in self.steps:
                    step(slots)
        except BaseException as error:
            told = self.explained(error, self.items[self.steps.index(step)])  # type: ignore[arg-type]
            if told is error:
                raise
            raise told from None

    def explained(self, error: BaseException, item: Item) -> BaseException:
        """An error in an instruction, as those are told who run the program."""
        loc, text = item.node.loc, node_text(item.node)
        if isinstance(error, WeftError):
            return error.at(loc, text)
        if isinstance(error, MemoryError):
            return shortage([item], "a result")
        error.add_note(f"while running {text}\n  --> {loc.describe()}")
        return error


def shortage(items: Iterable[Item], what: str, needed: int | None = None) -> WeftError:
    """The refusal of values that do not fit into memory, at the line of the largest of them.

    `what` they are, and how many bytes of all devices they take; without that, the largest does.
    """
    sizes = [(size, item) for item in _every(items) for size in _sizes(item)]
    most, item = max(sizes, key=lambda one: one[0], default=(0, None))
    told = f"out of memory: {what} of {bytes_text(most if needed is None else needed)}"
    advice = "use smaller sizes, donate arguments that are not needed again, or recompute values"
    if item is None:
        return Unsupported(told, help=advice)
    if needed is not None:
        told += f"; the largest value, of {bytes_text(most)}, is of this line"
    return Unsupported(told, help=advice, loc=item.node.loc, node=node_text(item.node))


def _every(items: Iterable[Item]) -> Iterator[Item]:
    """Instructions, those inside of them, and the kernels that run in one call."""
    for item in items:
        yield item
        yield from _every(getattr(item.launch, "items", ()))
        for inner in item.inner:
            yield from _every(inner.items)


def _sizes(item: Item) -> Iterator[int]:
    """The bytes of each result whose shape is known, of all devices together."""
    for shape, value in zip(item.shapes, item.values, strict=False):
        if shape is not None and isinstance(value.type, TensorType):
            yield math.prod(shape) * value.type.dtype.numpy.itemsize


def _then(step: Step, after: Step | None) -> Step:
    """One step after another."""
    if after is None:
        return step

    def both(s: Slots) -> None:
        step(s)
        after(s)

    return both


def bind_kernel(item: Item) -> Step:
    """The closure of a kernel, made for its number of operands."""
    kernel = item.kernel
    assert kernel is not None
    if item.buffer is not None:
        return _planned(item, kernel)
    if item.over is not None:
        return _written_over(item, kernel, item.over)
    run, ins, outs, dead = kernel.run, item.ins, item.outs, item.dead
    if len(outs) != 1:
        return _several(run, ins, outs, dead)
    (out,) = outs
    match ins:
        case (a,):

            def step(s: Slots) -> None:
                s[out] = run(s[a])
                for d in dead:
                    s[d] = None

        case (a, b):

            def step(s: Slots) -> None:
                s[out] = run(s[a], s[b])
                for d in dead:
                    s[d] = None

        case _:

            def step(s: Slots) -> None:
                s[out] = run(*[s[n] for n in ins])
                for d in dead:
                    s[d] = None

    return step


def _several(
    run: Callable[..., Any], ins: tuple[int, ...], outs: tuple[int, ...], dead: tuple[int, ...]
) -> Step:
    def step(s: Slots) -> None:
        made = run(*[s[n] for n in ins])
        for slot, result in zip(outs, made or (), strict=True):
            s[slot] = result
        for d in dead:
            s[d] = None

    return step


def _planned(item: Item, kernel: Kernel) -> Step:
    """The closure of a kernel that writes into memory which is kept from run to run.

    How the result lies in memory is seen when it is first computed.
    """
    into, run, ins, (out,), dead = kernel.into, kernel.run, item.ins, item.outs, item.dead
    buffer, offset = item.buffer, item.places[0]
    assert into is not None and buffer is not None
    write = _writer(into, ins)
    dense = item.dense

    def step(s: Slots) -> None:
        held = s[buffer]
        if held is None:
            s[out] = made = run(*[s[n] for n in ins])
            s[buffer] = _in_order(made, s[0], offset) if dense else like(made, s[0], offset)
        else:
            write(s, held)
            s[out] = held
        for d in dead:
            s[d] = None

    return step


def _writer(into: Callable[..., object], ins: tuple[int, ...]) -> Callable[[Slots, Any], object]:
    """A function that is made for its number of operands."""
    match ins:
        case (a,):
            return lambda s, held: into(s[a], held)
        case (a, b):
            return lambda s, held: into(s[a], s[b], held)
    return lambda s, held: into(*[s[n] for n in ins], held)


def _written_over(item: Item, kernel: Kernel, over: int) -> Step:
    """The closure of a kernel that may write its result over an operand.

    That is what a loop carries, or an argument that is donated in this run.
    """
    run, into, ins, (out,), dead = kernel.run, kernel.into, item.ins, item.outs, item.dead
    (shape,), always = item.shapes, item.over_carried
    assert into is not None

    def step(s: Slots) -> None:
        given = [s[n] for n in ins]
        target = given[over]
        free = always or (ins[over] in s[1] and target.flags.writeable)
        if free and target.shape == shape and _compact(target):
            into(*given, target)
            s[out] = target
        else:
            s[out] = run(*given)
        for d in dead:
            s[d] = None

    return step


def like(made: Any, arena: Any, offset: int) -> Any:
    """An array of the arena's memory that lies as another one does."""
    strides = made.strides if _compact(made) else None
    return np.ndarray(made.shape, made.dtype, arena, offset, strides)


def _in_order(made: Any, arena: Any, offset: int) -> Any:
    """An array of the arena's memory in row-major order."""
    return np.ndarray(made.shape, made.dtype, arena, offset)


def _compact(array: Any) -> bool:
    """Whether the elements fill their memory without gaps, in whatever order of the dims."""
    dims = sorted(zip(array.strides, array.shape, strict=True))
    expected = array.itemsize
    for stride, size in dims:
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
