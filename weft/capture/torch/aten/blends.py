"""Sums of products and of quotients, and interpolation: the ops of optimizers' steps."""

from __future__ import annotations

from functools import partial

from weft.capture.torch.build import AtenLowering, Build
from weft.capture.torch.dtypes import TorchOperand, computed_in
from weft.ir.module import Value
from weft.ir.op import Op
from weft.ops.elementwise.pointwise import Add, Divide, Multiply, Subtract


def added(op: Op, b: Build, x: Value, y: Value, z: Value, value: float = 1, **_: object) -> Value:
    """x + value * y * z, or with a quotient; rounded once."""
    x, y, z = _wide(b, x, y, z)
    if value != 1:
        y = b.op(Multiply(), y, b.like(y, value))
    return b.convert(b.op(Add(), x, b.op(op, y, z)), b.out.dtype)


def interpolated(b: Build, x: Value, y: Value, weight: TorchOperand) -> Value:
    """x + weight * (y - x), from the nearer end."""
    assert isinstance(weight, int | float | complex), "a number"
    x, y = _wide(b, x, y)
    apart = b.op(Subtract(), y, x)
    # As PyTorch: exactly x at weight 0 and exactly y at weight 1.
    if abs(weight) < 0.5:
        made = b.op(Add(), x, b.op(Multiply(), apart, b.like(apart, weight)))
    else:
        made = b.op(Subtract(), y, b.op(Multiply(), apart, b.like(apart, 1 - weight)))
    return b.convert(made, b.out.dtype)


def _wide(b: Build, *operands: Value) -> tuple[Value, ...]:
    """The operands in the type that the result is computed in."""
    return b.operands(*operands, dtype=computed_in(b.out.dtype))


LOWERINGS: dict[str, AtenLowering] = {
    "aten.addcdiv.default": partial(added, Divide()),
    "aten.addcmul.default": partial(added, Multiply()),
    "aten.lerp.Scalar": interpolated,
}
