"""Elementwise ops that change the element type or the precision."""

from __future__ import annotations

from typing import Annotated

from weft.errors import Unsupported
from weft.ir.attrs import INT32
from weft.ir.check import one_of, require, same_type, tensor_type
from weft.ir.op import Op, op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import DTYPES, Array, TensorType, Type, Types
from weft.ir.work import Work, elements, moved
from weft.ops.elementwise.pointwise import FLOATS, pointwise, real_part
from weft.ops.numerics import arithmetic

Real = pointwise(
    "stablehlo.real",
    "the real part",
    lambda x: x.real,
    1,
    FLOATS,
    result=real_part,
    module=__name__,
)
Imag = pointwise(
    "stablehlo.imag",
    "the imaginary part",
    arithmetic.imaginary,
    1,
    FLOATS,
    result=real_part,
    module=__name__,
)


@op("stablehlo.complex")
class Complex(Op):
    """out[i..] = lhs[i..] + i rhs[i..]."""

    assembly = "$operands : $type"
    elementwise = True

    def infer(self, lhs: Type, rhs: Type) -> Type:
        parts = same_type(self.name, lhs, rhs)
        require(
            parts.dtype.name in ("f32", "f64"),
            f"{self.name}: the parts are {parts}",
            "parts are f32 or f64; convert them",
        )
        return parts.with_dtype(DTYPES[f"complex<{parts.dtype}>"])

    def rule(self, lhs: TensorType, rhs: TensorType) -> Rule:
        return RuleBuilder((lhs, rhs), (lhs,)).pointwise(lhs.bounds).build()

    def reference(self, lhs: Array, rhs: Array) -> Array:
        return arithmetic.pair(lhs, rhs)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*operands, *results))


@op("stablehlo.convert")
class Convert(Op):
    """out[i..] = operand[i..] in another element type: rounded, truncated, wrapped or saturated."""

    out: TensorType
    assembly = "$operands : $same"
    elementwise = True

    def infer(self, operand: Type) -> Type:
        given = tensor_type(self.name, 0, operand)
        require(
            given.shape == self.out.shape,
            f"{self.name}: operand 0 is {given}, but the result is {self.out}",
            "the shapes must agree; only the element type changes",
        )
        return self.out

    def rule(self, operand: TensorType) -> Rule:
        return RuleBuilder((operand,), (self.out,)).pointwise(operand.bounds).build()

    def reference(self, operand: Array) -> Array:
        return arithmetic.convert(operand, self.out.dtype)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(flops=elements(results[0]), bytes=moved(*operands, *results))


@op("stablehlo.reduce_precision")
class ReducePrecision(Op):
    """out[i..] = operand[i..] rounded to a float format of these exponent and mantissa bits."""

    exponent_bits: Annotated[int, INT32]
    mantissa_bits: Annotated[int, INT32]
    assembly = "$operands, format = $format : $same"
    elementwise = True

    @property
    def format(self) -> str:
        """The format's short name in text: e5m10."""
        return f"e{self.exponent_bits}m{self.mantissa_bits}"

    def infer(self, operand: Type) -> Type:
        require(
            self.exponent_bits >= 1 and self.mantissa_bits >= 0,
            f"{self.name}: {self.format} is not a float format",
            "exponent_bits must be at least 1, mantissa_bits at least 0",
        )
        return one_of(self.name, 0, operand, "float")

    def rule(self, operand: TensorType) -> Rule:
        return RuleBuilder((operand,), (operand,)).pointwise(operand.bounds).build()

    def reference(self, operand: Array) -> Array:
        return arithmetic.reduce_precision(operand, self.exponent_bits, self.mantissa_bits)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(flops=elements(results[0]), bytes=moved(*operands, *results))


class Quantized(Op):
    """An op on quantized tensors, which are not supported."""

    __slots__ = ()

    def infer(self, *operands: Type) -> Type:
        raise Unsupported(
            f"{self.name}: quantized types are not supported",
            help="keep the values as floats, or scale and convert them in the program",
        )

    def rule(self, *operands: TensorType) -> Rule:
        raise AssertionError(f"{self.name} is refused when its types are inferred")

    def reference(self, *arrays: Array) -> Array:
        raise AssertionError(f"{self.name} is refused when its types are inferred")

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        raise AssertionError(f"{self.name} is refused when its types are inferred")


@op("stablehlo.uniform_quantize")
class UniformQuantize(Quantized):
    """Floats rounded to integers with a scale and a zero point; refused."""


@op("stablehlo.uniform_dequantize")
class UniformDequantize(Quantized):
    """Floats from integers with a scale and a zero point; refused."""


OPS: tuple[type[Op], ...] = (
    Real,
    Imag,
    Complex,
    Convert,
    ReducePrecision,
    UniformQuantize,
    UniformDequantize,
)
