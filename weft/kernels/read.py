"""The parser of kernel text, whose grammar `weft.kernels.text` describes.

The parser checks syntax and types; `verify_kernel` checks bounds and consistency.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from weft.errors import WeftError
from weft.ir.location import UNKNOWN
from weft.ir.op import Op, read_op
from weft.ir.read import read_node, unknown_op
from weft.ir.scan import dictionary, parse_type
from weft.ir.types import DTYPES, DType, TensorType, Types
from weft.ir.uses import free_variables
from weft.kernels.attention import (
    Access,
    Attention,
)
from weft.kernels.attention_text import LabelledAccess, attention_of, attention_words
from weft.kernels.flow_text import read_flow
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
)
from weft.kernels.single_node import SingleNode, is_constant
from weft.kernels.text import (
    BY_SHORT_NAME,
    COMPARE_KINDS,
    COMPARED,
    INFIX,
    REDUCED,
    operand_name,
    row_major,
    scalar_result,
)
from weft.kernels.tokens import Line, raise_unknown_name, syntax_error
from weft.ops import BY_NAME
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Compare
from weft.ops.shape import Constant

_HOW = {word: how for how, word in REDUCED.items()}
_ENDS = (",", "]", "|")  # in a subscript
_DEEPEST = 50  # nesting depth of expressions; the writer inlines 6 levels
# Raised on malformed text by the parsers of types, attributes and numbers, and by the assertions of
# the contracts' constructors.
_MISREAD = (
    ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, AssertionError
)  # fmt: skip


def parse_kernel(text: str) -> AnyKernel:
    """Parse a kernel; a syntax error names the line."""
    return _Reader(text.split("\n")).kernel()


class _Reader:
    """Parser state: the lines of a kernel, and the steps read so far."""

    def __init__(self, lines: Sequence[str]) -> None:
        self.lines = lines
        self.number = 0  # lines started
        self.names: dict[str, int] = {}  # factor names
        self.operands: tuple[Operand, ...] = ()
        self.called: dict[str, int] = {}  # operand names
        self.steps: list[Step] = []
        self.untyped: dict[int, complex] = {}  # literals typed by the operand beside them
        self.bare: set[int] = set()  # contractions that accumulate in their own dtype
        self.depth = 0

    def next(self) -> Line:
        """The next line."""
        self.number += 1
        if self.number > len(self.lines):
            raise syntax_error("unexpected end of text")
        return Line(self.lines[self.number - 1])

    @property
    def is_done(self) -> bool:
        return self.number >= len(self.lines)

    def kernel(self) -> AnyKernel:
        """The whole text."""
        try:
            return self.read()
        except WeftError as error:
            raise error.at(UNKNOWN, self.here()) from None
        except _MISREAD as error:
            raise syntax_error(f"the text of a kernel cannot be read: {error}").at(
                UNKNOWN, self.here()
            ) from error

    def here(self) -> str:
        """The current line."""
        text = self.lines[self.number - 1] if self.number <= len(self.lines) else ""
        return f"line {self.number}: {text.strip()[:100]}"

    def read(self) -> AnyKernel:
        line = self.next()
        line.expect("kernel")
        name = line.name()
        operands = line.listed("(", ")", lambda: self.operand(line))
        excess = not line.accept("rounded")
        if line.accept("steps"):
            steps = line.integer()
            line.finish()
            flow = read_flow(name, operands, excess, self.lines[1:], parse_kernel)
            return replace(flow, arithmetic=steps)
        line.finish()
        self.operands = tuple(operands)
        line = self.next()
        if line.accept("alone"):
            return self.alone(name, line, excess)
        if line.accept("attention"):
            return self.attention(name, line)
        line.expect("for")
        return self.loops(name, line, excess)

    def operand(self, line: Line) -> Operand:
        """One operand of the header."""
        name = line.name()
        line.expect(":")
        dtype = line.dtype()
        operand = Operand(dtype, tuple(line.listed("[", "]", line.integer)), name.startswith("out"))
        if name != operand_name(len(self.called), operand):
            raise syntax_error(f"operand {len(self.called)} cannot be called {name!r}")
        self.called[name] = len(self.called)
        return operand

    # Loops

    def loops(self, name: str, line: Line, excess: bool) -> Kernel:
        factors: list[Factor] = []
        if line.accept("one"):
            line.expect("point")
        while line.token:
            factors.append(self.factor(line))
        line = self.next()
        kind = line.name()
        line.expect(":")
        order: list[int] = []
        tasks = -1
        while line.token == "|" or line.token in self.names:
            if line.accept("|"):
                tasks = len(order)
            else:
                order.append(self.names[line.take()])
        if tasks < 0:
            raise syntax_error("expected '|' after the task factors of the schedule")
        schedule = Schedule(kind, tuple(order), tasks, line.options())
        while not self.is_done:
            self.line(self.next())
        operands, steps = self.operands, tuple(self.steps)
        return Kernel(name, tuple(factors), operands, steps, schedule, excess)

    def factor(self, line: Line) -> Factor:
        name = line.name()
        if name in self.names:
            raise syntax_error(f"duplicate factor {name!r}")
        self.names[name] = len(self.names)
        line.expect("[")
        size, device = line.integer(), bool(line.accept("devices"))
        reduced = line.accept("reduced")
        line.expect("]")
        return Factor(name, size, "reduction" if reduced else "parallel", device)

    def line(self, line: Line) -> None:
        """A store, or a named step with its number and dtype."""
        if not line.token.startswith("%"):
            operand, at, guards, shifts = self.place(line)
            line.expect("=")
            (arg,) = self.typed([self.expression(line)], self.operands[operand].dtype)
            if shifts:
                raise syntax_error("a store cannot have a dynamic index")
            self.steps.append(Store(operand, at, arg, guards))
        else:
            number = int(line.take()[1:])
            line.expect(":")
            dtype = line.dtype()
            line.expect("=")
            before = len(self.steps)
            (index,) = self.typed([self.expression(line)], dtype)
            if index != number or index < before:
                raise syntax_error(f"this is step {len(self.steps) - 1}, not {number}")
            step = self.steps[index]
            assert not isinstance(step, Store), "no expression is a store"
            # The line's dtype is the step's where no rule infers it, as of a product in f32 of
            # bf16.
            if step.dtype is not dtype:
                step = replace(step, dtype=dtype)
                bare = isinstance(step, Contract) and index in self.bare
                self.steps[index] = replace(step, held=dtype) if bare else step  # type: ignore[arg-type]
        line.finish()

    # Expressions: each reads its arguments and gives the number of its step

    def expression(self, line: Line) -> int:
        """A comparison or a sum; returns the number of its step."""
        self.depth += 1
        if self.depth > _DEEPEST:
            raise syntax_error("expressions are nested too deeply")
        left = self.sum(line)
        if symbol := line.accept(*COMPARED):
            args = self.typed([left, self.sum(line)])
            kind = COMPARE_KINDS.get(self.dtype(args[0]).kind, "FLOAT")
            left = self.apply(Compare(COMPARED[symbol], kind), args)
        self.depth -= 1
        return left

    def sum(self, line: Line) -> int:
        left = self.product(line)
        while symbol := line.accept("+", "-"):
            left = self.apply(INFIX[symbol](), self.typed([left, self.product(line)]))
        return left

    def product(self, line: Line) -> int:
        left = self.primary(line)
        while symbol := line.accept("*", "/"):
            left = self.apply(INFIX[symbol](), self.typed([left, self.primary(line)]))
        return left

    def primary(self, line: Line) -> int:
        if line.token.startswith("%"):
            return self.reference(line)
        if line.accept("("):
            inner = self.expression(line)
            line.expect(")")
            return inner
        value = line.number()
        if value is not None:
            if line.accept(":"):
                return self.add(Fill(value, line.dtype()))
            # Its dtype is that of an operand which may follow: `typed` replaces this step.
            self.untyped[len(self.steps)] = value
            return self.add(Fill(value, DTYPES["f32"]))
        if line.token.removesuffix(".flat") in self.called:
            operand, at, guards, shifts = self.place(line)
            return self.add(Load(operand, at, self.operands[operand].dtype, guards, shifts))
        return self.called_step(line)

    def reference(self, line: Line) -> int:
        token = line.take()
        if (number := int(token[1:])) >= len(self.steps):
            raise syntax_error(f"step {token} is not defined before its use")
        return number

    def called_step(self, line: Line) -> int:
        """A call: `name(args)` or `name[factors](args)`."""
        name = line.take()
        if name == "position":
            line.expect("(")
            at = self.affine(line)
            line.expect(",")
            dtype = line.dtype()
            line.expect(")")
            return self.add(Position(at, dtype))
        if name == "where":
            return self.choose(line)
        if line.token == "[":
            return self.folded(name, line)
        op = self.op(name, line)
        return self.apply(op, self.typed(self.args(line)))

    def args(self, line: Line) -> list[int]:
        return line.listed("(", ")", lambda: self.expression(line))

    def choose(self, line: Line) -> int:
        line.expect("(")
        guards = () if line.accept("always") else self.guards(line)
        line.expect(",")
        inside = self.expression(line)
        line.expect(",")
        inside, outside = self.typed([inside, self.expression(line)])
        line.expect(")")
        return self.add(Choose(guards, inside, outside, self.dtype(inside)))

    def folded(self, name: str, line: Line) -> int:
        """A reduction, a pick or a contraction along factors."""
        line.expect("[")
        over: list[int] = []
        while line.token not in ("]", "in"):
            over.append(self.names[line.name()])
        held = line.dtype() if line.accept("in") else None
        line.expect("]")
        first, *rest = self.typed(self.args(line))
        along, dtype = tuple(over), self.dtype(first)
        if len(rest) != 1 and not (name in _HOW and not rest):
            raise syntax_error(f"{name} is called with the wrong number of arguments")
        if name in _HOW:
            init = rest[0] if rest else None
            return self.add(Reduce(_HOW[name], first, init, along, dtype))
        if name in ("pick_max", "pick_min"):
            how = _HOW[name.removeprefix("pick_")]
            pick = Pick(how, first, rest[0], along, self.dtype(rest[0]))  # type: ignore[arg-type]
            return self.add(pick)
        if name not in ("dot", "dot_tf32"):
            raise_unknown_name("reduction", name)
        if held is None:  # the accumulator has the dtype of the line, which `line` knows
            self.bare.add(len(self.steps))
        tf32 = name == "dot_tf32"
        return self.add(Contract(first, rest[0], along, dtype, held or dtype, tf32))

    def op(self, name: str, line: Line) -> Op:
        """The op of this name, with its attributes."""
        if name in DTYPES:
            return Convert(TensorType((), DTYPES[name]))
        attributes: dict[str, str] = {}
        if line.token == "<":
            attributes = dictionary(line.brackets())
        if name not in BY_SHORT_NAME:
            raise unknown_op(name, BY_SHORT_NAME)
        result_type = attributes.pop("out", None)
        results: Types = () if result_type is None else (parse_type(result_type),)
        op, rest = read_op(BY_SHORT_NAME[name], attributes, results)
        if rest:
            raise syntax_error(f"{name} has no attribute {rest[0][0]!r}")
        return op

    # Steps

    def add(self, step: Step) -> int:
        self.steps.append(step)
        return len(self.steps) - 1

    def apply(self, op: Op, args: Sequence[int]) -> int:
        dtype = scalar_result(op, tuple([self.dtype(a) for a in args]))
        if dtype is None:
            raise syntax_error(f"{op.name} has no numeric result")
        return self.add(Apply(op, tuple(args), dtype))

    def dtype(self, n: int) -> DType:
        step = self.steps[n]
        if isinstance(step, Store):
            raise syntax_error(f"step {n} is a store, which gives no value")
        return step.dtype

    def typed(self, args: Sequence[int], peer: DType | None = None) -> Sequence[int]:
        """Arguments; untyped literals take the type of the last typed one."""
        # The last typed argument counts, as in `_Steps.add`, which leaves types out.
        for n in args:
            peer = peer if n in self.untyped else self.dtype(n)
        for n in args:
            if n in self.untyped:
                if peer is None:
                    raise syntax_error(
                        "a literal without typed operands beside it needs a type, as in 0.5:f32"
                    )
                self.steps[n] = Fill(self.untyped.pop(n), peer)
        return args

    # Places

    def place(self, line: Line) -> tuple[int, Affine, tuple[Guard, ...], tuple[Shift, ...]]:
        """An indexed operand: `in0[i, clip(%3, 7) | 0 <= i < 5]`."""
        name = line.take()
        flat = name.endswith(".flat")
        number = self.called.get(name.removesuffix(".flat"))
        if number is None:
            raise syntax_error(f"unknown operand {name!r}")
        scales = [1] if flat else row_major(self.operands[number].shape)
        strides, offset, shifts = [0] * len(self.names), 0, list[Shift]()
        guards: tuple[Guard, ...] = ()
        line.expect("[")
        for n, scale in enumerate(scales):
            if n:
                line.expect(",")
            offset += scale * self.terms(line, strides, scale, shifts)
        if line.accept("|"):
            guards = self.guards(line)
        line.expect("]")
        return number, Affine(tuple(strides), offset), guards, tuple(shifts)

    def terms(
        self, line: Line, strides: list[int], scale: int, shifts: list[Shift] | None = None
    ) -> int:
        """Index terms `8*i - clip(%3, 7) + 3`: adds strides of factors, returns the offset."""
        factor = self.names.get(line.token)
        if factor is not None and line.tokens[line.at + 1] in _ENDS:  # the common case
            line.take()
            strides[factor] += scale
            return 0
        offset, sign = 0, -1 if line.accept("-") else 1  # a sign of 0 ends the sum
        while sign:
            count = sign
            if line.token.isdecimal():
                count *= line.integer()
                if not line.accept("*"):
                    offset += count
                    sign = {"+": 1, "-": -1, "": 0}[line.accept("+", "-")]
                    continue
            name = line.name()
            if name in ("clip", "inside") and line.token == "(" and shifts is not None:
                index, limit = self.shift(line)
                shifts.append(Shift(index, limit, scale * count, name == "clip"))
            elif name in self.names:
                strides[self.names[name]] += scale * count
            else:
                raise_unknown_name("factor", name)
            sign = {"+": 1, "-": -1, "": 0}[line.accept("+", "-")]
        return offset

    def shift(self, line: Line) -> tuple[int, int]:
        line.expect("(")
        index = self.reference(line)
        line.expect(",")
        limit = line.integer()
        line.expect(")")
        return index, limit

    def affine(self, line: Line) -> Affine:
        strides = [0] * len(self.names)
        offset = self.terms(line, strides, 1)
        return Affine(tuple(strides), offset)

    def guards(self, line: Line) -> tuple[Guard, ...]:
        """`0 <= i < 5 and ...`."""
        guards: list[Guard] = []
        while not guards or line.accept("and"):
            low = line.integer()
            line.expect("<=")
            index = self.affine(line)
            line.expect("<")
            guards.append(Guard(index, low, line.integer()))
        return tuple(guards)

    # Single nodes, attention

    def alone(self, name: str, line: Line, excess: bool) -> SingleNode:
        line.expect("lead", "=")
        lead, known = line.integer(), [None for o in self.operands if not o.output]
        if line.accept("known"):
            line.expect("=")
            known = line.listed("[", "]", lambda: None if line.accept("none") else _scalar(line))
        line.finish()
        types = [TensorType(o.shape[lead:], o.dtype) for o in self.operands if not o.output]
        *constants, node = read_node("\n".join(self.lines[self.number :]), tuple(types), BY_NAME)
        is_known = all(isinstance(n.op, Constant) for n in constants)
        if not is_known or not all(map(is_constant, free_variables(node))):
            raise syntax_error("regions may capture constants only")
        return SingleNode(name, node.op, self.operands, lead, node.regions, tuple(known), excess)

    def attention(self, name: str, line: Line) -> Attention:
        line.expect("outer", "=")
        outer = tuple(line.listed("[", "]", line.integer))
        words = attention_words(line)
        line.finish()
        options: tuple[tuple[str, int], ...] = ()
        if not self.is_done and self.lines[self.number].startswith("  options"):
            line = self.next()
            line.take()
            options = line.options()
        # Accesses are read like those of loops: outer dims, row and column stand for factors.
        self.names = {f"o{n}": n for n in range(len(outer))}
        self.names |= {"row": len(outer), "column": len(outer) + 1}
        accesses: dict[str, LabelledAccess] = {}
        while not self.is_done:
            line = self.next()
            label = line.name()
            line.expect("=")
            operand, at, *_ = self.place(line)
            *around, row, column = at.strides
            accesses[label] = (
                Access(operand, tuple(around), row, column, at.offset),
                attention_words(line),
            )
            line.finish()
        return attention_of(name, outer, self.operands, options, words, accesses)


def _scalar(line: Line) -> Any:
    value = line.number()
    return raise_unknown_name("number", line.token) if value is None else value
