"""Loop nests over buffers in LLVM IR: dims with strides in each buffer, split into tasks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from weft.emit.llvm.emitted import Phase
from weft.emit.llvm.writer.code import Writer
from weft.kernels.nest.loop_dims import LoopDim
from weft.kernels.single_node import SingleNode, strides
from weft.records import dataclass

PARAMS = ("ptr %operands", "ptr %scratch", "i64 %begin", "i64 %end")
TASK = 1 << 15  # bytes that one task should move: about a microsecond of work


def function(name: str, *, excess_precision: bool = True) -> Writer:
    """A function that runs tasks begin..end of a kernel."""
    return Writer(name, PARAMS, excess_precision=excess_precision)


def pointers(code: Writer, count: int, first: int = 0) -> list[str]:
    """The buffers of a kernel, from one of them on."""
    buffers = []
    for n in range(first, first + count):
        place = code.let(f"getelementptr ptr, ptr %operands, i64 {n}")
        buffers.append(code.let(f"load ptr, ptr {place}, align 8", "p"))
    return buffers


def plus(code: Writer, a: str, b: str | int) -> str:
    """The sum of two i64."""
    if str(b) == "0":
        return a
    return str(b) if a == "0" else code.let(f"add nsw i64 {a}, {b}")


def times(code: Writer, a: str, step: int) -> str:
    """An i64 times a constant."""
    if step == 0 or a == "0":
        return "0"
    return a if step == 1 else code.let(f"mul nsw i64 {a}, {step}")


def moved(code: Writer, offsets: Sequence[str], index: str, steps: Sequence[int]) -> list[str]:
    """Offsets after so many steps along a dim."""
    return [plus(code, o, times(code, index, s)) for o, s in zip(offsets, steps, strict=True)]


def smaller(code: Writer, a: str | int, b: str | int) -> str:
    """The smaller one of two i64."""
    return code.call("i64", "llvm.smin.i64", ("i64", str(a)), ("i64", str(b)))


def larger(code: Writer, a: str | int, b: str | int) -> str:
    """The larger one of two i64."""
    return code.call("i64", "llvm.smax.i64", ("i64", str(a)), ("i64", str(b)))


def divided(code: Writer, number: str, by: int) -> tuple[str, str]:
    """Quotient and remainder of a nonnegative i64 by a constant."""
    if by == 1:
        return number, "0"
    quotient = code.let(f"udiv i64 {number}, {by}")
    return quotient, code.let(f"urem i64 {number}, {by}")


def located(
    code: Writer, number: str, dims: Sequence[LoopDim], offsets: Sequence[str]
) -> list[str]:
    """The offsets at a point, by its row-major number."""
    here = list(offsets)
    for n, dim in reversed(list(enumerate(dims))):
        number, index = divided(code, number, dim.size) if n else ("0", number)
        here = moved(code, here, index, dim.steps)
    return here


@contextmanager
def walk(code: Writer, dims: Sequence[LoopDim], offsets: Sequence[str]) -> Iterator[list[str]]:
    """Loops over all points of dims; yields the offsets."""
    if not dims:
        yield list(offsets)
        return
    first, *rest = dims
    with code.loop(0, first.size) as loop:
        here = moved(code, offsets, loop.index, first.steps)
        with walk(code, rest, here) as found:
            yield found


def lanes_of(nbytes: int, size: int) -> int:
    """The vector width for elements of so many bytes, in a dim of this size."""
    return max(1, min(64 // nbytes, 1 << max(size, 1).bit_length() - 1))


def vectors_and_rest(code: Writer, begin: str, end: str, *widths: int) -> Iterator[tuple[int, str]]:
    """Loops over begin..end, yielded one by one: full vectors, widest first, then scalars.

    Yields width and index of each; `end` is not before `begin`.
    """
    for width in widths:
        if width > 1:
            whole = _whole(code, begin, end, width)
            with code.loop(begin, whole, width) as loop:
                yield width, loop.index
            begin = whole
    with code.loop(begin, end) as loop:
        yield 1, loop.index


def _whole(code: Writer, begin: str, end: str, width: int) -> str:
    """The end of the last full vector."""
    count = code.let(f"sub nsw i64 {end}, {begin}")
    return plus(code, begin, code.let(f"and i64 {count}, {-width}"))


@dataclass(frozen=True, slots=True)
class LineTasks:
    """Tasks that each walk one line (an inner dim) or a piece of it, at points of outer dims."""

    outer: tuple[LoopDim, ...]
    line: LoopDim
    piece: int
    chunk: int

    @property
    def tasks(self) -> int:
        """The number of tasks."""
        return math.prod(d.size for d in self.outer) * -(-self.line.size // self.piece)

    def phase(self, function: str) -> Phase:
        """The phase of these tasks."""
        return Phase(function, self.tasks, self.chunk)

    @contextmanager
    def each(
        self, code: Writer, begin: str = "%begin", end: str = "%end"
    ) -> Iterator[tuple[list[str], str, str]]:
        """A loop over tasks; yields the line's offsets, and the begin and end of the piece."""
        count = len(self.line.steps)
        with code.loop(begin, end) as task:
            pieces = -(-self.line.size // self.piece)
            point, number = divided(code, task.index, pieces)
            first = times(code, number, self.piece)
            last = str(self.line.size)
            if pieces > 1:
                last = smaller(code, plus(code, first, self.piece), self.line.size)
            yield located(code, point, self.outer, ["0"] * count), first, last


def lines(dims: Sequence[LoopDim], cost: int) -> LineTasks:
    """Tasks over dims, the last of which is the line; `cost` is the bytes moved a point."""
    *outer, line = dims
    points = max(1, TASK // max(cost, 1))
    piece = max(1, min(line.size, points))
    return LineTasks(tuple(outer), line, piece, max(1, points // piece))


def matrices(kernel: SingleNode, cost: int) -> LineTasks:
    """Tasks over the matrices of a kernel, the last two dims of its first operand."""
    steps = [strides(o.shape) for o in kernel.operands]
    sizes = [*kernel.devices, *kernel.operands[0].shape[kernel.lead : -2]]
    outer = [LoopDim(n, tuple([s[d] for s in steps])) for d, n in enumerate(sizes)]
    return lines([*outer, LoopDim(1, (0,) * len(steps))], cost)


def cut(outer: Sequence[LoopDim], line: LoopDim, piece: int, cost: int) -> LineTasks:
    """Tasks of pieces of a line at points of outer dims; `cost` as for `lines`."""
    return LineTasks(tuple(outer), line, piece, max(1, TASK // max(1, cost * piece)))
