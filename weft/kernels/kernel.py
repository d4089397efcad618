"""The contract of a kernel, the same for every target: loops, operands, a body and a schedule.

A kernel is an iteration space of named factors. Its operands are buffers whose elements lie in
row-major order; its body is a list of steps, each a value at every point of the factors it spans:
loads, arithmetic, reductions along factors, stores. Where an element is read or written is affine
in the factors, so that transposes, broadcasts, slices and splits of dims cost nothing. The device
axes of a lockstep program are factors like any other, with stride 0 where devices share a value.
How the loops run (order, vectors, tasks, scratch) is the schedule's part, kept separate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Literal, TypeAlias

from weft.ir.op import Op
from weft.ir.rule import Combine
from weft.ir.types import F32, I32, DType
from weft.records import dataclass

LoopRole = Literal["parallel", "reduction"]


@dataclass(frozen=True, slots=True)
class Factor:
    """One loop of a kernel. A reduction factor ends with the step that reduces along it."""

    name: str
    size: int
    role: LoopRole = "parallel"
    device: bool = False  # counts the devices of a lockstep program


@dataclass(frozen=True, slots=True)
class Affine:
    """An affine index: an offset, and a stride for each factor of the kernel."""

    strides: tuple[int, ...]  # of an operand's index: in elements
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Guard:
    """A condition on the point: low <= index < high."""

    index: Affine
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Shift:
    """A dynamic term of an index: an integer step, clamped to 0..limit, times stride.

    Without `clamped`, an index outside of 0..limit reads nothing: the load yields 0.
    """

    index: int  # the number of the step
    limit: int
    stride: int  # in elements
    clamped: bool = True


@dataclass(frozen=True, slots=True)
class Operand:
    """A buffer in row-major order; leading device dims are part of its shape."""

    dtype: DType
    shape: tuple[int, ...]
    output: bool = False

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the buffer."""
        return self.size * self.dtype.numpy.itemsize


# Steps, referred to by number; those with a value have a dtype.


@dataclass(frozen=True, slots=True)
class Load:
    """An element of an operand; 0 where a guard fails (no access then)."""

    operand: int
    at: Affine
    dtype: DType
    guards: tuple[Guard, ...] = ()
    shifts: tuple[Shift, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    """A constant: a Python bool, int, float or complex; 0.0 and -0.0 are distinct."""

    value: bool | int | float | complex
    dtype: DType

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fill):
            return NotImplemented
        # By repr: 0.0 == -0.0 == 0 == False in Python, and NaN is not equal to itself. Kernels are
        # keys of caches, where each of these matters.
        return self.dtype == other.dtype and repr(self.value) == repr(other.value)

    def __hash__(self) -> int:
        return hash((repr(self.value), self.dtype))


@dataclass(frozen=True, slots=True)
class Position:
    """An affine index as a value, like iota."""

    at: Affine
    dtype: DType


@dataclass(frozen=True, slots=True)
class Apply:
    """An elementwise op (of weft.ops) of other steps."""

    op: Op
    args: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Choose:
    """Select by position (padding, concatenation): one step where all guards hold, else another."""

    guards: tuple[Guard, ...]
    inside: int
    outside: int
    dtype: DType


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction of a step along factors, starting from `init` (a step without these factors).

    Narrow floats are reduced in f32, in any order, and rounded once at the end.
    """

    how: Combine
    arg: int
    init: int | None
    over: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Pick:
    """Argmax or argmin along a factor (NaN first, then the lower index).

    The result is the step `value` at that point: an index (a Position) for argmax and argmin.
    """

    how: Literal["max", "min"]
    key: int
    value: int
    over: tuple[int, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Contract:
    """A contraction: the sum along factors of products of two steps, accumulated in `held`.

    With `tf32` a target may round f32 operands to TF32, of 10 mantissa bits.
    """

    lhs: int
    rhs: int
    over: tuple[int, ...]
    dtype: DType
    held: DType  # the accumulator's type
    tf32: bool = False


@dataclass(frozen=True, slots=True)
class Store:
    """A store of a step to an element of an output operand."""

    operand: int
    at: Affine
    arg: int
    guards: tuple[Guard, ...] = ()


Step: TypeAlias = Load | Fill | Position | Apply | Choose | Reduce | Pick | Contract | Store


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the loops run, as chosen by a target; empty before that.

    `kind` is the target's own name for the loop shape. `order` lists the factors, outermost first.

    Every schedule guarantees: a point reads an element before it overwrites it; a task stores
    values that depend on a reduction along its own factors only after it has read all inputs of
    that reduction; the steps after a contraction run once at every point. In-place results rely on
    this (`weft/kernels/in_place.py`).
    """

    kind: str = ""
    order: tuple[int, ...] = ()
    tasks: int = 0  # the number of leading factors of `order` that form tasks
    options: tuple[tuple[str, int], ...] = ()  # block sizes and the like, tunable


OptionRanges: TypeAlias = Mapping[str, Sequence[int]]  # the values that options may have, by name


def refuses_options(options: Iterable[tuple[str, int]], known: OptionRanges) -> str | None:
    """Why options are invalid, or None if they are valid."""
    for name, value in options:
        if name not in known:
            return f"unknown option {name[:40]!r}"
        if value not in known[name]:
            return f"option {name} cannot be {value}"
    return None


@dataclass(frozen=True)
class Kernel:
    """One kernel: what a launch runs."""

    name: str
    factors: tuple[Factor, ...]
    operands: tuple[Operand, ...]
    steps: tuple[Step, ...]
    schedule: Schedule = Schedule()
    excess_precision: bool = True  # allows steps to keep more precision than their types

    @cached_property
    def _hash(self) -> int:
        facts = (self.name, self.factors, self.operands, self.steps, self.schedule)
        return hash((*facts, self.excess_precision))

    def __hash__(self) -> int:
        return self._hash  # kernels are hashed far more often than built

    @cached_property
    def spans(self) -> tuple[frozenset[int], ...]:
        """The factors that each step varies along."""
        spans: list[frozenset[int]] = []
        for step in self.steps:
            spans.append(_span(step, spans))
        return tuple(spans)

    @property
    def points(self) -> int:
        """The size of the iteration space."""
        return math.prod(f.size for f in self.factors)


def value_dtype(step: Step) -> DType:
    """The type of a step's value."""
    assert not isinstance(step, Store), "a store has no value"
    return step.dtype


def is_rounded(dtype: DType, *, excess_precision: bool = True) -> bool:
    """Whether a step's value is rounded to its type before another step reads it.

    Narrow floats are computed in f32; of them, only bf16 may keep the excess precision.
    """
    # As in XLA. bf16 has the exponents of f32, so that only low bits depend on fusion; an f16
    # value that overflows must be infinite to the steps that read it.
    narrow = dtype.is_float and dtype.bits < 32
    return narrow and not (excess_precision and dtype.name == "bf16")


def held_in(dtype: DType) -> DType:
    """The accumulator type of sums of products."""
    # Narrow integers, also unsigned ones, accumulate in i32: truncated at the end, the sum is the
    # same modulo 2^bits.
    if dtype.kind == "float" and dtype.bits < 32:
        return F32
    return I32 if dtype.is_integer and dtype.bits < 32 else dtype


def args_of(step: Step) -> tuple[int, ...]:
    """The steps that a step reads."""
    match step:
        case Apply(args=args):
            return args
        case Choose(inside=inside, outside=outside):
            return (inside, outside)
        case Reduce(arg=arg, init=init):
            return (arg,) if init is None else (arg, init)
        case Pick(key=key, value=value):
            return (key, value)
        case Contract(lhs=lhs, rhs=rhs):
            return (lhs, rhs)
        case Store(arg=arg):
            return (arg,)
        case Load(shifts=shifts):
            return tuple([s.index for s in shifts])
        case _:
            return ()


def _span(step: Step, before: list[frozenset[int]]) -> frozenset[int]:
    factors: set[int] = set()
    for arg in args_of(step):
        factors |= before[arg]
    if isinstance(step, Load | Position | Store):
        factors |= {n for n, stride in enumerate(step.at.strides) if stride}
    if isinstance(step, Load | Choose | Store):
        # Where a guard fails the value is another one, so that it varies along the guard's factors.
        for guard in step.guards:
            factors |= {n for n, stride in enumerate(guard.index.strides) if stride}
    if isinstance(step, Reduce | Pick | Contract):
        factors -= set(step.over)
    return frozenset(factors)
