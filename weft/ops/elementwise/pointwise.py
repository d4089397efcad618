"""Elementwise ops: rows of a table, one function of numpy each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import numpy as np

from weft.errors import WeftError
from weft.ir.attrs import TEXT, enum
from weft.ir.check import one_of, require, same_type, tensor_type
from weft.ir.op import Body, Op, RegionCall, op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import BOOL, Array, DType, TensorType, Type, Types
from weft.ir.work import Work, elements, moved
from weft.ops.numerics import arithmetic, complex_math
from weft.ops.numerics.arithmetic import in_double, in_own_type, with_width

# Kinds of element types that operands may have, as in the specification's tables.
ANY = "bool int uint float complex"
NUMBER = "int uint float complex"
SIGNED = "int float complex"
BITS = "bool int uint"
INTEGER = "int uint"
FLOAT = "float"
FLOATS = "float complex"


def same(dtype: DType) -> DType:
    """The result has the operands' element type."""
    return dtype


def real_part(dtype: DType) -> DType:
    """The result has the element type of the operand's parts."""
    return dtype.real


def boolean(dtype: DType) -> DType:
    """The result is a boolean."""
    return BOOL


class Pointwise(Op):
    """An op that computes each element of its result from the same element of its operands."""

    __slots__ = ()
    arity: ClassVar[int]
    kinds: ClassVar[str]
    function: ClassVar[Callable[..., Any]]
    result: ClassVar[Callable[..., DType]]
    each_element: ClassVar[Work]
    elementwise = True

    def infer(self, *operands: Type) -> Type:
        require(
            len(operands) == self.arity,
            f"{self.name}: takes {self.arity} operands, {len(operands)} given",
            "see the op's entry in the StableHLO specification",
        )
        for index, type in enumerate(operands):
            one_of(self.name, index, type, self.kinds)
        shared = same_type(self.name, *operands)
        return shared.with_dtype(self.result(shared.dtype))

    def rule(self, *operands: TensorType) -> Rule:
        return RuleBuilder(operands, operands[:1]).pointwise(operands[0].bounds).build()

    def reference(self, *arrays: Array) -> Array:
        return np.asarray(self.function(*arrays))

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return self.each_element.times(elements(results[0])) + Work(
            bytes=moved(*operands, *results)
        )


Accuracy = Annotated[str, TEXT]  # `#stablehlo.result_accuracy<...>`, always satisfied


def pointwise(
    name: str,
    meaning: str,
    function: Callable[..., Any],
    arity: int,
    kinds: str,
    *,
    result: Callable[..., DType] = same,
    transcendental: int = 0,
    accuracy: bool = False,
    assembly: str = "$operands$fields : $same",
    module: str = __name__,
) -> type[Pointwise]:
    """One row: an elementwise op from its name, its numpy function and its operand kinds.

    `transcendental` counts the functions that an element takes, or says that it is one.
    """
    title = "".join(part.capitalize() for part in name.rpartition(".")[2].split("_"))
    members: dict[str, object] = {
        "__module__": module,
        "__doc__": f"out[i..] = {meaning}.",
        "function": staticmethod(function),
        "arity": arity,
        "kinds": kinds,
        "result": staticmethod(result),
        "each_element": Work(transcendentals=int(transcendental))
        if transcendental
        else Work(flops=1),
        "assembly": assembly,
    }
    if accuracy:
        members["__annotations__"] = {"result_accuracy": Accuracy | None}
        members["result_accuracy"] = None
    return op(name)(type(title, (Pointwise,), members))


# Arithmetic

Abs = pointwise(
    "stablehlo.abs",
    "|operand|, a real number for a complex one",
    arithmetic.absolute,
    1,
    SIGNED,
    result=real_part,
)
Add = pointwise("stablehlo.add", "lhs + rhs; or, of booleans", in_own_type(np.add), 2, ANY)
Subtract = pointwise("stablehlo.subtract", "lhs - rhs", in_own_type(np.subtract), 2, NUMBER)
Multiply = pointwise(
    "stablehlo.multiply",
    "lhs * rhs; and, of booleans",
    in_own_type(np.multiply, complex=arithmetic.complex_multiply),
    2,
    ANY,
)
Divide = pointwise(
    "stablehlo.divide",
    "lhs / rhs, truncated if integers; x / 0 has all bits set",
    in_own_type(np.divide, complex=complex_math.divide, integer=arithmetic.divide_integers),
    2,
    NUMBER,
    accuracy=True,  # not in StableHLO: set by the pass `approximate` only
)
Remainder = pointwise(
    "stablehlo.remainder",
    "lhs - trunc(lhs / rhs) * rhs, with the sign of lhs; x % 0 is x",
    in_own_type(np.fmod, integer=arithmetic.remainder_integers),
    2,
    "int uint float",
)
Power = pointwise(
    "stablehlo.power",
    "lhs to the power of rhs",
    in_double(np.power, integer=arithmetic.power_integers),
    2,
    NUMBER,
    transcendental=True,
)
Negate = pointwise("stablehlo.negate", "-operand", in_own_type(np.negative), 1, NUMBER)
Sign = pointwise(
    "stablehlo.sign",
    "-1, 0 or 1 by the sign of the operand; operand / |operand| if complex",
    in_double(arithmetic.sign, complex=complex_math.sign, integer=np.sign),
    1,
    SIGNED,
)
Maximum = pointwise(
    "stablehlo.maximum",
    "the larger of lhs and rhs, NaN if either is; or, of booleans",
    in_own_type(arithmetic.maximum, complex=arithmetic.complex_maximum, integer=np.maximum),
    2,
    ANY,
)
Minimum = pointwise(
    "stablehlo.minimum",
    "the smaller of lhs and rhs, NaN if either is; and, of booleans",
    in_own_type(arithmetic.minimum, complex=arithmetic.complex_minimum, integer=np.minimum),
    2,
    ANY,
)

# Bits

And = pointwise("stablehlo.and", "lhs and rhs, bit by bit", in_own_type(np.bitwise_and), 2, BITS)
Or = pointwise("stablehlo.or", "lhs or rhs, bit by bit", in_own_type(np.bitwise_or), 2, BITS)
Xor = pointwise("stablehlo.xor", "lhs xor rhs, bit by bit", in_own_type(np.bitwise_xor), 2, BITS)
Not = pointwise("stablehlo.not", "not operand, bit by bit", in_own_type(np.invert), 1, BITS)
Popcnt = pointwise(
    "stablehlo.popcnt", "the number of bits set", with_width(arithmetic.count_ones), 1, INTEGER
)
CountLeadingZeros = pointwise(
    "stablehlo.count_leading_zeros",
    "the number of zero bits above the highest one",
    with_width(arithmetic.count_leading_zeros),
    1,
    INTEGER,
)
ShiftLeft = pointwise(
    "stablehlo.shift_left",
    "lhs shifted left by rhs bits",
    with_width(arithmetic.shift_left),
    2,
    INTEGER,
)
ShiftRightLogical = pointwise(
    "stablehlo.shift_right_logical",
    "lhs shifted right by rhs bits, zeros coming in",
    with_width(arithmetic.shift_right_logical),
    2,
    INTEGER,
)
ShiftRightArithmetic = pointwise(
    "stablehlo.shift_right_arithmetic",
    "lhs shifted right by rhs bits, copies of its highest bit coming in",
    with_width(arithmetic.shift_right_arithmetic),
    2,
    INTEGER,
)

# Rounding

Ceil = pointwise(
    "stablehlo.ceil", "the least integer not below the operand", in_own_type(np.ceil), 1, FLOAT
)
Floor = pointwise(
    "stablehlo.floor", "the largest integer not above the operand", in_own_type(np.floor), 1, FLOAT
)
RoundNearestAfz = pointwise(
    "stablehlo.round_nearest_afz",
    "the nearest integer, away from zero if there are two",
    in_own_type(arithmetic.round_half_away),
    1,
    FLOAT,
)
RoundNearestEven = pointwise(
    "stablehlo.round_nearest_even",
    "the nearest integer, the even one if there are two",
    in_own_type(np.rint),
    1,
    FLOAT,
)
IsFinite = pointwise(
    "stablehlo.is_finite",
    "whether the operand is neither infinite nor NaN",
    lambda x: np.isfinite(arithmetic.widen(x)),
    1,
    FLOAT,
    result=boolean,
)

ComparisonDirection = Annotated[
    str, enum("comparison_direction", "EQ", "NE", "GE", "GT", "LE", "LT")
]
CompareType = Annotated[
    str, enum("comparison_type", "NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED")
]
COMPARE_TYPES: dict[str, tuple[str, ...]] = {  # by the kind of the elements
    "bool": ("UNSIGNED",),
    "uint": ("UNSIGNED",),
    "int": ("SIGNED",),
    "float": ("FLOAT", "TOTALORDER"),
    "complex": ("FLOAT",),
}


@op("stablehlo.compare")
class Compare(Op):
    """out[i..] = lhs[i..] compared with rhs[i..]; complex numbers in lexicographic order."""

    comparison_direction: ComparisonDirection
    compare_type: CompareType | None = None
    assembly = "$comparison_direction, $operands[[, $compare_type]] : $signature"
    elementwise = True

    def infer(self, lhs: Type, rhs: Type) -> Type:
        operand = same_type(self.name, lhs, rhs)
        known = COMPARE_TYPES[operand.dtype.kind]
        require(
            self.compare_type in (None, "NOTYPE", *known),
            f"{self.name}: {self.compare_type} cannot compare {operand.dtype}",
            f"use {' or '.join(known)}, or leave it out",
        )
        return operand.with_dtype(BOOL)

    def rule(self, lhs: TensorType, rhs: TensorType) -> Rule:
        return RuleBuilder((lhs, rhs), (lhs,)).pointwise(lhs.bounds).build()

    def reference(self, lhs: Array, rhs: Array) -> Array:
        total = self.compare_type == "TOTALORDER"
        return arithmetic.compare(lhs, rhs, self.comparison_direction, total=total)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(flops=elements(results[0]), bytes=moved(*operands, *results))


@op("stablehlo.select")
class Select(Op):
    """out[i..] = on_true[i..] where pred[i..], else on_false[i..]; pred may be a scalar."""

    assembly = "$operands : $signature"
    elementwise = True

    def infer(self, pred: Type, on_true: Type, on_false: Type) -> Type:
        chooser = one_of(self.name, 0, pred, "bool")
        require(
            on_true is on_false,
            f"{self.name}: operand 1 is {on_true}, but operand 2 is {on_false}",
            "both choices must have one type; convert or broadcast one of them",
        )
        result = tensor_type(self.name, 1, on_true)
        require(
            chooser.rank == 0 or chooser.shape == result.shape,
            f"{self.name}: operand 0 is {chooser}, but operand 1 is {result}",
            "the predicate must be a scalar or have the shape of the choices",
        )
        return result

    def rule(self, pred: TensorType, on_true: TensorType, on_false: TensorType) -> Rule:
        operands = (pred, on_true, on_false)
        return RuleBuilder(operands, (on_true,)).pointwise(on_true.bounds).build()

    def reference(self, pred: Array, on_true: Array, on_false: Array) -> Array:
        return np.where(pred, on_true, on_false)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(flops=elements(results[0]), bytes=moved(*operands, *results))


@op("stablehlo.clamp")
class Clamp(Op):
    """out[i..] = min(max(operand[i..], min[i..]), max[i..]); both bounds may be scalars."""

    assembly = "$operands : $same"
    elementwise = True

    def infer(self, low: Type, operand: Type, high: Type) -> Type:
        operand_type = tensor_type(self.name, 1, operand)
        for index, bound in ((0, low), (2, high)):
            limit = tensor_type(self.name, index, bound)
            require(
                limit.dtype is operand_type.dtype and limit.shape in ((), operand_type.shape),
                f"{self.name}: operand {index} is {limit}, but operand 1 is {operand_type}",
                "a bound must be a scalar or have the operand's shape, and its element type",
            )
        return operand_type

    def rule(self, low: TensorType, operand: TensorType, high: TensorType) -> Rule:
        operands = (low, operand, high)
        return RuleBuilder(operands, (operand,)).pointwise(operand.bounds).build()

    def reference(self, low: Array, operand: Array, high: Array) -> Array:
        # In this order: where the bounds cross, the upper one wins.
        return np.asarray(Minimum.function(Maximum.function(operand, low), high))

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(flops=2 * elements(results[0]), bytes=moved(*operands, *results))


@op("stablehlo.map")
class Map(Op):
    """out[i..] = the region applied to the scalars operands[i..]."""

    dimensions: tuple[int, ...]
    regions = 1

    def infer(self, *operands: Type, regions: tuple[Body, ...]) -> Type:
        require(bool(operands), f"{self.name}: has no operands", "give it at least one tensor")
        types = [tensor_type(self.name, n, t) for n, t in enumerate(operands)]
        for index, other in enumerate(types):
            require(
                other.shape == types[0].shape,
                f"{self.name}: operand 0 is {types[0]}, but operand {index} is {other}",
                "all operands must have one shape",
            )
        require(
            self.dimensions == tuple(range(types[0].rank)),
            f"{self.name}: dimensions are {list(self.dimensions)}",
            f"a map runs over all dims in order: {list(range(types[0].rank))}",
        )
        (body,) = regions
        scalars = tuple(t.with_shape(()) for t in types)
        require(
            body.args == scalars,
            f"{self.name}: the region takes {_listed(body.args)}",
            f"it must take {_listed(scalars)}",
        )
        result = body.results[0] if len(body.results) == 1 else None
        if not isinstance(result, TensorType) or result.rank:
            raise WeftError(
                f"{self.name}: the region returns {_listed(body.results)}",
                help="it must return one scalar",
            )
        return types[0].with_dtype(result.dtype)

    def rule(self, *operands: TensorType, regions: tuple[Body, ...]) -> Rule:
        return RuleBuilder(operands, operands[:1]).pointwise(operands[0].bounds).build()

    def reference(self, *arrays: Array, regions: tuple[RegionCall, ...]) -> Array:
        (out,) = regions[0].each(*arrays)
        return out

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        body = sum(bodies, Work())
        # Without the region's bytes: its scalars stay in registers.
        per_element = Work(body.flops, body.transcendentals)
        return per_element.times(elements(results[0])) + Work(bytes=moved(*operands, *results))


def _listed(types: Types) -> str:
    return f"({', '.join(map(str, types))})"


OPS: tuple[type[Op], ...] = (
    Abs,
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    Power,
    Negate,
    Sign,
    Maximum,
    Minimum,
    And,
    Or,
    Xor,
    Not,
    Popcnt,
    CountLeadingZeros,
    ShiftLeft,
    ShiftRightLogical,
    ShiftRightArithmetic,
    Ceil,
    Floor,
    RoundNearestAfz,
    RoundNearestEven,
    IsFinite,
    Compare,
    Select,
    Clamp,
    Map,
)
