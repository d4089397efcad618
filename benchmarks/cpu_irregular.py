"""Ops whose loops are not affine (sorts, scatters, running sums): Weft beside XLA and torch.

    python benchmarks/cpu_irregular.py [--only sort top_k] [--quick] [--busy]

Each case is one node on one device. Weft runs its kernel into memory that is there; XLA and torch
allocate their results. All use all cores, and take turns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

from benchmarks.cpu_rows import Row, race, use_busy
from weft.emit.llvm.jit.engine import load
from weft.emit.llvm.pool.commands import CommandList
from weft.emit.llvm.single.emit import emit_single_node
from weft.ir.dense import Dense
from weft.ir.module import Node, Region, Value, apply
from weft.ir.op import Op
from weft.ir.types import F32, I32, Array, DType, TensorType, type_of
from weft.kernels.single_node import single_node_kernel
from weft.kernels.stacked_node import StackedNode
from weft.ops.elementwise.pointwise import Add, Compare, Maximum, Select
from weft.ops.index import Gather, GatherDims
from weft.ops.random import RngBitGenerator
from weft.ops.scatter import Scatter, ScatterDims
from weft.ops.shape import Constant
from weft.ops.slicing import Concatenate, DynamicUpdateSlice
from weft.ops.sort import Sort, TopK
from weft.ops.window import ReduceWindow, SelectAndScatter

TABLE = "Ops that stand alone, one device"


@dataclass(frozen=True)
class Case:
    """One comparison: a node on arrays, and the same in JAX and torch (which may have none)."""

    name: str
    shape: str
    op: Op
    arrays: tuple[Array, ...]
    jax: Callable[..., Any]
    torch: Callable[..., Any] | None
    regions: tuple[Region, ...] = ()
    constants: tuple[int, ...] = ()  # operands that the node knows


def scalars(build: Callable[..., list[Node]], *dtypes: DType) -> Region:
    """A region of scalars."""
    args = tuple(Value(TensorType((), d), None, n) for n, d in enumerate(dtypes))
    nodes = build(*args)
    return Region(args, nodes, nodes[-1].results)


def pairwise(op: Op, dtype: DType = F32) -> Region:
    """A region that is one op of two scalars."""
    return scalars(lambda a, b: [apply(op, a, b)], dtype, dtype)


def jax_less(*more: DType) -> Region:
    """How JAX compares floats: zeros and NaNs made alike, then the total order."""
    scalar = TensorType((), F32)

    def build(a: Value, b: Value, *_: Value) -> list[Node]:
        zero = apply(Constant(Dense(np.zeros(1, np.float32), scalar)))
        nan = apply(Constant(Dense(np.full(1, np.nan, np.float32), scalar)))
        nodes, keys = [zero, nan], []
        for x in (a, b):
            is_zero = apply(Compare("EQ", "FLOAT"), x, zero.results[0])
            plain = apply(Select(), is_zero.results[0], zero.results[0], x)
            is_nan = apply(Compare("NE", "FLOAT"), x, x)
            key = apply(Select(), is_nan.results[0], nan.results[0], plain.results[0])
            nodes += [is_zero, plain, is_nan, key]
            keys.append(key.results[0])
        return [*nodes, apply(Compare("LT", "TOTALORDER"), *keys)]

    return scalars(build, F32, F32, *more)


def cases() -> Iterator[Case]:
    """Every comparison."""
    yield from sorts()
    yield from running()
    yield from places()
    yield from windows()


def sorts() -> Iterator[Case]:
    """Sorts and top k."""
    import jax.numpy as jnp
    import torch
    from jax import lax

    rng = np.random.default_rng(0)
    for shape in ((1024, 1024), (1 << 20,), (16384, 64), (131072, 8)):
        x = rng.standard_normal(shape, np.float32)
        last = len(shape) - 1
        yield Case(
            "sort",
            text(shape),
            Sort(last, True),
            (x,),
            lambda x: jnp.sort(x),
            lambda x: torch.sort(x),
            (jax_less(),),
        )
    x = rng.standard_normal((1024, 1024), np.float32)
    i = np.broadcast_to(np.arange(1024, dtype=np.int32), x.shape).copy()
    yield Case(
        "argsort",
        "1024x1024",
        Sort(1, True),
        (x, i),
        lambda x, i: lax.sort((x, i), num_keys=1),
        lambda x, i: torch.sort(x, stable=True),
        (jax_less(I32, I32),),
    )
    ids = rng.integers(0, 64, (1 << 18,), np.int32)
    count = np.arange(1 << 18, dtype=np.int32)
    yield Case(
        "argsort of ids",
        "262144",
        Sort(0, True),
        (ids, count),
        lambda x, i: lax.sort((x, i), num_keys=1),
        lambda x, i: torch.sort(x, stable=True),
        (scalars(lambda a, b, c, d: [apply(Compare("LT"), a, b)], I32, I32, I32, I32),),
    )
    for shape, k in (((64, 32000), 50), ((64, 32000), 1), ((4096, 64), 8)):
        x = rng.standard_normal(shape, np.float32)
        yield Case(
            f"top {k}",
            text(shape),
            TopK(k),
            (x,),
            lambda x, k=k: lax.top_k(x, k),
            lambda x, k=k: torch.topk(x, k),
        )


def running() -> Iterator[Case]:
    """Running sums and maxima."""
    import jax.numpy as jnp
    import torch
    from jax import lax

    rng = np.random.default_rng(0)
    for shape, dim in (((1024, 1024), 1), ((1024, 1024), 0), ((1 << 22,), 0), ((64, 512, 64), 1)):
        x = rng.standard_normal(shape, np.float32)
        sizes = tuple(n if d == dim else 1 for d, n in enumerate(shape))
        padding = tuple((n - 1, 0) for n in sizes)
        op = ReduceWindow(sizes, (type_of(x),), padding=padding)
        zero = np.float32(0)
        yield Case(
            f"cumsum along {dim}",
            text(shape),
            op,
            (x, zero),
            lambda x, z, d=dim: jnp.cumsum(x, d),
            lambda x, z, d=dim: torch.cumsum(x, d),
            (pairwise(Add()),),
            (1,),
        )
        yield Case(
            f"cummax along {dim}",
            text(shape),
            op,
            (x, np.float32(-np.inf)),
            lambda x, z, d=dim: lax.cummax(x, d),
            lambda x, z, d=dim: torch.cummax(x, d),
            (pairwise(Maximum()),),
            (1,),
        )


def places() -> Iterator[Case]:
    """Gathers, scatters, and slices that are replaced."""
    import jax.numpy as jnp
    import torch
    from jax import lax

    rng = np.random.default_rng(0)
    table = rng.standard_normal((32000, 512), np.float32)
    ids = rng.integers(0, 32000, (8192, 1), np.int32)
    yield Case(
        "gather rows",
        "8192 of 32000x512",
        Gather(GatherDims((1,), (0,), (), (), (0,), 1), (1, 512)),
        (table, ids),
        lambda t, i: t.at[i[:, 0]].get(mode="clip"),
        lambda t, i: torch.nn.functional.embedding(i[:, 0], t),
    )
    grads = rng.standard_normal((8192, 512), np.float32)
    yield Case(
        "scatter-add rows",
        "8192 of 32000x512",
        Scatter(ScatterDims((1,), (0,), (), (), (0,), 1), (type_of(table),)),
        (table, ids, grads),
        lambda t, i, g: t.at[i[:, 0]].add(g, mode="drop"),
        lambda t, i, g: t.index_add(0, i[:, 0], g),
        (pairwise(Add()),),
    )
    flat = rng.standard_normal((1 << 20,), np.float32)
    many = rng.integers(0, 1 << 20, (1 << 20, 1), np.int32)
    yield Case(
        "gather elements",
        "1M of 1M",
        Gather(GatherDims((), (0,), (), (), (0,), 1), (1,)),
        (flat, many),
        lambda t, i: t.at[i[:, 0]].get(mode="clip"),
        lambda t, i: t[i[:, 0]],
    )
    yield Case(
        "scatter-add elements",
        "1M of 1M",
        Scatter(ScatterDims((), (0,), (), (), (0,), 1), (type_of(flat),)),
        (flat, many, flat),
        lambda t, i, u: t.at[i[:, 0]].add(u, mode="drop"),
        lambda t, i, u: t.index_add(0, i[:, 0], u),
        (pairwise(Add()),),
    )
    cache = rng.standard_normal((8, 16, 2048, 64), np.float32)
    new = rng.standard_normal((8, 16, 1, 64), np.float32)
    starts = tuple(np.int32(n) for n in (0, 0, 77, 0))
    yield Case(
        "dynamic_update_slice",
        "8x16x2048x64",
        DynamicUpdateSlice(),
        (cache, new, *starts),
        lambda c, n, *at: lax.dynamic_update_slice(c, n, at),
        lambda c, n, *at: torch.slice_scatter(c, n, 2, 77, 78),
    )
    half = rng.standard_normal((4096, 512), np.float32)
    yield Case(
        "concatenate",
        "4096x512 twice",
        Concatenate(1),
        (half, half),
        lambda a, b: jnp.concatenate([a, b], 1),
        lambda a, b: torch.cat([a, b], 1),
    )
    state = np.array([1, 2], np.uint64)
    words = TensorType((1 << 20,), type_of(np.zeros(0, np.uint32)).dtype)
    for name in ("THREE_FRY", "PHILOX"):
        algorithm = getattr(lax.RandomAlgorithm, f"RNG_{name}")
        yield Case(
            f"random bits {name}",
            "1M",
            RngBitGenerator(name, (type_of(state), words)),
            (state,),
            lambda s, a=algorithm: lax.rng_bit_generator(s, (1 << 20,), algorithm=a),
            lambda s: torch.randint(0, 1 << 31, (1 << 20,), dtype=torch.int32),
        )


def windows() -> Iterator[Case]:
    """Pooling and its backward pass."""
    import torch
    from jax import lax

    rng = np.random.default_rng(0)
    minus = np.float32(-np.inf)
    x = rng.standard_normal((8, 112, 112, 64), np.float32)
    out = TensorType((8, 56, 56, 64), F32)
    sizes, steps = (1, 3, 3, 1), (1, 2, 2, 1)
    padding = ((0, 0), (1, 1), (1, 1), (0, 0))

    def jax_pool(x: Any, z: Any) -> Any:
        return lax.reduce_window(x, -np.inf, lax.max, sizes, steps, padding)

    def torch_pool(x: Any, z: Any) -> Any:
        return torch.nn.functional.max_pool2d(x.permute(0, 3, 1, 2), 3, 2, 1)

    op = ReduceWindow(sizes, (out,), steps, padding=padding)
    yield Case(
        "max pool",
        "8x112x112x64",
        op,
        (x, minus),
        jax_pool,
        torch_pool,
        (pairwise(Maximum()),),
        (1,),
    )
    grad = rng.standard_normal(out.sizes, np.float32)
    yield Case(
        "max pool backward",
        "8x112x112x64",
        SelectAndScatter(sizes, type_of(x), steps, padding),
        (x, grad, np.float32(0)),
        lambda x, g, z: __import__("jax").vjp(lambda y: jax_pool(y, 0), x)[1](g)[0],
        None,
        (pairwise(Compare("GE", "FLOAT")), pairwise(Add())),
        (2,),
    )


def text(shape: Sequence[int]) -> str:
    """`1024x1024`."""
    return "x".join(map(str, shape))


# Sides


def weft_side(case: Case) -> Callable[[], object]:
    """The kernel, on memory of its own."""
    values = [
        apply(Constant(Dense(a.reshape(1), type_of(a)))).results[0]
        if n in case.constants
        else Value(type_of(a), None, n)
        for n, a in enumerate(case.arrays)
    ]
    node = apply(case.op, *values, regions=case.regions)
    kernel = single_node_kernel(StackedNode(node, (0,) * len(values), (0,) * len(node.results)), ())
    assert kernel is not None, case.name
    (loaded,) = load([emit_single_node(kernel)])
    given = [np.ascontiguousarray(a) for a in case.arrays]
    made = [np.zeros(o.shape, o.dtype.numpy) for o in kernel.outputs]
    commands = CommandList()
    commands.kernel(loaded, [a.ctypes.data for a in (*given, *made)])
    buffers = [*given, *made]

    def run() -> object:
        commands.run()
        return buffers

    return run


def xla_side(case: Case) -> Callable[[], object]:
    """XLA's program on arrays that are there."""
    import jax

    jax.config.update("jax_enable_x64", True)
    compiled = jax.jit(case.jax)
    given = [jax.device_put(a) for a in case.arrays]
    return lambda: jax.block_until_ready(compiled(*given))


def torch_side(case: Case) -> Callable[[], object]:
    """torch's own function."""
    import torch

    call = case.torch
    assert call is not None, case.name
    given = [torch.from_numpy(np.array(a)) for a in case.arrays if a.dtype != np.uint64]
    more = [torch.zeros(())] * (len(case.arrays) - len(given))
    return lambda: call(*given, *more)


def rows(quick: bool = False, only: Sequence[str] = ()) -> Iterator[Row]:
    """Measure every case, or those whose names have one of these parts."""
    for case in cases():
        if only and not any(part in f"{case.name} {case.shape}" for part in only):
            continue
        sides = {"Weft": weft_side(case), "XLA": xla_side(case)}
        if case.torch is not None:
            sides["torch"] = torch_side(case)
        found = race(sides, 3 if quick else 9)
        yield Row(TABLE, case.name, case.shape, found.pop("Weft"), found)


def main() -> None:
    """Measure what is asked for and print the table."""
    from benchmarks.cpu import machine_line, screen, show

    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--only", nargs="*", default=(), help="parts of the names of cases")
    options.add_argument("--quick", action="store_true", help="fewer rounds")
    options.add_argument("--busy", action="store_true", help="seconds of the processor")
    given = options.parse_args()
    if given.busy:
        use_busy()
    screen().print(f"{machine_line()}\n")
    show(rows(given.quick, given.only))


if __name__ == "__main__":
    main()
