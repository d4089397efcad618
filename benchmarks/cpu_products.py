"""Matrix products beside torch (MKL, oneDNN), XLA and numpy's BLAS: a table for benchmarks/cpu.py.

Kernels alone, on buffers that are there: plain products in f32, bf16 and int8, batches of small
ones, those with few rows, weights that lie along their depth, and products with what comes after
them (bias, gelu, residual) in the same kernel. Torch writes to a tensor that is there, too, where
it can.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks.cpu_rows import Row, race
from tests.kernels.building import Building
from weft.emit.llvm.jit.matrix_tiles import tiles_permitted
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.pool.pool import aligned
from weft.emit.llvm.pool.thread_count import thread_count
from weft.emit.llvm.target import LLVM
from weft.ir.types import F32, I32, Array, DType, dtype
from weft.kernels.kernel import Contract, Kernel
from weft.knobs import TUNE
from weft.ops.elementwise.pointwise import Add, Multiply
from weft.ops.elementwise.transcendental import Tanh
from weft.target import Options
from weft.tune import tuned

Side = Callable[[], object]
# oneDNN would use tiles where they are advertised, even where a hypervisor forbids them.
if not tiles_permitted():
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")


@dataclass(frozen=True)
class Case:
    """A product: batch x (rows x columns x depth), and how it is to be computed."""

    batch: int
    rows: int
    columns: int
    depth: int
    kind: str = "f32"
    turned: bool = False  # the right side lies along its depth, as torch has weights
    fused: bool = False  # gelu(x @ w + bias) + residual

    @property
    def text(self) -> str:
        """The sizes."""
        one = f"{self.rows}x{self.columns}x{self.depth}"
        return one if self.batch == 1 else f"{self.batch} x ({one})"

    @property
    def name(self) -> str:
        """What is computed."""
        how = " fused" if self.fused else " turned" if self.turned else ""
        return f"{self.kind}{how}"

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.batch * self.rows * self.columns * self.depth

    @property
    def goals(self) -> dict[str, float]:
        """The least that a peer's time over Weft's has to be, where it is not 1."""
        if self.kind == "bf16" and not self.fused:
            return {"torch": 3.0}
        return {"torch": 0.9} if self.kind == "f32" and not self.fused else {}


SIZES = (
    (1, 1024, 1024, 1024),
    (1, 4096, 1024, 1024),
    (1, 256, 256, 256),
    (256, 128, 256, 64),
    (512, 64, 16, 64),
    (1, 1, 4096, 4096),
    (1, 8, 4096, 4096),
)
QUICK = ((1, 1024, 1024, 1024), (1, 256, 256, 256), (512, 64, 16, 64), (1, 1, 4096, 4096))


def cases(quick: bool) -> Iterator[Case]:
    """All products."""
    for kind in ("f32", "bf16"):
        yield from (Case(*sizes, kind) for sizes in (QUICK if quick else SIZES))
    yield from (Case(1, m, 1024, 1024, "f32", turned=True) for m in (1, 128, 1024))
    yield from (Case(1, m, 1024, 1024, "i8") for m in (128, 1024))
    yield from (Case(1, 2048, 1024, 1024, kind, fused=True) for kind in ("f32", "bf16"))


def rows(quick: bool) -> Iterator[Row]:
    """The table."""
    for case in cases(quick):
        arrays = operands(case)
        sides = {"weft": weft_side(case, arrays), "torch": torch_side(case, arrays)}
        sides["XLA"] = xla_side(case, arrays)
        if case.kind == "f32":
            sides["numpy"] = numpy_side(case, arrays)
        times = race(sides, rounds=5 if quick else 9)
        weft = times.pop("weft")
        yield Row("Products", case.name, case.text, weft, times, goals=case.goals, flops=case.flops)


def operands(case: Case) -> list[Array]:
    """Left and right side, then bias and residual, if it has them."""
    draw = np.random.default_rng(0)
    right = (case.columns, case.depth) if case.turned else (case.depth, case.columns)
    shapes = [(case.batch, case.rows, case.depth), (case.batch, *right)]
    if case.fused:
        shapes += [(case.columns,), (case.batch, case.rows, case.columns)]
    wanted = dtype(case.kind)
    scale = 20.0 if wanted.is_integer else 1.0
    return [held(draw.standard_normal(s) * scale, wanted) for s in shapes]


def held(array: Array, wanted: DType) -> Array:
    """A copy that begins at a multiple of 64 bytes."""
    made = aligned(array.size * wanted.numpy.itemsize).view(wanted.numpy).reshape(array.shape)
    made[...] = array.astype(wanted.numpy)
    return made


def kernel_of(case: Case) -> Kernel:
    """The kernel of a case."""
    b = Building(b=case.batch, m=case.rows, n=case.columns, k=case.depth)
    wanted = dtype(case.kind)
    made = I32 if wanted.is_integer else F32
    left, right = b.read("bmk", wanted), b.read("bnk" if case.turned else "bkn", wanted)
    total = b.add(Contract(left, right, b.numbers("k"), made, made))
    if case.fused:
        bias, residual = b.convert(b.read("n", wanted), F32), b.read("bmn", wanted)
        x = b.apply(Add(), total, bias)
        cube = b.apply(Multiply(), b.apply(Multiply(), x, x), x)
        inner = b.apply(Add(), x, b.apply(Multiply(), cube, b.fill(0.044715)))
        bend = b.apply(Tanh(), b.apply(Multiply(), inner, b.fill((2 / np.pi) ** 0.5)))
        half = b.apply(Multiply(), x, b.fill(0.5))
        gelu = b.apply(Multiply(), half, b.apply(Add(), bend, b.fill(1.0)))
        total = b.apply(Add(), gelu, b.convert(residual, F32))
    b.write("bmn", total, I32 if wanted.is_integer else wanted)
    return b.kernel("packed")


def weft_side(case: Case, arrays: list[Array]) -> Side:
    """The kernel on buffers that are there."""
    target = LLVM(Options(tune=TUNE.value()))
    kernel = tuned(kernel_of(case), target)
    (loaded,) = target.load([kernel])
    out = kernel.operands[-1]
    kept = [*arrays, held(np.zeros(out.shape), out.dtype)]
    commands = CommandList()
    commands.kernel(loaded, [int(a.ctypes.data) for a in kept])

    def run(_keep: list[Array] = kept) -> None:
        commands.run()

    return run


def torch_side(case: Case, arrays: list[Array]) -> Side:
    """Torch: MKL for f32, oneDNN else."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(thread_count())
    tensors = []
    for array in arrays:
        half = case.kind == "bf16"
        made = torch.from_numpy(array.view(np.int16) if half else array)
        tensors.append(made.view(torch.bfloat16) if half else made)
    x, w, *rest = tensors
    w = w.transpose(1, 2) if case.turned else w
    if case.fused:
        bias, residual = rest

        def fused() -> object:
            with torch.no_grad():
                made = functional.gelu(torch.addmm(bias, x[0], w[0]), approximate="tanh")
                return made.add_(residual[0])

        return fused
    if case.kind == "i8":
        return lambda: torch._int_mm(x[0], w[0])
    out = torch.empty(case.batch, case.rows, case.columns, dtype=x.dtype)
    if case.batch == 1:
        return lambda: torch.mm(x[0], w[0], out=out[0])
    return lambda: torch.bmm(x, w, out=out)


def xla_side(case: Case, arrays: list[Array]) -> Side:
    """What JAX makes of it."""
    import jax
    import jax.numpy as jnp

    given = [jnp.asarray(a) for a in arrays]
    order = "bmk,bnk->bmn" if case.turned else "bmk,bkn->bmn"
    made = jnp.int32 if case.kind == "i8" else given[0].dtype

    def product(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.einsum(order, x, w, preferred_element_type=made)

    def fused(x: jax.Array, w: jax.Array, bias: jax.Array, residual: jax.Array) -> jax.Array:
        return jax.nn.gelu(product(x, w) + bias) + residual

    ready = jax.jit(fused if case.fused else product)
    return lambda: ready(*given).block_until_ready()


def numpy_side(case: Case, arrays: list[Array]) -> Side:
    """Numpy's BLAS, without what comes after a fused product."""
    x, w = arrays[0], arrays[1]
    right = w.transpose(0, 2, 1) if case.turned else w
    out = np.empty((case.batch, case.rows, case.columns), np.float32)
    if case.fused:
        bias, residual = arrays[2:]

        def run() -> object:
            y = np.matmul(x, right, out=out)
            y += bias
            inner = np.float32((2 / np.pi) ** 0.5) * (y + np.float32(0.044715) * y * y * y)
            return np.float32(0.5) * y * (np.float32(1) + np.tanh(inner)) + residual

        return run
    return lambda: np.matmul(x, right, out=out)
