"""Devices that go different ways: each branch runs on those that take it, loops on who goes on.

The digits that a predicate varies along share one dim of rows then, a row for each device that is
active. A collective finds its whole group among the rows, or says who is missing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.errors import Unsupported
from weft.ir.module import Node, Value
from weft.ir.reading import captured
from weft.ir.types import Array, TensorType
from weft.run.code import Code, Item, Slots, Step
from weft.run.flow import chooser_of, widen
from weft.run.kernel import Site
from weft.run.layout import Layout
from weft.run.scope import Scope
from weft.varying.masks import Mask, Masks, bits, union

if TYPE_CHECKING:
    from weft.run.compile import Compiler


@dataclass(frozen=True)
class Fork:
    """How stacks of one layout become rows of another, and come back."""

    outer: Layout
    inner: Layout
    mask: int  # the outer leading dims that become rows

    @property
    def dims(self) -> tuple[int, ...]:
        """The outer leading dims that become rows, in order."""
        return bits(self.mask)

    def inside(self, mask: Mask) -> Mask:
        """What a value varies along inside."""
        if isinstance(mask, tuple):
            return tuple(self.inside(m) for m in mask)
        rest = [d for d in range(self.outer.lead) if d not in self.dims]
        found = sum(1 << n + 1 for n, d in enumerate(rest) if mask >> d & 1)
        return found | (1 if mask & self.mask else 0)

    def sizes(self, active: Array | None) -> list[int]:
        """The sizes of the dims that become rows."""
        return [
            len(active) if self.outer.has_rows and d == 0 and active is not None
            else self.outer.size(d)
            for d in self.dims
        ]  # fmt: skip

    def numbers(self, active: Array | None) -> Array:
        """The number that the rows' digits make, for each row."""
        added = math.prod(self.outer.size(d) for d in self.dims if not self.is_rows(d))
        base = np.zeros(1, np.int64) if active is None else active
        return (base[:, None] * added + np.arange(added)).reshape(-1)

    def is_rows(self, dim: int) -> bool:
        """Whether an outer leading dim is one of rows already."""
        return self.outer.has_rows and dim == 0

    def rows(self, x: Any, mask: Mask, active: Array | None) -> Any:
        """A value as rows; one row if it does not vary among them."""
        if x is None:
            return None
        if isinstance(mask, tuple):
            return tuple([self.rows(p, m, active) for p, m in zip(x, mask, strict=True)])
        dims, lead = self.dims, self.outer.lead
        rest = [d for d in range(x.ndim) if d not in dims]
        count = 1
        if mask & self.mask:
            shape, sizes = list(x.shape), self.sizes(active)
            for dim, size in zip(dims, sizes, strict=True):
                shape[dim] = size
            x, count = np.broadcast_to(x, shape), math.prod(sizes)
        kept = [x.shape[d] for d in range(lead) if d not in dims]
        return x.transpose([*dims, *rest]).reshape(count, *kept, *x.shape[lead:])

    def back(self, x: Any, mask: Mask, active: Array | None) -> Any:
        """Rows as a stack of the outer layout; of rows that do not vary there, the first."""
        if x is None:
            return None
        sizes, dims = self.sizes(active), list(self.dims)
        opened = x.reshape(*sizes, *x.shape[1:])
        order = [*dims, *(d for d in range(opened.ndim) if d not in dims)]
        found = opened.transpose(np.argsort(order))
        return found if union(mask) & 1 or not self.outer.has_rows else found[:1]


def fork(compiler: Compiler, layout: Layout, predicate: int) -> Fork:
    """The layout inside of a part where a predicate varies along these dims."""
    mask = predicate | layout.has_rows
    added = tuple(layout.kept[d - layout.has_rows] for d in bits(predicate) if not _rows(layout, d))
    inner = Layout(layout.atoms, layout.rows + added, compiler.new())
    return Fork(layout, inner, mask)


def _rows(layout: Layout, dim: int) -> bool:
    return layout.has_rows and dim == 0


@dataclass(frozen=True)
class Seen:
    """A value from outside that a part reads: where it is, and what it varies along."""

    outer: int
    slot: int
    mask: Mask
    inner: Mask


def see(compiler: Compiler, site: Site, fork: Fork, scope: Scope) -> list[Seen]:
    """Slots inside for the values that regions read from outside."""
    found: list[Seen] = []
    for value in captured(site.node):
        mask = site.scope.masks[value]
        entry = Seen(site.scope.slots[value], compiler.new(), mask, fork.inside(mask))
        scope.slots[value], scope.masks[value] = entry.slot, entry.inner
        found.append(entry)
    return found


# Results


def pick(x: Any, mask: Mask, chosen: Array) -> Any:
    """Some rows of a value; a value that does not vary among them stays as it is."""
    if isinstance(mask, tuple):
        return tuple([pick(p, m, chosen) for p, m in zip(x, mask, strict=True)])
    return x[chosen] if x is not None and mask & 1 else x


class Results:
    """The results of a part, filled in row by row."""

    def __init__(self, fork: Fork, values: tuple[Value, ...], made: Masks, count: int) -> None:
        self.fork = fork
        self.types = [v.type for v in values]
        self.masks = [union(fork.inside(m)) for m in made]
        self.count = count
        self.arrays: list[Any] = [self.room(n) for n in range(len(values))]

    def room(self, index: int) -> Array | None:
        """An array for all rows of a result."""
        type, mask = self.types[index], self.masks[index]
        if not isinstance(type, TensorType):
            return None
        head = self.fork.inner.shape(mask | 1, self.count)
        return np.empty(head + type.sizes, type.dtype.numpy)

    def fill(self, rows: Array, values: list[Any]) -> None:
        """Write the rows of those devices that are done; `values` have a row for each, or one."""
        for out, value in zip(self.arrays, values, strict=True):
            if out is None:
                continue
            # What differs by the analysis inside, but not outside, is equal: the first will do.
            window = [slice(None)] + [slice(0, size) for size in out.shape[1:]]
            out[rows] = value[tuple(window)]


def no_tuples(node: Node) -> None:
    """Refuse tuples where devices go different ways: nothing makes them but old programs."""
    if any(not isinstance(v.type, TensorType) and "tuple" in str(v.type) for v in node.results):
        raise Unsupported(
            f"{node.op.name}: gives a tuple, and devices go different ways in it",
            help="return the values one by one",
        )


# Branches


def branch_apart(compiler: Compiler, site: Site, code: Code) -> None:
    """A branch that devices take differently: every region runs on those that take it."""
    scope, node = site.scope, site.node
    no_tuples(node)
    parted = fork(compiler, scope.layout, union(site.given[0]))
    inner = scope.parted(parted.inner)
    seen = see(compiler, site, parted, inner)
    codes = tuple([compiler.region(region, inner) for region in node.regions])
    chooser, choose = scope.slots[node.operands[0]], chooser_of(node)
    outs = compiler.results(node, scope)
    rows, here, constants = scope.layout.active, parted.inner.active, compiler.constants
    assert here is not None

    def bind(item: Item) -> Step:
        def step(s: Slots) -> None:
            active = None if rows is None else s[rows]
            numbers = parted.numbers(active)
            ways = parted.rows(s[chooser], site.given[0], active).reshape(-1)
            taken = np.array([choose(way) for way in ways])
            found = Results(parted, node.results, site.made, len(numbers))
            for number, part in enumerate(codes):
                chosen = np.flatnonzero(taken == number)
                if not len(chosen):
                    continue
                s[here] = numbers[chosen]
                for entry in seen:
                    x = parted.rows(s[entry.outer], entry.mask, active)
                    s[entry.slot] = pick(x, entry.inner, chosen)
                part.run(s)
                found.fill(chosen, [s[n] for n in part.results])
                for slot in part.results:
                    if slot not in constants:
                        s[slot] = None
            for out, x, mask in zip(outs, found.arrays, site.made, strict=True):
                s[out] = parted.back(x, mask, active)
            for slot in (here, *(entry.slot for entry in seen), *item.dead):
                s[slot] = None

        return step

    ins = (chooser, *(entry.outer for entry in seen))
    code.items.append(Item(node, bind, None, ins, outs, node.results, inner=codes))


# Loops


def loop_apart(compiler: Compiler, site: Site, predicate: int, code: Code) -> None:
    """A loop that devices leave at different times: it runs on those that are still in it."""
    scope, node = site.scope, site.node
    no_tuples(node)
    parted = fork(compiler, scope.layout, predicate)
    inner = scope.parted(parted.inner)
    seen = see(compiler, site, parted, inner)
    given = tuple(parted.inside(m) for m in site.given)
    masks, tested = inner.loop(node)
    assert not tested & ~1, "a predicate on rows varies along the rows only"
    loop = _Loop(compiler, site, parted, inner, seen, given, masks)
    ins = (*loop.ins, *(entry.outer for entry in seen))
    code.items.append(
        Item(node, loop.bind, None, ins, loop.outs, node.results, inner=(loop.test, loop.work))
    )


class _Loop:
    """The parts of a loop that devices leave at different times."""

    def __init__(
        self,
        compiler: Compiler,
        site: Site,
        parted: Fork,
        inner: Scope,
        seen: list[Seen],
        given: Masks,
        masks: Masks,
    ) -> None:
        condition, body = site.node.regions
        self.site, self.parted, self.seen, self.masks = site, parted, seen, masks
        self.slots = [compiler.new() for _ in masks]
        self.constants = compiler.constants
        for region in (condition, body):
            inner.slots.update(zip(region.args, self.slots, strict=True))
            inner.let(region.args, masks)
        self.test = compiler.region(condition, inner)
        self.work = compiler.region(body, inner)
        made = inner.of(body.results)
        self.enter = [widen(m, c, parted.inner) for m, c in zip(given, masks, strict=True)]
        self.again = [widen(m, c, parted.inner) for m, c in zip(made, masks, strict=True)]
        self.ins = tuple([site.scope.slots[v] for v in site.node.operands])
        self.outs = compiler.results(site.node, site.scope)
        assert parted.inner.active is not None
        self.here = parted.inner.active
        self.rows = site.scope.layout.active

    def bind(self, item: Item) -> Step:
        """The closure."""
        results = {*self.test.results, *self.work.results} - set(self.constants)
        own = {*results, *self.slots, self.here}
        leftovers = (*own, *(entry.slot for entry in self.seen), *item.dead)

        def step(s: Slots) -> None:
            active = None if self.rows is None else s[self.rows]
            found = self.run(s, active)
            for out, x, mask in zip(self.outs, found.arrays, self.site.made, strict=True):
                s[out] = self.parted.back(x, mask, active)
            for slot in leftovers:
                s[slot] = None

        return step

    def begin(self, s: Slots, active: Array | None, numbers: Array) -> None:
        """Bring the carried values, and those that are read, into rows."""
        s[self.here] = numbers
        for entry in self.seen:
            s[entry.slot] = self.parted.rows(s[entry.outer], entry.mask, active)
        values = [
            wide(self.parted.rows(s[slot], mask, active), numbers)
            for wide, slot, mask in zip(self.enter, self.ins, self.site.given, strict=True)
        ]
        for slot, value in zip(self.slots, values, strict=True):
            s[slot] = value

    def run(self, s: Slots, active: Array | None) -> Results:
        """Run until nobody is left."""
        numbers = self.parted.numbers(active)
        found = Results(self.parted, self.site.node.results, self.site.made, len(numbers))
        self.begin(s, active, numbers)
        still = np.arange(len(numbers))
        while True:
            self.test.run(s)
            goes_on = np.broadcast_to(s[self.test.results[0]].reshape(-1), still.shape)
            if not goes_on.all():
                self.leave(s, found, still, goes_on)
                still = still[goes_on]
                if not len(still):
                    return found
                s[self.here] = numbers[still]
            self.work.run(s)
            values = [
                wide(s[n], s[self.here])
                for wide, n in zip(self.again, self.work.results, strict=True)
            ]
            for slot, value in zip(self.slots, values, strict=True):
                s[slot] = value

    def leave(self, s: Slots, found: Results, still: Array, goes_on: Array) -> None:
        """Keep the values of devices that are done, and drop their rows."""
        done = np.flatnonzero(~goes_on)
        held = zip(self.slots, self.masks, strict=True)
        found.fill(still[done], [pick(s[slot], mask, done) for slot, mask in held])
        rest = np.flatnonzero(goes_on)
        for slot, mask in zip(self.slots, self.masks, strict=True):
            s[slot] = pick(s[slot], mask, rest)
        for entry in self.seen:
            s[entry.slot] = pick(s[entry.slot], entry.inner, rest)
