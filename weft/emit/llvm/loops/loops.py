"""Loop emission: every step is computed where exactly the factors that it spans are open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from weft.emit.llvm.loops.passes import SinkGroup, arrange, busiest
from weft.emit.llvm.loops.plan import LoopPlan
from weft.emit.llvm.loops.reduce import HeldSums, begin, combined, finish, update
from weft.emit.llvm.loops.simplify import reachable_steps
from weft.emit.llvm.loops.values import ScratchValue, StepValues
from weft.emit.llvm.writer.access import boundaries
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import larger, plus, smaller
from weft.emit.llvm.writer.storage import Held, is_narrow
from weft.emit.llvm.writer.vector import BITS, Vector, Vectors
from weft.kernels.kernel import Choose, Load, Pick, Reduce, Store

End = int | str
SHARED = 1 << 13  # elements of a row that are kept for all rows
# Copies of a loop for guards that change along it or outside: the inside and both borders, along
# two dims.
COPIES = 9


class Loops:
    """Emits the loops of a kernel's sinks (stores and reductions) in one function."""

    def __init__(self, plan: LoopPlan, code: Writer, pointers: Sequence[str]) -> None:
        self.plan = plan
        self.kernel = plan.kernel
        self.code = code
        self.at = StepValues(plan, code, pointers)
        self.sums: dict[int, HeldSums] = {}
        self.bounds: dict[int, tuple[End, End]] = {}
        self.copies = 1

    # Passes

    def run(self, sinks: Sequence[int]) -> None:
        """Emit the sinks over all factors that are not open yet."""
        at = self.at
        before, room = set(at.slots), at.scratch
        passes = arrange(self.kernel, sinks, at.ready, at.index.keys(), self.plan.caches.l2)
        busy = None
        if len(passes) > 1:
            busy = busiest(self.kernel, passes, at.ready, at.index.keys())
        for one in passes:
            outer = at.is_busy
            if busy is not None:
                at.is_busy = one is busy
            self.run_pass(one)
            at.is_busy = outer
        # Scratch of this level is free again.
        at.slots = {n: slot for n, slot in at.slots.items() if n in before}
        at.scratch = room

    def run_pass(self, one: SinkGroup) -> None:
        """Emit the sinks of a pass, and finish the reductions that started in it."""
        at, spilled = self.at, self.plan.spilled
        for n in one.keeps:
            at.keep(n)
        for n in one.starts:
            if n in spilled:
                self.clear(n, at.keep(n))
            else:
                v, across = at.lanes(self.all_factors(n)), self.is_across(n)
                self.sums[n] = begin(v, self.kernel, n, across)
        self.run_sinks((*one.sinks, *one.starts))
        for n in one.keeps:
            at.slots[n].ready = True
        for n in one.starts:
            if n in spilled:
                at.slots[n].ready = True
            else:
                at.known[n] = self.result(n)
                if n in at.slots:
                    at.remember(n, at.known[n])

    def run_sinks(self, sinks: Sequence[int]) -> None:
        """Emit sinks, merging those with the same loops."""
        at = self.at
        # Inside of its kept factors a spilled sum is a register: loaded here, and stored at the
        # end.
        loaded = [
            n for n in sinks if n in self.plan.spilled and n not in self.sums and self.is_open(n)
        ]
        for n in loaded:
            self.sums[n] = (at.from_scratch(n),)
        waiting: dict[int, list[int]] = {}
        for n in sinks:
            left = self.all_factors(n) - at.index.keys()
            if left:
                # Factors are numbered in loop order: the least is the outermost one that is not
                # open.
                waiting.setdefault(min(left), []).append(n)
            else:
                self.sink(n)
        for factor in sorted(waiting):
            self.loop(factor, waiting[factor])
        for n in loaded:
            at.remember(n, self.sums.pop(n)[0])

    def is_open(self, n: int) -> bool:
        """Whether all factors that a step spans are open."""
        return self.kernel.spans[n] <= self.at.index.keys()

    def all_factors(self, n: int) -> frozenset[int]:
        """The factors that a sink iterates over."""
        step, span = self.kernel.steps[n], self.kernel.spans[n]
        return span | set(step.over) if isinstance(step, Reduce | Pick) else span

    def is_across(self, n: int) -> bool:
        """Whether a reduction combines lanes."""
        step = self.kernel.steps[n]
        assert isinstance(step, Reduce | Pick), "a reduction or a pick"
        return self.plan.vector in step.over

    def clear(self, n: int, values: ScratchValue) -> None:
        """Start a reduction in scratch memory."""
        v = Vectors(self.code, self.plan.width)
        (held,) = begin(v, self.kernel, n)
        for number, part in enumerate(held):
            kind = "i8" if part.kind == "i1" else part.kind
            # Booleans are bytes in memory: a vector of i1 would be packed bits.
            value = v.cast("zext", part, kind) if part.kind == "i1" else part
            offset = values.offset + number * values.nbytes
            base = self.code.let(f"getelementptr i8, ptr %scratch, i64 {offset}")
            count = values.nbytes * 8 // max(8, BITS[kind])
            # Space is allocated in whole cache lines, which may be less than a vector.
            width = min(self.plan.width, count)
            some = Vectors(self.code, width)
            if width < self.plan.width:
                (value,) = begin(some, self.kernel, n)[0][number : number + 1]
            with self.code.loop(0, count // width * width, width) as loop:
                some.store(value, some.at(base, loop.index, kind))

    # Loops

    def loop(self, factor: int, sinks: list[int]) -> None:
        """Emit sinks at every point of a factor."""
        self.hoist(sinks)
        carried = [n for n in sinks if n in self.sums]
        size = self.kernel.factors[factor].size
        low, high = self.bounds.get(factor, (0, size))
        cuts = self.cuts(factor, sinks)
        for first, end in self.segments(factor, cuts):
            start, last = (low, high) if not cuts else self.clipped(low, high, first, end)
            if factor == self.plan.vector:
                self.lanes_loop(factor, lambda: self.run(sinks), carried, start, last)
            else:
                with self.carrying(start, last, 1, carried) as index, self.inside(factor, index):
                    self.run(sinks)

    def segments(self, factor: int, cuts: list[int]) -> Iterator[tuple[int, int]]:
        """The ranges of a factor between cuts, each with specialized code."""
        size, before = self.kernel.factors[factor].size, self.at.ranges.get(factor)
        self.copies *= len(cuts) + 1
        for first, end in pairwise([0, *cuts, size]):
            self.at.ranges[factor] = (first, end)
            yield first, end
        self.copies //= len(cuts) + 1
        del self.at.ranges[factor]
        if before is not None:
            self.at.ranges[factor] = before

    def cuts(self, factor: int, sinks: Sequence[int]) -> list[int]:
        """The indices of a factor at which a guard of the sinks' inputs changes."""
        if self.plan.unrolled:
            return [*range(1, self.kernel.factors[factor].size)]
        changes: set[int] = set()
        for n in reachable_steps(self.kernel.steps, sinks, self.at.ready):
            step = self.kernel.steps[n]
            if isinstance(step, Load | Store | Choose):
                changes |= {cut for guard in step.guards for cut in boundaries(guard, factor)}
        inside = sorted(c for c in changes if 0 < c < self.kernel.factors[factor].size)
        # Specialized segments have no guards inside, but nested cuts multiply the code.
        return inside if (len(inside) + 1) * self.copies <= COPIES else []

    def clipped(self, low: End, high: End, first: int, end: int) -> tuple[End, End]:
        """The intersection of a range with two indices; possibly empty."""
        if isinstance(low, int) and isinstance(high, int):
            low, high = max(low, first), min(high, end)
            return low, max(low, high)
        below = larger(self.code, low, first)
        return below, larger(self.code, smaller(self.code, high, end), below)

    def lanes_loop(
        self, factor: int, body: Callable[[], None], carried: list[int], low: End, high: End
    ) -> None:
        """Emit a vectorized loop: full vectors, then the remainder."""
        width = self.plan.width
        if isinstance(low, int) and isinstance(high, int):
            middle: End = low + (high - low) // width * width
            rest = high - low - (high - low) // width * width
        else:
            length = self.code.let(f"sub nsw i64 {high}, {low}")
            whole = self.code.let(f"and i64 {length}, {-width}")
            # Bounds that are known when it runs only: there may be a rest (-1), unless every range
            # begins and ends at whole vectors.
            middle, rest = plus(self.code, whole, low), -1
            if all(n % width == 0 for n in (self.plan.starts(factor), *self.at.ranges[factor])):
                rest = 0
        if low != middle:
            with self.carrying(low, middle, width, carried) as index, self.inside(factor, index):
                body()
        if rest > 0:
            with self.inside(factor, str(middle), self.at.wide.first(str(rest))):
                body()
        elif rest < 0:
            with self.carrying(middle, high, width, carried) as index:
                left = self.code.let(f"sub nsw i64 {high}, {index}")
                with self.inside(factor, index, self.at.wide.first(left)):
                    body()

    def read_ahead(self) -> None:
        """Before all tasks: convert narrow floats that every row shares to f32, once."""
        at, vector = self.at, self.plan.vector
        if vector is None:
            return
        shared = [n for n in range(len(self.kernel.steps)) if self.is_shared(n, vector)]
        if not shared:
            return
        for n in shared:
            at.keep(n)
        size = self.kernel.factors[vector].size
        at.ranges[vector] = (0, size)

        def body() -> None:
            for n in shared:
                at.value(n)

        self.lanes_loop(vector, body, [], 0, size)
        del at.ranges[vector]
        for n in shared:
            at.slots[n].ready = True

    def is_shared(self, n: int, vector: int) -> bool:
        """Whether a step loads a short vector of narrow floats that varies along lanes only."""
        step = self.kernel.steps[n]
        if not isinstance(step, Load) or step.guards or step.shifts or not is_narrow(step.dtype):
            return False
        inner = self.kernel.spans[n] == {vector} and self.plan.starts(vector) == 0
        return inner and self.kernel.factors[vector].size <= SHARED

    @contextmanager
    def carrying(self, low: End, high: End, step: int, carried: list[int]) -> Iterator[str]:
        """A loop with loop-carried sums; yields its index."""
        fixed = isinstance(low, int) and isinstance(high, int)
        if isinstance(low, int) and isinstance(high, int) and 0 < high - low <= step:
            # One iteration: no loop, and a constant index.
            yield str(low)
            return
        parts = [part for n in carried for held in self.sums[n] for part in held]
        given = [(part.type, part.text) for part in parts]
        with self.code.loop(low, high, step, given, at_least_once=fixed) as loop:
            self.rename(carried, loop.carried)
            yield loop.index
            loop.carry(*(p.text for n in carried for held in self.sums[n] for p in held))
        self.rename(carried, loop.carried)

    def rename(self, carried: list[int], texts: Sequence[str]) -> None:
        """Rename sums to the loop's results."""
        names = iter(texts)
        for n in carried:
            self.sums[n] = tuple(
                [
                    tuple([Vector(next(names), part.kind, part.width) for part in held])
                    for held in self.sums[n]
                ]
            )

    @contextmanager
    def inside(self, factor: int, index: str, mask: Vector | None = None) -> Iterator[None]:
        """The body of a loop: values computed in it go out of scope after it."""
        at = self.at
        known, outer = at.known, at.mask
        at.known = dict(known)
        at.index[factor] = index
        if factor == self.plan.vector:
            at.mask = mask
        yield
        at.known, at.mask = known, outer
        del at.index[factor]

    def hoist(self, sinks: list[int]) -> None:
        """Hoist loop-invariant inputs of the sinks."""
        roots = [n for s in sinks for n in self.read_by(s)]
        for n in sorted(reachable_steps(self.kernel.steps, roots, self.at.ready)):
            if self.is_open(n):
                self.at.value(n)
            else:
                self.at.prepare(n)

    def read_by(self, sink: int) -> tuple[int, ...]:
        """The steps that a sink reads while it runs; a reduction's init is read at its end."""
        match self.kernel.steps[sink]:
            case Store(arg=arg) | Reduce(arg=arg):
                return (arg,)
            case Pick(key=key, value=value):
                return (key, value)
        raise AssertionError("a store, a reduction or a pick")

    # Sinks

    def sink(self, n: int) -> None:
        """A store, or an update of a reduction, with all factors open."""
        step, at = self.kernel.steps[n], self.at
        if isinstance(step, Store):
            at.store(step, n)
            return
        assert isinstance(step, Reduce | Pick), "a store, a reduction or a pick"
        v = at.lanes(self.all_factors(n))
        inputs = [at.spread(m, v) for m in self.read_by(n)]
        if isinstance(step, Pick):
            inputs.append((at.position_along(step, v),))
        mask = at.mask if self.plan.vector in step.over else None
        self.sums[n] = update(v, self.kernel, n, self.sums[n], inputs, mask)

    def result(self, n: int) -> Held:
        """The final value of a reduction."""
        step, span = self.kernel.steps[n], self.kernel.spans[n]
        assert isinstance(step, Reduce | Pick)
        v = self.at.lanes(self.all_factors(n))
        sums = finish(v, self.kernel, n, self.sums.pop(n), self.is_across(n))
        if isinstance(step, Pick):
            return sums[1]
        total = sums[0]
        if step.init is not None:
            v = self.at.lanes(span)
            total = combined(v, step.how, step.dtype, self.at.spread(step.init, v), total)
        return total
