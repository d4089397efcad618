"""Fused chains beside XLA, torch.compile and eager torch: rows of tables for benchmarks/cpu.py.

Every chain runs on rows of 1,024 elements, in f32 and bf16, with 64k, 1M and 16M elements in all:
as a kernel on buffers that are there, and as a call of what weft.compile makes of the JAX function.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from benchmarks.cpu_rows import Row, race
from tests.kernels.chains import CHAINS, EPSILON
from weft.emit.llvm.emit import emit
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.pool.commands import CommandList
from weft.ir.types import Array, dtype

ROW = 1024
SIZES = {"64k": 1 << 16, "1M": 1 << 20, "16M": 1 << 24}
Side = Callable[[], object]


def rows(quick: bool) -> Iterator[Row]:
    """The tables: every chain, dtype and size."""
    keep_pages()
    yield stream(SIZES["16M"])
    called: list[Row] = []
    for name in CHAINS:
        for kind in ("f32", "bf16"):
            for size, count in list(SIZES.items())[: 2 if quick else 3]:
                kernel, call = two_rows(name, kind, size, count, quick)
                called.append(call)
                yield kernel
    yield from called


def two_rows(name: str, kind: str, size: str, count: int, quick: bool) -> tuple[Row, Row]:
    """One chain at one size as a kernel and as a call, all sides taking turns."""
    arrays = inputs(name, kind, count // ROW)
    sides: dict[str, Side] = {
        "kernel": kernel_side(CHAINS[name](count // ROW, ROW, dtype(kind)), arrays),
        "call": weft_side(name, arrays),
        "XLA": xla_side(name, arrays),
        "torch": torch_side(name, arrays, compiled=False),
        "Inductor": torch_side(name, arrays, compiled=True),
    }
    times = race(sides, rounds=5 if quick else 9, seconds=0.03)
    moved = sum(a.nbytes for a in arrays)
    moved += 4 * count // ROW if name == "cross_entropy" else arrays[0].nbytes
    kernel, call = times.pop("kernel"), times.pop("call")
    case = f"{name} {kind}"
    return (
        Row("Fused chains: kernels", case, size, kernel, times, bytes=moved),
        Row("Fused chains: calls", case, size, call, times, bytes=moved),
    )


def keep_pages() -> None:
    """Let malloc keep what is freed, so that no side waits for fresh pages of large results."""
    libc = ctypes.CDLL(None)
    mapped, trim = -4, -1  # M_MMAP_MAX and M_TRIM_THRESHOLD
    libc.mallopt(mapped, 0)
    libc.mallopt(trim, (1 << 31) - 1)


def stream(count: int) -> Row:
    """What memory gives: the sum of two arrays, written past the caches."""
    from tests.kernels.building import Building
    from weft.ops.elementwise.pointwise import Add

    b = Building(i=count)
    b.write("i", b.apply(Add(), b.read("i"), b.read("i")))
    arrays = [aligned((count,), "f32") for _ in range(2)]
    run = kernel_side(b, arrays)
    times = race({"weft": run, "torch": torch_add(arrays)}, rounds=9)
    return Row(
        "STREAM add", "f32", "16M", times["weft"], {"torch": times["torch"]}, bytes=12 * count
    )


def torch_add(arrays: list[Array]) -> Side:
    """The same sum by torch, into a buffer that is there."""
    import torch

    a, b = (torch.from_numpy(x) for x in arrays)
    out = torch.empty_like(a)
    return lambda: torch.add(a, b, out=out)


# Weft


def aligned(shape: tuple[int, ...], kind: str) -> Array:
    """An array at a page of its own, its pages there."""
    held = dtype(kind).numpy
    nbytes = math.prod(shape) * held.itemsize
    room = np.empty(nbytes + 4096, np.uint8)
    room[:] = 0  # a page that nobody has written to is no page yet
    start = -room.ctypes.data % 4096
    return room[start : start + nbytes].view(held).reshape(shape)


def weft_side(name: str, arrays: list[Array]) -> Side:
    """The chain by weft.compile, on arrays that are already Weft's."""
    import weft
    from weft.array import put
    from weft.mesh import Mesh

    mesh, whole = Mesh(x=1), xla_specs(len(arrays))
    run = weft.compile(xla_chains()[name], *arrays, mesh=mesh, in_shardings=whole)
    given = [put(a, s, mesh) for a, s in zip(arrays, whole, strict=True)]
    return lambda: run(*given).wait()


def xla_specs(count: int) -> tuple[Any, ...]:
    """Shardings of arguments that are whole everywhere."""
    from jax.sharding import PartitionSpec

    return (PartitionSpec(),) * count


def kernel_side(built: Any, arrays: list[Array]) -> Side:
    """A kernel on arrays and outputs that are there."""
    kernel = built.kernel()
    (loaded,) = load([emit(kernel)])
    given = iter(arrays)
    buffers = [aligned(o.shape, o.dtype.name) if o.output else next(given) for o in kernel.operands]
    commands = CommandList()
    commands.kernel(loaded, [b.ctypes.data for b in buffers])

    def run(keep: object = buffers) -> None:
        commands.run()

    return run


# Inputs and peers


def inputs(name: str, kind: str, count: int) -> list[Array]:
    """Random arguments of a chain."""
    rng = np.random.default_rng(0)
    whole, one = (count, ROW), (ROW,)
    angles = (count, ROW // 16)
    shapes: dict[str, list[tuple[int, ...]]] = {
        "bias+gelu+residual": [whole, one, whole],
        "swiglu": [whole, whole],
        "softmax": [whole],
        "layer_norm": [whole, one, one],
        "rms_norm": [whole, one],
        "cross_entropy": [whole],
        "rotary": [(count, 8, ROW // 8), angles, angles],
    }
    made: list[Array] = []
    for shape in shapes[name]:
        array = aligned(shape, kind)
        array[...] = rng.standard_normal(shape, np.float32)
        made.append(array)
    if name == "cross_entropy":
        labels = aligned((count,), "i32")
        labels[...] = rng.integers(0, ROW, count)
        made.append(labels)
    return made


def xla_side(name: str, arrays: list[Array]) -> Side:
    """The chain by jax.jit."""
    import jax

    given = [jax.numpy.asarray(a) for a in arrays]
    run = jax.jit(xla_chains()[name])
    return lambda: jax.block_until_ready(run(*given))


def xla_chains() -> dict[str, Callable[..., Any]]:
    """The chains as JAX users write them."""
    import jax
    from jax import numpy as jnp

    def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        spread = jnp.square(x - mean).mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(spread + EPSILON) * scale + bias

    def cross_entropy(x: Any, labels: Any) -> Any:
        picked = jnp.take_along_axis(x, labels[:, None], 1)[:, 0]
        return jax.nn.logsumexp(x, -1) - picked

    def rotary(x: Any, cosine: Any, sine: Any) -> Any:
        first, second = jnp.split(x, 2, -1)
        c, s = cosine[:, None], sine[:, None]
        return jnp.concatenate([first * c - second * s, second * c + first * s], -1)

    return {
        "bias+gelu+residual": lambda x, b, r: jax.nn.gelu(x + b, approximate=True) + r,
        "swiglu": lambda x, g: jax.nn.silu(x) * g,
        "softmax": lambda x: jax.nn.softmax(x, -1),
        "layer_norm": layer_norm,
        "rms_norm": lambda x, w: (
            x * jax.lax.rsqrt(jnp.square(x).mean(-1, keepdims=True) + EPSILON) * w
        ),
        "cross_entropy": cross_entropy,
        "rotary": rotary,
    }


def torch_side(name: str, arrays: list[Array], compiled: bool) -> Side:
    """The chain by torch, eager or compiled."""
    import torch

    given = [as_torch(a) for a in arrays]
    function = torch_chains()[name]
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, dynamic=False)

    def run() -> None:
        with torch.no_grad():
            function(*given)

    return run


def as_torch(array: Array) -> Any:
    """The same memory as a tensor."""
    import torch

    if array.dtype == np.int32:
        return torch.from_numpy(array).long()
    if array.dtype == np.float32:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)


def torch_chains() -> dict[str, Callable[..., Any]]:
    """The chains as torch users write them."""
    import torch
    from torch.nn import functional as F

    def rotary(x: Any, cosine: Any, sine: Any) -> Any:
        first, second = x.chunk(2, -1)
        c, s = cosine[:, None], sine[:, None]
        return torch.cat([first * c - second * s, second * c + first * s], -1)

    return {
        "bias+gelu+residual": lambda x, b, r: F.gelu(x + b, approximate="tanh") + r,
        "swiglu": lambda x, g: F.silu(x) * g,
        "softmax": lambda x: torch.softmax(x, -1),
        "layer_norm": lambda x, w, b: F.layer_norm(x, (ROW,), w, b, EPSILON),
        "rms_norm": lambda x, w: F.rms_norm(x, (ROW,), w, EPSILON),
        "cross_entropy": lambda x, labels: F.cross_entropy(x, labels, reduction="none"),
        "rotary": rotary,
    }
