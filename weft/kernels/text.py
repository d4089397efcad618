"""The text form of kernels, which `parse_kernel` reads back exactly: buffers, loops, steps.

    kernel contract_maximum(in0: f32[2,1,8,64], in1: f32[1,4,64,64], out2: f32[2,4,8,64])
      for d0[2 devices] d1[4 devices] i[8] j[64] k[64 reduced]
      packed: d0 d1 | i j k
        out2[d0, d1, i, j] = maximum(dot[k](in0[d0, 0, i, k], in1[0, d1, k, j]), 0.0)

Device factors and reduction factors are marked; the schedule has the task factors before the bar.
A line is a store, or a named step: one with several readers, or one whose number is out of order
(steps are numbered from left to right, inner first). An index is one subscript for each dim of its
operand, or a single number in `in0.flat[...]`; guards follow a bar. `clip(%3, 7)` is a step clamped
to 0..7; where `inside(%3, 7)` does not hold, the load yields 0. A literal has the type of the last
operand beside it, unless it names one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from weft.ir.op import Op, infer
from weft.ir.rule import Combine
from weft.ir.types import DType, TensorType
from weft.kernels.attention import Access, Attention
from weft.kernels.flow import ControlFlow
from weft.kernels.flow_text import flow_lines
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import (
    Affine,
    Apply,
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
    Schedule,
    Shift,
    Step,
    Store,
    args_of,
)
from weft.kernels.single_node import SingleNode
from weft.ops import OPS
from weft.ops.combiners import COMBINERS
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Add, Compare, Divide, Multiply, Subtract

INFIX: dict[str, type[Op]] = {"+": Add, "-": Subtract, "*": Multiply, "/": Divide}
COMPARED = {"<": "LT", "<=": "LE", ">": "GT", ">=": "GE", "==": "EQ", "!=": "NE"}
COMPARE_KINDS = {"int": "SIGNED", "uint": "UNSIGNED", "bool": "UNSIGNED"}  # any other: FLOAT
# Ops by name without the dialect; StableHLO's take precedence.
BY_SHORT_NAME: dict[str, type[Op]] = {op.name.removeprefix("chlo."): op for op in OPS} | {
    op.name.removeprefix("stablehlo."): op for op in OPS
}
REDUCED: dict[Combine, str] = {how: how for how in COMBINERS} | {"add": "sum", "mul": "prod"}
_SYMBOLS = {op: symbol for symbol, op in INFIX.items()}
_DIRECTIONS = {word: symbol for symbol, word in COMPARED.items()}
# Every op has its full and its short name in the table; sorted so that the shortest one stays.
_SHORT = {BY_SHORT_NAME[name]: name for name in sorted(BY_SHORT_NAME, key=len, reverse=True)}
_BINDS = {"+": 1, "-": 1, "*": 2, "/": 2}  # binding strength: comparisons 0, everything else 3
_DEEPEST, _WIDEST = 6, 72  # nesting depth and columns of inlined expressions


def kernel_text(kernel: AnyKernel) -> str:
    """The text of a kernel, without a trailing newline."""
    operands = ", ".join(map(_operand, range(len(kernel.operands)), kernel.operands))
    strict = not (isinstance(kernel, Attention) or kernel.excess_precision)
    lines = [f"kernel {kernel.name}({operands}){' rounded' if strict else ''}"]
    match kernel:
        case ControlFlow():
            lines[0] += f" steps {kernel.arithmetic}"
            lines += flow_lines(kernel, kernel_text)
        case SingleNode():
            lines += _alone(kernel)
        case Attention():
            lines += _attention(kernel)
        case _:
            lines += _loops(kernel)
    return "\n".join(lines)


def operand_name(number: int, operand: Operand) -> str:
    """The name of an operand in the text: `in0`, `out2`."""
    return f"{'out' if operand.output else 'in'}{number}"


def natural_dtype(
    step: Step, dtypes: Sequence[DType | None], operands: Sequence[Operand]
) -> object:
    """The dtype that the reader infers for a step; None if the text has to name it."""
    match step:
        case Load(operand=operand):
            return operands[operand].dtype
        case Apply(op=op, args=args):
            return scalar_result(op, tuple([dtypes[a] for a in args]))
        case Choose(inside=arg) | Reduce(arg=arg) | Pick(value=arg) | Contract(lhs=arg):
            return dtypes[arg]
        case Fill(dtype=dtype) | Position(dtype=dtype):
            return dtype
    return None


def scalar_result(op: Op, dtypes: tuple[DType | None, ...]) -> DType | None:
    """The result dtype of an elementwise op on scalars."""
    types = tuple([TensorType((), dtype) for dtype in dtypes if dtype is not None])
    result = infer(op, types)[0]
    return result.dtype if isinstance(result, TensorType) else None


def number_text(value: complex) -> str:
    """A Python number as text that keeps its type and sign."""
    if isinstance(value, complex):
        return f"c({value.real!r}, {value.imag!r})"
    return repr(value).lower() if isinstance(value, bool) else repr(value)


def _operand(number: int, operand: Operand) -> str:
    shape = ",".join(map(str, operand.shape))
    return f"{operand_name(number, operand)}: {operand.dtype}[{shape}]"


def _options(options: Sequence[tuple[str, int]]) -> str:
    return "".join([f" {name}={value}" for name, value in options])


# Loops


def _loops(kernel: Kernel) -> Iterator[str]:
    names = [factor.name for factor in kernel.factors]
    yield f"  for {' '.join(map(_factor, kernel.factors)) or 'one point'}"
    yield _schedule(kernel.schedule, names)
    yield from _Steps(kernel, names).lines()


def _factor(factor: Factor) -> str:
    devices = " devices" if factor.device else ""
    return f"{factor.name}[{factor.size}{devices}{' reduced' if factor.role != 'parallel' else ''}]"


def _schedule(schedule: Schedule, names: Sequence[str]) -> str:
    words = [names[n] for n in schedule.order]
    words.insert(schedule.tasks, "|")
    return f"  {schedule.kind}: {' '.join(words)}{_options(schedule.options)}"


class _Steps:
    """The steps of a kernel as expressions, inlined into their only reader where possible."""

    def __init__(self, kernel: Kernel, names: Sequence[str]) -> None:
        self.kernel, self.names = kernel, names
        self.dtypes = [None if isinstance(s, Store) else s.dtype for s in kernel.steps]
        self.readers = Counter([arg for step in kernel.steps for arg in args_of(step)])
        self.texts: list[str] = []
        self.binds: list[int] = []  # binding strength of each text's outermost operator
        self.depths: list[int] = []
        self.first: list[int] = []  # the first step inlined into each text
        self.within: set[int] = set()  # steps inlined elsewhere

    def lines(self) -> Iterator[str]:
        """One line for every step that is not inlined."""
        for n in range(len(self.kernel.steps)):
            self.add(n)
        for n, text in enumerate(self.texts):
            if n not in self.within:
                dtype = self.dtypes[n]
                yield f"    {text}" if dtype is None else f"    %{n}: {dtype} = {text}"

    def add(self, n: int) -> None:
        """Format the next step."""
        step, binds = self.kernel.steps[n], 3
        # The steps that shift a load's index are named in its subscripts, never inlined.
        args = () if isinstance(step, Load) else args_of(step)
        inside, first = self.inlined_args(n, args)
        peers = [self.dtypes[a] for a in args if not (a in inside and self.is_number(a))]
        operand = self.kernel.operands[step.operand] if isinstance(step, Load | Store) else None
        peer = peers[-1] if peers else operand.dtype if operand else None
        texts = [self.argument(a, peer) if a in inside else f"%{a}" for a in args]
        if isinstance(step, Apply) and (symbol := self.symbol(step)):
            binds = _BINDS.get(symbol, 0)
            weak = [self.binds[a] if a in inside else 3 for a in args]
            # Operators of one strength associate to the left, and comparisons do not chain.
            left = f"({texts[0]})" if weak[0] < max(binds, 1) else texts[0]
            right = f"({texts[1]})" if weak[1] <= binds else texts[1]
            text = f"{left} {symbol} {right}"
        else:
            text = self.step(step, texts)
        self.within |= inside
        self.texts.append(text)
        self.binds.append(binds)
        self.first.append(first)
        self.depths.append(1 + max([self.depths[a] for a in inside], default=0))

    def inlined_args(self, n: int, args: tuple[int, ...]) -> tuple[set[int], int]:
        """The arguments that can be inlined: each ends where the next one begins."""
        inlined, first = set[int](), n
        # The reader numbers steps as it meets them: an inlined argument must have the number that
        # it gets there, right before what follows it.
        for arg in reversed(args):
            if arg == first - 1 and self.fits(arg):
                inlined.add(arg)
                first = self.first[arg]
        return inlined, first

    def fits(self, n: int) -> bool:
        """Whether a step can be inlined into its reader."""
        step = self.kernel.steps[n]
        return (
            self.readers[n] == 1
            and self.depths[n] < _DEEPEST
            and len(self.texts[n]) <= _WIDEST
            # Inlined text has no place for a dtype: the reader must infer it.
            and natural_dtype(step, self.dtypes, self.kernel.operands) is self.dtypes[n]
        )

    def is_number(self, n: int) -> bool:
        return isinstance(self.kernel.steps[n], Fill)

    def argument(self, n: int, peer: DType | None) -> str:
        """An inlined step; a literal whose type differs from its peers' names it."""
        typed = self.is_number(n) and self.dtypes[n] is not peer
        return f"{self.texts[n]}:{self.dtypes[n]}" if typed else self.texts[n]

    def symbol(self, step: Apply) -> str | None:
        """The infix operator of an op, if it has one."""
        if isinstance(step.op, Compare):
            kind = self.dtypes[step.args[0]]
            usual = COMPARE_KINDS.get(kind.kind if kind else "", "FLOAT")
            return (
                _DIRECTIONS.get(step.op.comparison_direction)
                if (step.op.compare_type == usual)
                else None
            )
        if len(step.args) != 2 or any(step.op.attributes()):
            return None
        return _SYMBOLS.get(type(step.op))

    def step(self, step: Step, args: Sequence[str]) -> str:
        """A step in call form, from the texts of its arguments."""
        operands = ", ".join(args)
        match step:
            case Load(operand=operand, at=at, guards=guards, shifts=shifts):
                return self.place(operand, at, guards, shifts)
            case Store(operand=operand, at=at, guards=guards):
                return f"{self.place(operand, at, guards)} = {operands}"
            case Fill(value=value):
                return number_text(value)
            case Position(at=at, dtype=dtype):
                return f"position({affine_text(at, self.names)}, {dtype})"
            case Apply(op=op):
                return f"{op_text(op)}({operands})"
            case Choose(guards=guards):
                return f"where({self.guards(guards)}, {operands})"
            case Reduce(how=how, over=over):
                return f"{REDUCED[how]}[{self.over(over)}]({operands})"
            case Pick(how=how, over=over):
                return f"pick_{REDUCED[how]}[{self.over(over)}]({operands})"
            case Contract(over=over, held=held, dtype=dtype, tf32=tf32):
                wide = "" if held is dtype else f" in {held}"
                return f"dot{'_tf32' if tf32 else ''}[{self.over(over)}{wide}]({operands})"

    def place(
        self, n: int, at: Affine, guards: Sequence[Guard], shifts: Sequence[Shift] = ()
    ) -> str:
        """An indexed operand with guards: `in0[i, j | 0 <= i < 5]`."""
        guard_text = f" | {self.guards(guards)}" if guards else ""
        name = operand_name(n, self.kernel.operands[n])
        return place_text(name, self.kernel.operands[n], at, self.names, shifts, guard_text)

    def guards(self, guards: Sequence[Guard]) -> str:
        guard_text = [f"{g.low} <= {affine_text(g.index, self.names)} < {g.high}" for g in guards]
        return " and ".join(guard_text) or "always"

    def over(self, over: Sequence[int]) -> str:
        return " ".join([self.names[n] for n in over])


def op_text(op: Op) -> str:
    """An op with its attributes: `reduce_precision<exponent_bits = 5 : i32>`."""
    if isinstance(op, Convert) and not op.out.shape:
        return str(op.out.dtype)
    attributes = [f"{name} = {value}" for name, value in op.attributes()]
    if "out" in op.fields():
        attributes.append(f"out = {op.out}")  # type: ignore[attr-defined]
    return f"{_SHORT[type(op)]}<{', '.join(attributes)}>" if attributes else _SHORT[type(op)]


# Places


def affine_text(at: Affine, names: Sequence[str]) -> str:
    """An affine index: `8*i - j + 3`."""
    return _sum([(s, n) for s, n in zip(at.strides, names, strict=True) if s], at.offset)


def _sum(terms: Sequence[tuple[int, str]], offset: int) -> str:
    text = ""
    for count, name in terms:
        text += " - " if count < 0 else " + "
        text += name if abs(count) == 1 else f"{abs(count)}*{name}"
    if offset or not terms:
        text += f" {'-' if offset < 0 else '+'} {abs(offset)}"
    return text[3:] if text.startswith(" +") else f"-{text[3:]}"


def row_major(shape: Sequence[int]) -> list[int]:
    """Row-major strides in elements."""
    return [math.prod(shape[n + 1 :]) for n in range(len(shape))]


def place_text(
    name: str,
    operand: Operand,
    at: Affine,
    names: Sequence[str],
    shifts: Sequence[Shift] = (),
    guard_text: str = "",
) -> str:
    """An index with one subscript for each dim, or flat if the strides do not decompose."""
    moved = [f"{'clip' if s.clamped else 'inside'}(%{s.index}, {s.limit})" for s in shifts]
    every = [*zip(at.strides, names, strict=True)]
    every += zip([s.stride for s in shifts], moved, strict=True)
    strides = row_major(operand.shape)
    # A dim of size 1 has the index 0 only, and its stride is that of the dim before it.
    dims = [n for n, size in enumerate(operand.shape) if size > 1] or [len(strides) - 1]
    # A stride of the index as digits of the operand's strides: 8*i in [4, 8] is `[i, 0]`.
    parts = [_digits(stride, strides, dims) for stride, _ in every]
    offset = _digits(at.offset, strides, dims)
    behind = parts[len(names) :]  # each shift belongs to one dim, in the order of the dims
    homes = [[n for n, count in enumerate(p) if count] for p in behind]
    if not strides and (at.offset or any(count for count, _ in every)):
        homes = [[]]  # an operand without dims has no subscript for the index: flat
    # In the order of the dims, in which the reader meets them.
    if any(len(home) != 1 for home in homes) or homes != sorted(homes):
        terms = [(count, term) for count, term in every[: len(names)] if count]
        terms += every[len(names) :]
        return f"{name}.flat[{_sum(terms, at.offset)}{guard_text}]"
    subscripts = []
    for n in range(len(strides)):
        terms = [(part[n], term) for part, (_, term) in zip(parts, every, strict=True) if part[n]]
        subscripts.append(_sum(terms, offset[n]))
    return f"{name}[{', '.join(subscripts)}{guard_text}]"


def _digits(number: int, strides: Sequence[int], dims: Sequence[int]) -> list[int]:
    """An offset decomposed over strides, largest first."""
    digits = [0] * len(strides)
    left, sign = abs(number), -1 if number < 0 else 1
    for n in dims if strides else ():
        if strides[n]:
            digits[n] = sign * (left // strides[n])
            left %= strides[n]
    return digits


# Single nodes, attention


def _alone(kernel: SingleNode) -> Iterator[str]:
    known = [number_text(k) if k is not None else "none" for k in kernel.known]
    listed = f" known=[{', '.join(known)}]" if {*known} - {"none"} else ""
    yield f"  alone lead={kernel.lead}{listed}"
    yield from kernel.lines


def _attention(kernel: Attention) -> Iterator[str]:
    window, outer = kernel.window, [f"o{n}" for n in range(len(kernel.outer))]
    words = {"outer": f"[{', '.join(map(str, kernel.outer))}]"}
    for name in ("queries", "keys", "depth", "value_depth", "scale", "bias_scale"):
        words[name] = number_text(getattr(kernel, name))
    sides = {"left": window.left, "right": window.right, "shift": window.shift or None}
    words |= {name: str(size) for name, size in sides.items() if size is not None}
    if kernel.softcap:
        words["softcap"] = number_text(kernel.softcap)
    yield f"  attention {_words(words)} empty={kernel.empty}"
    if kernel.options:
        yield f"  options{_options(kernel.options)}"

    def access(name: str, at: Access | None, extra: dict[str, str] | None = None) -> Iterator[str]:
        if at is not None:
            operand, place = kernel.operands[at.operand], (*at.outer, at.row, at.column)
            called = operand_name(at.operand, operand)
            text = place_text(called, operand, Affine(place, at.offset), [*outer, "row", "column"])
            yield f"    {name} = {text}{f' {_words(extra)}' if extra else ''}"

    for name in ("q", "k", "v", "out", "lse", "bias"):
        yield from access(name, getattr(kernel, name))
    if mask := kernel.mask:
        extra = {"fill": number_text(mask.fill), "hides": number_text(mask.hides)}
        yield from access("mask", mask.access, extra)
    if grads := kernel.gradients:
        for name in ("out", "q", "k", "v", "bias"):
            scale = {"q": grads.q_scale, "k": grads.k_scale}.get(name)
            extra = {} if scale is None else {"scale": number_text(scale)}
            yield from access(f"d_{name}", getattr(grads, name), extra)


def _words(words: dict[str, str]) -> str:
    return " ".join([f"{name}={value}" for name, value in words.items()])
