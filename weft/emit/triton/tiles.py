"""Steps of a kernel on tiles: each value a variable of as many points as its axes have.

An axis of a tile runs through one or several factors of the kernel, as one flat index. A view is
the order of axes as dims of a tile: a step that spans none of a dim's factors has size 1 there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TypeAlias

from weft.emit.triton import dtypes
from weft.emit.triton.pointwise import applied
from weft.emit.triton.precision import coarse_steps
from weft.ir.op import Op
from weft.ir.types import DType
from weft.kernels.kernel import (
    Affine,
    Apply,
    Choose,
    Fill,
    Guard,
    Kernel,
    Load,
    Position,
    Shift,
    Step,
    Store,
    args_of,
    is_rounded,
    value_dtype,
)
from weft.ops.elementwise.approximate import is_approximate
from weft.ops.elementwise.pointwise import Divide
from weft.records import dataclass

TileView: TypeAlias = tuple[str, ...]  # names of axes, by dim
# Indices from which 64 bits are needed: the last block runs past the size, by less than 2^20.
WIDE = (1 << 31) - (1 << 20)


@dataclass(frozen=True, slots=True)
class TileAxis:
    """A dim of tiles: the factors that its flat index runs through, outermost first."""

    name: str
    factors: tuple[int, ...]
    size: int
    block: int

    @property
    def is_even(self) -> bool:
        """Whether whole blocks cover it exactly."""
        return self.size % self.block == 0

    @property
    def blocks(self) -> int:
        """The number of blocks that cover it."""
        return -(-self.size // self.block)


@dataclass(frozen=True, slots=True)
class TileValue:
    """A value on a tile: its variable, and the axes that it varies along."""

    name: str
    axes: frozenset[str]


@dataclass
class TileWriter:
    """Writes the steps of one kernel as lines of a Triton function."""

    kernel: Kernel
    axes: dict[str, TileAxis]
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    hint: str = ""  # the eviction policy of loads
    raw: bool = False  # loads of narrow floats are kept in their type
    _count: int = 0
    # By view: innermost scope last.
    _scopes: list[dict[tuple[TileView, int], TileValue]] = field(default_factory=lambda: [{}])
    _places: list[dict[tuple[TileView, str], str]] = field(default_factory=lambda: [{}])

    def __post_init__(self) -> None:
        self.axis_of = {f: axis for axis in self.axes.values() for f in axis.factors}
        sizes = [*[o.size for o in self.kernel.operands], *[a.size for a in self.axes.values()]]
        # 64-bit indices only where operands need them: they take twice the registers and
        # instructions.
        self.is_wide = max(sizes, default=0) >= WIDE
        self.integer = "tl.int64" if self.is_wide else "tl.int32"
        self.coarse = coarse_steps(self.kernel)

    # Lines and names

    def line(self, text: str) -> None:
        """Append a line."""
        self.lines.append("    " * self.depth + text)

    def let(self, text: str, prefix: str = "v") -> str:
        """Assign an expression to a new variable."""
        self._count += 1
        name = f"{prefix}{self._count}"
        self.line(f"{name} = {text}")
        return name

    @contextmanager
    def loop(self, head: str) -> Iterator[None]:
        """A loop: values computed in it go out of scope at its end."""
        self.line(head)
        self.depth += 1
        self._scopes.append({})
        self._places.append({})
        start = len(self.lines)
        yield
        if len(self.lines) == start:
            self.line("pass")
        self._places.pop()
        self._scopes.pop()
        self.depth -= 1

    # Indices

    def place(self, view: TileView, axis: TileAxis, flat: str) -> None:
        """Define the flat index of an axis in a view: a variable of one dim, or without dims."""
        shaped = flat
        if axis.name in view and len(view) > 1:
            dim = view.index(axis.name)
            shaped = f"{flat}[{', '.join([':' if d == dim else 'None' for d in range(len(view))])}]"
        whole = self.let(shaped, axis.name) if shaped != flat else flat
        places = self._places[-1]
        if not axis.is_even and axis.name in view:
            places[view, f"{axis.name} inside"] = self.let(f"{whole} < {axis.size}", "inside")
        places[view, f"{axis.name} flat"] = rest = whole
        # Mixed radix, innermost factor first; the outermost one needs no remainder, even beyond the
        # size, where the mask holds.
        for n, factor in enumerate(reversed(axis.factors)):
            size = self.kernel.factors[factor].size
            is_first = n == len(axis.factors) - 1
            index = rest if is_first else self.let(f"{rest} % {size}", "i")
            places[view, f"factor {factor}"] = index
            if not is_first:
                rest = self.let(f"{rest} // {size}", "i")

    def variable(self, view: TileView, what: str) -> str | None:
        """A variable of an axis in a view: of a factor's index, or a mask."""
        for places in reversed(self._places):
            if (view, what) in places:
                return places[view, what]
        return None

    def index(self, at: Affine, view: TileView) -> str:
        """An affine index, as an expression."""
        terms: list[str] = []
        whole = self._whole(at, view)
        for flat, stride in whole.values():
            terms.append(flat if stride == 1 else f"{flat} * {stride}")
        for factor, stride in enumerate(at.strides):
            if self.axis_of.get(factor) in whole:
                continue
            if stride and self.kernel.factors[factor].size > 1:
                name = self.variable(view, f"factor {factor}")
                assert name is not None, f"factor {factor} has no index in {view}"
                terms.append(name if stride == 1 else f"{name} * {stride}")
        if at.offset or not terms:
            terms.append(str(at.offset))
        return " + ".join(terms)

    def _whole(self, at: Affine, view: TileView) -> dict[TileAxis | None, tuple[str, int]]:
        """The axes whose factors an index runs through as through one: variable and stride.

        Triton does not see that neighbours of x // 10 * 10 + x % 10 are neighbours in memory.
        """
        runs: dict[TileAxis | None, tuple[str, int]] = {}
        for axis in self.axes.values():
            factors = [f for f in axis.factors if self.kernel.factors[f].size > 1]
            flat = self.variable(view, f"{axis.name} flat") if len(factors) > 1 else None
            strides = [at.strides[f] for f in factors]
            step = strides[-1] if strides else 0
            if flat is None or not step:
                continue
            for factor, stride in zip(reversed(factors), reversed(strides), strict=True):
                if stride != step:
                    break
                step *= self.kernel.factors[factor].size
            else:
                runs[axis] = (flat, strides[-1])
        return runs

    def span(self, at: Iterable[Affine]) -> frozenset[str]:
        """The axes along which indices vary."""
        factors = self.kernel.factors
        return frozenset(
            self.axis_of[f].name
            for one in at
            for f, stride in enumerate(one.strides)
            if stride and factors[f].size > 1 and f in self.axis_of
        )

    def guarded(self, guards: Sequence[Guard], view: TileView) -> list[str]:
        """The conditions of guards that may fail."""
        tests: list[str] = []
        for guard in guards:
            low, high = _range(guard.index, self.kernel)
            index = f"({self.index(guard.index, view)})"
            # Tests that always hold are left out: Triton does not see the ranges of indices, and a
            # mask costs registers and vectorization.
            if low < guard.low:
                tests.append(f"({index} >= {guard.low})")
            if high >= guard.high:
                tests.append(f"({index} < {guard.high})")
        return tests

    def _along(self, axes: frozenset[str], view: TileView) -> str:
        """Zeros along axes: pointers must have all dims of a mask or a stored value."""
        names = [self.variable(view, f"{axis} flat") for axis in view if axis in axes]
        return "".join([f" + {name} * 0" for name in names])

    def inside(self, axes: frozenset[str], view: TileView) -> list[str]:
        """The masks of axes whose last block is partial."""
        names = [self.variable(view, f"{axis} inside") for axis in view if axis in axes]
        return [name for name in names if name is not None]

    # Values

    def value(self, number: int, view: TileView) -> TileValue:
        """The variable of a step in a view, computed here if it is not known yet."""
        for scope in reversed(self._scopes):
            if found := scope.get((view, number)):
                return found
        tile = self._compute(number, self.kernel.steps[number], view)
        self._scopes[-1][view, number] = tile
        return tile

    def know(self, number: int, view: TileView, value: TileValue) -> None:
        """Define the variable of a step."""
        self._scopes[-1][view, number] = value

    def share(self, view: TileView, other: TileView) -> None:
        """Let another view know what is known in this one and does not vary along its last axis."""
        for (seen, number), value in [*self._scopes[-1].items()]:
            if seen == view and view[-1] not in value.axes:
                self.know(number, other, value)

    def _compute(self, number: int, step: Step, view: TileView) -> TileValue:
        match step:
            case Load():
                return self._load(step, view)
            case Fill(value=value, dtype=dtype):
                return TileValue(
                    self.let(self._held(dtypes.literal(value, dtype), dtype)), frozenset()
                )
            case Position(at=at, dtype=dtype):
                index = f"({self.index(at, view)})"
                if not self.span([at]):
                    index = f"tl.full([], {index}, {self.integer})"
                number_text = f"{index}.to({dtypes.computed(dtype)})"
                return TileValue(self.let(self._held(number_text, dtype)), self.span([at]))
            case Apply(op=op, args=args, dtype=dtype):
                values = [self.value(arg, view) for arg in args]
                arg_dtypes = [value_dtype(self.kernel.steps[arg]) for arg in args]
                excess = self.kernel.excess_precision
                names = [v.name for v in values]
                coarse = number in self.coarse or (
                    is_approximate(op) and arg_dtypes[0].name == "f32"
                )
                if text := self._by_rows(op, values, dtype, coarse):
                    return TileValue(self.let(text), _union(values))
                rest = {"excess_precision": excess, "coarse": coarse}
                return TileValue(
                    self.let(applied(op, names, arg_dtypes, dtype, **rest)), _union(values)
                )
            case Choose(guards=guards, inside=inside, outside=outside):
                yes, no = self.value(inside, view), self.value(outside, view)
                tests = self.guarded(guards, view)
                if not tests:
                    return yes
                axes = self.span([g.index for g in guards]) | yes.axes | no.axes
                text = f"tl.where({' & '.join(tests)}, {yes.name}, {no.name})"
                return TileValue(self.let(text), axes)
        raise AssertionError(f"{type(step).__name__} is computed by its loop")

    def _by_rows(self, op: Op, values: Sequence[TileValue], dtype: DType, coarse: bool) -> str:
        """A division of f32 by one divisor a row, or an empty string."""
        if not isinstance(op, Divide) or dtype.name != "f32" or coarse:
            return ""
        a, b = values
        return f"p.divide_rows({a.name}, {b.name})" if b.axes < a.axes else ""

    def _held(self, text: str, dtype: DType) -> str:
        if not is_rounded(dtype, excess_precision=self.kernel.excess_precision):
            return text
        return f"{dtypes.rounded(f'({text})', dtype)}.to(tl.float32)"

    def _load(self, step: Load, view: TileView) -> TileValue:
        axes = self.span([step.at, *[g.index for g in step.guards]])
        at = self.index(step.at, view) + self._along(axes - self.span([step.at]), view)
        tests = self.guarded(step.guards, view)
        for shift in step.shifts:
            value = self.value(shift.index, view)
            axes |= value.axes
            term, test = self._shift(shift, value)
            at += f" + {term}"
            tests += [test] if test else []
        tests += self.inside(axes, view)
        # `other` is required: masked lanes are undefined without it, and a NaN there would survive
        # a product with 0.
        extra = f", mask={' & '.join(tests)}, other=0" if tests else ""
        if self.hint and "r" in axes:
            extra += f', eviction_policy="{self.hint}"'
        text = f"tl.load(in{step.operand} + {_grouped(at)}{extra})"
        if step.dtype.kind == "bool":
            text += " != 0"
        elif step.dtype.is_float and step.dtype.bits < 32 and not self.raw:
            text += ".to(tl.float32)"
        return TileValue(self.let(text), axes)

    def _shift(self, shift: Shift, value: TileValue) -> tuple[str, str]:
        """The dynamic term of an index, and the test that the index is in range."""
        dtype = value_dtype(self.kernel.steps[shift.index])
        wide = f"{value.name}.to({dtypes.computed(dtype)})"
        # Clamped before the conversion, in which large unsigned numbers become negative.
        if dtype.kind == "uint":  # beyond any limit as signed integers of 64 bits
            most = min(shift.limit + 1, int(dtype.limits[1]))
            wide = f"tl.minimum({value.name}, {most})"
        index = self.let(f"{wide}.to(tl.int64)", "i")
        kept = self.let(f"tl.minimum(tl.maximum({index}, 0), {shift.limit})", "i")
        test = "" if shift.clamped else f"({kept} == {index})"
        return f"{kept}.to({self.integer}) * {shift.stride}", test

    def store(self, step: Store, value: TileValue, view: TileView, *where: str) -> None:
        """Write a value to an operand, where the given masks hold."""
        axes = self.span([step.at, *[g.index for g in step.guards]]) | value.axes
        tests = [*self.guarded(step.guards, view), *self.inside(axes, view), *where]
        extra = f", mask={' & '.join(tests)}" if tests else ""
        held = dtypes.to_memory(value.name, self.kernel.operands[step.operand].dtype)
        index = self.index(step.at, view) + self._along(axes - self.span([step.at]), view)
        at = f"out{step.operand} + {_grouped(index)}"
        self.line(f"tl.store({at}, {held}{extra})")

    def broadcast(self, value: TileValue, view: TileView) -> str:
        """A value on the whole tile."""
        if value.axes >= {*view}:
            return value.name
        blocks = [str(self.axes[name].block) for name in view]
        return f"tl.broadcast_to({value.name}, [{', '.join(blocks)}])"


def parameters(kernel: Kernel) -> list[str]:
    """The names of a kernel's operands."""
    return [f"{'out' if o.output else 'in'}{n}" for n, o in enumerate(kernel.operands)]


def needed_by(kernel: Kernel, numbers: Iterable[int], known: Iterable[int] = ()) -> set[int]:
    """The steps that these depend on, themselves included, up to known ones."""
    needed: set[int] = set()
    stop, todo = {*known}, [*numbers]
    while todo:
        number = todo.pop()
        if number not in needed and number not in stop:
            needed.add(number)
            todo += args_of(kernel.steps[number])
    return needed


def _union(values: Iterable[TileValue]) -> frozenset[str]:
    return frozenset().union(*[value.axes for value in values])


def _grouped(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"


def _range(at: Affine, kernel: Kernel) -> tuple[int, int]:
    """The least and the largest value of an index."""
    ends = [(f.size - 1) * stride for f, stride in zip(kernel.factors, at.strides, strict=True)]
    return at.offset + sum(min(0, e) for e in ends), at.offset + sum(max(0, e) for e in ends)
