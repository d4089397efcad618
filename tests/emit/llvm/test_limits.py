"""Up to which sizes single nodes are kernels of ours, or LAPACK's: found by halving."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from tests.emit.llvm.single.lone_nodes import node_of
from tests.emit.llvm.single.test_sort import ordering
from weft.emit.llvm.single.cholesky import refuses_cholesky
from weft.emit.llvm.single.factorize import refuses_factors
from weft.emit.llvm.spectral.eigh import refuses_eigh
from weft.emit.llvm.spectral.svd import refuses_svd
from weft.emit.llvm.target import LLVM
from weft.ir.module import Node
from weft.ir.types import DTYPES, I32, Array, TensorType
from weft.kernels.single_node import single_node_kernel
from weft.kernels.stacked_node import StackedNode
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.custom_calls.declaration import config_text
from weft.ops.linalg import Cholesky, Fft, TriangularSolve
from weft.ops.sort import Sort, TopK

GOLDEN = Path(__file__).parents[2] / "golden" / "emit" / "limits.txt"
MOST = 1 << 12
OWN = {
    "Cholesky": refuses_cholesky,
    "eigen": refuses_eigh,
    "SVD": refuses_svd,
    "singular": refuses_svd,
    "QR": refuses_factors,
    "LU": refuses_factors,
}
SHAPES: dict[str, Callable[[int], tuple[int, int]]] = {
    "n x n": lambda n: (n, n),
    "n x 5": lambda n: (n, 5),
    "5 x n": lambda n: (5, n),
}


def nodes() -> Iterator[tuple[str, Callable[[int, int], Node]]]:
    """Nodes of two matrices of a size, by what they do."""
    for name in ("f32", "f64", "complex<f32>"):
        dtype = DTYPES[name]

        def zeros(*shape: int, dtype=dtype) -> Array:
            return np.broadcast_to(np.zeros((), dtype.numpy), (2, *shape))

        def typed(*shape: int, dtype=dtype) -> TensorType:
            return TensorType((2, *shape), dtype)

        def call(target, outs, config="", zeros=zeros):
            def made(m: int, n: int) -> Node:
                op = CustomCall(target, outs(m, n, min(m, n)), backend_config=config)
                return node_of(op, zeros(m, n))

            return made

        def svd(vectors: bool, call=call, typed=typed):
            def outs(m: int, n: int, k: int) -> tuple[TensorType, ...]:
                values = (typed(k),)
                return (*values, typed(m, k), typed(k, n)) if vectors else values

            return call(
                "weft.svd", outs, config_text(full_matrices=False, vectors=vectors, first=0)
            )

        yield f"Cholesky {name}", lambda m, n, zeros=zeros: node_of(Cholesky(True), zeros(m, n))
        solve = TriangularSolve(True, True, False, "NO_TRANSPOSE")
        yield (
            f"solve {name}",
            lambda m, n, zeros=zeros, solve=solve: node_of(solve, zeros(m, m), zeros(m, n)),
        )
        yield f"QR {name}", call("weft.qr", lambda m, n, k, typed=typed: (typed(m, n), typed(k)))
        yield (
            f"LU {name}",
            call(
                "weft.lu",
                lambda m, n, k, typed=typed: (
                    typed(m, n),
                    TensorType((2, k), I32),
                    TensorType((2, m), I32),
                ),
            ),
        )
        if "complex" in name:
            yield (
                f"FFT {name}",
                lambda m, n, zeros=zeros: node_of(Fft("FFT", (n,)), zeros(m, n)),
            )
            continue
        yield (
            f"eigen {name}",
            call("weft.eigh", lambda m, n, k, typed=typed: (typed(m, n), typed(n))),
        )
        yield f"SVD {name}", svd(True)
        yield f"singular values {name}", svd(False)
        yield (
            f"sort {name}",
            lambda m, n, zeros=zeros, dtype=dtype: node_of(
                Sort(2, True), zeros(m, n), regions=(ordering(dtype),)
            ),
        )
        yield (
            f"largest {name}",
            lambda m, n, zeros=zeros: node_of(TopK(max(1, n // 2)), zeros(m, n)),
        )


def lines() -> Iterator[str]:
    target = LLVM()

    def refused(made: Callable[[int, int], Node], m: int, n: int) -> str:
        node = made(m, n)
        stacked = StackedNode(node, (0,) * len(node.operands), (0,) * len(node.results))
        kernel = single_node_kernel(stacked, ())
        assert kernel is not None
        own = OWN.get(name.partition(" ")[0])
        why = target.unsupported_kernel(kernel)
        return why or ("LAPACK's" if own is not None and own(kernel) else "ours")

    for name, made in nodes():
        square = name.startswith(("Cholesky", "eigen"))
        for about, shape in SHAPES.items():
            if square and about != "n x n":
                continue
            sizes, changes = [1 << p for p in range(13) if 1 << p <= MOST], []
            for low, high in pairwise(sizes):
                before, after = refused(made, *shape(low)), refused(made, *shape(high))
                while before != after and high - low > 1:
                    middle = (low + high) // 2
                    if refused(made, *shape(middle)) == before:
                        low = middle
                    else:
                        high = middle
                if before != after:
                    why = refused(made, *shape(high))
                    changes.append(f"from {high} {why}")
            first = refused(made, *shape(1))
            yield "; ".join([f"{name} {about}: {first}", *changes])


def test_limits(golden: Callable[[Path, str], None]):
    golden(GOLDEN, "\n".join(lines()) + "\n")
