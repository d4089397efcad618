"""Steps of host nodes: output placement and release of dead values."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.executable.items import Host, Move, moved
from weft.kernels.host import HostKernel
from weft.run.code import SlotStep, SlotValues

if TYPE_CHECKING:
    from weft.run.binding import BlockBinder


def host_step(binder: BlockBinder, item: Host, dead: tuple[int, ...]) -> SlotStep:
    """The step of a host node, specialized by operand count."""
    kernel, plan, ins, outs = binder.host.kernel(item.site), binder.plan, item.ins, item.outs
    if not binder.is_on_host:
        return simple_step(kernel.run, ins, outs, dead)
    if len(outs) == 1 and outs[0] in plan.places:
        return _planned(binder, item, kernel, dead)
    if len(outs) == 1 and outs[0] in plan.over:
        return _written_over(binder, item, kernel, dead)
    return simple_step(kernel.run, ins, outs, dead)


def move_step(move: Move, dead: tuple[int, ...]) -> SlotStep:
    """The step of a move."""
    run: Callable[..., Any] = partial(moved, move)
    match move:
        case Move(how="same", outs=(_,)):
            run = _same
        case Move(how="pack"):
            run = _pack
        case Move(how="unpack" | "part", outs=(_,)):
            run = itemgetter(move.index)
        case Move(how="unpack"):
            run = _same
        case Move(how="token", outs=(_,)):
            run = _token
    return simple_step(run, move.ins, move.outs, dead)


def _same(value: Any) -> Any:
    return value


def _pack(*values: Any) -> tuple[Any, ...]:
    return values


def _token(*_: Any) -> None:
    return None


def simple_step(
    run: Callable[..., Any], ins: tuple[int, ...], outs: tuple[int, ...], dead: tuple[int, ...]
) -> SlotStep:
    """The step of a function of one or several results, without planned memory."""
    if len(outs) != 1:
        return _several(run, ins, outs, dead)
    (out,) = outs
    # One and two operands are by far the most frequent: these steps build no list.
    match ins:
        case (a,):

            def step(s: SlotValues) -> None:
                s[out] = run(s[a])
                for d in dead:
                    s[d] = None

        case (a, b):

            def step(s: SlotValues) -> None:
                s[out] = run(s[a], s[b])
                for d in dead:
                    s[d] = None

        case _:

            def step(s: SlotValues) -> None:
                s[out] = run(*[s[n] for n in ins])
                for d in dead:
                    s[d] = None

    return step


def _several(
    run: Callable[..., Any], ins: tuple[int, ...], outs: tuple[int, ...], dead: tuple[int, ...]
) -> SlotStep:
    def step(s: SlotValues) -> None:
        results = run(*[s[n] for n in ins])
        for slot, result in zip(outs, results or (), strict=True):
            s[slot] = result
        for d in dead:
            s[d] = None

    return step


def _planned(
    binder: BlockBinder, item: Host, kernel: HostKernel, dead: tuple[int, ...]
) -> SlotStep:
    """The step of a node with planned memory, which is reused from run to run.

    The layout of the result is taken from its first run.
    """
    into, run, ins, (out,) = kernel.into, kernel.run, item.ins, item.outs
    buffer, offset, dense = binder.new(), binder.plan.places[out], binder.is_read_by_kernels(out)
    assert into is not None
    write = _writer(into, ins)

    def step(s: SlotValues) -> None:
        held = s[buffer]
        if held is None:
            s[out] = first = run(*[s[n] for n in ins])
            s[buffer] = _in_order(first, s[0], offset) if dense else like(first, s[0], offset)
        else:
            write(s, held)
            s[out] = held
        for d in dead:
            s[d] = None

    return step


def _writer(
    into: Callable[..., object], ins: tuple[int, ...]
) -> Callable[[SlotValues, Any], object]:
    """A writer specialized by operand count."""
    match ins:
        case (a,):
            return lambda s, held: into(s[a], held)
        case (a, b):
            return lambda s, held: into(s[a], s[b], held)
    return lambda s, held: into(*[s[n] for n in ins], held)


def _written_over(
    binder: BlockBinder, item: Host, kernel: HostKernel, dead: tuple[int, ...]
) -> SlotStep:
    """The step of a node that may overwrite an operand.

    The operand is loop-carried, or an argument donated in this run.
    """
    run, into, ins, (out,) = kernel.run, kernel.into, item.ins, item.outs
    over, always = binder.plan.over[out]
    stack = binder.stacks[out]
    assert into is not None and stack is not None
    shape = stack.shape

    def step(s: SlotValues) -> None:
        operands = [s[n] for n in ins]
        target = operands[over]
        # s[1]: the slots of donated arguments that this run may overwrite.
        free = always or (ins[over] in s[1] and target.flags.writeable)
        # A broadcast operand has fewer elements in memory than the result.
        if free and target.shape == shape and _compact(target):
            into(*operands, target)
            s[out] = target
        else:
            s[out] = run(*operands)
        for d in dead:
            s[d] = None

    return step


def like(array: Any, arena: Any, offset: int) -> Any:
    """A view of the arena with the strides of another array."""
    strides = array.strides if _compact(array) else None
    return np.ndarray(array.shape, array.dtype, arena, offset, strides)


def _in_order(array: Any, arena: Any, offset: int) -> Any:
    """A row-major view of the arena."""
    return np.ndarray(array.shape, array.dtype, arena, offset)


def _compact(array: Any) -> bool:
    """Whether the array is dense in some order of its dims."""
    dims = sorted(zip(array.strides, array.shape, strict=True))
    expected = array.itemsize
    for stride, size in dims:
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True
