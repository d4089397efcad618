"""Products of groups of rows (the experts of a mixture): Weft's kernel beside numpy, XLA and torch.

    python benchmarks/cpu_ragged.py [--quick]

A case is one ragged dot on one device: a prompt's tokens, a few tokens, and the two gradients. Weft
runs its kernel into memory that is there; the others allocate their results. All use all cores, and
take turns. numpy is the reference of the op, which the llvm target ran before it had a kernel; it
runs once.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import ml_dtypes
import numpy as np

from benchmarks.cpu_rows import race
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.single.emit import emit_single_node
from weft.ir.module import Value, apply
from weft.ir.types import Array, TensorType, dtype_of, type_of
from weft.kernels.single_node import single_node_kernel
from weft.kernels.stacked_node import StackedNode
from weft.ops.ragged import RaggedDims, RaggedDot

ROWS = RaggedDims((), (), (1,), (1,), (0,), (0,))
TURNED = RaggedDims((), (), (1,), (2,), (0,), (0,))
SUMS = RaggedDims((), (), (0,), (0,), (0,))


@dataclass(frozen=True)
class RaggedCase:
    """A ragged dot, and the same product in torch."""

    name: str
    dims: RaggedDims
    lhs: Array
    rhs: Array
    sizes: Array
    torch: Callable[[Any, Any, Any], Any]

    @property
    def out(self) -> TensorType:
        """The type of the result."""
        dtype = dtype_of(self.lhs.dtype)
        if self.dims is SUMS:
            return TensorType((len(self.sizes), self.lhs.shape[1], self.rhs.shape[1]), dtype)
        return TensorType((self.lhs.shape[0], self.rhs.shape[2 if self.dims is ROWS else 1]), dtype)


def cases(quick: bool) -> Iterator[RaggedCase]:
    """Eight experts of 1024 -> 2048, as in a small Mixtral; a prompt of 1024 tokens, two each."""
    import torch

    def grouped(x: Any, w: Any, ends: Any) -> Any:
        return torch._grouped_mm(x, w, offs=ends)

    rng = np.random.default_rng(0)
    k, n, experts = (256, 512, 8) if quick else (1024, 2048, 8)
    for dtype in (np.float32, ml_dtypes.bfloat16):

        def made(*shape: int, dtype: Any = dtype) -> Array:
            return rng.standard_normal(shape, np.float32).astype(dtype)

        weights, turned = made(experts, k, n), made(experts, n, k)
        for what, rows in (("2048 rows", 2048), ("16 rows", 16)):
            chosen = rng.multinomial(rows, rng.dirichlet(np.ones(experts))).astype(np.int32)
            x, slope = made(rows, k), made(rows, n)
            yield RaggedCase(f"forward, {what}", ROWS, x, weights, chosen, grouped)
            yield RaggedCase(
                f"turned weights, {what}",
                TURNED,
                x,
                turned,
                chosen,
                lambda x, w, e: grouped(x, w.transpose(1, 2), e),
            )
            if rows > 16:
                yield RaggedCase(
                    f"weights' gradient, {what}",
                    SUMS,
                    x,
                    slope,
                    chosen,
                    lambda x, g, e: grouped(x.T, g, e),
                )


def weft_side(case: RaggedCase) -> tuple[Callable[[], object], Array]:
    """The kernel, on memory of its own."""
    op = RaggedDot(case.dims, case.out)
    given = [np.ascontiguousarray(a) for a in (case.lhs, case.rhs, case.sizes)]
    node = apply(op, *[Value(type_of(a), None, n) for n, a in enumerate(given)])
    kernel = single_node_kernel(StackedNode(node, (0, 0, 0), (0,)), ())
    assert kernel is not None
    (loaded,) = load([emit_single_node(kernel)])
    made = np.zeros(case.out.sizes, case.out.dtype.numpy)
    commands = CommandList()
    commands.kernel(loaded, [a.ctypes.data for a in (*given, made)])

    def run(held: object = given) -> None:
        commands.run()

    return run, made


def jax_side(case: RaggedCase) -> Callable[[], object]:
    """XLA's program for the same product."""
    import jax

    dims = case.dims
    contract = (dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions)
    numbers = jax.lax.RaggedDotDimensionNumbers(
        (contract, ((), ())), dims.lhs_ragged_dimensions, dims.rhs_group_dimensions
    )
    run = jax.jit(lambda x, w, s: jax.lax.ragged_dot_general(x, w, s, numbers))
    given = [jax.numpy.asarray(a) for a in (case.lhs, case.rhs, case.sizes)]
    return lambda: run(*given).block_until_ready()


def torch_side(case: RaggedCase) -> Callable[[], object] | None:
    """torch's grouped product, where it takes the type."""
    import torch

    def tensor(a: Array) -> Any:
        if a.dtype == ml_dtypes.bfloat16:
            return torch.from_numpy(a.view(np.int16).copy()).view(torch.bfloat16)
        return torch.from_numpy(a)

    given = tensor(case.lhs), tensor(case.rhs), tensor(np.cumsum(case.sizes, dtype=np.int32))
    try:
        case.torch(*given)
    except (RuntimeError, AttributeError) as error:
        print(f"  torch: {str(error).splitlines()[0][:100]}")
        return None
    return lambda: case.torch(*given)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="small matrices, few rounds")
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {}
    print(f"{'case':38s} {'weft':>9s} {'numpy':>9s} {'xla':>9s} {'torch':>9s}   (ms)")
    for case in cases(options.quick):
        run, made = weft_side(case)
        op = RaggedDot(case.dims, case.out)
        sides = {"weft": run, "xla": jax_side(case)}
        if (torch_run := torch_side(case)) is not None:
            sides["torch"] = torch_run
        seconds = race(sides, rounds=3 if options.quick else 5, seconds=0.02)
        began = time.perf_counter()
        expected = op.reference(case.lhs, case.rhs, case.sizes).astype(np.float32)
        seconds["numpy"] = time.perf_counter() - began
        error = np.abs(made.astype(np.float32) - expected).max() / np.abs(expected).max()
        assert error < 1e-2, f"{case.name}: {error}"
        shown = [
            f"{1e3 * seconds[s]:9.2f}" if s in seconds else f"{'-':>9s}"
            for s in ("weft", "numpy", "xla", "torch")
        ]
        print(f"{f'{case.name} {case.out.dtype}':38s} {' '.join(shown)}", flush=True)
        for name, taken in seconds.items():
            if name != "weft":
                ratios.setdefault(name, []).append(taken / seconds["weft"])
    for name, found in ratios.items():
        mean = statistics.geometric_mean(found)
        print(
            f"{name}: {mean:.2f} times Weft's time (geometric mean of {len(found)}), "
            f"{min(found):.2f} to {max(found):.2f}"
        )


if __name__ == "__main__":
    main()
