"""The passes of a Fourier transform: which dim, in which buffers, with which lanes.

A pass transforms lines of one length, several side by side in the lanes of vectors, which needs no
shuffles. The lanes of a dim before the last are its inner neighbours. A long last dim of n1 * n2 is
two passes (Bailey's four steps): columns of length n1 with n2 lanes, a twiddle factor, then rows of
length n2 with n1 lanes. A short one takes its lanes from the batch.

Lengths with large prime factors are convolutions (Bluestein): with c[j] = w^(j*j/2), X[k] is
c[k] times the sum over j of (x[j] c[j]) conj(c[k-j]), which two transforms of a longer length
without such factors compute.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, TypeAlias

from weft.kernels.nest.loop_dims import LoopDim, merged
from weft.kernels.single_node import SingleNode, strides
from weft.ops.linalg import Fft
from weft.records import dataclass

RADICES = (8, 4, 2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31)
MOST = 1 << 20  # longest line of two passes: its tables are part of the kernel
MOST_CONVOLVED = 1 << 16  # the same of a convolution, whose tables are as long as itself
MOST_WORKSPACE = 1 << 26  # bytes
LONGEST = 1 << 11  # longest line of one pass, whose lanes are in scratch memory
_SQUARE = 16  # lanes and rows that are transposed in registers
_SHORT = 16  # below, two passes have too few lanes
_APART = 64  # from here on, two passes are better than lanes that lie apart in memory
_LONG = 256  # the same of whole squares of lanes and rows
_STAGE = {2: 1.0, 3: 1.4, 4: 1.2, 5: 2.0, 8: 1.6}  # the cost of a stage, by its radix
OPERAND, RESULT, WORKSPACE = range(3)


@dataclass(frozen=True, slots=True)
class Area:
    """A buffer, from one of its elements on."""

    buffer: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class LinePass:
    """Lines of one length, transformed in lanes; strides are in elements, of source and target."""

    length: int
    outer: tuple[LoopDim, ...]
    lanes: LoopDim
    rows: tuple[int, int]
    areas: tuple[Area, Area]
    twiddle: int = 0  # multiply row k, lane j by the k*j-th power of that root of unity
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Mirror:
    """Between the transform of half the length and that of real numbers, line by line."""

    half: int
    outer: tuple[LoopDim, ...]
    areas: tuple[Area, Area]
    to_real: bool


Numbers: TypeAlias = Literal[
    "complex", "real", "halves"
]  # halves: the first half of a symmetric line


@dataclass(frozen=True, slots=True)
class LineMap:
    """Lines copied to other places, from one form of numbers to another, times a table.

    Behind the `count` numbers of a source are zeros, up to `length` of the target.
    """

    count: int
    length: int
    outer: tuple[LoopDim, ...]
    rows: tuple[int, int]
    areas: tuple[Area, Area]
    forms: tuple[Numbers, Numbers] = ("complex", "complex")
    table: ChirpFactors | None = None


@dataclass(frozen=True, slots=True)
class ChirpFactors:
    """A step of a transform as a convolution, and its table."""

    step: Literal["first", "middle", "last"]
    length: int  # of the transform
    around: int  # of the circular convolution
    scale: float = 1.0


FftStep: TypeAlias = LinePass | Mirror | LineMap


@dataclass(frozen=True, slots=True)
class FftPlan:
    """The passes of a transform, and the elements of its workspace."""

    steps: tuple[FftStep, ...]
    workspace: int
    inverse: bool


def radices(length: int) -> tuple[int, ...] | None:
    """The factors of a length, largest first; None if it has others than `RADICES`."""
    factors = []
    for radix in RADICES:
        while length % radix == 0 and length > 1:
            factors.append(radix)
            length //= radix
    return tuple(factors) if length == 1 else None


def refuses_fft(kernel: SingleNode) -> str | None:
    """Why this kernel is unsupported."""
    op = kernel.op
    assert isinstance(op, Fft)
    if not kernel.outputs[0].size:
        return None
    *others, last = op.fft_length
    if op.fft_type in ("RFFT", "IRFFT") and last % 2 == 0:
        last //= 2
    for length in (*others, last):
        if not _is_smooth(length) and _around(length) > MOST_CONVOLVED:
            return f"a length of {length} is too long for its prime factors"
    used = plan_of(kernel).workspace * kernel.outputs[0].dtype.real.numpy.itemsize * 2
    return "it needs too much memory at once" if used > MOST_WORKSPACE else None


def _is_smooth(length: int) -> bool:
    """Whether lines of that length are one pass, or two."""
    if radices(length) is None:
        return False
    return length <= LONGEST or (length <= MOST and max(_halves(length)) <= LONGEST)


def _around(length: int) -> int:
    """The length of the circular convolution for a transform: smooth, and whole vectors."""

    def cost(around: int) -> float:
        return around * sum(_STAGE.get(radix, math.inf) for radix in radices(around) or (0,))

    least = -(-(2 * length - 1) // _SQUARE) * _SQUARE
    power = max(1 << (2 * length - 2).bit_length(), _SQUARE)
    # Smaller ones than the next power of two, with a factor of 3, 5, 9 or 15.
    able = [power, *(power // 16 * part for part in (9, 10, 12, 15))]
    return min([n for n in able if n >= least and n % _SQUARE == 0], key=cost)


def plan_of(kernel: SingleNode) -> FftPlan:
    """The passes of a transform."""
    op, (source_operand, result_operand) = kernel.op, kernel.operands
    assert isinstance(op, Fft)
    steps = _Steps(
        kernel.lead, op.fft_length, [*kernel.devices, *result_operand.shape[kernel.lead :]]
    )
    inverse = op.fft_type in ("IFFT", "IRFFT")
    scale = 1 / math.prod(op.fft_length) if inverse else 1.0
    layouts = (strides(source_operand.shape), strides(result_operand.shape))
    match op.fft_type:
        case "RFFT" if op.fft_length[-1] % 2:
            lines = steps.lines(layouts[0][:-1], layouts[1][:-1])
            areas = (Area(OPERAND), Area(RESULT))
            steps.lines_of(op.fft_length[-1], lines, (1, 1), areas, scale, ("real", "halves"))
            steps.others((layouts[1], layouts[1]), (Area(RESULT), Area(RESULT)))
        case "RFFT":
            half = op.fft_length[-1] // 2
            # Pairs of real numbers are read as complex ones, so that strides count half as much.
            folded = tuple([s // 2 for s in layouts[0][:-1]])
            inner = steps.area([*steps.sizes[:-1], half])
            lines = steps.lines(folded, _dense(steps.sizes[:-1], half))
            steps.lines_of(half, lines, (1, 1), (Area(OPERAND), inner), scale)
            back = steps.lines(_dense(steps.sizes[:-1], half), layouts[1][:-1])
            steps.add(Mirror(half, tuple(merged(back)), (inner, Area(RESULT)), False))
            steps.others((layouts[1], layouts[1]), (Area(RESULT), Area(RESULT)))
        case "IRFFT":
            half = op.fft_length[-1] // 2
            source, layout = Area(OPERAND), layouts[0]
            if len(op.fft_length) > 1:
                sizes = [*steps.sizes[:-1], half + 1]
                source, layout = steps.area(sizes), (*_dense(sizes[:-1], half + 1), 1)
                steps.sizes[-1] = half + 1
                steps.others((layouts[0], layout), (Area(OPERAND), source))
            if op.fft_length[-1] % 2:
                lines = steps.lines(layout[:-1], layouts[1][:-1])
                areas = (source, Area(RESULT))
                steps.lines_of(op.fft_length[-1], lines, (1, 1), areas, scale, ("halves", "real"))
                return FftPlan(tuple(steps.passes), steps.used, inverse)
            inner, dense = steps.area([*steps.sizes[:-1], half]), _dense(steps.sizes[:-1], half)
            lines = steps.lines(layout[:-1], dense)
            steps.add(Mirror(half, tuple(merged(lines)), (source, inner), True))
            folded = tuple([s // 2 for s in layouts[1][:-1]])
            lines = steps.lines(dense, folded)
            steps.lines_of(half, lines, (1, 1), (inner, Area(RESULT)), scale)
        case _:
            lines = steps.lines(layouts[0][:-1], layouts[1][:-1])
            areas = (Area(OPERAND), Area(RESULT))
            steps.lines_of(op.fft_length[-1], lines, (1, 1), areas, scale)
            steps.others((layouts[1], layouts[1]), (Area(RESULT), Area(RESULT)))
    return FftPlan(tuple(steps.passes), steps.used, inverse)


def _dense(sizes: Sequence[int], line: int) -> tuple[int, ...]:
    """The strides of lines that lie one after another."""
    return tuple([line * math.prod(sizes[n + 1 :]) for n in range(len(sizes))])


class _Steps:
    """The passes as they are found, and the areas of the workspace."""

    def __init__(self, lead: int, lengths: tuple[int, ...], sizes: list[int]) -> None:
        self.lengths, self.sizes = lengths, sizes
        self.passes: list[FftStep] = []
        self.used = 0
        self.between: tuple[Area, int] | None = None

    def add(self, step: FftStep) -> None:
        """Append a step."""
        self.passes.append(step)

    def area(self, sizes: Sequence[int]) -> Area:
        """An area of the workspace, from a cache line on."""
        made = Area(WORKSPACE, self.used)
        self.used += -(-math.prod(sizes) // 8) * 8
        return made

    def middle(self, sizes: Sequence[int]) -> Area:
        """An area between two passes, which later ones reuse."""
        if self.between is None or self.between[1] < math.prod(sizes):
            self.between = self.area(sizes), math.prod(sizes)
        return self.between[0]

    def lines(self, source: Sequence[int], target: Sequence[int]) -> list[LoopDim]:
        """All dims but the last one, with their strides."""
        pairs = zip(self.sizes[:-1], source, target, strict=True)
        return [LoopDim(size, (a, b)) for size, a, b in pairs]

    def lines_of(
        self,
        length: int,
        lines: Sequence[LoopDim],
        rows: tuple[int, int],
        areas: tuple[Area, Area],
        scale: float,
        forms: tuple[Numbers, Numbers] = ("complex", "complex"),
    ) -> None:
        """The steps of lines of any length and form; `rows` are the strides along them."""
        smooth = _is_smooth(length)
        if smooth and rows == (1, 1) and forms == ("complex", "complex"):
            self.last(length, lines, areas, scale)
            return
        around = length if smooth else _around(length)
        outer = merged(lines)
        sizes = [d.size for d in outer]
        to = _dense(sizes, around)
        inner = self.area([*sizes, around])
        into = [LoopDim(d.size, (d.steps[0], t)) for d, t in zip(outer, to, strict=True)]
        within = [LoopDim(d.size, (t, t)) for d, t in zip(outer, to, strict=True)]
        back = [LoopDim(d.size, (t, d.steps[1])) for d, t in zip(outer, to, strict=True)]
        tables: list[ChirpFactors | None] = [None, None]
        if not smooth:
            tables = [
                ChirpFactors("first", length, around),
                ChirpFactors("last", length, around, scale),
            ]
            scale = 1.0
        self.add(
            LineMap(
                length,
                around,
                tuple(into),
                (rows[0], 1),
                (areas[0], inner),
                (forms[0], "complex"),
                tables[0],
            )
        )
        self.last(around, within, (inner, inner), scale)
        if not smooth:
            middle = ChirpFactors("middle", length, around)
            self.add(LineMap(around, around, tuple(within), (1, 1), (inner, inner), table=middle))
            self.last(around, within, (inner, inner), 1.0)
        kept = length // 2 + 1 if forms[1] == "halves" else length
        form: Numbers = "real" if forms[1] == "real" else "complex"
        self.add(
            LineMap(
                kept,
                kept,
                tuple(back),
                (1, rows[1]),
                (inner, areas[1]),
                ("complex", form),
                tables[1],
            )
        )

    def last(
        self, length: int, lines: Sequence[LoopDim], areas: tuple[Area, Area], scale: float
    ) -> None:
        """The passes of the last dim."""
        outer = merged(lines)
        batch = outer[-1] if outer else LoopDim(1, (0, 0))
        squares = batch.size % _SQUARE == 0 and length % _SQUARE == 0
        few = length < (_LONG if squares else _APART) and batch.size >= 8
        columns = 1 if length <= _SHORT or few else _split(length)
        if columns == 1:
            self.add(LinePass(length, tuple(outer[:-1]), batch, (1, 1), areas, 0, scale))
            return
        rows = length // columns
        middle = self.middle([*[d.size for d in outer], length])
        to = _dense([d.size for d in outer], length)
        first = [LoopDim(d.size, (d.steps[0], t)) for d, t in zip(outer, to, strict=True)]
        second = [LoopDim(d.size, (t, d.steps[1])) for d, t in zip(outer, to, strict=True)]
        source, target = areas
        self.add(
            LinePass(
                columns, tuple(first), LoopDim(rows, (1, 1)), (rows, rows), (source, middle), length
            )
        )
        across = LoopDim(columns, (rows, 1))
        self.add(LinePass(rows, tuple(second), across, (1, columns), (middle, target), 0, scale))

    def others(
        self, layouts: tuple[tuple[int, ...], tuple[int, ...]], areas: tuple[Area, Area]
    ) -> None:
        """A pass for each dim before the last; the first one reads the source."""
        rank = len(self.sizes)
        for dim in range(rank - 2, rank - 1 - len(self.lengths), -1):
            dims = [
                LoopDim(size, (layouts[0][n], layouts[1][n]))
                for n, size in enumerate(self.sizes)
                if n != dim
            ]
            if radices(self.sizes[dim]) is None or self.sizes[dim] > LONGEST:
                rows = (layouts[0][dim], layouts[1][dim])
                self.lines_of(self.sizes[dim], dims, rows, areas, 1.0)
                layouts, areas = (layouts[1], layouts[1]), (areas[1], areas[1])
                continue
            *outer, lanes = [*merged(dims[:dim]), *(merged(dims[dim:]) or [LoopDim(1, (0, 0))])]
            rows = (layouts[0][dim], layouts[1][dim])
            self.add(LinePass(self.sizes[dim], tuple(outer), lanes, rows, areas))
            layouts, areas = (layouts[1], layouts[1]), (areas[1], areas[1])


def _split(length: int) -> int:
    """The columns of a long line: near its square root, whole vectors if possible."""
    counts = [n for n in range(2, length) if length % n == 0] or [1]

    def cost(count: int) -> float:
        waste = sum((-(-n // 16) * 16) / n for n in (count, length // count))
        return waste + abs(math.log2(count * count / length)) / 2

    return min(counts, key=cost)


def _halves(length: int) -> tuple[int, int]:
    """Columns and rows of a long line."""
    columns = _split(length)
    return columns, length // columns
