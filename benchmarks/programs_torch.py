"""The same programs in torch eager, where torch has the operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.programs_arrays import ARRAYS
from benchmarks.programs_linalg import LINALG

Call = Callable[[], object]


def _tensors(name: str) -> list[Any]:
    import jax
    import torch

    _, arguments = {**LINALG, **ARRAYS}[name]()
    return [
        torch.from_numpy(np.array(a, np.int64 if a.dtype == np.int32 else a.dtype))
        for a in jax.tree.leaves(arguments)
    ]


def torch_call(name: str, *, compiled: bool = False) -> Call | None:
    """A program's call in torch, eager or by torch.compile, or None if there is none."""
    import torch

    call = functions().get(name)
    if call is None:
        return None
    given = _tensors(name)
    if not compiled:
        return lambda: call(*given)
    ready = torch.compile(call, dynamic=False)
    try:
        ready(*given)
    except torch._dynamo.exc.TorchDynamoException:  # it cannot compile this program
        return None
    return lambda: ready(*given)


def _convolution_gradient(stride: int, groups: int) -> Callable[..., object]:
    def call(x: Any, k: Any) -> object:
        import torch

        x = x.permute(0, 3, 1, 2).detach().requires_grad_()
        k = k.permute(3, 2, 0, 1).detach().requires_grad_()
        made = torch.conv2d(x, k, stride=stride, padding=1, groups=groups)
        return torch.autograd.grad((made**2).sum(), (x, k))

    return call


def _segment_sum(x: Any, at: Any) -> object:
    return x.new_zeros(500, 16).index_add_(0, at, x)


def _sparse(data: Any, indices: Any, x: Any) -> object:
    import torch

    matrix = torch.sparse_coo_tensor(indices.T, data, (2000, 2000), is_coalesced=True)
    return matrix @ x


def functions() -> dict[str, Callable[..., object]]:
    """Functions of torch by a program's name."""
    import torch

    linalg, fft = torch.linalg, torch.fft
    return {
        "eigh 64": linalg.eigh,
        "eigh 16 of 4x4": linalg.eigh,
        "svd 64x32": lambda x: linalg.svd(x, full_matrices=False),
        "svd 32 of 8x8": lambda x: linalg.svd(x, full_matrices=False),
        "qr 64x32": linalg.qr,
        "qr 64 of 8x8": linalg.qr,
        "solve 64 of 8x8": linalg.solve,
        "solve 128": linalg.solve,
        "inverse 256 of 3x3": linalg.inv,
        "determinants 64 of 6x6": linalg.det,
        "triangular solve 16": lambda a, b: linalg.solve_triangular(a, b, upper=False),
        "triangular solve 128": lambda a, b: linalg.solve_triangular(a, b, upper=False),
        "triangular 128 of 8x8": lambda a, b: linalg.solve_triangular(a, b, upper=False),
        "cholesky 96": linalg.cholesky,
        "cholesky 128 of 8x8": linalg.cholesky,
        "cholesky solve 64": lambda a, b: torch.cholesky_solve(b, linalg.cholesky(a)),
        "expm 16": linalg.matrix_exp,
        "fft 1024": fft.fft,
        "fft 64 of 256": fft.fft,
        "fft 1000": fft.fft,
        "rfft 8192": fft.rfft,
        "fft2 64x64": fft.fft2,
        "fft2 256x256": fft.fft2,
        "spectral filter 128": lambda x, m: fft.irfft2(fft.rfft2(x) * m),
        "complex product 128": torch.matmul,
        "complex product 16 of 32": torch.matmul,
        "sparse by vector": _sparse,
        "sparse by matrix": _sparse,
        "convolution gradient": _convolution_gradient(1, 1),
        "strided convolution gradient": _convolution_gradient(2, 1),
        "depthwise gradient": _convolution_gradient(1, 32),
        "row gather 4096x64": lambda table, at: table[at],
        "segment sum 20000x16": _segment_sum,
        "take along axis": lambda x, at: torch.gather(x, 1, at),
        "sort 100000": torch.sort,
        "argsort 256x256": torch.argsort,
        "median 64x1000": lambda x: torch.median(x, 1),
        "searchsorted 4096": torch.searchsorted,
        "cumulative sum 256x1024": lambda x: torch.cumsum(x, 1),
        "top-k 256x1000": lambda x: torch.topk(x, 8),
    }
