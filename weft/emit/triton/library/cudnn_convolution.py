"""Convolutions by graphs of cuDNN, channels last: written in place, with a fused epilogue.

It needs the package nvidia-cudnn-frontend; without it, PyTorch's results are copied.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

from weft.emit.triton.library.absorbed import Absorbed
from weft.emit.triton.library.cudnn import cudnn_handle, has_frontend
from weft.emit.triton.library.places import Matrices
from weft.ir.types import DType
from weft.kernels.kernel import Kernel, Operand
from weft.records import dataclass

EACH = 8  # channels that kernels read at once
ALIGNED = 16  # bytes: cuDNN's kernels read vectors of so many
_TYPES = {"bf16": "BFLOAT16", "f16": "HALF"}


@dataclass(frozen=True, slots=True)
class LibraryConvolution:
    """A convolution on views: batch, channels and spatial dims each."""

    dtype: DType
    image: Matrices
    weights: Matrices
    out: Matrices
    stride: tuple[int, ...]
    pad: tuple[int, ...]
    dilation: tuple[int, ...]
    tf32: bool
    absorbed: Absorbed
    copies: tuple[tuple[Kernel, tuple[int, ...]], ...]  # of sides to scratch, and their operands
    epilogue: tuple[Kernel, tuple[int, ...]] | None
    scratch: tuple[Operand, ...]  # of the result before the epilogue, then of copies

    @property
    def is_channels_last(self) -> bool:
        """Whether channels are next to each other in memory, in all three."""
        return all(side.strides[1] == 1 for side in (self.image, self.weights, self.out))


class CudnnConvolution:
    """The graph of one convolution."""

    def __init__(self, convolution: LibraryConvolution) -> None:
        import cudnn

        self.convolution = convolution
        wide, narrow = (
            cudnn.data_type.FLOAT,
            getattr(cudnn.data_type, _TYPES[convolution.dtype.name]),
        )
        self.graph = graph = cudnn.pygraph(
            io_data_type=narrow,
            intermediate_data_type=wide,
            compute_data_type=wide,
            handle=cudnn_handle(),
        )
        image, weight = (
            self._tensor("given", 0, convolution.image),
            self._tensor("w", 1, convolution.weights),
        )
        result = graph.conv_fprop(
            image=image,
            weight=weight,
            pre_padding=[*convolution.pad],
            post_padding=[*post_padding(convolution)],
            stride=[*convolution.stride],
            dilation=[*convolution.dilation],
        )
        # Operands are numbered as tensors are given: the bias and the sum after the result.
        number = 3
        if convolution.absorbed.bias is not None:
            sizes = [1, convolution.out.sizes[1], *[1] * len(convolution.stride)]
            strides = [sizes[1], 1, *[sizes[1]] * len(convolution.stride)]
            bias = graph.tensor(name="bias", dim=sizes, stride=strides, uid=number + 1)
            result, number = graph.add(a=result, b=bias), number + 1
        if convolution.absorbed.added is not None:
            result = graph.add(a=result, b=self._tensor("added", number, convolution.out))
        if convolution.absorbed.relu:
            result = graph.relu(input=result)
        result.set_output(True).set_uid(3).set_data_type(narrow)
        result.set_dim([*convolution.out.sizes]).set_stride([*convolution.out.strides])
        graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        self.workspace: int = graph.get_workspace_size()
        loads = (convolution.absorbed.bias, convolution.absorbed.added)
        self.offsets = [
            side.offset for side in (convolution.image, convolution.weights, convolution.out)
        ]
        self.offsets += [load.at.offset for load in loads if load is not None]

    def _tensor(self, name: str, number: int, side: Matrices) -> Any:
        sizes, strides = [*side.sizes], [*side.strides]
        return self.graph.tensor(name=name, dim=sizes, stride=strides, uid=number + 1)

    def __call__(self, tensors: Sequence[Any]) -> None:
        """Enqueue it on PyTorch's current stream."""
        import cudnn
        import torch

        size = tensors[0].element_size()
        places = {
            n + 1: tensor.data_ptr() + offset * size
            for n, (tensor, offset) in enumerate(zip(tensors, self.offsets, strict=True))
        }
        device, handle = tensors[0].device, cudnn_handle()
        space = torch.empty(max(1, self.workspace), dtype=torch.uint8, device=device)
        cudnn.set_stream(handle, torch.cuda.current_stream(device).cuda_stream)
        self.graph.execute(places, space.data_ptr(), handle=handle)


def post_padding(convolution: LibraryConvolution) -> list[int]:
    """The pads behind each spatial dim, so that it has as many outputs as the program asks for."""
    taps, outs, sizes = (
        side.sizes[2:] for side in (convolution.weights, convolution.out, convolution.image)
    )
    rows = zip(
        sizes, taps, outs, convolution.stride, convolution.pad, convolution.dilation, strict=True
    )
    return [
        max(0, (out - 1) * stride + dilation * (tap - 1) + 1 - size - pad)
        for size, tap, out, stride, pad, dilation in rows
    ]


def _makes_more(convolution: LibraryConvolution) -> bool:
    """Whether the window has more positions than the program asks for."""
    taps, outs, sizes = (
        side.sizes[2:] for side in (convolution.weights, convolution.out, convolution.image)
    )
    pads = (convolution.pad, post_padding(convolution))
    rows = zip(sizes, taps, *pads, convolution.stride, convolution.dilation, strict=True)
    counts = [
        (size + pad + post - dilation * (tap - 1) - 1) // stride + 1
        for size, tap, pad, post, stride, dilation in rows
    ]
    return counts != [*outs]


@cache
def cudnn_convolution(convolution: LibraryConvolution) -> CudnnConvolution | None:
    """The graph of a convolution; None where PyTorch has to call cuDNN."""
    if convolution.dtype.name not in _TYPES or not has_frontend() or _makes_more(convolution):
        return None
    # Without vectors of channels, PyTorch finds a faster kernel.
    if any(side.sizes[1] % EACH for side in (convolution.image, convolution.out)):
        return None
    sides = (convolution.image, convolution.weights, convolution.out)
    if any(side.offset * (convolution.dtype.bits // 8) % ALIGNED for side in sides):
        return None
    import cudnn

    try:
        return CudnnConvolution(convolution)
    except (RuntimeError, ValueError, cudnn.cudnnGraphNotSupportedError) as error:
        warnings.warn(
            f"a convolution of {convolution.image.sizes} runs by PyTorch's call of cuDNN, and is "
            f"copied: {str(error).strip().splitlines()[0]}",
            stacklevel=2,
        )
        return None
