"""ATen's ops on element types: conversions, bitcasts, complex numbers and their parts."""

from __future__ import annotations

from weft.capture.torch.build import (
    AtenLowering,
    Build,
    LoweredResults,
    dtype_of,
    shape_of,
    type_of,
)
from weft.capture.torch.dtypes import TorchOperand, dtype_of_torch
from weft.ir.module import Value
from weft.ir.types import TensorType
from weft.ops.elementwise import pointwise as ours
from weft.ops.elementwise import special
from weft.ops.elementwise import transcendental as functions
from weft.ops.elementwise.convert import Complex, Imag, Real
from weft.ops.shape import BitcastConvert


def to_copy(b: Build, x: TorchOperand, dtype: object = None, **layout: object) -> Value:
    """A conversion; devices and memory formats are not part of a program."""
    return b.value(x, b.out.dtype)


def convert_element_type(b: Build, x: Value, dtype: object) -> Value:
    """A conversion, in the form that decompositions use."""
    return b.convert(x, dtype_of_torch(dtype))


def view_dtype(b: Build, x: Value, dtype: object) -> Value:
    """A bitcast; the last dim shrinks or grows with the width."""
    source, wanted = type_of(x), b.out
    if (
        source.dtype.bits == wanted.dtype.bits
        and source.dtype.is_complex is wanted.dtype.is_complex
    ):
        return b.op(BitcastConvert(wanted), x) if source.dtype is not wanted.dtype else x
    kinds = (source.dtype.kind, wanted.dtype.kind)
    if "complex" in kinds or "bool" in kinds:
        raise b.refuse(f"{source.dtype} as {wanted.dtype}", "use torch.view_as_real, or convert")
    ratio = max(source.dtype.bits, wanted.dtype.bits) // min(source.dtype.bits, wanted.dtype.bits)
    if source.dtype.bits < wanted.dtype.bits:
        x = b.reshape(x, (*source.sizes[:-1], source.sizes[-1] // ratio, ratio))
        return b.op(BitcastConvert(wanted), x)
    wide = TensorType((*source.sizes, ratio), wanted.dtype)
    return b.reshape(b.op(BitcastConvert(wide), x), wanted.sizes)


def to_complex(b: Build, x: Value, y: Value) -> Value:
    """Complex numbers from real and imaginary parts."""
    return b.op(Complex(), *b.operands(x, y, dtype=b.out.dtype.real))


def polar(b: Build, size: Value, angle: Value) -> Value:
    """Complex numbers from magnitude and angle."""
    size, angle = b.operands(size, angle, dtype=b.out.dtype.real)
    parts = [b.op(ours.Multiply(), size, b.op(f(), angle))
             for f in (functions.Cosine, functions.Sine)]  # fmt: skip
    return b.op(Complex(), *parts)


def conjugate(b: Build, x: TorchOperand) -> Value:
    """Complex conjugates; real numbers as they are. Gradients conjugate Python's numbers, too."""
    x = b.value(x, b.out.dtype)
    return b.op(special.Conj(), x) if dtype_of(x).is_complex else x


def view_as_real(b: Build, x: Value) -> Value:
    """Real and imaginary parts stacked in a last dim."""
    parts = [b.reshape(b.op(part, x), (*shape_of(x), 1)) for part in (Real(), Imag())]
    return b.join(parts, len(shape_of(x)))


def view_as_complex(b: Build, x: Value) -> Value:
    """Complex numbers from the two elements of the last dim."""
    last = len(shape_of(x)) - 1
    parts = [b.reshape(b.slice(x, last, n, n + 1), shape_of(x)[:-1]) for n in range(2)]
    return b.op(Complex(), *parts)


def same(b: Build, x: Value, *args: object, **kwargs: object) -> LoweredResults:
    """The value itself: memory is not part of a program."""
    return x


LOWERINGS: dict[str, AtenLowering] = {
    "aten._conj.default": conjugate,
    "aten._conj_physical.default": conjugate,
    "aten._to_copy.default": to_copy,
    "aten.alias.default": same,
    "aten.clone.default": same,
    "aten.complex.default": to_complex,
    "aten.conj_physical.default": conjugate,
    "aten.detach.default": same,
    "aten.lift_fresh.default": same,  # else decomposed before a constant becomes part of the graph
    "aten.lift_fresh_copy.default": same,
    "aten.polar.default": polar,
    "aten.resolve_conj.default": same,
    "aten.resolve_neg.default": same,
    "aten.view.dtype": view_dtype,
    "aten.view_as_complex.default": view_as_complex,
    "aten.view_as_real.default": view_as_real,
    "prims.convert_element_type.default": convert_element_type,
}
