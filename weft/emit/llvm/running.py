"""Running folds along a dim: cumulative sums, products, maxima and the like."""

from __future__ import annotations

from collections.abc import Sequence

from weft.emit.llvm import storage
from weft.emit.llvm.code import module_text
from weft.emit.llvm.nest import (
    Along,
    Lines,
    function,
    lines,
    merged,
    moved,
    pointers,
    vectors_and_rest,
)
from weft.emit.llvm.region import converted, inline
from weft.emit.llvm.storage import Held
from weft.emit.llvm.vector import Vector, Vectors
from weft.kernels.alone import Alone, strides
from weft.kernels.emitted import Emitted

_TOGETHER = 4  # vectors of columns that one task walks down side by side


def running(kernel: Alone, dim: int, backward: bool) -> Emitted:
    """out[.., i, ..] = the fold of the input's elements up to i, or from i on if backward."""
    fold = _Fold(kernel, kernel.lead + dim, backward)
    return fold.along_rows() if fold.inner == 1 else fold.down_columns()


class _Fold:
    """The function of a running fold."""

    def __init__(self, kernel: Alone, dim: int, backward: bool) -> None:
        self.kernel = kernel
        self.backward = backward
        self.count = len(kernel.outputs)
        self.dtypes = [o.dtype for o in kernel.outputs]
        self.steps = [strides(o.shape) for o in kernel.operands]
        self.shape = kernel.outputs[0].shape
        self.dim = dim
        self.length = self.shape[dim]
        self.inner = 1
        for size in self.shape[dim + 1 :]:
            self.inner *= size
        widest = max(d.numpy.itemsize for d in self.dtypes)
        self.width = max(1, 64 // widest)
        self.cost = 2 * sum(d.numpy.itemsize for d in self.dtypes)
        self.code = function(kernel.name)
        self.buffers = pointers(self.code, len(kernel.operands))

    def _along(self, d: int) -> Along:
        """A dim as a walk; the initial values have device dims only."""
        lead = self.kernel.lead
        own = [s[d] if d < lead or not self._is_init(n) else 0 for n, s in enumerate(self.steps)]
        return Along(self.shape[d], tuple(own))

    def _is_init(self, n: int) -> bool:
        return self.count <= n < 2 * self.count

    def _line(self) -> Along:
        return self._along(self.dim)

    def _inits(self, v: Vectors, offsets: list[str]) -> list[Held]:
        return read_inits(v, self.kernel, self.buffers, offsets)

    def _fold(self, v: Vectors, before: Sequence[Held], here: Sequence[Held]) -> list[Held]:
        """What came before, combined with what is here, in the order of the elements."""
        args = (*here, *before) if self.backward else (*before, *here)
        return inline(v, self.kernel.regions[0], args)

    def _read(self, v: Vectors, offsets: list[str]) -> list[Held]:
        found = []
        for n, dtype in enumerate(self.dtypes):
            given = self.kernel.operands[n].dtype
            held = storage.load(v, self.buffers[n], offsets[n], given)
            found.append(converted(v, held, given, dtype))
        return found

    def _write(self, v: Vectors, values: Sequence[Held], offsets: list[str]) -> None:
        for n, (held, dtype) in enumerate(zip(values, self.dtypes, strict=True)):
            out = 2 * self.count + n
            storage.store(v, held, self.buffers[out], offsets[out], dtype)

    # Down columns: vectors of neighbouring columns

    def down_columns(self) -> Emitted:
        """Tasks are groups of columns."""
        code = self.code
        outer = [self._along(d) for d in range(self.dim)]
        inner = merged([self._along(d) for d in range(self.dim + 1, len(self.shape))])
        *more, line = inner
        block = min(line.size, _TOGETHER * self.width)
        tasks = Lines(tuple(merged([*outer, *more])), line, block, 1)
        whole = lines([line], self.cost * self.length)
        tasks = Lines(tasks.outer, line, block, max(1, whole.chunk // block))
        with tasks.each(code) as (offsets, begin, end):
            for width, index in vectors_and_rest(code, begin, end, self.width):
                self._column(Vectors(code, width), moved(code, offsets, index, line.steps))
        return Emitted(module_text(code), (tasks.phase(code.name),))

    def _column(self, v: Vectors, offsets: list[str]) -> None:
        inits = self._inits(v, offsets)
        pairs = [(part.type, part.text) for held in inits for part in held]
        steps = self._line().steps
        with self.code.loop(0, self.length, carried=pairs) as loop:
            before = grouped(loop.carried, inits)
            here = moved(self.code, offsets, self._index(loop.index), steps)
            made = self._fold(v, before, self._read(v, here))
            self._write(v, made, here)
            loop.carry(*[part.text for held in made for part in held])

    def _index(self, number: str) -> str:
        """Where the fold is after that many elements."""
        if not self.backward:
            return number
        return self.code.let(f"sub nsw i64 {self.length - 1}, {number}")

    # Along rows: a vector of neighbours is folded in itself, then with what came before

    def along_rows(self) -> Emitted:
        """Tasks are rows."""
        code = self.code
        outer = merged([self._along(d) for d in range(self.dim)])
        none = Along(1, (0,) * len(self.steps))
        tasks = lines([*outer, none], self.cost * self.length, whole=True)
        with tasks.each(code) as (offsets, _, _):
            self._row(offsets)
        return Emitted(module_text(code), (tasks.phase(code.name),))

    def _row(self, offsets: list[str]) -> None:
        code, line = self.code, self._line()
        inits = self._inits(Vectors(code, 1), offsets)
        whole = self.length // self.width * self.width if self.width > 1 else 0
        v = Vectors(code, self.width)
        wide = [tuple([v.splat(part) for part in held]) for held in inits]
        carried = [(part.type, part.text) for held in wide for part in held]
        with code.loop(0, whole, self.width, carried=carried) as loop:
            before = grouped(loop.carried, wide)
            index = loop.index
            if self.backward:
                index = code.let(f"sub nsw i64 {self.length - self.width}, {index}")
            here = moved(code, offsets, index, line.steps)
            inside = self._prefix(v, self._read(v, here))
            self._write(v, self._fold(v, before, inside), here)
            totals = [tuple([self._last(v, part) for part in held]) for held in inside]
            after = self._fold(v, before, totals)
            loop.carry(*[part.text for held in after for part in held])
        one = Vectors(code, 1)
        left = [tuple([_lane(v, part) for part in held]) for held in grouped(loop.carried, wide)]
        carried = [(part.type, part.text) for held in left for part in held]
        with code.loop(whole, self.length, carried=carried) as loop:
            before = grouped(loop.carried, left)
            here = moved(code, offsets, self._index(loop.index), line.steps)
            made = self._fold(one, before, self._read(one, here))
            self._write(one, made, here)
            loop.carry(*[part.text for held in made for part in held])

    def _prefix(self, v: Vectors, values: list[Held]) -> list[Held]:
        """The running fold inside of vectors, in as many steps as their width has bits."""
        distance = 1
        while distance < v.width:
            shifted = [tuple([self._shift(v, p, distance) for p in held]) for held in values]
            made = self._fold(v, shifted, values)
            values = [
                tuple([self._choose(v, distance, a, b) for a, b in zip(new, old, strict=True)])
                for new, old in zip(made, values, strict=True)
            ]
            distance *= 2
        return values

    def _shift(self, v: Vectors, part: Vector, distance: int) -> Vector:
        """What the lanes so far before hold; lanes without one keep their own."""
        away = distance if self.backward else -distance
        order = [n + away if 0 <= n + away < v.width else n for n in range(v.width)]
        return shuffled(v, part, order)

    def _choose(self, v: Vectors, distance: int, new: Vector, old: Vector) -> Vector:
        """The new value in lanes that have one so far before them, the old one elsewhere."""
        has = [n + distance < v.width if self.backward else n >= distance for n in range(v.width)]
        lanes = ", ".join(f"i1 {str(yes).lower()}" for yes in has)
        return v.select(Vector(f"<{lanes}>", "i1", v.width), new, old)

    def _last(self, v: Vectors, part: Vector) -> Vector:
        """The lane that all others were folded into, in every lane."""
        return shuffled(v, part, [0 if self.backward else v.width - 1] * v.width)


def read_inits(
    v: Vectors, kernel: Alone, buffers: Sequence[str], offsets: Sequence[str]
) -> list[Held]:
    """The initial values, which follow the inputs, in every lane and in the results' types."""
    count, found = len(kernel.outputs), []
    for n, out in enumerate(kernel.outputs, count):
        given = kernel.operands[n].dtype
        held = storage.load_splat(v, buffers[n], offsets[n], given)
        found.append(converted(v, held, given, out.dtype))
    return found


def shuffled(v: Vectors, part: Vector, order: list[int]) -> Vector:
    """The lanes in another order."""
    if v.width == 1:
        return part
    lanes = ", ".join(f"i32 {n}" for n in order)
    text = f"shufflevector {part.typed}, {part.type} poison, <{len(order)} x i32> <{lanes}>"
    return Vector(v.code.let(text), part.kind, len(order))


def _lane(v: Vectors, part: Vector) -> Vector:
    """The first lane."""
    if part.width == 1:
        return part
    return Vector(v.code.let(f"extractelement {part.typed}, i64 0"), part.kind)


def grouped(texts: Sequence[str], like: Sequence[Held]) -> list[Held]:
    """What a loop carries, as values."""
    left = list(texts)
    return [tuple([Vector(left.pop(0), p.kind, p.width) for p in held]) for held in like]
