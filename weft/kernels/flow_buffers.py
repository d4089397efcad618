"""Buffer sharing in flows, so that few loop-carried values are copied.

Values that are passed on unchanged (the initial, carried and final values of a loop; the results of
a branch's part) share a buffer where their live ranges allow it, and so do a kernel's operand and
the output that may overwrite it. A live range is a closed interval of positions of statements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field

from weft.kernels.flow import ControlFlow, FlowBlock, FlowBranch, FlowLoop, KernelRun
from weft.kernels.in_place import overwritten
from weft.records import dataclass


@dataclass(slots=True)
class FlowLiveRange:
    """The live range of a value: from its definition to its last read."""

    begin: int
    end: int


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory that values share; that of an input is read only."""

    values: list[int]
    nbytes: int
    operand: int | None = None
    is_input: bool = False
    lives: list[FlowLiveRange] = field(default_factory=list)


class Buffers:
    """The buffers of a flow's values."""

    def __init__(self, flow: ControlFlow) -> None:
        self.flow = flow
        self.lives = FlowLiveRanges(flow)
        self.of: list[Buffer] = [self._alone(n) for n in range(len(flow.values))]
        self._join_handed(flow.body)
        # Greedy: every join makes the buffer live longer, and excludes later joins. Those that save
        # copies come first; in-place results save memory only.
        for output, result in zip(flow.outputs, flow.body.results, strict=True):
            self._try(result, output)
        self._join_moves(flow.body)
        for when, run in self.lives.runs.items():
            self._join_in_place(run, when)

    @property
    def all(self) -> list[Buffer]:
        """Every buffer once, in the order of their first values."""
        return list({id(buffer): buffer for buffer in self.of}.values())

    @property
    def own_bytes(self) -> int:
        """The bytes of all buffers but the operands."""
        return sum([buffer.nbytes for buffer in self.all if buffer.operand is None])

    def _alone(self, value: int) -> Buffer:
        operand, flow = self.flow.values[value], self.flow
        own = value if value < len(flow.operands) else None
        is_input = own is not None and not operand.output
        return Buffer([value], operand.nbytes, own, is_input, [self.lives.of[value]])

    # Values that are passed through unchanged

    def _join_handed(self, part: FlowBlock) -> None:
        """Let a value that a loop carries unchanged stay in its buffer."""
        # Live ranges need no check: these are one value, which no iteration writes.
        for statement in part.statements:
            if isinstance(statement, KernelRun):
                continue
            if isinstance(statement, FlowLoop):
                for n, carried in enumerate(statement.carried):
                    if statement.body.results[n] == carried:
                        self._unite(self.of[statement.given[n]], self.of[carried])
                        self._unite(self.of[carried], self.of[statement.made[n]])
            for inner in statement.parts:
                self._join_handed(inner)

    # Values that are copied unless they share a buffer

    def _join_moves(self, part: FlowBlock) -> None:
        for statement in part.statements:
            if isinstance(statement, KernelRun):
                continue
            for inner in statement.parts:
                self._join_moves(inner)
            for source, target in moves_of(statement):
                self._try(source, target)

    def _try(self, source: int, target: int) -> None:
        """Let two values share a buffer if their live ranges are disjoint."""
        one, other = self.of[source], self.of[target]
        if one is other or self._refuses(one, other):
            return
        if not any(_overlap(a, b) for a in one.lives for b in other.lives):
            self._unite(one, other)

    def _join_in_place(self, run: KernelRun, when: int) -> None:
        """Let a kernel's output overwrite an operand that dies there."""
        for operand, output in overwritten(run.kernel):
            one, other = self.of[run.values[operand]], self.of[run.values[output]]
            if one is other or self._refuses(one, other):
                continue
            # The output's store is ordered after the loads of these operands only: the kernel may
            # have no other operand, and no other output, in either buffer.
            over = {run.values[g] for g, m in overwritten(run.kernel) if m == output}
            read = {value for value in run.read if self.of[value] in (one, other)}
            others = [v for v in run.made if v != run.values[output]]
            if not read <= over or any(self.of[v] in (one, other) for v in others):
                continue
            pairs = [(a, b) for a in one.lives for b in other.lives]
            if not any(_overlap(a, b) and not _touch(a, b, when) for a, b in pairs):
                self._unite(one, other)

    def _refuses(self, one: Buffer, other: Buffer) -> bool:
        """Whether buffers cannot be joined, whatever their live ranges."""
        if one.nbytes != other.nbytes:
            return True
        # Operands are arrays of the caller: two of them are never one, and inputs are not written.
        if one.operand is not None and other.operand is not None:
            return True
        return one.is_input or other.is_input

    def _unite(self, one: Buffer, other: Buffer) -> None:
        if one is other:
            return
        if other.operand is not None:  # the joined buffer is the operand's
            one, other = other, one
        one.values += other.values
        one.lives += other.lives
        for value in other.values:
            self.of[value] = one


def moves_of(statement: FlowLoop | FlowBranch) -> Iterator[tuple[int, int]]:
    """The moves of a loop's carried values or a branch's results: pairs of source and target."""
    if isinstance(statement, FlowBranch):
        for part in statement.parts:
            yield from zip(part.results, statement.made, strict=True)
        return
    # The back edge first, so that it is joined first: it is the copy of every iteration.
    yield from zip(statement.body.results, statement.carried, strict=True)
    yield from zip(statement.carried, statement.made, strict=True)
    yield from zip(statement.given, statement.carried, strict=True)


def _overlap(one: FlowLiveRange, other: FlowLiveRange) -> bool:
    # Closed intervals: what a kernel reads and what it writes overlap at the kernel.
    return one.begin <= other.end and other.begin <= one.end


def _touch(one: FlowLiveRange, other: FlowLiveRange, when: int) -> bool:
    """Whether one live range ends where the other begins, at a kernel."""
    return (one.end == other.begin == when) or (other.end == one.begin == when)


# Live ranges


class FlowLiveRanges:
    """The live range of each value.

    Statements are at even positions. The values that loops and branches pass on begin at the odd
    position after what they are copied from, so that source and target of a copy do not overlap.
    """

    def __init__(self, flow: ControlFlow) -> None:
        self.runs: dict[int, KernelRun] = {}  # by position
        self.spans: dict[int, tuple[int, int]] = {}  # first and last position of a loop, by its id
        self._begin: dict[int, int] = {}
        self._inside: dict[int, tuple[int, ...]] = {}  # the loops around the definition of a value
        self._loops: list[tuple[int, int]] = []
        self._reads: list[tuple[int, int, tuple[int, ...]]] = []
        self._make([n for n, operand in enumerate(flow.operands) if not operand.output], -1, ())
        last = self._part(flow.body, 0, ())
        self._read(flow.body.results, last, ())
        self._make(flow.outputs, last + 1, ())
        end: dict[int, int] = dict(self._begin)
        for value, when, loops in self._reads:
            # A loop reads values from outside of it again in every iteration: they live up to the
            # end of the outermost loop that they enter.
            around = [loop for loop in loops if loop not in self._inside[value]]
            end[value] = max(end[value], self._loops[around[0]][1] if around else when)
        self.of = {value: FlowLiveRange(begin, end[value]) for value, begin in self._begin.items()}

    def _make(self, values: Iterable[int], when: int, loops: tuple[int, ...]) -> None:
        for value in values:
            self._begin[value], self._inside[value] = when, loops

    def _read(self, values: Iterable[int], when: int, loops: tuple[int, ...]) -> None:
        self._reads += [(value, when, loops) for value in values]

    def _part(self, part: FlowBlock, now: int, loops: tuple[int, ...]) -> int:
        for statement in part.statements:
            match statement:
                case KernelRun():
                    self.runs[now] = statement
                    self._read(statement.read, now, loops)
                    self._make(statement.made, now, loops)
                case FlowLoop():
                    now = self._repeat(statement, now, loops)
                case FlowBranch():
                    now = self._choice(statement, now, loops)
            now += 2
        return now

    def _repeat(self, loop: FlowLoop, begin: int, loops: tuple[int, ...]) -> int:
        number = len(self._loops)
        self._loops.append((begin, begin))
        inner = (*loops, number)
        self._read(loop.given, begin, loops)
        self._make(loop.carried, begin + 1, inner)
        tested = self._part(loop.test, begin + 2, inner)
        self._read(loop.test.results, tested, inner)
        self._read(loop.carried, tested, inner)  # they are its results if the test fails
        end = self._part(loop.body, tested + 2, inner)
        self._read(loop.body.results, end, inner)
        self._make(loop.made, end + 1, loops)
        self._loops[number] = self.spans[id(loop)] = (begin, end)
        return end

    def _choice(self, choice: FlowBranch, now: int, loops: tuple[int, ...]) -> int:
        self._read((choice.chooser,), now, loops)
        # Only one part runs, but each has positions of its own: values of two parts may share.
        for part in choice.parts:
            now = self._part(part, now + 2, loops)
            self._read(part.results, now, loops)
        self._make(choice.made, now + 1, loops)
        return now
