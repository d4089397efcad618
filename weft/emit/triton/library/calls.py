"""Calls of PyTorch for products, attention and single nodes, on tensors of their operands."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from weft.emit.triton.emitted import LibraryCall
from weft.emit.triton.library.absorbed import finish
from weft.emit.triton.library.attention import attention_call
from weft.emit.triton.library.cublaslt import algorithm_count, lt_product
from weft.emit.triton.library.nodes import CALLS, WRITES, refuses_node
from weft.emit.triton.library.places import Matrices
from weft.emit.triton.library.product import LibraryProduct
from weft.errors import Unsupported
from weft.ir.types import F32
from weft.kernels.attention import Attention
from weft.kernels.flow import ControlFlow
from weft.kernels.single_node import SingleNode


def product_call(
    name: str, product: LibraryProduct, algorithm: int = 0, workspace: int = 0
) -> LibraryCall:
    """The call of a product: out[b] = lhs[b] @ rhs[b], with its fused epilogue.

    By PyTorch, or by an algorithm of cuBLASLt (from 1), whose `workspace` is an operand.
    """
    sides = (product.lhs, product.rhs, product.out)
    shown = [f"{tuple(s.sizes)} by {tuple(s.strides)}" for s in sides]
    kind = f"{'tf32' if product.tf32 else product.dtype}{product.absorbed.shown}"
    how = f"cuBLASLt's algorithm {algorithm}" if algorithm else "torch.bmm"
    text = f"# {name}\n# {how} of {kind}: {shown[0]} @ {shown[1]} -> {shown[2]}\n"
    multiply: Callable[..., None] = partial(_multiply, sides)
    if not product.absorbed.is_nothing:
        multiply = partial(_multiply_wide, product)
    if product.dtype is F32:
        multiply = partial(_in_precision, product.tf32, multiply)
    numbers = (*[side.operand for side in sides], *product.absorbed.operands)
    if not algorithm:
        return LibraryCall(name, text, numbers, multiply)
    bare = replace(product, epilogue=None, scratch=())
    run = partial(_by_algorithm, bare, algorithm, multiply)
    return LibraryCall(name, text, (*numbers, workspace), run)


def _by_algorithm(
    product: LibraryProduct, algorithm: int, multiply: Callable[..., None], *tensors: Any
) -> None:
    """A product by one of cuBLASLt's proposals, on PyTorch's current stream."""
    import torch

    # Interpreted, or of a GPU without the library, or of operands that it does not take.
    if tensors[0].device.type == "cpu" or not algorithm_count(product):
        multiply(*tensors[:-1])
        return
    places = tuple([tensor.data_ptr() for tensor in tensors])
    stream = torch.cuda.current_stream(tensors[0].device).cuda_stream
    lt_product(product)(algorithm - 1, places, stream)


def _multiply_wide(product: LibraryProduct, *tensors: Any) -> None:
    """A product with its epilogue in f32, rounded once."""
    sides = (product.lhs, product.rhs, product.out)
    lhs, rhs, out = (
        tensor.as_strided(side.sizes, side.strides, side.offset)
        for tensor, side in zip(tensors[:3], sides, strict=True)
    )
    made = finish(lhs.float() @ rhs.float(), product.absorbed, -1, product.out, *tensors[3:])
    out.copy_(made)


def _in_precision(tf32: bool, multiply: Callable[..., None], *tensors: Any) -> None:
    """A product of f32, whatever PyTorch's own setting is."""
    import torch

    # The private pair: the public setter refuses to be mixed with
    # `torch.set_float32_matmul_precision`, which the user may have called.
    before = torch._C._get_cublas_allow_tf32()
    torch._C._set_cublas_allow_tf32(tf32)
    try:
        multiply(*tensors)
    finally:
        torch._C._set_cublas_allow_tf32(before)


def _multiply(sides: tuple[Matrices, Matrices, Matrices], *tensors: Any) -> None:
    import torch

    views = [
        tensor.as_strided(side.sizes, side.strides, side.offset)
        for tensor, side in zip(tensors, sides, strict=True)
    ]
    outer = views[0].shape[:-3]
    for index in itertools.product(*map(range, outer)):
        lhs, rhs, out = (view[index] for view in views)
        if lhs.shape[0] == 1:
            torch.mm(lhs[0], rhs[0], out=out[0])
        else:
            torch.bmm(lhs, rhs, out=out)


def refuses_library(kernel: SingleNode | Attention | ControlFlow) -> str | None:
    """Why PyTorch does not compute a kernel, or None if it does."""
    if isinstance(kernel, SingleNode):
        return refuses_node(kernel)
    if isinstance(kernel, Attention):
        return None
    return "loops and branches are decided by the host"


def library_call(kernel: SingleNode | Attention | ControlFlow) -> LibraryCall:
    """The call of a kernel without loops."""
    if reason := refuses_library(kernel):
        raise Unsupported(
            f"{kernel.name} has no kernel in the triton target: {reason}",
            help="run the node on the host",
        )
    if isinstance(kernel, Attention):
        return attention_call(kernel)
    assert isinstance(kernel, SingleNode)
    text = "\n".join([f"# {kernel.name}: by PyTorch", *[f"# {line}" for line in kernel.lines]])
    numbers = tuple(range(len(kernel.operands)))
    return LibraryCall(kernel.name, text + "\n", numbers, partial(_node, kernel))


def _node(kernel: SingleNode, *tensors: Any) -> None:
    """One node on every device."""
    call, write = CALLS.get(type(kernel.op)), WRITES.get(type(kernel.op))
    shaped = [t.view(o.shape) for t, o in zip(tensors, kernel.operands, strict=True)]
    count = len(kernel.inputs)
    if not any(t.numel() for t in shaped[count:]):  # PyTorch has no transforms of no points
        return
    for point in itertools.product(*map(range, kernel.devices)):
        mine = [_piece(t, point) for t in shaped]
        if write is not None:
            write(kernel, mine[count], *mine[:count])
            continue
        assert call is not None, "refused"
        made = call(kernel, *mine[:count])
        for out, result in zip(mine[count:], made, strict=True):
            out.copy_(result.reshape(out.shape))


def _piece(tensor: Any, point: tuple[int, ...]) -> Any:
    """One device's piece; a device dim of size 1 is shared by all."""
    for n in point:
        tensor = tensor[n if tensor.shape[0] > 1 else 0]
    return tensor
