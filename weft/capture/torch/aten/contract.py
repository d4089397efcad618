"""Products of matrices, and attention."""

from __future__ import annotations

import math

from weft.capture.torch.build import AtenLowering, Build, dtype_of, shape_of
from weft.capture.torch.dtypes import computed_in
from weft.ir.module import Value
from weft.ir.types import BOOL
from weft.ops.attention import Attention
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


def attention(
    b: Build,
    query: Value,
    key: Value,
    value: Value,
    attn_mask: Value | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Value:
    """Attention as one op, with any number of batch dims, and grouped-query heads."""
    if dropout_p:
        raise b.refuse("dropout_p is not 0", "call model.eval(), or build it without dropout")
    scale = 1 / math.sqrt(max(1, shape_of(query)[-1])) if scale is None else scale
    dtype = b.out.dtype
    shape = shape_of(query)
    rank = max(4, len(shape))
    q, k, v = (_with_rank(b, b.convert(x, dtype), rank) for x in (query, key, value))
    batch = tuple(
        max(sizes, key=lambda s: (s != 1, s)) for sizes in zip(
            *(shape_of(x)[:-3] for x in (q, k, v)), strict=True
        )
    )  # fmt: skip
    heads = shape_of(q)[-3]
    shared = shape_of(k)[-3] if enable_gqa else max(shape_of(k)[-3], shape_of(v)[-3], heads)
    q = b.broadcast(q, (*batch, max(heads, shared), *shape_of(q)[-2:]))
    k, v = (b.broadcast(x, (*batch, shared, *shape_of(x)[-2:])) for x in (k, v))
    operands = [q, k, v]
    masked = attn_mask is not None and dtype_of(attn_mask) is BOOL
    if attn_mask is not None:
        operands.append(_with_rank(b, attn_mask, rank))
    op = Attention(
        float(scale),
        right=0 if is_causal else -1,
        masked=masked,
        biased=attn_mask is not None and not masked,
    )
    return b.reshape(b.op(op, *operands), b.out.sizes)


def _with_rank(b: Build, x: Value, rank: int) -> Value:
    """The value with leading dims of size 1."""
    return b.reshape(x, (1,) * (rank - len(shape_of(x))) + shape_of(x))


LOWERINGS: dict[str, AtenLowering] = {
    "aten.addbmm.default": add_products,
    "aten.addmm.default": add_product,
    "aten.baddbmm.default": add_product,
    "aten.bmm.default": matmul,
    "aten.mm.default": matmul,
    "weft.scaled_dot_product_attention.default": attention,
}
