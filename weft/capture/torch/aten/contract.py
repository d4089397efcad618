"""Products of matrices."""

from __future__ import annotations

from weft.capture.torch.build import AtenLowering, Build
from weft.capture.torch.dtypes import computed_in
from weft.ir.module import Value
from weft.ops.contract import DotDims
from weft.ops.elementwise.pointwise import Add, Multiply


def matmul(b: Build, x: Value, y: Value, out_dtype: object = None) -> Value:
    """A matrix product, or a batch of them."""
    return b.matmul(x, y, b.out.dtype)


def add_product(
    b: Build, bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1
) -> Value:
    """`beta * bias + alpha * x @ y`; with beta == 0 the bias is ignored, even if NaN."""
    return _added(b, bias, b.matmul(x, y, computed_in(b.out.dtype)), beta, alpha)


def add_products(
    b: Build, bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1
) -> Value:
    """`beta * bias + alpha * (the sum of a batch of products)`."""
    made = b.dot(x, y, DotDims((), (), (0, 2), (0, 1)), computed_in(b.out.dtype))
    return _added(b, bias, made, beta, alpha)


def _added(b: Build, bias: Value, made: Value, beta: float, alpha: float) -> Value:
    dtype = b.out.dtype
    wide = computed_in(dtype)
    if alpha != 1:
        made = b.op(Multiply(), made, b.like(made, alpha))
    if beta != 0:
        added = b.broadcast(b.convert(bias, wide), b.out.sizes)
        if beta != 1:
            added = b.op(Multiply(), added, b.like(added, beta))
        made = b.op(Add(), made, added)
    return b.convert(made, dtype)


LOWERINGS: dict[str, AtenLowering] = {
    "aten.addbmm.default": add_products,
    "aten.addmm.default": add_product,
    "aten.baddbmm.default": add_product,
    "aten.bmm.default": matmul,
    "aten.mm.default": matmul,
}
