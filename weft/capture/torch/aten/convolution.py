"""Convolutions in any number of dims, transposed or not, and their gradients."""

from __future__ import annotations

from collections.abc import Sequence

from weft.capture.torch.build import (
    AtenLowering,
    Build,
    LoweredResults,
    dtype_of,
    shape_of,
    type_of,
)
from weft.ir.module import Value
from weft.ir.types import TensorType
from weft.ops.convolution import ConvDims, Convolution
from weft.ops.elementwise.pointwise import Add

TorchPadding = tuple[tuple[int, int], ...]


def convolution(
    b: Build,
    x: Value,
    weight: Value,
    bias: Value | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Value:
    """A convolution with a bias for each channel."""
    count = len(shape_of(x)) - 2
    stride, padding, dilation, extra = (
        each_dim(n, count) for n in (stride, padding, dilation, output_padding)
    )
    if transposed:
        result = _transposed(b, x, weight, b.out, stride, padding, dilation, extra, groups)
    else:
        pads = tuple([(p, p) for p in padding])
        result = _convolved(b, x, weight, b.out, stride, pads, dilation, groups)
    if bias is None:
        return result
    added = b.spread(b.convert(bias, b.out.dtype), b.out.sizes, (1,))
    return b.op(Add(), result, added)


def each_dim(given: Sequence[int], count: int) -> tuple[int, ...]:
    """One number for each dim."""
    return tuple(given) * count if len(given) == 1 else tuple(given)


def _dims(count: int, inner: int = 1, outer: int = 0) -> ConvDims:
    """Batch, channels and space in this order; which dims of the kernel are channels."""
    space = tuple(range(2, 2 + count))
    return ConvDims(0, 1, space, inner, outer, space, 0, 1, space)


def _convolved(
    b: Build,
    x: Value,
    weight: Value,
    out: TensorType,
    stride: Sequence[int],
    padding: TorchPadding,
    dilation: Sequence[int],
    groups: int,
) -> Value:
    op = Convolution(
        _dims(len(shape_of(x)) - 2),
        groups,
        1,
        out,
        window_strides=tuple(stride),
        padding=padding,
        rhs_dilation=tuple(dilation),
    )
    return b.op(op, x, weight)


def _transposed(
    b: Build,
    x: Value,
    weight: Value,
    out: TensorType,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    extra: Sequence[int],
    groups: int,
) -> Value:
    """The gradient of a convolution: of the input spread out, with the kernel turned round."""
    sizes = shape_of(weight)
    count = len(sizes) - 2
    # Padding of the forward pass becomes cropping; `extra` are the elements at the end that its
    # stride did not reach.
    reach = [d * (k - 1) for d, k in zip(dilation, sizes[2:], strict=True)]
    pads = tuple([(r - p, r - p + e) for r, p, e in zip(reach, padding, extra, strict=True)])
    if groups > 1:  # the channels of a group side by side
        inner = sizes[0] // groups
        weight = b.reshape(weight, (groups, inner, *sizes[1:]))
        weight = b.transpose(weight, (1, 0, *range(2, 3 + count)))
        weight = b.reshape(weight, (inner, groups * sizes[1], *sizes[2:]))
    op = Convolution(
        _dims(count, inner=0, outer=1),
        groups,
        1,
        out,
        window_strides=(1,) * count,
        padding=pads,
        lhs_dilation=tuple(stride),
        rhs_dilation=tuple(dilation),
        window_reversal=(True,) * count,
    )
    return b.op(op, x, weight)


def convolution_backward(
    b: Build,
    gradient: Value,
    x: Value,
    weight: Value,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> LoweredResults:
    """The requested gradients, of input, kernel and bias."""
    count = len(shape_of(x)) - 2
    stride, padding, dilation, extra = (
        each_dim(n, count) for n in (stride, padding, dilation, output_padding)
    )
    gradients: list[Value | None] = [None, None, None]
    if output_mask[0] and transposed:  # the adjoint of an adjoint is the convolution
        # Output padding lies at the end only, and is cropped there.
        pads = tuple([(p, p - e) for p, e in zip(padding, extra, strict=True)])
        gradients[0] = _convolved(b, gradient, weight, type_of(x), stride, pads, dilation, groups)
    elif output_mask[0]:
        gradients[0] = _input_gradient(b, gradient, x, weight, stride, padding, dilation, groups)
    if output_mask[1]:
        read, sent = (gradient, x) if transposed else (x, gradient)
        gradients[1] = _kernel_gradient(b, sent, read, weight, stride, padding, dilation, groups)
    if output_mask[2]:
        gradients[2] = b.reduce(gradient, (0, *range(2, 2 + count)), "add", 0)
    return tuple(gradients)


def _input_gradient(
    b: Build,
    gradient: Value,
    x: Value,
    weight: Value,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Value:
    sizes, kernel, given = shape_of(x)[2:], shape_of(weight)[2:], shape_of(gradient)[2:]
    # A stride that does not divide leaves elements at the end of the input which no window reached:
    # their gradient is 0, and the transposed convolution has to be that much longer.
    extra = [
        size - ((g - 1) * s - 2 * p + d * (k - 1) + 1)
        for size, g, s, p, d, k in zip(sizes, given, stride, padding, dilation, kernel, strict=True)
    ]
    out = TensorType(shape_of(x), dtype_of(x))
    return _transposed(b, gradient, weight, out, stride, padding, dilation, extra, groups)


def _kernel_gradient(
    b: Build,
    gradient: Value,
    x: Value,
    weight: Value,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> Value:
    """Input and gradient convolved, the batch being what is summed over."""
    sizes, kernel, gradient_sizes = shape_of(x)[2:], shape_of(weight)[2:], shape_of(gradient)[2:]
    pads = tuple(
        [
            (p, d * (k - 1) + s * (g - 1) + 1 - size - p)
            for size, g, s, p, d, k in zip(
                sizes, gradient_sizes, stride, padding, dilation, kernel, strict=True
            )
        ]
    )
    space = tuple(range(2, 2 + len(kernel)))
    # Channels take the place of the batch, and the batch that of the channels, which are summed
    # over; strides and dilations change places, as the gradient is the kernel.
    dims = ConvDims(1, 0, space, 0, 1, space, 1, 0, space)
    op = Convolution(
        dims,
        1,
        groups,
        TensorType(shape_of(weight), dtype_of(weight)),
        window_strides=tuple(dilation),
        padding=pads,
        rhs_dilation=tuple(stride),
    )
    return b.op(op, x, gradient)


LOWERINGS: dict[str, AtenLowering] = {
    "aten.convolution.default": convolution,
    "aten.convolution_backward.default": convolution_backward,
}
