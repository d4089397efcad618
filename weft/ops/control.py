"""Control flow: branches, loops, calls, composites, tuples, tokens, parallel programs."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from weft.errors import WeftError
from weft.ir.attrs import STRING, SYMBOL, TEXT, Attrs, array_of, integer
from weft.ir.check import require
from weft.ir.names import STREAM
from weft.ir.op import Body, Evaluation, Op, RegionCall, Steps, op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import (
    BOOL,
    I32,
    TOKEN,
    Array,
    FutureType,
    TensorType,
    TokenType,
    TupleType,
    Type,
    Types,
)
from weft.ir.work import Work


def carried(operands: Types, results: Types) -> Rule:
    """The rule of carried values: a factor for every dim of every pair of operand and result."""
    builder = RuleBuilder(operands, results)
    for index, type in enumerate(operands):
        if isinstance(type, TensorType):
            for dim, size in enumerate(type.bounds):
                where = [dim if n == index else None for n in range(len(operands))]
                builder.factor(where, where, size)
    return builder.build()


def opaque(operands: Types, results: Types) -> Rule:
    """A rule of whole dims: shardings flow through the op's regions, not through the op."""
    return RuleBuilder(operands, results).build()


class Control(Op):
    """An op that runs regions or functions and computes nothing itself."""

    __slots__ = ()
    control = True

    def rule(self, *operands: Type, regions: tuple[Body, ...] = ()) -> Rule:
        results = self.infer(*operands, regions=regions) if regions else self.infer(*operands)
        return opaque(operands, results if isinstance(results, tuple) else (results,))

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return sum(bodies, Work())


@op("stablehlo.while")
class While(Control):
    """Run the body on the carried values as long as the condition on them holds."""

    regions = 2

    def infer(self, *operands: Type, regions: tuple[Body, ...]) -> Types:
        condition, body = regions
        _same_types("while: the condition's arguments", condition.args, operands)
        _same_types("while: the body's arguments", body.args, operands)
        _same_types("while: the body's results", body.results, operands)
        _same_types("while: the condition's results", condition.results, (TensorType((), BOOL),))
        return operands

    def reference(self, *values: Any, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        condition, body = regions
        while True:
            (again,) = yield from condition.run(*values)
            if not again:
                return values
            values = yield from body.run(*values)


@op("stablehlo.if")
class If(Control):
    """Run the first region if the predicate holds, else the second."""

    regions = 2

    def infer(self, predicate: Type, *, regions: tuple[Body, ...]) -> Types:
        _same_types("if: the predicate", (predicate,), (TensorType((), BOOL),))
        return _branches("if", regions)

    def reference(
        self, predicate: Array, regions: tuple[RegionCall, ...], run: Evaluation
    ) -> Steps:
        return (yield from regions[0 if predicate else 1].run())


@op("stablehlo.case")
class Case(Control):
    """Run the region of that index, or the last one if out of range."""

    regions = None

    def infer(self, index: Type, *, regions: tuple[Body, ...] = ()) -> Types:
        _same_types("case: the index", (index,), (TensorType((), I32),))
        require(len(regions) > 0, "stablehlo.case: has no branches", "give it at least one region")
        return _branches("case", regions)

    def reference(self, index: Array, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        chosen = int(index)
        last = len(regions) - 1
        return (yield from regions[chosen if 0 <= chosen <= last else last].run())


def _branches(name: str, regions: tuple[Body, ...]) -> Types:
    for number, region in enumerate(regions):
        _same_types(f"{name}: the arguments of branch {number}", region.args, ())
        _same_types(f"{name}: the results of branch {number}", region.results, regions[0].results)
    return regions[0].results


def _same_types(what: str, given: Types, expected: Types) -> None:
    if given != expected:
        raise WeftError(
            f"stablehlo.{what} are of types ({', '.join(map(str, given))}), "
            f"but ({', '.join(map(str, expected))}) is needed",
            help="make the types agree",
        )


@op("func.call")
class Call(Control):
    """Run a function of the module."""

    callee: Annotated[str, SYMBOL]
    outs: Types

    def infer(self, *operands: Type) -> Types:
        return self.outs

    def reference(self, *values: Any, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        return (yield from run.call(self.callee, *values))


@op("stablehlo.composite")
class Composite(Control):
    """A named op, defined by the function that it decomposes into."""

    name_: str
    decomposition: Annotated[str, SYMBOL]
    outs: Types
    composite_attributes: Annotated[str, TEXT] | None = None
    version: Annotated[int, integer("i32")] | None = None
    regions = None

    def infer(self, *operands: Type, regions: tuple[Body, ...] = ()) -> Types:
        return self.outs

    def reference(self, *values: Any, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        return (yield from run.call(self.decomposition, *values))


@op("stablehlo.optimization_barrier")
class OptimizationBarrier(Op):
    """The identity; no op is moved across it."""

    def infer(self, *operands: Type) -> Types:
        return operands

    def rule(self, *operands: Type) -> Rule:
        return carried(operands, operands)

    def reference(self, *values: Any) -> tuple[Any, ...]:
        return values

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work()


@op("stablehlo.tuple")
class Tuple(Op):
    """Several values as one."""

    def infer(self, *operands: Type) -> Type:
        return TupleType(operands)

    def rule(self, *operands: Type) -> Rule:
        return opaque(operands, (TupleType(operands),))

    def reference(self, *values: Any) -> tuple[Any, ...]:
        return (values,)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work()


@op("stablehlo.get_tuple_element")
class GetTupleElement(Op):
    """One value of a tuple."""

    index: Annotated[int, integer("i32")]

    def infer(self, operand: Type) -> Type:
        require(
            isinstance(operand, TupleType) and 0 <= self.index < len(operand.types),
            f"stablehlo.get_tuple_element: element {self.index} of {operand}",
            "give a tuple and an index into it",
        )
        assert isinstance(operand, TupleType)
        return operand.types[self.index]

    def rule(self, operand: Type) -> Rule:
        return opaque((operand,), (self.infer(operand),))

    def reference(self, operand: tuple[Any, ...]) -> tuple[Any, ...]:
        return (operand[self.index],)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work()


class TokenOp(Op):
    """An op that creates a token, which only orders effects."""

    __slots__ = ()
    pure = False

    def infer(self, *operands: Type) -> Type:
        for operand in operands:
            require(
                isinstance(operand, TokenType),
                f"{self.name}: an operand is {operand}",
                "give tokens",
            )
        return TOKEN

    def rule(self, *operands: Type) -> Rule:
        return opaque(operands, (TOKEN,))

    def reference(self, *tokens: None) -> tuple[Any, ...]:
        return (None,)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work()


@op("stablehlo.after_all")
class AfterAll(TokenOp):
    """A token that follows all its operands."""


@op("stablehlo.create_token")
class CreateToken(TokenOp):
    """A fresh token."""


@op("stablehlo.async_start")
class AsyncStart(Control):
    """Start the region's op asynchronously; async_done waits for it."""

    outs: Types
    regions = 1

    def infer(self, *operands: Type, regions: tuple[Body, ...]) -> Types:
        name = self.name.partition(".")[2]
        _same_types(f"{name}: the region's arguments", regions[0].args, operands)
        expected = (self.future(regions[0].results),)
        _same_types(f"{name}: the results", self.outs, expected)
        return expected

    def future(self, types: Types) -> Type:
        """The type of the value that stands for results to come."""
        return FutureType(types)

    def reference(self, *values: Any, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        # The reference does the work at the start: a future is the tuple of its results.
        return ((yield from regions[0].run(*values)),)


def stream_of(attrs: Attrs) -> str | None:
    """The stream in the attributes of a start."""
    return next((STRING.read(text) for name, text in attrs if name == STREAM), None)


@op("stablehlo.async_done")
class AsyncDone(Op):
    """Wait for an async_start; its results."""

    future: ClassVar[type[Type]] = FutureType

    def infer(self, future: Type) -> Types:
        require(
            isinstance(future, self.future),
            f"{self.name}: the operand is {future}",
            f"give the result of {self.name.partition('.')[0]}.async_start",
        )
        assert isinstance(future, FutureType | TupleType)
        return future.types

    def rule(self, future: Type) -> Rule:
        return opaque((future,), self.infer(future))

    def reference(self, future: tuple[Any, ...]) -> tuple[Any, ...]:
        return future

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work()


@op("interpreter.run_parallel")
class RunParallel(Control):
    """Run functions in parallel, replicas by partitions, as in StableHLO's tests."""

    programs: Annotated[tuple[tuple[str, ...], ...], array_of(array_of(SYMBOL))]
    outs: Types
    infeed: Annotated[tuple[str, ...], array_of(SYMBOL)] | None = None
    pure = False

    def infer(self, *operands: Type) -> Types:
        widths = {len(row) for row in self.programs}
        require(
            len(widths) == 1 and widths != {0},
            "interpreter.run_parallel: programs are not a table of functions",
            "give rows of one length, one program a device",
        )
        return self.outs

    def reference(self, *values: Any, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        # A generator, as evaluation expects of every control op, though it never waits.
        yield from ()
        return run.parallel(self.programs, self.infeed or (), *values)


OPS: tuple[type[Op], ...] = (
    While,
    If,
    Case,
    Call,
    Composite,
    OptimizationBarrier,
    Tuple,
    GetTupleElement,
    AfterAll,
    CreateToken,
    AsyncStart,
    AsyncDone,
    RunParallel,
)
