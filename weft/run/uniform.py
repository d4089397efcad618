"""Uniform loops and branches: all devices take the same path."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from weft.executable.items import Branch, Loop, Slot
from weft.run.code import Code, SlotStep, SlotValues
from weft.run.dead_slots import results_made
from weft.run.flow import chooser_of, widen
from weft.run.loop_buffers import BufferRotation, native_rounds

if TYPE_CHECKING:
    from weft.run.binding import BlockBinder

Changing = tuple[Slot, Any, Slot]  # carried slot, broadcast function, next value's slot


def loop_step(binder: BlockBinder, loop: Loop, dead: tuple[Slot, ...], code: Code) -> SlotStep:
    """The step of a uniform loop."""
    slots, ins, outs, rows = loop.carried, loop.ins, loop.outs, loop.stack_dims.active
    test = binder.inner(loop.test, code)
    work = binder.inner(loop.body, code, loop.carried)
    defined = {s for block in loop.blocks for s in results_made(block, binder.constants)}
    leftovers = (*defined, *dead)
    first = slots[0] if slots else -1
    planned, own = binder.plan.rotations.get(first, ()), binder.plan.own.get(first, ())
    rotations = [BufferRotation(rotation, binder) for rotation in planned]
    changing = _changing(loop, {n for rotation in planned for n in rotation.indices})
    at_first = binder.settled(slots)
    # Without Python only if nothing is rebound between iterations.
    rounds = None if changing else native_rounds(binder, test, work, rotations)
    rounds = rounds or _rounds(binder, loop, test, work, changing, rotations)
    enter = [widen(m, c, loop.stack_dims) for m, c in zip(loop.given, loop.masks, strict=True)]

    def step(s: SlotValues) -> None:
        active = None if rows is None else s[rows]
        values = [w(s[n], active) for w, n in zip(enter, ins, strict=True)]
        # The body overwrites these in place, and the initial values may have other readers.
        for n in own:
            values[n] = values[n].copy()
        for slot, value in zip(slots, values, strict=True):
            s[slot] = value
        if at_first is not None:
            at_first(s)
        for rotation in rotations:
            rotation.begin(s)
        count = rounds(s)
        for rotation in rotations:
            rotation.end(s, count)
        for slot, out in zip(slots, outs, strict=True):
            s[out], s[slot] = s[slot], None
        for slot in leftovers:
            s[slot] = None

    return step


def _rounds(
    binder: BlockBinder,
    loop: Loop,
    test: Code,
    work: Code,
    changing: Sequence[Changing],
    rotations: Sequence[BufferRotation],
) -> Callable[[SlotValues], int]:
    """The function that runs all iterations and returns their number."""
    (verdict,), rows = loop.test.results, loop.stack_dims.active
    every_round = [rotation for rotation in rotations if not rotation.settles]
    settled = binder.settled([slot for slot, _, _ in changing])

    def rounds(s: SlotValues) -> int:
        active = None if rows is None else s[rows]
        count = 0
        while True:
            test.run(s)
            if not s[verdict].item(0):
                return count
            work.run(s)
            if changing:  # all values are read first: the body may exchange two of them
                values = [wide(s[n], active) for _, wide, n in changing]
                for (slot, _, _), value in zip(changing, values, strict=True):
                    s[slot] = value
                if settled is not None:
                    settled(s)
            # One that has a single buffer settles in the first iteration.
            for rotation in every_round if count else rotations:
                rotation.rotate(s, count)
            count += 1

    return rounds


def _changing(loop: Loop, rotating: set[int]) -> list[Changing]:
    """The carried values that change in every iteration."""
    again = [widen(m, c, loop.stack_dims) for m, c in zip(loop.made, loop.masks, strict=True)]
    listed = zip(loop.carried, again, loop.body.results, strict=True)
    return [
        (slot, wide, result)
        for n, (slot, wide, result) in enumerate(listed)
        if n not in rotating and slot != result
    ]


def branch_step(
    binder: BlockBinder, branch: Branch, dead: tuple[Slot, ...], code: Code
) -> SlotStep:
    """The step of a uniform branch."""
    (chooser,), outs, stack_dims = branch.ins, branch.outs, branch.stack_dims
    codes = [binder.inner(block, code) for block in branch.blocks]
    wide = [
        [widen(m, c, stack_dims) for m, c in zip(masks, branch.masks, strict=True)]
        for masks in branch.made
    ]
    own = [results_made(block, binder.constants) for block in branch.blocks]
    choose, rows = chooser_of(branch.way, len(codes)), stack_dims.active

    def step(s: SlotValues) -> None:
        branch_index = choose(s[chooser].item(0))
        code = codes[branch_index]
        code.run(s)
        active = None if rows is None else s[rows]
        values = [w(s[n], active) for w, n in zip(wide[branch_index], code.results, strict=True)]
        for slot in own[branch_index]:
            s[slot] = None
        for out, value in zip(outs, values, strict=True):
            s[out] = value
        for slot in dead:
            s[slot] = None

    return step
