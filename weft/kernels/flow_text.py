"""The text form of flows, and its parser: the types of results, the statements, the kernels.

    kernel while_590fd115(in0: f32[1], out1: f32[1]) steps 4000
      flow v2: f32[1], v3: i1[1], v4: f32[1], v5: f32[1]
        loop v2 from in0 to v5
          test
            run 0 compare_8867ce5a(v2, v3)
            yield v3
          body
            run 1 multiply_145f4b73(v2, v4)
            yield v4
        yield v5
      kernel compare_8867ce5a(in0: f32[1], out1: i1[1])
        ...

A `run` names a kernel and its number, and the values of all its operands, in order. `each 2, 4` has
the sizes of leading device dims: every device runs the flow by itself. `steps` is the estimated
number of operations, with assumed trip counts where they are not known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Literal, cast

from weft.kernels.flow import (
    ControlFlow,
    FlowBlock,
    FlowBranch,
    FlowLoop,
    KernelRun,
    PlainKernel,
    Statement,
)
from weft.kernels.kernel import Operand
from weft.kernels.tokens import Line, syntax_error

if TYPE_CHECKING:
    from weft.kernels.group import AnyKernel

_DEEPEST = 200  # nesting depth: text of a file must not exhaust the stack of the recursive parser


def flow_lines(flow: ControlFlow, kernel_text: Callable[[PlainKernel], str]) -> Iterator[str]:
    """The lines of a flow below its first one."""
    names = _names(flow.operands)
    first = len(names)
    names += [f"v{first + n}" for n in range(len(flow.inner))]
    defined = [f"{names[first + n]}: {_type(operand)}" for n, operand in enumerate(flow.inner)]
    if flow.devices:
        yield f"  each {', '.join(map(str, flow.devices))}"
    yield f"  flow {', '.join(defined)}".rstrip()
    numbers = {kernel: n for n, kernel in enumerate(flow.kernels)}

    def listed(values: Sequence[int]) -> str:
        return ", ".join([names[value] for value in values])

    def part(part: FlowBlock, indent: str) -> Iterator[str]:
        for statement in part.statements:
            yield from [indent + line for line in lines(statement)]
        yield f"{indent}yield {listed(part.results)}".rstrip()

    def lines(statement: Statement) -> Iterator[str]:
        match statement:
            case KernelRun(kernel=kernel, values=values):
                yield f"run {numbers[kernel]} {kernel.name}({listed(values)})"
            case FlowLoop():
                flows = f"{listed(statement.carried)} from {listed(statement.given)}"
                yield f"loop {flows} to {listed(statement.made)}"
                for word, inner in zip(("test", "body"), statement.parts, strict=True):
                    yield f"  {word}"
                    yield from part(inner, "    ")
            case FlowBranch(way=way, chooser=chooser):
                yield f"branch {way} {names[chooser]} to {listed(statement.made)}".rstrip()
                for inner in statement.parts:
                    yield "  part"
                    yield from part(inner, "    ")

    yield from part(flow.body, "    ")
    for kernel in flow.kernels:
        yield from [f"  {line}" for line in kernel_text(kernel).splitlines()]


def read_flow(
    name: str,
    operands: Sequence[Operand],
    excess: bool,
    lines: Sequence[str],
    parse: Callable[[str], AnyKernel],
) -> ControlFlow:
    """Parse a flow; its first line has the types of the results of statements."""
    # Kernels are indented by two columns; their own lines by more.
    body = [n for n, line in enumerate(lines) if line.startswith("  kernel ")]
    ends = [*body[1:], len(lines)]
    kernels: list[PlainKernel] = []
    for begin, end in zip(body, ends, strict=True):
        inner = parse("\n".join([line[2:] for line in lines[begin:end]]))
        if isinstance(inner, ControlFlow):
            raise syntax_error("a flow has no flows inside")
        kernels.append(inner)
    own = lines[: body[0]] if body else lines
    return _FlowReader(operands, own, kernels).flow(name, excess)


class _FlowReader:
    def __init__(
        self, operands: Sequence[Operand], lines: Sequence[str], kernels: Sequence[PlainKernel]
    ) -> None:
        self.operands, self.lines, self.kernels = tuple(operands), lines, kernels
        self.inner: list[Operand] = []
        self.values = {name: n for n, name in enumerate(_names(operands))}
        self.number = 0
        self.depth = 0

    def flow(self, name: str, excess: bool) -> ControlFlow:
        line = self.next()
        devices: tuple[int, ...] = ()
        if line.accept("each"):
            devices = tuple(line.separated(line.integer))
            line.finish()
            line = self.next()
        line.expect("flow")
        while line.token:
            value = line.name()
            if value != f"v{len(self.values)}":
                raise syntax_error(f"value {len(self.values)} cannot be called {value!r}")
            line.expect(":")
            self.values[value] = len(self.values)
            self.inner.append(Operand(line.dtype(), tuple(line.listed("[", "]", line.integer))))
            line.accept(",")
        body = self.part()
        if self.number < len(self.lines):
            raise syntax_error("a flow ends with what it yields")
        return ControlFlow(name, self.operands, tuple(self.inner), body, excess, devices)

    def next(self) -> Line:
        """The next line."""
        self.number += 1
        if self.number > len(self.lines):
            raise syntax_error("the text of a flow ends too early")
        return Line(self.lines[self.number - 1])

    def begins(self, word: str) -> bool:
        """Whether the next line begins with a word."""
        return self.number < len(self.lines) and self.lines[self.number].split()[:1] == [word]

    def value(self, line: Line) -> int:
        name = line.name()
        if name not in self.values:
            raise syntax_error(f"there is no value {name!r}")
        return self.values[name]

    def all(self, line: Line) -> tuple[int, ...]:
        """Values, up to a token that is not one."""
        values: list[int] = []
        while line.token in self.values:
            values.append(self.value(line))
            line.accept(",")
        return tuple(values)

    def part(self) -> FlowBlock:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise syntax_error("loops and branches are nested too deeply")
        statements: list[Statement] = []
        while True:
            line = self.next()
            word = line.name()
            if word == "yield":
                results = self.all(line)
                line.finish()
                self.depth -= 1
                return FlowBlock(tuple(statements), results)
            statements.append(self.statement(word, line))

    def statement(self, word: str, line: Line) -> Statement:
        match word:
            case "run":
                return self.run(line)
            case "loop":
                carried = self.all(line)
                line.expect("from")
                initial = self.all(line)
                line.expect("to")
                results = self.all(line)
                line.finish()
                test, body = self.titled("test"), self.titled("body")
                return FlowLoop(initial, carried, test, body, results)
            case "branch":
                way = line.name()
                if way not in ("if", "case"):
                    raise syntax_error(f"there is no branch {way!r}")
                chooser = self.value(line)
                line.expect("to")
                results = self.all(line)
                line.finish()
                parts: list[FlowBlock] = []
                while self.begins("part"):
                    parts.append(self.titled("part"))
                return FlowBranch(
                    cast("Literal['if', 'case']", way), chooser, tuple(parts), results
                )
        raise syntax_error(f"there is no statement {word!r}")

    def run(self, line: Line) -> KernelRun:
        number = line.integer()
        if not 0 <= number < len(self.kernels):
            raise syntax_error(f"there is no kernel {number}")
        kernel, name = self.kernels[number], line.name()
        if kernel.name != name:
            raise syntax_error(f"kernel {number} is {kernel.name}, not {name}")
        line.expect("(")
        values = self.all(line)
        line.expect(")")
        line.finish()
        return KernelRun(kernel, values)

    def titled(self, word: str) -> FlowBlock:
        line = self.next()
        line.expect(word)
        line.finish()
        return self.part()


def _names(operands: Sequence[Operand]) -> list[str]:
    return [f"{'out' if operand.output else 'in'}{n}" for n, operand in enumerate(operands)]


def _type(operand: Operand) -> str:
    return f"{operand.dtype}[{','.join(map(str, operand.shape))}]"
