"""Products of matrices."""

from __future__ import annotations

from weft.capture.torch.build import AtenLowering, Build, shape_of, type_of
from weft.capture.torch.dtypes import computed_in
from weft.ir.module import Value
from weft.ir.types import DType
from weft.ops.contract import DotDims
from weft.ops.elementwise.pointwise import Add, Multiply
from weft.ops.shape import Transpose


def matmul(b: Build, x: Value, y: Value, out_dtype: object = None) -> Value:
    """A matrix product, or a batch of them."""
    return b.reshape(_product(b, x, y, b.out.dtype), b.out.sizes)


def add_product(
    b: Build, bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1
) -> Value:
    """`beta * bias + alpha * x @ y`; with beta == 0 the bias is ignored, even if NaN."""
    made = _product(b, x, y, computed_in(b.out.dtype))
    if type_of(bias).rank > 1:
        made = b.reshape(made, b.out.sizes)
    return b.reshape(_added(b, bias, made, beta, alpha), b.out.sizes)


def _product(b: Build, x: Value, y: Value, dtype: DType) -> Value:
    """A product whose rows, or whose sum over rows, keep the dims that a view has merged."""
    if type_of(x).rank > 2:
        return b.matmul(x, y, dtype)
    if (summed := _unmerged_sum(b, x, y)) is not None:
        left, right = summed
        dims = tuple(range(type_of(left).rank - 1))
        return b.dot(left, right, DotDims((), (), dims, dims), dtype)
    # Dims that were merged for the product keep their own shardings, unless one reshape hides them.
    x = b.unmerged(x)
    return b.dot(x, y, DotDims((), (), (type_of(x).rank - 1,), (0,)), dtype)


def _unmerged_sum(b: Build, x: Value, y: Value) -> tuple[Value, Value] | None:
    """The operands of `x.T @ y`, a weight's gradient, if both merge their rows from equal dims."""
    node = x.node
    if node is None or not isinstance(node.op, Transpose):
        return None
    left, right = b.unmerged(node.operands[0]), b.unmerged(y)
    is_equal = shape_of(left)[:-1] == shape_of(right)[:-1]
    return (left, right) if is_equal and type_of(left).rank > 2 else None


def add_products(
    b: Build, bias: Value, x: Value, y: Value, *, beta: float = 1, alpha: float = 1
) -> Value:
    """`beta * bias + alpha * (the sum of a batch of products)`."""
    made = b.dot(x, y, DotDims((), (), (0, 2), (0, 1)), computed_in(b.out.dtype))
    return _added(b, bias, made, beta, alpha)


def _added(b: Build, bias: Value, product: Value, beta: float, alpha: float) -> Value:
    dtype = b.out.dtype
    wide = computed_in(dtype)
    if alpha != 1:
        product = b.op(Multiply(), product, b.like(product, alpha))
    # As in BLAS, which does not read C then: 0 * NaN would be NaN.
    if beta != 0:
        added = b.broadcast(b.convert(bias, wide), shape_of(product))
        if beta != 1:
            added = b.op(Multiply(), added, b.like(added, beta))
        product = b.op(Add(), product, added)
    return b.convert(product, dtype)


LOWERINGS: dict[str, AtenLowering] = {
    "aten.addbmm.default": add_products,
    "aten.addmm.default": add_product,
    "aten.baddbmm.default": add_product,
    "aten.bmm.default": matmul,
    "aten.mm.default": matmul,
}
