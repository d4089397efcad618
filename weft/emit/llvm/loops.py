"""Loops in LLVM text: every step of a kernel computed where the factors that it spans are open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise

from weft.emit.llvm import storage
from weft.emit.llvm.access import (
    Place,
    Point,
    base_of,
    both,
    counted,
    holds,
    known,
    limits,
    read,
    shifted,
    turns,
    write,
)
from weft.emit.llvm.code import Code
from weft.emit.llvm.loops_passes import Pass, arrange, reached
from weft.emit.llvm.loops_plan import Plan
from weft.emit.llvm.loops_reduce import Sums, begin, combined, finish, update
from weft.emit.llvm.loops_simplify import value_dtype
from weft.emit.llvm.nest import PARAMS, divided, function, larger, plus, pointers, smaller, times
from weft.emit.llvm.pointwise import apply
from weft.emit.llvm.reciprocal import reciprocal
from weft.emit.llvm.storage import Held
from weft.emit.llvm.vector import BITS, Vector, Vectors
from weft.ir.types import I32, I64, tensor
from weft.kernels.kernel import Affine, Apply, Choose, Fill, Load, Pick, Position, Reduce, Store
from weft.ops.convert import Convert
from weft.ops.pointwise import Divide

End = int | str
SEGMENTS = 9  # a loop is written at most so often for guards that change along it


@dataclass(slots=True)
class Kept:
    """A value in scratch memory: where it begins, and a stride for each factor it has there."""

    offset: int
    strides: dict[int, int]
    ready: bool = False


class Loops:
    """The text of loops that run the sinks of a kernel, inside of one function."""

    def __init__(self, plan: Plan, code: Code, pointers: Sequence[str]) -> None:
        self.plan = plan
        self.kernel = plan.kernel
        self.code = code
        self.pointers = pointers
        self.one, self.wide = Vectors(code, 1), Vectors(code, plan.width)
        self.values: dict[int, Held] = {}
        self.sums: dict[int, Sums] = {}
        self.kept: dict[int, Kept] = {}
        self.index: dict[int, str] = {}
        self.ranges: dict[int, tuple[int, int]] = {}
        self.bounds: dict[int, tuple[End, End]] = {}
        self.mask: Vector | None = None
        self.scratch = self.most_scratch = 0

    # Passes and loops

    def run(self, sinks: Sequence[int]) -> None:
        """Do what is to be done for every point of the factors that are not open yet."""
        ready = {*self.values, *(n for n, kept in self.kept.items() if kept.ready)}
        before, room = set(self.kept), self.scratch
        for one in arrange(self.kernel, sinks, ready, self.index.keys()):
            self.run_pass(one)
        self.kept = {n: kept for n, kept in self.kept.items() if n in before}
        self.scratch = room

    def run_pass(self, one: Pass) -> None:
        for n in one.keeps:
            self.kept[n] = self.room_for(n)
        for n in one.starts:
            self.sums[n] = begin(self.lanes(self.all_factors(n)), self.kernel, n)
        waiting: dict[int, list[int]] = {}
        for n in (*one.sinks, *one.starts):
            left = self.all_factors(n) - self.index.keys()
            if left:
                waiting.setdefault(min(left), []).append(n)
            else:
                self.sink(n)
        for factor in sorted(waiting):
            self.loop(factor, waiting[factor])
        for n in one.keeps:
            self.kept[n].ready = True
        for n in one.starts:
            self.values[n] = self.result(n)
            if n in self.kept:
                self.remember(n, self.kept[n])

    def all_factors(self, n: int) -> frozenset[int]:
        """The factors whose points a sink has to see."""
        step, span = self.kernel.steps[n], self.kernel.spans[n]
        return span | set(step.over) if isinstance(step, Reduce | Pick) else span

    def loop(self, factor: int, sinks: list[int]) -> None:
        """Run sinks at every point of a factor."""
        self.hoist(sinks)
        carried = [n for n in sinks if n in self.sums]
        size = self.kernel.factors[factor].size
        low, high = self.bounds.get(factor, (0, size))
        cuts = self.cuts(factor, sinks)
        for first, end in pairwise([0, *cuts, size]):
            self.ranges[factor] = (first, end)
            begin, last = (low, high) if not cuts else self.clipped(low, high, first, end)
            if factor == self.plan.vector:
                self.lanes_loop(factor, sinks, carried, begin, last)
            else:
                with self.carrying(begin, last, 1, carried) as index, self.inside(factor, index):
                    self.run(sinks)
        del self.ranges[factor]

    def cuts(self, factor: int, sinks: Sequence[int]) -> list[int]:
        """Where along a factor a guard of what the sinks need begins or ceases to hold."""
        ready = {*self.values, *(n for n, kept in self.kept.items() if kept.ready)}
        found: set[int] = set()
        for n in reached(self.kernel.steps, sinks, ready):
            step = self.kernel.steps[n]
            if isinstance(step, Load | Store | Choose):
                found |= {cut for guard in step.guards for cut in turns(guard, factor)}
        inside = sorted(c for c in found if 0 < c < self.kernel.factors[factor].size)
        return inside if len(inside) < SEGMENTS else []

    def clipped(self, low: End, high: End, first: int, end: int) -> tuple[End, End]:
        """The part of a range that lies between two indices; it may be empty."""
        if isinstance(low, int) and isinstance(high, int):
            low, high = max(low, first), min(high, end)
            return low, max(low, high)
        below = larger(self.code, low, first)
        return below, larger(self.code, smaller(self.code, high, end), below)

    def lanes_loop(
        self, factor: int, sinks: list[int], carried: list[int], low: End, high: End
    ) -> None:
        """Run sinks in vectors: whole ones, then what is left."""
        width = self.plan.width
        if isinstance(low, int) and isinstance(high, int):
            middle: End = low + (high - low) // width * width
            rest = high - low - (high - low) // width * width
        else:
            length = self.code.let(f"sub nsw i64 {high}, {low}")
            whole = self.code.let(f"and i64 {length}, {-width}")
            middle, rest = plus(self.code, whole, low), -1
            block = self.plan.cut[1] if self.plan.cut is not None else self.plan.block
            if all(n % width == 0 for n in (block, *self.ranges[factor])):
                rest = 0
        if low != middle:
            with self.carrying(low, middle, width, carried) as index, self.inside(factor, index):
                self.run(sinks)
        if rest > 0:
            with self.inside(factor, str(middle), self.first_lanes(rest)):
                self.run(sinks)
        elif rest < 0:
            with self.carrying(middle, high, width, carried) as index:
                left = self.code.let(f"sub nsw i64 {high}, {index}")
                with self.inside(factor, index, self.wide.first(left)):
                    self.run(sinks)

    def first_lanes(self, count: int) -> Vector:
        lanes = ", ".join(f"i1 {'true' if n < count else 'false'}" for n in range(self.wide.width))
        return Vector(f"<{lanes}>", "i1", self.wide.width)

    @contextmanager
    def carrying(self, low: End, high: End, step: int, carried: list[int]) -> Iterator[str]:
        """A loop that sums go through; gives its index."""
        if isinstance(low, int) and isinstance(high, int) and 0 < high - low <= step:
            yield str(low)
            return
        flat = [part for n in carried for held in self.sums[n] for part in held]
        once = isinstance(low, int) and isinstance(high, int)
        given = [(part.type, part.text) for part in flat]
        with self.code.loop(low, high, step, given, at_least_once=once) as loop:
            self.rename(carried, loop.carried)
            yield loop.index
            loop.carry(*(p.text for n in carried for held in self.sums[n] for p in held))
        self.rename(carried, loop.carried)

    def rename(self, carried: list[int], texts: Sequence[str]) -> None:
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
        """The body of a loop: what is computed in it is not known after it."""
        values, outer = self.values, self.mask
        self.values = dict(values)
        self.index[factor] = index
        if factor == self.plan.vector:
            self.mask = mask
        yield
        self.values, self.mask = values, outer
        del self.index[factor]

    def hoist(self, sinks: list[int]) -> None:
        """Compute what the sinks need and what no loop inside changes."""
        ready = {*self.values, *(n for n, kept in self.kept.items() if kept.ready)}
        roots = [n for s in sinks for n in self.read_by(s)]
        for n in sorted(reached(self.kernel.steps, roots, ready)):
            if self.kernel.spans[n] <= self.index.keys():
                self.value(n)

    def read_by(self, sink: int) -> tuple[int, ...]:
        """The steps that a sink reads while it runs; the init of a reduction is for the end."""
        match self.kernel.steps[sink]:
            case Store(arg=arg) | Reduce(arg=arg):
                return (arg,)
            case Pick(key=key, value=value):
                return (key, value)
        raise AssertionError("a store, a reduction or a pick")

    # Sinks

    def sink(self, n: int) -> None:
        """A store or a round of a reduction, at a point where all is open."""
        step = self.kernel.steps[n]
        if isinstance(step, Store):
            self.store(step, n)
            return
        assert isinstance(step, Reduce | Pick), "a store, a reduction or a pick"
        v = self.lanes(self.all_factors(n))
        given = [self.spread(m, v) for m in self.read_by(n)]
        if isinstance(step, Pick):
            given.append((self.position_along(step.over, v),))
        mask = self.mask if self.plan.vector in step.over else None
        self.sums[n] = update(v, self.kernel, n, self.sums[n], given, mask)

    def position_along(self, over: Sequence[int], v: Vectors) -> Vector:
        """How many points of some factors, in their order, come before this one."""
        strides = [0] * len(self.kernel.factors)
        count = 1
        for factor in reversed(over):
            strides[factor] = count
            count *= self.kernel.factors[factor].size
        at = Affine(tuple(strides))
        point = Point(self.index, self.ranges, self.plan.vector if v.width > 1 else None)
        return Place(base_of(v, at, point), point.stride(at)).all_lanes(v)

    def result(self, n: int) -> Held:
        """What a reduction ends with."""
        step, span = self.kernel.steps[n], self.kernel.spans[n]
        assert isinstance(step, Reduce | Pick)
        across = self.plan.vector in step.over
        v = self.lanes(self.all_factors(n))
        sums = finish(v, self.kernel, n, self.sums.pop(n), across)
        if isinstance(step, Pick):
            return sums[1]
        made = sums[0]
        if step.init is not None:
            v = self.lanes(span)
            made = combined(v, step.how, step.dtype, self.spread(step.init, v), made)
        return made

    def store(self, step: Store, n: int) -> None:
        v, point = self.lanes(self.kernel.spans[n]), self.point(n)
        if known(step.guards, point) is False:
            return
        mask = both(v, holds(v, step.guards, point), point.mask)
        dtype = self.kernel.operands[step.operand].dtype
        value = self.spread(step.arg, v)
        place = Place(base_of(v, step.at, point), point.stride(step.at))
        base = self.pointers[step.operand]
        write(v, value, base, place, dtype, mask, streaming=n in self.plan.streams)

    # Values

    def lanes(self, span: frozenset[int]) -> Vectors:
        """The vectors of values that vary along some factors."""
        return self.wide if self.plan.vector in span else self.one

    def point(self, n: int) -> Point:
        if self.plan.vector in self.kernel.spans[n]:
            return Point(self.index, self.ranges, self.plan.vector, self.mask)
        return Point(self.index, self.ranges)

    def spread(self, n: int, v: Vectors) -> Held:
        """A value in so many lanes."""
        step = self.kernel.steps[n]
        if isinstance(step, Fill):
            return storage.fill(v, step.value, step.dtype)
        held = self.value(n)
        return held if held[0].width == v.width else tuple([v.splat(part) for part in held])

    def value(self, n: int) -> Held:
        """A step where the loops stand."""
        if n not in self.values:
            kept = self.kept.get(n)
            if kept is not None and kept.ready:
                self.values[n] = self.recall(n, kept)
            else:
                self.values[n] = self.computed(n)
                if kept is not None:
                    self.remember(n, kept)
        return self.values[n]

    def computed(self, n: int) -> Held:
        step, v = self.kernel.steps[n], self.lanes(self.kernel.spans[n])
        match step:
            case Load():
                return self.load(step, n)
            case Fill(value=value, dtype=dtype):
                return storage.fill(v, value, dtype)
            case Position():
                return self.position(step, n)
            case Apply(op=op, args=args, dtype=dtype):
                if isinstance(op, Divide) and self.is_same_in_lanes(args[1], v):
                    return self.scaled(args[0], args[1], v)
                given = [self.spread(a, v) for a in args]
                dtypes = [value_dtype(self.kernel.steps[a]) for a in args]
                return apply(v, op, given, dtypes, dtype)
            case Choose():
                return self.choose(step, n)
        raise AssertionError(f"step {n}, a {type(step).__name__}, is not ready")

    def is_same_in_lanes(self, n: int, v: Vectors) -> bool:
        """Whether a float is one for all lanes."""
        is_float = value_dtype(self.kernel.steps[n]).is_float
        return is_float and v.width > 1 and self.plan.vector not in self.kernel.spans[n]

    def scaled(self, n: int, divisor: int, v: Vectors) -> Held:
        """A quotient by a number that all lanes share: two products instead of a division."""
        one = self.one
        (by,) = self.spread(divisor, one)
        factors = [part.text for part in reciprocal(one, by)]
        (value,) = self.spread(n, v)
        for text in factors:
            value = v.mul(value, v.splat(Vector(text, by.kind)))
        return (value,)

    def load(self, step: Load, n: int) -> Held:
        v, point = self.lanes(self.kernel.spans[n]), self.point(n)
        if known(step.guards, point) is False:
            return storage.fill(v, 0, step.dtype)
        mask = both(v, holds(v, step.guards, point), point.mask)
        place = Place(base_of(v, step.at, point), point.stride(step.at))
        for shift in step.shifts:
            (index,) = self.value(shift.index)
            signed = value_dtype(self.kernel.steps[shift.index]).kind == "int"
            place, inside = shifted(v, place, shift, index, signed)
            mask = both(v, mask, inside)
        ahead = dict(self.kernel.schedule.options).get("ahead", 0)
        if ahead and place.stride == 1 and v.width > 1 and mask is None and self.kernel.operands[step.operand].nbytes>(1<<20):
            item = self.kernel.operands[step.operand].dtype.numpy.itemsize
            kind=storage.memory_kind(step.dtype)
            base = self.one.at(self.pointers[step.operand], place.base, kind)
            self.code.declare("declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)")
            for line in range(0, v.width*item, 64):
                p = self.code.let(f"getelementptr i8, ptr {base}, i64 {line+ahead}")
                self.code.do(f"call void @llvm.prefetch.p0(ptr {p}, i32 0, i32 {dict(self.kernel.schedule.options).get('loc',3)}, i32 1)")
        return read(v, self.pointers[step.operand], place, step.dtype, mask)

    def position(self, step: Position, n: int) -> Held:
        v, point = self.lanes(self.kernel.spans[n]), self.point(n)
        base, stride = base_of(v, step.at, point), point.stride(step.at)
        number = counted(v, base, stride, limits(step.at, point.ranges))
        source = I32 if number.kind == "i32" else I64
        if step.dtype is source:
            return (number,)
        to = Convert(tensor(dtype=step.dtype))
        return apply(v, to, [(number,)], [source], step.dtype)

    def choose(self, step: Choose, n: int) -> Held:
        v, point = self.lanes(self.kernel.spans[n]), self.point(n)
        match known(step.guards, point):
            case True:
                return self.spread(step.inside, v)
            case False:
                return self.spread(step.outside, v)
        inside = holds(v, step.guards, point)
        assert inside is not None, "guards that depend on the point"
        pairs = zip(self.spread(step.inside, v), self.spread(step.outside, v), strict=True)
        return tuple([v.select(inside, a, b) for a, b in pairs])

    # Scratch memory

    def room_for(self, n: int) -> Kept:
        """A place for a value at every point of the factors that are not open."""
        span = self.kernel.spans[n] - self.index.keys()
        strides: dict[int, int] = {}
        lanes_open = self.plan.vector in self.kernel.spans[n] - span
        count = self.plan.width if lanes_open else 1  # a whole vector at every other point
        for factor in sorted(span, key=lambda f: (f == self.plan.vector, f), reverse=True):
            strides[factor] = count
            size = self.kernel.factors[factor].size
            if factor == self.plan.vector:
                size = -(-size // self.plan.width) * self.plan.width
            count *= size
        offset = self.scratch
        nbytes = count * BITS[storage.register_kind(value_dtype(self.kernel.steps[n]))] // 8
        self.scratch += -(-nbytes // 64) * 64
        self.most_scratch = max(self.most_scratch, self.scratch)
        return Kept(offset, strides)

    def place_of(self, n: int, kept: Kept) -> tuple[str, str]:
        kind = storage.register_kind(value_dtype(self.kernel.steps[n]))
        base = self.code.let(f"getelementptr i8, ptr %scratch, i64 {kept.offset}")
        index = "0"
        for factor, stride in kept.strides.items():
            index = plus(self.code, times(self.code, self.index[factor], stride), index)
        return self.one.at(base, index, kind), kind

    def remember(self, n: int, kept: Kept) -> None:
        address, _ = self.place_of(n, kept)
        v = self.lanes(self.kernel.spans[n])
        v.store(self.values[n][0], address)

    def recall(self, n: int, kept: Kept) -> Held:
        address, kind = self.place_of(n, kept)
        return (self.lanes(self.kernel.spans[n]).load(address, kind),)


def tasks_text(
    plan: Plan, name: str, operands: int, shared: Sequence[int]
) -> tuple[list[Code], int]:
    """The functions that run tasks begin..end of a plan, and the scratch bytes they need.

    Operands beyond the first ones are at offsets in the shared bytes. What is written past the
    caches must be aligned: if it is not when the function is called, another one runs instead.
    """
    if not plan.streams:
        code, scratch = _tasks(plan, function(name), operands, shared)
        return [code], scratch
    plain, streaming = (Code(f"{name}_{way}", PARAMS, internal=True) for way in ("plain", "past"))
    _, scratch = _tasks(replace(plan, streams=frozenset()), plain, operands, shared)
    _tasks(plan, streaming, operands, shared)
    chosen = function(name)
    given = pointers(chosen, operands)
    stored = [step for n, step in enumerate(plan.kernel.steps) if n in plan.streams]
    bits = "0"
    for operand in sorted({s.operand for s in stored if isinstance(s, Store)}):
        address = chosen.let(f"ptrtoint ptr {given[operand]} to i64")
        bits = address if bits == "0" else chosen.let(f"or i64 {bits}, {address}")
    loose = chosen.let(f"and i64 {bits}, 63")
    names = ", ".join(PARAMS)
    for way, how in ((streaming, "eq"), (plain, "ne")):
        with chosen.when(chosen.let(f"icmp {how} i64 {loose}, 0")):
            chosen.do(f"call void @{way.name}({names})")
    return [plain, streaming, chosen], scratch


def _tasks(plan: Plan, code: Code, operands: int, shared: Sequence[int]) -> tuple[Code, int]:
    given = pointers(code, operands + bool(shared))
    if shared:
        base = given.pop()
        given += [code.let(f"getelementptr i8, ptr {base}, i64 {at}") for at in shared]
    loops = Loops(plan, code, given)
    sinks = [n for n, step in enumerate(plan.kernel.steps) if isinstance(step, Store)]
    factors = plan.kernel.factors[: plan.tasks]
    if not factors:
        loops.run(sinks)
    elif plan.block > 1 and len(factors) == 1:
        # Tasks that follow each other are one long loop.
        last = smaller(code, times(code, "%end", plan.block), factors[0].size)
        loops.bounds[0] = (times(code, "%begin", plan.block), last)
        loops.run(sinks)
    else:
        with code.loop("%begin", "%end") as task:
            _at_task(loops, task.index)
            loops.run(sinks)
    if plan.streams:
        code.do("fence seq_cst")  # what went past the caches is to be seen by others
    return code, loops.most_scratch


def _at_task(loops: Loops, number: str) -> None:
    """Open the task factors at the task of a number."""
    plan, code = loops.plan, loops.code
    for n in reversed(range(plan.tasks)):
        size = plan.kernel.factors[n].size
        blocked = plan.block > 1 and n == plan.tasks - 1
        count = -(-size // plan.block) if blocked else size
        number, index = divided(code, number, count) if n else ("0", number)
        if blocked:
            low = times(code, index, plan.block)
            loops.bounds[n] = (low, smaller(code, plus(code, low, plan.block), size))
        else:
            loops.index[n], loops.ranges[n] = index, (0, size)
        if plan.cut is not None and n == 0:
            factor, block = plan.cut
            low = times(code, index, block)
            end = plan.kernel.factors[factor].size
            loops.bounds[factor] = (low, smaller(code, plus(code, low, block), end))
