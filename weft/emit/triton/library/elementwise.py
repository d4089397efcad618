"""Ops without an expression in Triton: PyTorch's functions, on complex numbers above all.

A complex number has no element type in Triton. Its functions, movements, sums and products are
PyTorch's, one launch each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from weft.emit.triton.library.regions import update_of
from weft.ir.op import Op
from weft.kernels.single_node import SingleNode
from weft.ops import shape, slicing
from weft.ops.contract import Dot, DotGeneral
from weft.ops.elementwise import convert, special
from weft.ops.elementwise import pointwise as ops
from weft.ops.elementwise import transcendental as functions
from weft.ops.reduce import Reduce

Made = Sequence[Any]

_SAME: dict[type[Op], str] = {
    ops.Add: "add",
    ops.Subtract: "subtract",
    ops.Multiply: "multiply",
    ops.Divide: "divide",
    ops.Negate: "negative",
    ops.Select: "where",
    functions.Exponential: "exp",
    functions.Log: "log",
    functions.Sqrt: "sqrt",
    functions.Tanh: "tanh",
    functions.Sine: "sin",
    functions.Cosine: "cos",
    functions.Logistic: "sigmoid",
    convert.Complex: "complex",
    special.Conj: "conj_physical",
    special.NextAfter: "nextafter",
}
_PARTS: dict[type[Op], str] = {ops.Abs: "abs", convert.Real: "real", convert.Imag: "imag"}


def _function(name: str) -> Any:
    import torch

    return getattr(torch, name)


def _call(kernel: SingleNode, *operands: Any) -> Made:
    """PyTorch's function of the same meaning."""
    return [_function((_SAME | _PARTS)[type(kernel.op)])(*operands)]


def _compare(kernel: SingleNode, lhs: Any, rhs: Any) -> Made:
    assert isinstance(kernel.op, ops.Compare)
    return [lhs == rhs if kernel.op.comparison_direction == "EQ" else lhs != rhs]


def _convert(kernel: SingleNode, operand: Any) -> Made:
    """The result's memory has the type; of a real result the imaginary part is dropped."""
    return [operand if kernel.outputs[0].dtype.is_complex else operand.real]


def _transpose(kernel: SingleNode, operand: Any) -> Made:
    assert isinstance(kernel.op, shape.Transpose)
    return [operand.permute(kernel.op.permutation)]


def _reshape(kernel: SingleNode, operand: Any) -> Made:
    return [operand]


def _broadcast(kernel: SingleNode, operand: Any) -> Made:
    assert isinstance(kernel.op, shape.BroadcastInDim)
    sizes = kernel.outputs[0].shape[kernel.lead :]
    order = sorted(range(operand.ndim), key=kernel.op.broadcast_dimensions.__getitem__)
    places = dict(zip(sorted(kernel.op.broadcast_dimensions), order, strict=True))
    own = [operand.shape[places[d]] if d in places else 1 for d in range(len(sizes))]
    return [operand.permute(order).reshape(own).expand(sizes)]


def _reverse(kernel: SingleNode, operand: Any) -> Made:
    assert isinstance(kernel.op, shape.Reverse)
    return [operand.flip(kernel.op.dimensions)]


def _slice(kernel: SingleNode, operand: Any) -> Made:
    op = kernel.op
    assert isinstance(op, slicing.Slice)
    rows = zip(op.start_indices, op.limit_indices, op.strides, strict=True)
    return [operand[tuple([slice(*row) for row in rows])]]


def _dynamic_slice(kernel: SingleNode, operand: Any, *starts: Any) -> Made:
    import torch

    assert isinstance(kernel.op, slicing.DynamicSlice)
    for dim, (start, count) in enumerate(zip(starts, kernel.op.slice_sizes, strict=True)):
        first = start.to(torch.int64).clamp(0, operand.shape[dim] - count)
        places = first + torch.arange(count, device=operand.device)
        # By indices on the device: the value of a start on the host would need a wait for the
        # device.
        operand = operand.index_select(dim, places)
    return [operand]


def _pad(kernel: SingleNode, operand: Any, value: Any) -> Made:
    op = kernel.op
    assert isinstance(op, slicing.Pad)
    made = value.expand(kernel.outputs[0].shape[kernel.lead :]).clone()
    inside, taken = [], []
    rows = zip(op.edge_padding_low, op.interior_padding, operand.shape, made.shape, strict=True)
    for low, interior, size, room in rows:
        step = interior + 1
        # The elements that negative padding leaves.
        first = -(min(low, 0) // step)
        last = max(first, min(size, -((low - room) // step)))
        taken.append(slice(first, last))
        inside.append(slice(low + first * step, low + (last - 1) * step + 1, step))
    if all(part.stop > part.start for part in taken):
        made[tuple(inside)] = operand[tuple(taken)]
    return [made]


def _sum(kernel: SingleNode, operand: Any, init: Any) -> Made:
    assert isinstance(kernel.op, Reduce)
    dims = kernel.op.dimensions
    return [(operand.sum(dims) if dims else operand) + init]


def _dot(kernel: SingleNode, lhs: Any, rhs: Any) -> Made:
    """A product of matrices, after the dims that both share."""
    op = kernel.op
    assert isinstance(op, DotGeneral | Dot)
    dims = op.dims(lhs.ndim) if isinstance(op, Dot) else op.dot_dimension_numbers
    shared = [*zip(*dims.batch, strict=True)] if dims.batch else [(), ()]
    summed = [*zip(*dims.contract, strict=True)] if dims.contract else [(), ()]
    free = (dims.lhs_free(lhs.ndim), dims.rhs_free(rhs.ndim))
    batch = [lhs.shape[d] for d in shared[0]]
    k = math.prod(lhs.shape[d] for d in summed[0])
    rows, columns = ([t.shape[d] for d in own] for t, own in zip((lhs, rhs), free, strict=True))
    left = lhs.permute((*shared[0], *free[0], *summed[0]))
    right = rhs.permute((*shared[1], *summed[1], *free[1]))
    made = left.reshape(math.prod(batch), math.prod(rows), k) @ right.reshape(
        math.prod(batch), k, math.prod(columns)
    )
    return [made.reshape((*batch, *rows, *columns))]


CALLS: dict[type[Op], Callable[..., Made]] = {
    **dict.fromkeys((*_SAME, *_PARTS), _call),
    ops.Compare: _compare,
    convert.Convert: _convert,
    shape.Transpose: _transpose,
    shape.Reshape: _reshape,
    shape.BroadcastInDim: _broadcast,
    shape.Reverse: _reverse,
    slicing.Slice: _slice,
    slicing.DynamicSlice: _dynamic_slice,
    slicing.Pad: _pad,
    Reduce: _sum,
    **dict.fromkeys((DotGeneral, Dot), _dot),
}


def refuses(kernel: SingleNode) -> str | None:
    """Why none of these functions computes a node, or None if one does."""
    op, result = type(kernel.op), kernel.outputs[0].dtype
    first = kernel.inputs[0].dtype if kernel.inputs else result
    if op is special.NextAfter:
        return None if first.name in ("f32", "f64") else f"of {first}"
    if not any(operand.dtype.is_complex for operand in kernel.operands):
        return "it has a kernel for other types"
    if isinstance(kernel.op, convert.Convert) and not (result.is_float or result.is_complex):
        return f"a complex number becomes {result}"
    if isinstance(kernel.op, ops.Compare) and kernel.op.comparison_direction not in ("EQ", "NE"):
        return "it compares an order"
    if isinstance(kernel.op, Reduce) and (
        len(kernel.inputs) != 2 or update_of(kernel.regions[0]) != "add"
    ):
        return "it is not one sum"
    return None
