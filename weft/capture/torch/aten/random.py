"""Random ops: numbers of a counter-based generator, the same on every mesh.

An element's bits depend on the seed, the op's position in the program and the element's index
alone, so that they need no communication, and a kernel computes them where they are used. The
generator is Squares (B. Widynski, 2020), five rounds for 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.capture.torch.build import AtenLowering, Build, dtype_of
from weft.capture.torch.dtypes import TorchOperand, computed_in
from weft.ir.module import Value
from weft.ir.types import F64, I64, UI64, DType, TensorType
from weft.ops.elementwise.pointwise import (
    Add,
    Multiply,
    Or,
    Remainder,
    ShiftLeft,
    ShiftRightLogical,
    Xor,
)
from weft.ops.elementwise.transcendental import Cosine, Log, Sqrt

DRAW = 0x9E3779B97F4A7C15  # the step from one draw's key to the next: 2^64 over the golden ratio
_DIGITS = {"f16": 11, "bf16": 8, "f64": 53}  # of a float's significand; 24 for f32


def bits(b: Build, shape: Sequence[int]) -> Value:
    """64 random bits for each element."""
    type = TensorType(tuple(shape), UI64)
    key = b.broadcast(_key(b), shape)
    start = b.op(Multiply(), _index(b, type), key)
    moved = b.op(Add(), start, key)
    made = start
    for addend in (start, moved, start):
        made = _half_swapped(b, _square_plus(b, made, addend))
    last = _square_plus(b, made, moved)
    other = _square_plus(b, _half_swapped(b, last), start)
    return b.op(Xor(), last, _shifted_right(b, other, 32))


def _key(b: Build) -> Value:
    """An odd number that depends on the seed and on how many ops have drawn before."""
    seed = b.convert(b.seed(), UI64)
    b.draws += 1
    key = b.op(Add(), seed, b.like(seed, b.draws * DRAW))
    # SplitMix64's finalizer: keys of neighbouring draws and seeds differ in about half of their
    # bits.
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        key = b.op(Xor(), key, _shifted_right(b, key, shift))
        key = b.op(Multiply(), key, b.like(key, factor))
    key = b.op(Xor(), key, _shifted_right(b, key, 31))
    # Odd, so that index * key is different for every index, modulo 2^64.
    return b.op(Or(), key, b.like(key, 1))


def _index(b: Build, type: TensorType) -> Value:
    """The linear index of each element."""
    index = b.splat(0, type)
    stride = 1
    for dim in reversed(range(type.rank)):
        along = b.iota(dim, type.sizes, UI64)
        index = b.op(Add(), index, b.op(Multiply(), along, b.like(along, stride)))
        stride *= type.sizes[dim]
    return index


def _shifted_right(b: Build, value: Value, by: int) -> Value:
    return b.op(ShiftRightLogical(), value, b.like(value, by))


def _square_plus(b: Build, value: Value, addend: Value) -> Value:
    return b.op(Add(), b.op(Multiply(), value, value), addend)


def _half_swapped(b: Build, value: Value) -> Value:
    low = b.op(ShiftLeft(), value, b.like(value, 32))
    return b.op(Or(), _shifted_right(b, value, 32), low)


def uniform_in(b: Build, shape: Sequence[int], dtype: DType, *, zero: bool = True) -> Value:
    """Numbers in [0, 1) that the dtype can hold, in the dtype it is computed in.

    Without `zero` they are in (0, 1], for logarithms.
    """
    digits = _DIGITS.get(dtype.name, 24)
    held = computed_in(dtype)
    # As many bits as the significand has: every number is exact, and none is rounded up to 1.
    drawn = _shifted_right(b, bits(b, shape), 64 - digits)
    if not zero:
        drawn = b.op(Add(), drawn, b.like(drawn, 1))
    made = b.convert(b.convert(drawn, I64), held)
    return b.op(Multiply(), made, b.like(made, 2.0**-digits))


def rand(b: Build, *args: object, **layout: object) -> Value:
    """Uniform in [0, 1)."""
    return b.convert(uniform_in(b, b.out.sizes, b.out.dtype), b.out.dtype)


def uniform(b: Build, like: Value, low: float = 0.0, high: float = 1.0, **rest: object) -> Value:
    """Uniform between two numbers."""
    made = uniform_in(b, b.out.sizes, b.out.dtype)
    scaled = b.op(Multiply(), made, b.like(made, high - low))
    return b.convert(b.op(Add(), scaled, b.like(made, low)), b.out.dtype)


def standard_normal(b: Build, shape: Sequence[int], dtype: DType) -> Value:
    """Box and Muller's transform of two uniform numbers, in the dtype it is computed in."""
    held = computed_in(dtype)
    radius = b.op(Log(), uniform_in(b, shape, held, zero=False))
    radius = b.op(Sqrt(), b.op(Multiply(), radius, b.like(radius, -2.0)))
    angle = uniform_in(b, shape, held)
    angle = b.op(Multiply(), angle, b.like(angle, 2 * math.pi))
    return b.op(Multiply(), radius, b.op(Cosine(), angle))


def randn(b: Build, *args: object, **layout: object) -> Value:
    """Standard normal numbers."""
    return b.convert(standard_normal(b, b.out.sizes, b.out.dtype), b.out.dtype)


def normal(
    b: Build, mean: TorchOperand, std: TorchOperand = 1.0, *rest: object, **more: object
) -> Value:
    """Normal numbers; mean and deviation may be tensors."""
    made = standard_normal(b, b.out.sizes, b.out.dtype)
    held = dtype_of(made)
    scale, shift = (b.broadcast(b.value(each, held), b.out.sizes) for each in (std, mean))
    return b.convert(b.op(Add(), b.op(Multiply(), made, scale), shift), b.out.dtype)


def normal_like(
    b: Build, like: Value, mean: float = 0.0, std: float = 1.0, **rest: object
) -> Value:
    """Normal numbers in the shape of another tensor."""
    return normal(b, mean, std)


def exponential(b: Build, like: Value, rate: float = 1.0, **rest: object) -> Value:
    """Exponentially distributed numbers."""
    made = b.op(Log(), uniform_in(b, b.out.sizes, computed_in(b.out.dtype), zero=False))
    return b.convert(b.op(Multiply(), made, b.like(made, -1.0 / rate)), b.out.dtype)


def bernoulli(b: Build, like: Value, p: TorchOperand | None = None, **rest: object) -> Value:
    """1 with a probability: a number, a tensor, or the elements of the operand itself."""
    chance = like if p is None else p
    held = computed_in(b.out.dtype) if b.out.dtype.is_float else F64
    limit = b.broadcast(b.value(chance, held), b.out.sizes)
    drawn = b.convert(uniform_in(b, b.out.sizes, held), held)
    return b.convert(b.compare("LT", drawn, limit), b.out.dtype)


def randint(b: Build, low: int, high: int) -> Value:
    """Integers from `low` up to, without, `high`."""
    drawn = bits(b, b.out.sizes)
    # Of 64 bits the remainder is uniform but for (high - low) / 2^64.
    made = b.op(Remainder(), drawn, b.like(drawn, high - low))
    made = b.convert(made, I64)
    return b.convert(b.op(Add(), made, b.like(made, low)), b.out.dtype)


def randint_below(b: Build, high: int, size: Sequence[int], **layout: object) -> Value:
    """Integers from 0."""
    return randint(b, 0, high)


def randint_between(b: Build, low: int, high: int, size: Sequence[int], **layout: object) -> Value:
    """Integers from a number."""
    return randint(b, low, high)


def randint_like(b: Build, like: Value, high: int, **layout: object) -> Value:
    """Integers from 0, in the shape of another tensor."""
    return randint(b, 0, high)


def randint_like_between(b: Build, like: Value, low: int, high: int, **layout: object) -> Value:
    """Integers from a number, in the shape of another tensor."""
    return randint(b, low, high)


LOWERINGS: dict[str, AtenLowering] = {
    "aten.bernoulli.default": bernoulli,
    "aten.bernoulli.Tensor": bernoulli,
    "aten.bernoulli.p": bernoulli,
    "aten.exponential.default": exponential,
    "aten.normal.Tensor_Tensor": normal,
    "aten.normal.Tensor_float": normal,
    "aten.normal.float_Tensor": normal,
    "aten.normal_functional.default": normal_like,
    "aten.rand.default": rand,
    "aten.rand_like.default": rand,
    "aten.randint.default": randint_below,
    "aten.randint.low": randint_between,
    "aten.randint_like.default": randint_like,
    "aten.randint_like.low_dtype": randint_like_between,
    "aten.randn.default": randn,
    "aten.randn_like.default": randn,
    "aten.uniform.default": uniform,
}
