"""Attention by graphs of cuDNN, which write to its place: PyTorch's function allocates its results.

It needs the package nvidia-cudnn-frontend; without it, PyTorch's results are copied.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from weft.kernels.attention import Access, Attention
from weft.records import dataclass

_LOCAL = threading.local()  # a handle for each thread


@dataclass(frozen=True, slots=True)
class Heads:
    """An operand as batch, heads, rows and columns: sizes and strides, in elements."""

    access: Access
    sizes: tuple[int, int, int, int]
    strides: tuple[int, int, int, int]


@cache
def has_frontend() -> bool:
    """Whether cuDNN's graphs can be built."""
    if find_spec("cudnn") is None:
        return False
    try:
        import cudnn  # noqa: F401
    except (ImportError, OSError) as error:
        warnings.warn(f"nvidia-cudnn-frontend cannot be imported: {error}", stacklevel=2)
        return False
    return True


def operands_of(kernel: Attention) -> dict[str, Heads] | None:
    """The operands by name, if their outer dims are one of batch and one of heads."""
    for count in range(len(kernel.outer) - 1, 0, -1):
        found = {name: _heads(kernel, count, name, *given) for name, given in _named(kernel)}
        made = {name: heads for name, heads in found.items() if heads is not None}
        if len(made) == len(found):
            return made
    return None


def _named(kernel: Attention) -> list[tuple[str, tuple[Access, int, int]]]:
    """The operands with their rows and columns."""
    queries, keys, depth = kernel.queries, kernel.keys, kernel.depth
    operands = [
        ("q", (kernel.q, queries, depth)),
        ("k", (kernel.k, keys, depth)),
        ("v", (kernel.v, keys, depth)),
        ("o", (kernel.out, queries, depth)),
    ]
    if kernel.lse is not None:
        operands.append(("stats", (kernel.lse, queries, 1)))
    if (gradients := kernel.gradients) is not None:
        operands += [
            ("do", (gradients.out, queries, depth)),
            ("dq", (gradients.q, queries, depth)),
            ("dk", (gradients.k, keys, depth)),
            ("dv", (gradients.v, keys, depth)),
        ]
    return operands


def _heads(
    kernel: Attention, count: int, name: str, access: Access, rows: int, columns: int
) -> Heads | None:
    """An operand whose first outer dims, so many, are the batch; grouped keys are fewer heads."""
    pairs = [*zip(kernel.outer, access.outer, strict=True)]
    heads = pairs[count:]
    if name in ("k", "v"):
        # Stride 0: the queries of a group share these heads, which cuDNN reads off the number of
        # heads.
        while heads and heads[-1][1] == 0:
            heads.pop()
    made = [_merged(pairs[:count]), _merged(heads)]
    if any(one is None for one in made):
        return None
    (batch, far), (many, near) = (one for one in made if one is not None)
    # Dims of one element have no stride of their own: as in a dense operand.
    near = near or rows * access.row
    strides = (far or many * near, near, access.row, access.column if columns > 1 else 1)
    return Heads(access, (batch, many, rows, columns), strides)


def _merged(pairs: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """The size and stride of dims that are one in memory; None if they are not."""
    size, stride = 1, 0
    for n, step in reversed([pair for pair in pairs if pair[0] > 1]):
        if step == 0 or (stride and step != stride * size):
            return None
        stride = stride or step
        size *= n
    return size, stride


class CudnnAttention:
    """The graph of one kernel, forward or backward."""

    def __init__(self, kernel: Attention, operands: Mapping[str, Heads]) -> None:
        import cudnn

        self.kernel, self.operands = kernel, dict(operands)
        dtype = {"bf16": cudnn.data_type.BFLOAT16, "f16": cudnn.data_type.HALF}
        wide = cudnn.data_type.FLOAT
        self.graph = cudnn.pygraph(
            io_data_type=dtype[kernel.dtype(kernel.q).name],
            intermediate_data_type=wide,
            compute_data_type=wide,
            handle=cudnn_handle(),
        )
        self.uids = {name: n + 1 for n, name in enumerate(operands)}
        options = {"attn_scale": kernel.scale, "use_causal_mask": not kernel.window.is_open}
        if kernel.gradients is None:
            inputs = {name: self._tensor(name) for name in "qkv"}
            out, stats = self.graph.sdpa(**inputs, **options, generate_stats=kernel.lse is not None)
            outputs = {"o": out} if kernel.lse is None else {"o": out, "stats": stats}
        else:
            inputs = {name: self._tensor(name) for name in ("q", "k", "v", "o")}
            inputs |= {"dO": self._tensor("do"), "stats": self._tensor("stats", wide)}
            gradients = self.graph.sdpa_backward(**inputs, **options)
            outputs = dict(zip(("dq", "dk", "dv"), gradients, strict=True))
        for name, tensor in outputs.items():
            heads = operands[name]
            tensor.set_output(True).set_uid(self.uids[name])
            tensor.set_dim([*heads.sizes]).set_stride([*heads.strides])
            if name == "stats":
                tensor.set_data_type(wide)
        self.graph.build([cudnn.heur_mode.A])
        self.workspace: int = self.graph.get_workspace_size()

    def _tensor(self, name: str, dtype: Any = None) -> Any:
        heads = self.operands[name]
        given = {} if dtype is None else {"data_type": dtype}
        sizes, strides = [*heads.sizes], [*heads.strides]
        return self.graph.tensor(name=name, dim=sizes, stride=strides, uid=self.uids[name], **given)

    def __call__(self, tensors: Sequence[Any]) -> None:
        """Enqueue it on PyTorch's current stream."""
        import cudnn
        import torch

        places = {}
        for name, heads in self.operands.items():
            tensor = tensors[heads.access.operand]
            offset = heads.access.offset * tensor.element_size()
            places[self.uids[name]] = tensor.data_ptr() + offset
        device = tensors[0].device
        space = torch.empty(max(1, self.workspace), dtype=torch.uint8, device=device)
        handle = cudnn_handle()
        cudnn.set_stream(handle, torch.cuda.current_stream(device).cuda_stream)
        self.graph.execute(places, space.data_ptr(), handle=handle)


@cache
def cudnn_attention(kernel: Attention) -> CudnnAttention | None:
    """The graph of a kernel that cuDNN computes; None where PyTorch has to call it."""
    operands = operands_of(kernel) if has_frontend() else None
    if operands is None:
        return None
    import cudnn

    try:
        return CudnnAttention(kernel, operands)
    except (RuntimeError, ValueError, cudnn.cudnnGraphNotSupportedError) as error:
        warnings.warn(
            f"{kernel.name} runs by PyTorch's call of cuDNN, and is copied: "
            f"{str(error).strip().splitlines()[0]}",
            stacklevel=2,
        )
        return None


def cudnn_handle() -> Any:
    """This thread's handle for PyTorch's current device."""
    import cudnn
    import torch

    # A handle carries a stream, and is not safe for use by two threads at once.
    known = _LOCAL.__dict__.setdefault("handles", {})
    device = torch.cuda.current_device()
    if device not in known:
        known[device] = cudnn.create_handle()
    return known[device]
