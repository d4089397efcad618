"""Cleanup is exact: for every element type, every bit of every result stays."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.draw import EVERY, array
from weft.errors import WeftError
from weft.evaluate import evaluate
from weft.ir.dense import Dense
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.op import Op
from weft.ir.types import BOOL, DTYPES, Array, TensorType
from weft.ir.verify import verify
from weft.ops.combiners import combiner
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import (
    Abs,
    Add,
    And,
    Compare,
    Divide,
    Maximum,
    Minimum,
    Multiply,
    Negate,
    Not,
    Or,
    Power,
    Select,
    Subtract,
    Xor,
)
from weft.ops.reduce import Reduce
from weft.ops.shape import BroadcastInDim, Constant
from weft.ops.slicing import Pad, Slice
from weft.optimize import fold_constants, simplify

BINARY: tuple[Op, ...] = (
    Add(),
    Subtract(),
    Multiply(),
    Divide(),
    Power(),
    Maximum(),
    Minimum(),
    And(),
    Or(),
    Xor(),
    Compare("EQ"),
    Compare("LT"),
)
UNARY: tuple[Op, ...] = (Negate(), Not(), Abs())
NUMBERS = (0.0, -0.0, 1, -1, 2)
SIZE = 24


class Lines:
    """A program on one argument, every value of which is a result."""

    def __init__(self, type: TensorType) -> None:
        self.x = Value(type, None, 0)
        self.type = type
        self.nodes: list[Node] = []

    def add(self, op: Op, *operands: Value, regions: tuple[Region, ...] = ()) -> Value | None:
        """Append a node if the op takes such operands."""
        try:
            self.nodes.append(apply(op, *operands, regions=regions))
        except WeftError:
            return None
        return self.nodes[-1].results[0]

    def number(self, number: float) -> Value:
        """A constant of equal elements."""
        with np.errstate(all="ignore"):
            held = np.asarray(number).astype(self.type.dtype.numpy)
        value = self.add(Constant(Dense(held, self.type)))
        assert value is not None
        return value

    def module(self) -> Module:
        """The whole program."""
        results = tuple(v for node in self.nodes for v in node.results)
        return verify(Module({"main": Function("main", Region((self.x,), self.nodes, results))}))


def odd_values(type: TensorType) -> Array:
    """Small numbers, and what is special among those of the type."""
    held = array(type.sizes, type.dtype, 0).copy()
    if type.dtype.is_float:
        with np.errstate(all="ignore"):
            odd = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, 3e38]).astype(held.dtype)
        held[: len(odd)] = odd
    return held


def equal_bits(found: Array, expected: Array) -> None:
    """The same bits; any NaN is as good as another."""
    assert found.dtype == expected.dtype and found.shape == expected.shape
    size = found.dtype.itemsize
    a = np.ascontiguousarray(found).reshape(-1).view(np.uint8).reshape(-1, size)
    b = np.ascontiguousarray(expected).reshape(-1).view(np.uint8).reshape(-1, size)
    good = (a == b).all(axis=1)
    with np.errstate(all="ignore"):
        none = (found != found).reshape(-1) & (expected != expected).reshape(-1)
    assert (good | none).all()


def check(module: Module, given: Array) -> None:
    before = evaluate(module, given)
    for run in (simplify, fold_constants):
        after = verify(run(module))
        for found, expected in zip(evaluate(after, given), before, strict=True):
            equal_bits(found, expected)


@pytest.mark.parametrize("dtype", EVERY)
def test_arithmetic(dtype: str):
    lines = Lines(TensorType((SIZE,), DTYPES[dtype]))
    numbers = [lines.number(n) for n in NUMBERS]
    for op in BINARY:
        for number in numbers:
            lines.add(op, lines.x, number)
            lines.add(op, number, lines.x)
        lines.add(op, lines.x, lines.x)
        lines.add(op, numbers[1], numbers[3])
    for op in UNARY:
        once = lines.add(op, lines.x)
        if once is not None:
            lines.add(op, once)
            lines.add(Abs(), once)
    check(lines.module(), odd_values(lines.type))


@pytest.mark.parametrize("dtype", EVERY)
def test_converts_there_and_back(dtype: str):
    lines = Lines(TensorType((SIZE,), DTYPES[dtype]))
    for other in EVERY:
        between = lines.add(Convert(lines.type.with_dtype(DTYPES[other])), lines.x)
        assert between is not None
        for last in (dtype, "f32", "i32", "f64"):
            lines.add(Convert(lines.type.with_dtype(DTYPES[last])), between)
    check(lines.module(), odd_values(lines.type))


@pytest.mark.parametrize("dtype", EVERY)
@pytest.mark.parametrize("dim", [0, 1])
def test_sums_of_padded_arrays_take_them_by_turns(dtype: str, dim: int):
    lines = Lines(TensorType((8, 5), DTYPES[dtype]))
    along = (1 - dim, dim)
    fills: list[Value | None] = []
    for number in (0.0, -0.0, 1):
        with np.errstate(all="ignore"):
            fill = Dense(np.asarray(number).astype(lines.type.dtype.numpy))
        fills.append(lines.add(Constant(fill)))
    limits = tuple([size - n for size, n in zip(lines.type.sizes, along, strict=True)])
    less = lines.add(Slice((0, 0), limits, (1, 1)), lines.x)
    for second in (lines.x, less):
        for low, high in (((0, 1), (1, 0)), ((0, 1), (0, 1)), ((0, 0), (1, 1)), ((1, 2), (1, 0))):
            for fill in fills:
                if fill is None or second is None:
                    continue
                pads = [
                    lines.add(
                        Pad(*[(n * along[0], n * along[1]) for n in (low[k], high[k], 1)]), v, fill
                    )
                    for k, v in enumerate((lines.x, second))
                ]
                if None not in pads and pads[0].type is pads[1].type:
                    lines.add(Add(), *pads)
                    lines.add(Or(), *pads[::-1])
    check(lines.module(), odd_values(TensorType((40,), lines.type.dtype)).reshape(8, 5))


def test_padded_arrays_by_turns_are_no_sums():
    lines = Lines(TensorType((4, 3), DTYPES["f32"]))
    zero = lines.add(Constant(Dense(np.zeros((), np.float32))))
    pads = [lines.add(Pad(*edges, (1, 0)), lines.x, zero) for edges in _TURNS]
    lines.add(Add(), *pads)
    region = Region((lines.x,), lines.nodes, lines.nodes[-1].results)
    after = simplify(Module({"main": Function("main", region)}))
    assert not any(isinstance(node.op, Pad) for node in after.nodes())


_TURNS = (((0, 0), (1, 0)), ((1, 0), (0, 0)))


@pytest.mark.parametrize("dtype", ("f32", "bf16", "i32", "i1", "f8E4M3FN"))
def test_choices_and_folds_of_nothing(dtype: str):
    lines = Lines(TensorType((SIZE, 1), DTYPES[dtype]))
    negated = lines.add(Maximum(), lines.x, lines.number(1))
    assert negated is not None
    for flag in (True, False):
        for shape in ((), (SIZE, 1)):
            chosen = Constant(Dense(np.asarray(flag), TensorType(shape, BOOL)))
            pred = lines.add(chosen)
            assert pred is not None
            lines.add(Select(), pred, lines.x, negated)
    for number in (0.0, -0.0, 1.0):
        scalar = Constant(Dense(np.asarray(number).astype(lines.type.dtype.numpy)))
        init = lines.add(scalar)
        assert init is not None
        row = lines.type.with_shape((SIZE,))
        for how in ("add", "max", "mul"):
            region = (combiner(how, lines.type),)
            lines.add(Reduce((1,), (row,)), lines.x, init, regions=region)
            lines.add(Reduce((), (lines.type,)), lines.x, init, regions=region)
        lines.add(BroadcastInDim((), lines.type), init)
    given = odd_values(TensorType((SIZE,), lines.type.dtype)).reshape(SIZE, 1)
    check(lines.module(), given)
