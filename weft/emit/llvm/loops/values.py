"""Values of steps at the current loop point: in registers, in memory, or in scratch."""

from __future__ import annotations

from collections.abc import Sequence

from weft.emit.llvm.loops.plan import LoopPlan
from weft.emit.llvm.loops.reduce import combined, position_kind
from weft.emit.llvm.loops.transposed import TILE
from weft.emit.llvm.math.exponential import note_at_most_zero
from weft.emit.llvm.math.pointwise import apply
from weft.emit.llvm.math.reciprocal import reciprocal
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.access import (
    LaneIndex,
    LoopPoint,
    base_of,
    both,
    counted,
    guards_hold,
    holds,
    kind_of,
    limits,
    prefetch,
    read,
    shifted,
    write,
)
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.nest import plus, times
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import BITS, Vector, Vectors
from weft.ir.types import I32, I64, tensor
from weft.kernels.kernel import (
    Affine,
    Apply,
    Choose,
    Fill,
    Load,
    Pick,
    Position,
    Reduce,
    Store,
    is_rounded,
    value_dtype,
)
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Divide, Maximum, Subtract
from weft.records import dataclass

AHEAD = 1536  # prefetch distance in bytes
ROWS_AHEAD = 1 / 4  # the rows between the current and the prefetched one take this share of L1


@dataclass(slots=True)
class ScratchValue:
    """A value in scratch memory: its offset, and a stride for each factor."""

    offset: int
    nbytes: int  # bytes of one part, if complex
    strides: dict[int, int]
    ready: bool = False


class StepValues:
    """The values of steps at one point of a function, as loops open and close."""

    def __init__(self, plan: LoopPlan, code: Writer, pointers: Sequence[str]) -> None:
        self.plan = plan
        self.kernel = plan.kernel
        self.code = code
        self.pointers = pointers
        self.one, self.wide = Vectors(code, 1), Vectors(code, plan.width)
        self.known: dict[int, Held] = {}
        self.slots: dict[int, ScratchValue] = {}
        self.index: dict[int, str] = {}
        self.ranges: dict[int, tuple[int, int]] = {}
        self.mask: Vector | None = None
        self.is_busy: bool | None = None  # whether this is the pass with most of a row's work
        # tiles of transposed loads: base, first line and lane
        self.tiles: dict[int, tuple[int, str, str]] = {}
        self.scratch = self.most_scratch = 0

    @property
    def ready(self) -> set[int]:
        """The steps with available values."""
        return {*self.known, *(n for n, slot in self.slots.items() if slot.ready)}

    def lanes(self, span: frozenset[int]) -> Vectors:
        """The vector builder for values that vary along some factors."""
        return self.wide if self.plan.vector in span else self.one

    def point(self, n: int) -> LoopPoint:
        """The loop point of a step."""
        if self.plan.vector in self.kernel.spans[n]:
            return LoopPoint(self.index, self.ranges, self.plan.vector, self.mask)
        return LoopPoint(self.index, self.ranges)

    def spread(self, n: int, v: Vectors) -> Held:
        """A value broadcast to so many lanes."""
        step = self.kernel.steps[n]
        if isinstance(step, Fill):
            return storage.fill(v, step.value, step.dtype)
        held = self.value(n)
        return held if held[0].width == v.width else tuple([v.splat(part) for part in held])

    def value(self, n: int) -> Held:
        """The value of a step at the current point."""
        if n not in self.known:
            slot = self.slots.get(n)
            if slot is not None and slot.ready:
                if self.is_busy:
                    self.fetch(n)
                self.known[n] = self.recall(n)
            else:
                self.known[n] = self.computed(n)
                if slot is not None:
                    self.remember(n, self.known[n])
        return self.known[n]

    def computed(self, n: int) -> Held:
        """Compute a step from its inputs."""
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
                operands = [self.spread(a, v) for a in args]
                dtypes = [value_dtype(self.kernel.steps[a]) for a in args]
                result = apply(v, op, operands, dtypes, dtype)
                # x - max(x) of a softmax: its exponential needs no clamp against overflow.
                if isinstance(op, Subtract) and self.is_largest(args[1], of=args[0]):
                    note_at_most_zero(v, result[0])
                return result
            case Choose():
                return self.choose(step, n)
        raise AssertionError(f"step {n}, a {type(step).__name__}, is not ready")

    def is_largest(self, n: int, of: int) -> bool:
        """Whether a float is at least the maximum of another step, or NaN."""
        match self.kernel.steps[n]:
            case Reduce(how="max", arg=arg, dtype=dtype):
                return arg == of and dtype.is_float
            case Apply(op=Maximum(), args=args):
                return any(self.is_largest(a, of) for a in args)
        return False

    def is_same_in_lanes(self, n: int, v: Vectors) -> bool:
        """Whether a float is uniform over lanes, and quotients by it may be inexact."""
        dtype = value_dtype(self.kernel.steps[n])
        if is_rounded(dtype) or not (dtype.is_float and self.kernel.excess_precision):
            return False
        return v.width > 1 and self.plan.vector not in self.kernel.spans[n]

    def scaled(self, n: int, divisor: int, v: Vectors) -> Held:
        """A quotient by a uniform divisor: two multiplications instead of a division."""
        (value,) = self.spread(n, v)
        for factor in self.scales(divisor):
            value = v.mul(value, v.splat(factor))
        return (value,)

    def scales(self, divisor: int) -> Held:
        """The reciprocal factors of a divisor."""
        number = -1 - divisor  # stored beside the value of the step itself
        if number not in self.known:
            (by,) = self.spread(divisor, self.one)
            self.known[number] = reciprocal(self.one, by)
        return self.known[number]

    def prepare(self, n: int) -> None:
        """Compute the uniform parts of a step at the current point."""
        step = self.kernel.steps[n]
        if isinstance(step, Apply) and isinstance(step.op, Divide):
            divisor = step.args[1]
            is_open = self.kernel.spans[divisor] <= self.index.keys()
            if is_open and self.is_same_in_lanes(divisor, self.lanes(self.kernel.spans[n])):
                self.scales(divisor)

    def load(self, step: Load, n: int) -> Held:
        """Load elements of an operand."""
        v, point = self.lanes(self.kernel.spans[n]), self.point(n)
        if n in self.tiles:
            return storage.load(v, *self.tile(n), step.dtype)
        if guards_hold(step.guards, point) is False:
            return storage.fill(v, 0, step.dtype)
        mask = both(v, holds(v, step.guards, point), point.mask)
        place = LaneIndex(base_of(v, step.at, point), point.stride(step.at))
        for shift in step.shifts:
            (index,) = self.value(shift.index)
            signed = value_dtype(self.kernel.steps[shift.index]).kind == "int"
            place, inside = shifted(v, place, shift, index, signed)
            mask = both(v, mask, inside)
        if mask is None:
            self.announced(step, v, place)
        return read(v, self.pointers[step.operand], place, step.dtype, mask)

    def fetch(self, n: int) -> None:
        """Prefetch elements whose current ones are in scratch memory here."""
        step, v, point = self.kernel.steps[n], self.lanes(self.kernel.spans[n]), self.point(n)
        if isinstance(step, Load) and not (step.guards or step.shifts or point.mask):
            place = LaneIndex(base_of(v, step.at, point), point.stride(step.at))
            self.announced(step, v, place)

    def announced(self, step: Load, v: Vectors, place: LaneIndex) -> None:
        """Prefetch the elements after an index, if there are many."""
        operand, ahead = self.kernel.operands[step.operand], self.ahead(step)
        if v.width > 1 and operand.nbytes >= self.plan.caches.l2 and ahead:
            prefetch(v, self.pointers[step.operand], place, step.dtype, ahead)

    def ahead(self, step: Load) -> int:
        """The prefetch distance in bytes after the current elements.

        Where one of several passes along a row has most of the work, a later row is prefetched
        meanwhile.
        """
        if self.is_busy is None or not self.plan.tasks:
            return AHEAD
        factor, block = self.plan.tasks[-1]
        row = step.at.strides[factor] * step.dtype.numpy.itemsize
        l1 = self.plan.caches.l1
        if block > 1 or not AHEAD <= row <= l1:  # a longer row would evict itself
            return AHEAD
        return -(-int(ROWS_AHEAD * l1) // row) * row if self.is_busy else 0

    def tile(self, n: int) -> tuple[str, str]:
        """The tile of a transposed access, and the index in it."""
        assert self.plan.transposed is not None
        offset, line, lane = self.tiles[n]
        base = self.code.let(f"getelementptr i8, ptr %scratch, i64 {offset}")
        row = self.code.let(f"sub nsw i64 {self.index[self.plan.transposed.lines]}, {line}")
        along = self.code.let(f"sub nsw i64 {self.index[self.plan.transposed.vector]}, {lane}")
        return base, plus(self.code, times(self.code, row, TILE), along)

    def store(self, step: Store, n: int) -> None:
        """Store a value to an operand."""
        v, point = self.lanes(self.kernel.spans[n]), self.point(n)
        if guards_hold(step.guards, point) is False:
            return
        mask = both(v, holds(v, step.guards, point), point.mask)
        dtype = self.kernel.operands[step.operand].dtype
        value = self.spread(step.arg, v)
        if n in self.tiles:
            storage.store(v, value, *self.tile(n), dtype, mask)
            return
        place = LaneIndex(base_of(v, step.at, point), point.stride(step.at))
        base, streaming = self.pointers[step.operand], n in self.plan.streams
        write(v, value, base, place, dtype, mask, streaming=streaming)

    def position(self, step: Position, n: int) -> Held:
        """The position of the point, as a number."""
        v, point = self.lanes(self.kernel.spans[n]), self.point(n)
        base, stride = base_of(v, step.at, point), point.stride(step.at)
        number = counted(v, base, stride, kind_of(v, stride, limits(step.at, point.ranges)))
        source = I32 if number.kind == "i32" else I64
        if step.dtype is source:
            return (number,)
        to = Convert(tensor(dtype=step.dtype))
        return apply(v, to, [(number,)], [source], step.dtype)

    def position_along(self, step: Pick, v: Vectors) -> Vector:
        """The linear position along the factors of a pick."""
        strides = [0] * len(self.kernel.factors)
        count = 1
        for factor in reversed(step.over):
            strides[factor] = count
            count *= self.kernel.factors[factor].size
        at = Affine(tuple(strides))
        point = LoopPoint(self.index, self.ranges, self.plan.vector if v.width > 1 else None)
        kind = position_kind(self.kernel, step)
        return counted(v, base_of(v, at, point), point.stride(at), kind)

    def choose(self, step: Choose, n: int) -> Held:
        """Select by guards."""
        v, point = self.lanes(self.kernel.spans[n]), self.point(n)
        match guards_hold(step.guards, point):
            case True:
                return self.spread(step.inside, v)
            case False:
                return self.spread(step.outside, v)
        inside = holds(v, step.guards, point)
        assert inside is not None, "guards that depend on the point"
        pairs = zip(self.spread(step.inside, v), self.spread(step.outside, v), strict=True)
        return tuple([v.select(inside, a, b) for a, b in pairs])

    # Scratch memory

    def take(self, nbytes: int) -> int:
        """Allocate scratch memory; returns its offset."""
        offset = self.scratch
        self.scratch += -(-nbytes // 64) * 64
        self.most_scratch = max(self.most_scratch, self.scratch)
        return offset

    def keep(self, n: int) -> ScratchValue:
        """Allocate scratch for a value at every point of the factors that are not open."""
        span = self.kernel.spans[n] - self.index.keys()
        lanes_open = self.plan.vector in self.kernel.spans[n] - span
        count = self.plan.width if lanes_open else 1
        strides: dict[int, int] = {}
        for factor in sorted(span, key=lambda f: (f == self.plan.vector, f), reverse=True):
            strides[factor] = count
            size = self.kernel.factors[factor].size
            if factor == self.plan.vector:  # padded, so that the last vector stays inside
                size = -(-size // self.plan.width) * self.plan.width
            count *= size
        if self.plan.vector in span:  # a vector may start at any lane of the last row
            count += self.plan.width
        dtype = value_dtype(self.kernel.steps[n])
        nbytes = count * max(8, BITS[storage.register_kind(dtype)]) // 8
        nbytes = -(-nbytes // 64) * 64
        self.slots[n] = ScratchValue(self.take(nbytes * storage.parts(dtype)), nbytes, strides)
        return self.slots[n]

    def address(self, n: int, part: int) -> tuple[str, str]:
        """The address of a kept value, and its LLVM type there."""
        slot = self.slots[n]
        kind = storage.register_kind(value_dtype(self.kernel.steps[n]))
        kind = "i8" if kind == "i1" else kind
        offset = slot.offset + part * slot.nbytes
        base = self.code.let(f"getelementptr i8, ptr %scratch, i64 {offset}")
        index = "0"
        for factor, stride in slot.strides.items():
            index = plus(self.code, times(self.code, self.index[factor], stride), index)
        return self.one.at(base, index, kind), kind

    def remember(self, n: int, held: Held) -> None:
        """Store a value to scratch memory.

        A loop that starts in the middle of a row (at a guard's boundary) has lanes that belong to
        the next row: they are masked out.
        """
        is_row = self.plan.vector in self.slots[n].strides
        for number, part in enumerate(held):
            address, kind = self.address(n, number)
            v = Vectors(self.code, part.width)
            value = v.cast("zext", part, kind) if part.kind == "i1" else part
            if is_row and part.width > 1 and self.mask is not None:
                v.store_masked(value, address, self.mask)
            else:
                v.store(value, address)

    def from_scratch(self, n: int) -> Held:
        """A step's value from scratch memory."""
        v = self.lanes(self.kernel.spans[n])
        dtype = value_dtype(self.kernel.steps[n])
        read: list[Vector] = []
        for number in range(storage.parts(dtype)):
            address, kind = self.address(n, number)
            part = v.load(address, kind)
            if storage.register_kind(dtype) == "i1":
                part = v.compare("ne", part, v.constant(0, kind))
            read.append(part)
        return tuple(read)

    def recall(self, n: int) -> Held:
        """A step's value from scratch memory; sums are combined with their init."""
        step, held = self.kernel.steps[n], self.from_scratch(n)
        if isinstance(step, Reduce) and n in self.plan.spilled and step.init is not None:
            v = self.lanes(self.kernel.spans[n])
            held = combined(v, step.how, step.dtype, self.spread(step.init, v), held)
        return held
