"""Grouped matrix products, such as the experts of a mixture: each group of rows has its matrix.

PyTorch's `_grouped_mm` and the fallback of Hugging Face's transformers become one op with
gradients in any float type.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from weft.capture.torch.build import AtenLowering, Build, shape_of
from weft.capture.torch.dtypes import computed_in
from weft.ir.module import Value
from weft.ir.types import I32, TensorType
from weft.ops.elementwise.pointwise import Subtract
from weft.ops.ragged import RaggedDims, RaggedDot

GROUPED = {"aten._grouped_mm.default", "transformers.grouped_mm_fallback.default"}
_ROWS = RaggedDims((), (), (1,), (1,), (0,), (0,))  # [rows, k] x [groups, k, n]
_SUMS = RaggedDims((), (), (1,), (0,), (1,), ())  # [m, k] x [k, n]: groups of the contracting dim


def grouped_product(
    rows: Any, matrices: Any, offs: Any = None, bias: Any = None, out_dtype: Any = None
) -> Any:
    """PyTorch's grouped_mm: `offs` has the end of each group."""
    if offs is None:
        result = rows @ matrices
    elif rows.dim() == 3 and matrices.dim() == 2:  # groups of columns
        result = _op()(matrices.transpose(0, 1), rows.transpose(-1, -2), offs).transpose(0, 1)
    elif rows.dim() == 3:
        result = rows @ matrices
    else:
        result = _op()(rows, matrices, offs)
    result = result if bias is None else result + bias
    return result if out_dtype is None else result.to(out_dtype)


def _op() -> Any:
    import torch

    if not hasattr(torch.ops.weft, "grouped_product"):
        define_grouped_product()
    return torch.ops.weft.grouped_product.default


@cache
def define_grouped_product() -> Any:
    """Define `weft::grouped_product`: [t, k] x [groups, k, n], or [m, t] x [t, n], groups of t."""
    import torch

    def shape(rows: Any, matrices: Any, offs: Any) -> Any:
        if matrices.dim() == 3:
            return rows.new_empty((rows.shape[0], matrices.shape[2]))
        return rows.new_empty((offs.shape[0], rows.shape[0], matrices.shape[1]))

    def meaning(rows: torch.Tensor, matrices: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(shape(rows, matrices, offs))
        start = 0
        for group, end in enumerate(offs.tolist()):
            if matrices.dim() == 3:
                out[start:end] = rows[start:end] @ matrices[group]
            else:
                out[group] = rows[:, start:end] @ matrices[start:end]
            start = end
        return out

    op = torch.library.custom_op(
        "weft::grouped_product",
        meaning,
        mutates_args=(),
        schema="(Tensor rows, Tensor matrices, Tensor offs) -> Tensor",
    )

    def keep(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    def backward(ctx: Any, grad: Any) -> Any:
        rows, matrices, offs = ctx.saved_tensors
        left = right = None
        if ctx.needs_input_grad[0]:
            left = op(grad, matrices.transpose(-1, -2), offs)
        if ctx.needs_input_grad[1]:
            right = op(rows.transpose(0, 1), grad, offs)
        return left, right, None

    op.register_fake(shape)
    op.register_autograd(backward, setup_context=keep)
    return op  # which lives as long as this object


def product(b: Build, rows: Value, matrices: Value, offs: Value) -> Value:
    """A ragged dot, whose group sizes are the differences of the ends."""
    ends = b.convert(offs, I32)
    count = shape_of(ends)[0]
    # [0, end of group 0, ..., end of the last but one]
    before = b.pad(b.slice(ends, 0, 0, count - 1), (1,), (0,))
    sizes = b.op(Subtract(), ends, before)
    dims = _ROWS if len(shape_of(matrices)) == 3 else _SUMS
    wide = TensorType(b.out.sizes, computed_in(b.out.dtype))
    return b.convert(b.op(RaggedDot(dims, wide), rows, matrices, sizes), b.out.dtype)


LOWERINGS: dict[str, AtenLowering] = {"weft.grouped_product.default": product}
