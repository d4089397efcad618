"""Long reductions of few rows: partial results of parts of each row, and then their reduction.

Both are kernels: of the first, the parts of a row are a further parallel factor, and it writes the
partial results to scratch; the second reduces these and computes the steps that follow.
"""

from __future__ import annotations

import math
from dataclasses import replace

from weft.emit.triton.collapse import reduced_factors
from weft.emit.triton.parts.sizes import runs_along_rows
from weft.emit.triton.rebuild import StepList
from weft.emit.triton.tiles import needed_by
from weft.ir.types import DType
from weft.kernels.kernel import (
    Affine,
    Choose,
    Contract,
    Factor,
    Fill,
    Guard,
    Kernel,
    Load,
    Operand,
    Pick,
    Position,
    Reduce,
    Step,
    Store,
    args_of,
    held_in,
    value_dtype,
)
from weft.kernels.rewriting import renumbered
from weft.ops.combiners import identity
from weft.records import dataclass

PROGRAMS = 264  # programs that keep a GPU busy: two for each of 132 multiprocessors
LEAST = 1 << 11  # elements of a part of a row
LEAST_OF_COLUMNS = 1 << 9  # where a program has a tile of neighbouring rows
LEAST_OF_LANES = 1 << 7  # of a part of a lane
WHOLE = 64  # neighbouring rows of a tile
VECTOR = 16  # elements that are loaded at once, of any type
SHORT_ROW = 16  # elements of a row of which several are taken as one


@dataclass(frozen=True, slots=True)
class TwoKernels:
    """The kernels of a split reduction; scratch follows the operands of the original."""

    first: Kernel
    first_operands: tuple[int, ...]
    second: Kernel
    second_operands: tuple[int, ...]
    scratch: tuple[Operand, ...]


def parts_of_rows(kernel: Kernel, programs: int) -> int:
    """Into how many parts rows are worth splitting, given the programs without; 1 if they are not.

    The steps that follow must not run along the row again.
    """
    reduced = reduced_factors(kernel)
    length = math.prod(kernel.factors[f].size for f in reduced)
    lanes = lanes_of(kernel)
    columns = LEAST_OF_COLUMNS if lanes == 1 else LEAST_OF_LANES * lanes
    least = columns if runs_along_rows(kernel) else LEAST
    if programs >= PROGRAMS // 2 or length < 2 * least or not _is_split(kernel, reduced):
        return 1
    if lanes > 1:
        count = math.prod(f.size for n, f in enumerate(kernel.factors) if n not in reduced)
        programs = -(-count * lanes // WHOLE)
    outer = kernel.factors[_cut(kernel)].size // lanes
    wanted = min(outer, length // least, -(-4 * PROGRAMS // programs))
    # Parts of equal length need no guards: take a number close by that divides the row.
    even = [n for n in range(wanted // 2 + 1, 2 * wanted) if outer % n == 0]
    return min(even, key=lambda n: abs(n - wanted), default=max(1, wanted))


def lanes_of(kernel: Kernel) -> int:
    """How many short rows of a matrix, reduced along its columns, are taken as one longer row.

    A tile of rows of 5 elements would be loaded one by one; 16 of them are 80 elements that lie
    side by side. Each of the 16 has partial results of its own.
    """
    reduced, sizes = reduced_factors(kernel), [factor.size for factor in kernel.factors]
    rows = [n for n in range(len(sizes)) if n not in reduced and sizes[n] > 1]
    if not rows or len([n for n in reduced if sizes[n] > 1]) != 1 or not runs_along_rows(kernel):
        return 1
    inner, cut = rows[-1], _cut(kernel)
    size, length = sizes[inner], sizes[cut]
    loads = [s.at.strides for s in kernel.steps if isinstance(s, Load)]
    if size > SHORT_ROW or any(at[cut] != at[inner] * size for at in loads):
        return 1
    lanes = 1
    while (lanes * size < WHOLE or lanes * size % VECTOR) and length % (2 * lanes) == 0:
        lanes *= 2
    return 1 if lanes * size % VECTOR else lanes


def _is_split(kernel: Kernel, reduced: set[int]) -> bool:
    """Whether every reduction is one of steps that do not depend on another."""
    seen: set[int] = set()
    for n, step in enumerate(kernel.steps):
        late = any(arg in seen for arg in args_of(step))
        if isinstance(step, Pick) or (isinstance(step, Reduce | Contract) and late):
            return False
        if late or isinstance(step, Reduce | Contract):
            seen.add(n)
        # A step after a reduction that runs along the row again would need a third kernel.
        if late and _along(kernel, n, reduced):
            return False
    return True


def _along(kernel: Kernel, number: int, reduced: set[int]) -> bool:
    """Whether a step runs along the rows."""
    step = kernel.steps[number]
    at = [step.at, *[g.index for g in step.guards]] if isinstance(step, Store) else []
    spans = {f for one in at for f, stride in enumerate(one.strides) if stride}
    return bool((spans | {*kernel.spans[number]}) & reduced)


def _cut(kernel: Kernel) -> int:
    """The factor that is cut: the outermost one of the row."""
    return min(reduced_factors(kernel))


def split(kernel: Kernel, parts: int) -> TwoKernels:
    """The two kernels."""
    return _Split(kernel, parts).kernels()


class _Split:
    def __init__(self, kernel: Kernel, parts: int) -> None:
        self.kernel, self.parts = kernel, parts
        self.cut = _cut(kernel)
        self.lanes = lanes_of(kernel)
        size = kernel.factors[self.cut].size // self.lanes
        self.length = -(-size // parts)
        self.is_even = size % parts == 0
        reduced = reduced_factors(kernel)
        self.rows = [f for f in range(len(kernel.factors)) if f not in reduced]
        self.sums = [n for n, s in enumerate(kernel.steps) if isinstance(s, Reduce | Contract)]
        # Stores along the rows are those of the first kernel.
        self.early = [
            n
            for n, s in enumerate(kernel.steps)
            if isinstance(s, Store) and _along(kernel, n, reduced)
        ]
        count = math.prod(kernel.factors[f].size for f in self.rows)
        results = (parts * self.lanes, count)
        self.scratch = tuple([Operand(self._held(n), results, True) for n in self.sums])
        self.count = count

    def _held(self, number: int) -> DType:
        step = self.kernel.steps[number]
        assert isinstance(step, Reduce | Contract)
        if isinstance(step, Contract):
            return step.held
        return held_in(step.dtype) if step.dtype.is_float else step.dtype

    def kernels(self) -> TwoKernels:
        first, first_operands = self._first()
        second, second_operands = self._second()
        return TwoKernels(first, first_operands, second, second_operands, self.scratch)

    # Partial results

    def _affine(self, at: Affine) -> Affine:
        """An index along the cut: parts of consecutive elements, which belong to lanes by turns."""
        strides, stride = [*at.strides], at.strides[self.cut]
        strides[self.cut] = stride * self.lanes
        return Affine((*strides, stride * self.lanes * self.length, stride), at.offset)

    def _guards(self, guards: tuple[Guard, ...]) -> tuple[Guard, ...]:
        return tuple([replace(g, index=self._affine(g.index)) for g in guards])

    @property
    def _inside(self) -> tuple[Guard, ...]:
        """The guard of the last part, which may be shorter."""
        if self.is_even:
            return ()
        strides = tuple([int(f == self.cut) for f in range(len(self.kernel.factors))])
        index = self._affine(Affine(strides))
        return (Guard(index, 0, self.kernel.factors[self.cut].size),)

    def _first(self) -> tuple[Kernel, tuple[int, ...]]:
        kernel = self.kernel
        factors = [
            replace(f, size=self.length) if n == self.cut else f
            for n, f in enumerate(kernel.factors)
        ]
        factors += [Factor("part", self.parts), Factor("lane", self.lanes)]
        steps = StepList()
        reads = [a for s in self.sums for a in self._read(s)]
        for n in sorted(needed_by(kernel, [*reads, *self.early])):
            steps.numbers[n] = steps.add(self._moved(renumbered(kernel.steps[n], steps.numbers)))
        for number, n in enumerate(self.sums):
            made = steps.add(self._partial(n, steps))
            at = Affine((*self._scratch_strides(), self.count * self.lanes, self.count))
            steps.add(Store(len(kernel.operands) + number, at, made))
        operands = (*kernel.operands, *self.scratch)
        return steps.kernel(kernel, f"{kernel.name}_parts", factors, operands)

    def _read(self, number: int) -> list[int]:
        """The values that a reduction reads in every part: not its initial value."""
        step = self.kernel.steps[number]
        return [step.arg] if isinstance(step, Reduce) else [*args_of(step)]

    def _moved(self, step: Step) -> Step:
        match step:
            case Load(at=at, guards=guards):
                more = self._inside if at.strides[self.cut] else ()
                inside = (*self._guards(guards), *more)
                return replace(step, at=self._affine(at), guards=inside)
            case Store(at=at, guards=guards):
                inside = (*self._guards(guards), *self._inside)
                return replace(step, at=self._affine(at), guards=inside)
            case Position(at=at):
                return replace(step, at=self._affine(at))
            case Choose(guards=guards):
                return replace(step, guards=self._guards(guards))
            case _:
                return step

    def _partial(self, number: int, steps: StepList) -> Step:
        step, held = self.kernel.steps[number], self._held(number)
        if isinstance(step, Contract):
            lhs, rhs = steps.numbers[step.lhs], steps.numbers[step.rhs]
            if self._inside:
                dtype = value_dtype(self.kernel.steps[step.lhs])
                zero = steps.add(Fill(0, dtype))
                lhs = steps.add(Choose(self._inside, lhs, zero, dtype))
            return replace(step, lhs=lhs, rhs=rhs, dtype=held)
        assert isinstance(step, Reduce)
        arg = steps.numbers[step.arg]
        if self._inside:
            neutral = steps.add(Fill(identity(step.how, held), held))
            arg = steps.add(Choose(self._inside, arg, neutral, held))
        return Reduce(step.how, arg, None, step.over, held)

    def _scratch_strides(self) -> list[int]:
        """Of the kernel's factors: row-major in scratch, behind parts and lanes."""
        strides, size = [0] * len(self.kernel.factors), 1
        for f in reversed(self.rows):
            strides[f] = size
            size *= self.kernel.factors[f].size
        return strides

    # Their reduction

    def _second(self) -> tuple[Kernel, tuple[int, ...]]:
        kernel = self.kernel
        steps, last = StepList(), self.cut  # the factor of the cut now counts the results
        count = self.parts * self.lanes
        factors = [
            replace(f, size=count if n == last else 1 if n not in self.rows else f.size)
            for n, f in enumerate(kernel.factors)
        ]
        stores = [n for n, s in enumerate(kernel.steps) if isinstance(s, Store)]
        stores = [n for n in stores if n not in self.early]
        inits = [s.init for n in self.sums if isinstance(s := kernel.steps[n], Reduce)]
        wanted = needed_by(kernel, [*stores, *[n for n in inits if n is not None]], self.sums)
        at = Affine(
            tuple(
                [
                    self.count if n == last else stride if n in self.rows else 0
                    for n, stride in enumerate(self._scratch_strides())
                ]
            )
        )
        for n in sorted(wanted | {*self.sums}):
            step = kernel.steps[n]
            if n not in self.sums:
                steps.keep(n, step)
                continue
            assert isinstance(step, Reduce | Contract)
            number = self.sums.index(n)
            load = Load(len(kernel.operands) + number, at, self.scratch[number].dtype)
            how = step.how if isinstance(step, Reduce) else "add"
            init = step.init if isinstance(step, Reduce) else None
            start = None if init is None else steps.numbers[init]
            reduced = Reduce(how, steps.add(load), start, (last,), step.dtype)
            steps.numbers[n] = steps.add(reduced)
        scratch = [replace(o, output=False) for o in self.scratch]
        operands = (*kernel.operands, *scratch)
        return steps.kernel(kernel, kernel.name, factors, operands)
