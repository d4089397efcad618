"""Divergent control flow: each branch runs on the devices that take it, loops on the active ones.

The sub-axes that a predicate varies along share one row dim, with one row for each active device. A
collective needs its whole group among the rows; otherwise its error names the missing devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.executable.divergence import Divergence
from weft.executable.items import DivergentBranch, DivergentLoop, Slot
from weft.ir.types import Array, TensorType, Type
from weft.run.code import Code, SlotStep, SlotValues
from weft.run.flow import chooser_of, widen
from weft.varying.masks import Mask, Masks, union

if TYPE_CHECKING:
    from weft.run.binding import BlockBinder


class Rows:
    """Conversion between stacks and rows."""

    def __init__(self, divergence: Divergence) -> None:
        self.divergence, self.outer, self.inner = divergence, divergence.outer, divergence.inner

    def sizes(self, active: Array | None) -> list[int]:
        """The sizes of the dims merged into rows."""
        return [
            len(active) if self.outer.has_rows and d == 0 and active is not None
            else self.outer.size(d)
            for d in self.divergence.dims
        ]  # fmt: skip

    def numbers(self, active: Array | None) -> Array:
        """The linear device index of each row."""
        added = math.prod(
            self.outer.size(d) for d in self.divergence.dims if not self.divergence.is_rows(d)
        )
        # Row-major over the merged dims, of which the rows of an outer divergence are the slowest.
        base = np.zeros(1, np.int64) if active is None else active
        return (base[:, None] * added + np.arange(added)).reshape(-1)

    def split(self, x: Any, mask: Mask, active: Array | None) -> Any:
        """A value as rows; a single row if it is uniform."""
        if x is None:
            return None
        if isinstance(mask, tuple):
            return tuple([self.split(p, m, active) for p, m in zip(x, mask, strict=True)])
        dims, lead = self.divergence.dims, self.outer.lead
        rest = [d for d in range(x.ndim) if d not in dims]
        count = 1
        if mask & self.divergence.mask:
            shape, sizes = list(x.shape), self.sizes(active)
            for dim, size in zip(dims, sizes, strict=True):
                shape[dim] = size
            x, count = np.broadcast_to(x, shape), math.prod(sizes)
        unmerged = [x.shape[d] for d in range(lead) if d not in dims]
        # [rows, unmerged leading dims, the value's own dims]
        return x.transpose([*dims, *rest]).reshape(count, *unmerged, *x.shape[lead:])

    def to_outer(self, x: Any, mask: Mask, active: Array | None) -> Any:
        """Rows as a stack of the outer dims; the first row where the value is uniform."""
        if x is None:
            return None
        sizes, dims = self.sizes(active), list(self.divergence.dims)
        opened = x.reshape(*sizes, *x.shape[1:])
        order = [*dims, *(d for d in range(opened.ndim) if d not in dims)]
        stack = opened.transpose(np.argsort(order))
        return stack if union(mask) & 1 or not self.outer.has_rows else stack[:1]


def pick(x: Any, mask: Mask, indices: Array) -> Any:
    """A selection of rows; a uniform value is unchanged."""
    if isinstance(mask, tuple):
        return tuple([pick(p, m, indices) for p, m in zip(x, mask, strict=True)])
    return x[indices] if x is not None and mask & 1 else x


class Results:
    """Results of divergent code, filled row by row."""

    def __init__(
        self, divergence: Divergence, types: Sequence[Type], masks: Masks, count: int
    ) -> None:
        self.divergence = divergence
        self.types = types
        self.masks = [union(divergence.inside(m)) for m in masks]
        self.count = count
        self.arrays: list[Any] = [self.room(n) for n in range(len(types))]

    def room(self, index: int) -> Array | None:
        """An uninitialized array for all rows of a result."""
        type, mask = self.types[index], self.masks[index]
        if not isinstance(type, TensorType):
            return None
        # With rows even if the value is uniform: each device writes its own.
        head = self.divergence.inner.shape(mask | 1, self.count)
        return np.empty(head + type.sizes, type.dtype.numpy)

    def fill(self, rows: Array, values: list[Any]) -> None:
        """Write rows of finished devices; `values` have one row each, or one for all."""
        for out, value in zip(self.arrays, values, strict=True):
            if out is None:
                continue
            # Along other leading dims a value may vary inside and be uniform outside, by the
            # analysis: its pieces are equal, and the first one is taken.
            window = [slice(None)] + [slice(0, size) for size in out.shape[1:]]
            out[rows] = value[tuple(window)]


def _types(binder: BlockBinder, slots: tuple[Slot, ...]) -> list[Type]:
    return [stack.type for slot in slots if (stack := binder.stacks[slot]) is not None]


def divergent_branch_step(
    binder: BlockBinder, branch: DivergentBranch, dead: tuple[Slot, ...], code: Code
) -> SlotStep:
    """The step of a divergent branch: blocks run on the rows that take them."""
    codes = [binder.inner(block, code) for block in branch.blocks]
    rows, seen, outs = Rows(branch.divergence), branch.seen, branch.outs
    chooser, choose = branch.ins[0], chooser_of(branch.way, len(codes))
    outer, here = branch.divergence.outer.active, branch.divergence.inner.active
    types, constants = _types(binder, outs), binder.constants
    assert here is not None

    def step(s: SlotValues) -> None:
        active = None if outer is None else s[outer]
        numbers = rows.numbers(active)
        ways = rows.split(s[chooser], branch.given, active).reshape(-1)
        # Each block runs once for all rows that take it, not once for each device.
        block_of = np.array([choose(way) for way in ways])
        results = Results(branch.divergence, types, branch.results, len(numbers))
        for number, part in enumerate(codes):
            members = np.flatnonzero(block_of == number)
            if not len(members):
                continue
            s[here] = numbers[members]
            for entry in seen:
                x = rows.split(s[entry.outer], entry.mask, active)
                s[entry.slot] = pick(x, entry.inner, members)
            part.run(s)
            results.fill(members, [s[n] for n in part.results])
            for slot in part.results:
                if slot not in constants:
                    s[slot] = None
        for out, x, mask in zip(outs, results.arrays, branch.results, strict=True):
            s[out] = rows.to_outer(x, mask, active)
        for slot in (here, *(entry.slot for entry in seen), *dead):
            s[slot] = None

    return step


def divergent_loop_step(
    binder: BlockBinder, loop: DivergentLoop, dead: tuple[Slot, ...], code: Code
) -> SlotStep:
    """The step of a divergent loop."""
    test, work = binder.inner(loop.test, code), binder.inner(loop.body, code)
    run = _Loop(loop, test, work, _types(binder, loop.outs))
    results = {*test.results, *work.results} - set(binder.constants)
    own = {*results, *loop.carried, run.here}
    leftovers = (*own, *(entry.slot for entry in loop.seen), *dead)
    outer, outs = loop.divergence.outer.active, loop.outs

    def step(s: SlotValues) -> None:
        active = None if outer is None else s[outer]
        results = run(s, active)
        for out, x, mask in zip(outs, results.arrays, loop.results, strict=True):
            s[out] = run.rows.to_outer(x, mask, active)
        for slot in leftovers:
            s[slot] = None

    return step


class _Loop:
    """The iterations of a divergent loop."""

    def __init__(self, loop: DivergentLoop, test: Code, work: Code, types: Sequence[Type]) -> None:
        self.loop, self.test, self.work, self.types = loop, test, work, types
        inner, masks = loop.divergence.inner, loop.masks
        self.rows = Rows(loop.divergence)
        self.enter = [widen(m, c, inner) for m, c in zip(loop.entered, masks, strict=True)]
        self.again = [widen(m, c, inner) for m, c in zip(loop.made, masks, strict=True)]
        assert inner.active is not None
        self.here = inner.active

    def begin(self, s: SlotValues, active: Array | None, numbers: Array) -> None:
        """Convert carried and outer values to rows."""
        s[self.here] = numbers
        for entry in self.loop.seen:
            s[entry.slot] = self.rows.split(s[entry.outer], entry.mask, active)
        values = [
            wide(self.rows.split(s[slot], mask, active), numbers)
            for wide, slot, mask in zip(self.enter, self.loop.ins, self.loop.given, strict=False)
        ]
        for slot, value in zip(self.loop.carried, values, strict=True):
            s[slot] = value

    def __call__(self, s: SlotValues, active: Array | None) -> Results:
        """Iterate until no device is active."""
        loop, numbers = self.loop, self.rows.numbers(active)
        results = Results(loop.divergence, self.types, loop.results, len(numbers))
        self.begin(s, active, numbers)
        still = np.arange(len(numbers))  # the rows of active devices among all that entered
        while True:
            self.test.run(s)
            goes_on = np.broadcast_to(s[self.test.results[0]].reshape(-1), still.shape)
            # Rows are dropped only when a device leaves: copying all carried values has a cost.
            if not goes_on.all():
                self.leave(s, results, still, goes_on)
                still = still[goes_on]
                if not len(still):
                    return results
                s[self.here] = numbers[still]
            self.work.run(s)
            values = [
                wide(s[n], s[self.here])
                for wide, n in zip(self.again, self.work.results, strict=True)
            ]
            for slot, value in zip(loop.carried, values, strict=True):
                s[slot] = value

    def leave(self, s: SlotValues, results: Results, still: Array, goes_on: Array) -> None:
        """Save the values of devices that leave, and drop their rows."""
        done, loop = np.flatnonzero(~goes_on), self.loop
        held = zip(loop.carried, loop.masks, strict=True)
        results.fill(still[done], [pick(s[slot], mask, done) for slot, mask in held])
        rest = np.flatnonzero(goes_on)
        for slot, mask in zip(loop.carried, loop.masks, strict=True):
            s[slot] = pick(s[slot], mask, rest)
        for entry in loop.seen:
            s[entry.slot] = pick(s[entry.slot], entry.inner, rest)
