"""The passes of a Fourier transform: which dim, in which buffers, with which lanes.

A pass transforms lines of one length, several side by side in the lanes of vectors, which needs no
shuffles. The lanes of a dim before the last are its inner neighbours. A long last dim of n1 * n2 is
two passes (Bailey's four steps): columns of length n1 with n2 lanes, a twiddle factor, then rows of
length n2 with n1 lanes. A short one takes its lanes from the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.emit.llvm.writer.nest import LoopDim, merged
from weft.kernels.single_node import SingleNode, strides
from weft.ops.linalg import Fft
from weft.records import dataclass

RADICES = (8, 4, 2, 3, 5, 7, 11, 13)
MOST = 1 << 15  # longest last dim: its tables are part of the kernel
LONGEST = 1 << 11  # longest line of one pass, whose lanes are in scratch memory
_SHORT = 16  # below, two passes have too few lanes
_LONG = 256  # from here on, two passes are better than few lanes of the batch
_MANY = 512  # the same of whole vectors of lanes
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


@dataclass(frozen=True, slots=True)
class FftPlan:
    """The passes of a transform, and the elements of its workspace."""

    steps: tuple[LinePass | Mirror, ...]
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
    if op.fft_type in ("RFFT", "IRFFT"):
        if last % 2:
            return "of real numbers, an odd count"
        last //= 2
    if any(radices(n) is None for n in (*others, last)):
        return f"its length has a prime factor above {max(RADICES)}"
    if last > MOST or any(n > LONGEST for n in others):
        return f"it is longer than {MOST if last > MOST else LONGEST}"
    return None


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
        case "RFFT":
            half = op.fft_length[-1] // 2
            # Pairs of real numbers are read as complex ones, so that strides count half as much.
            folded = tuple([s // 2 for s in layouts[0][:-1]])
            inner = steps.area([*steps.sizes[:-1], half])
            lines = steps.lines(folded, _dense(steps.sizes[:-1], half))
            steps.last(half, lines, (Area(OPERAND), inner), scale)
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
            inner, dense = steps.area([*steps.sizes[:-1], half]), _dense(steps.sizes[:-1], half)
            lines = steps.lines(layout[:-1], dense)
            steps.add(Mirror(half, tuple(merged(lines)), (source, inner), True))
            folded = tuple([s // 2 for s in layouts[1][:-1]])
            steps.last(half, steps.lines(dense, folded), (inner, Area(RESULT)), scale)
        case _:
            lines = steps.lines(layouts[0][:-1], layouts[1][:-1])
            steps.last(op.fft_length[-1], lines, (Area(OPERAND), Area(RESULT)), scale)
            steps.others((layouts[1], layouts[1]), (Area(RESULT), Area(RESULT)))
    return FftPlan(tuple(steps.passes), steps.used, inverse)


def _dense(sizes: Sequence[int], line: int) -> tuple[int, ...]:
    """The strides of lines that lie one after another."""
    return tuple([line * math.prod(sizes[n + 1 :]) for n in range(len(sizes))])


class _Steps:
    """The passes as they are found, and the areas of the workspace."""

    def __init__(self, lead: int, lengths: tuple[int, ...], sizes: list[int]) -> None:
        self.lengths, self.sizes = lengths, sizes
        self.passes: list[LinePass | Mirror] = []
        self.used = 0

    def add(self, step: LinePass | Mirror) -> None:
        """Append a step."""
        self.passes.append(step)

    def area(self, sizes: Sequence[int]) -> Area:
        """An area of the workspace, from a cache line on."""
        made = Area(WORKSPACE, self.used)
        self.used += -(-math.prod(sizes) // 8) * 8
        return made

    def lines(self, source: Sequence[int], target: Sequence[int]) -> list[LoopDim]:
        """All dims but the last one, with their strides."""
        pairs = zip(self.sizes[:-1], source, target, strict=True)
        return [LoopDim(size, (a, b)) for size, a, b in pairs]

    def last(
        self, length: int, lines: Sequence[LoopDim], areas: tuple[Area, Area], scale: float
    ) -> None:
        """The passes of the last dim."""
        outer = merged(lines)
        batch = outer[-1] if outer else LoopDim(1, (0, 0))
        few = (length < _LONG and batch.size >= 8) or (length <= _MANY and batch.size >= 16)
        columns = 1 if length <= _SHORT or few else _split(length)
        if columns == 1 and length <= LONGEST:
            self.add(LinePass(length, tuple(outer[:-1]), batch, (1, 1), areas, 0, scale))
            return
        rows = length // columns
        middle = self.area([*[d.size for d in outer], length])
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
