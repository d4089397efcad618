"""Ops whose loops are not affine (sorts, scatters, running sums): Weft, XLA and torch, in turn.

    python benchmarks/cpu_irregular.py [--rounds 15] [NAME...]

Each row is one node on one device; all sides get the same arrays and use all cores. Weft runs the
kernel by itself into memory that is there; XLA and torch allocate their results. The table has the
medians of calls that take turns, in microseconds, and how often the best of the others fits into
Weft's time.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")

import numpy as np  # noqa: E402  # after the path is set

from weft.emit.llvm.alone import emit_alone  # noqa: E402
from weft.emit.llvm.commands import Commands  # noqa: E402
from weft.emit.llvm.engine import load  # noqa: E402
from weft.ir.module import Node, Region, Value, apply  # noqa: E402
from weft.ir.op import Op  # noqa: E402
from weft.ir.types import F32, I32, Array, DType, TensorType, type_of  # noqa: E402
from weft.kernels.alone import alone  # noqa: E402
from weft.kernels.group import Placed  # noqa: E402
from weft.ops.index import Gather, GatherDims  # noqa: E402
from weft.ops.pointwise import Add, Compare, Maximum, Select  # noqa: E402
from weft.ops.random import RngBitGenerator  # noqa: E402
from weft.ops.scatter import Scatter, ScatterDims  # noqa: E402
from weft.ops.shape import Constant  # noqa: E402
from weft.ops.slicing import Concatenate, DynamicUpdateSlice  # noqa: E402
from weft.ops.sort import Sort, TopK  # noqa: E402
from weft.ops.window import ReduceWindow, SelectAndScatter  # noqa: E402

Call = Callable[[], Any]


@dataclass(frozen=True)
class Row:
    """One comparison: a node on arrays, and the same in JAX and torch (which may have none)."""

    name: str
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
    from weft.ir.dense import Dense

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


def rows() -> Iterator[Row]:
    """Every comparison."""
    yield from sorts()
    yield from running()
    yield from places()
    yield from windows()


def sorts() -> Iterator[Row]:
    """Sorts and top k."""
    import jax.numpy as jnp
    import torch
    from jax import lax

    rng = np.random.default_rng(0)
    for shape in ((1024, 1024), (1 << 20,), (16384, 64), (131072, 8)):
        x = rng.standard_normal(shape, np.float32)
        last = len(shape) - 1
        yield Row(
            f"sort {shape}",
            Sort(last, True),
            (x,),
            lambda x: jnp.sort(x),
            lambda x: torch.sort(x),
            (jax_less(),),
        )
    x = rng.standard_normal((1024, 1024), np.float32)
    i = np.broadcast_to(np.arange(1024, dtype=np.int32), x.shape).copy()
    yield Row(
        "argsort (1024, 1024)",
        Sort(1, True),
        (x, i),
        lambda x, i: lax.sort((x, i), num_keys=1),
        lambda x, i: torch.sort(x, stable=True),
        (jax_less(I32, I32),),
    )
    ids = rng.integers(0, 64, (1 << 18,), np.int32)
    count = np.arange(1 << 18, dtype=np.int32)
    yield Row(
        "argsort of ids (262144,)",
        Sort(0, True),
        (ids, count),
        lambda x, i: lax.sort((x, i), num_keys=1),
        lambda x, i: torch.sort(x, stable=True),
        (scalars(lambda a, b, c, d: [apply(Compare("LT"), a, b)], I32, I32, I32, I32),),
    )
    for shape, k in (((64, 32000), 50), ((64, 32000), 1), ((4096, 64), 8)):
        x = rng.standard_normal(shape, np.float32)
        yield Row(
            f"top_k {shape} {k}",
            TopK(k),
            (x,),
            lambda x, k=k: lax.top_k(x, k),
            lambda x, k=k: torch.topk(x, k),
        )


def running() -> Iterator[Row]:
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
        yield Row(
            f"cumsum {shape} {dim}",
            op,
            (x, zero),
            lambda x, z, d=dim: jnp.cumsum(x, d),
            lambda x, z, d=dim: torch.cumsum(x, d),
            (pairwise(Add()),),
            (1,),
        )
        yield Row(
            f"cummax {shape} {dim}",
            op,
            (x, np.float32(-np.inf)),
            lambda x, z, d=dim: lax.cummax(x, d),
            lambda x, z, d=dim: torch.cummax(x, d),
            (pairwise(Maximum()),),
            (1,),
        )


def places() -> Iterator[Row]:
    """Gathers, scatters, and slices that are replaced."""
    import jax.numpy as jnp
    import torch
    from jax import lax

    rng = np.random.default_rng(0)
    table = rng.standard_normal((32000, 512), np.float32)
    ids = rng.integers(0, 32000, (8192, 1), np.int32)
    yield Row(
        "gather rows (32000, 512)[8192]",
        Gather(GatherDims((1,), (0,), (), (), (0,), 1), (1, 512)),
        (table, ids),
        lambda t, i: t.at[i[:, 0]].get(mode="clip"),
        lambda t, i: torch.nn.functional.embedding(i[:, 0], t),
    )
    grads = rng.standard_normal((8192, 512), np.float32)
    yield Row(
        "scatter-add rows (32000, 512)[8192]",
        Scatter(ScatterDims((1,), (0,), (), (), (0,), 1), (type_of(table),)),
        (table, ids, grads),
        lambda t, i, g: t.at[i[:, 0]].add(g, mode="drop"),
        lambda t, i, g: t.index_add(0, i[:, 0], g),
        (pairwise(Add()),),
    )
    flat = rng.standard_normal((1 << 20,), np.float32)
    many = rng.integers(0, 1 << 20, (1 << 20, 1), np.int32)
    yield Row(
        "gather elements (1048576,)",
        Gather(GatherDims((), (0,), (), (), (0,), 1), (1,)),
        (flat, many),
        lambda t, i: t.at[i[:, 0]].get(mode="clip"),
        lambda t, i: t[i[:, 0]],
    )
    yield Row(
        "scatter-add elements (1048576,)",
        Scatter(ScatterDims((), (0,), (), (), (0,), 1), (type_of(flat),)),
        (flat, many, flat),
        lambda t, i, u: t.at[i[:, 0]].add(u, mode="drop"),
        lambda t, i, u: t.index_add(0, i[:, 0], u),
        (pairwise(Add()),),
    )
    cache = rng.standard_normal((8, 16, 2048, 64), np.float32)
    new = rng.standard_normal((8, 16, 1, 64), np.float32)
    starts = tuple(np.int32(n) for n in (0, 0, 77, 0))
    yield Row(
        "dynamic_update_slice (8, 16, 2048, 64)",
        DynamicUpdateSlice(),
        (cache, new, *starts),
        lambda c, n, *at: lax.dynamic_update_slice(c, n, at),
        lambda c, n, *at: torch.slice_scatter(c, n, 2, 77, 78),
    )
    half = rng.standard_normal((4096, 512), np.float32)
    yield Row(
        "concatenate (4096, 512) twice",
        Concatenate(1),
        (half, half),
        lambda a, b: jnp.concatenate([a, b], 1),
        lambda a, b: torch.cat([a, b], 1),
    )
    state = np.array([1, 2], np.uint64)
    words = TensorType((1 << 20,), type_of(np.zeros(0, np.uint32)).dtype)
    for name in ("THREE_FRY", "PHILOX"):
        algorithm = getattr(lax.RandomAlgorithm, f"RNG_{name}")
        yield Row(
            f"random bits {name} (1048576,)",
            RngBitGenerator(name, (type_of(state), words)),
            (state,),
            lambda s, a=algorithm: lax.rng_bit_generator(s, (1 << 20,), algorithm=a),
            lambda s: torch.randint(0, 1 << 31, (1 << 20,), dtype=torch.int32),
        )


def windows() -> Iterator[Row]:
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
    yield Row(
        "max pool (8, 112, 112, 64)",
        op,
        (x, minus),
        jax_pool,
        torch_pool,
        (pairwise(Maximum()),),
        (1,),
    )
    grad = rng.standard_normal(out.sizes, np.float32)
    yield Row(
        "max pool backward (8, 112, 112, 64)",
        SelectAndScatter(sizes, type_of(x), steps, padding),
        (x, grad, np.float32(0)),
        lambda x, g, z: __import__("jax").vjp(lambda y: jax_pool(y, 0), x)[1](g)[0],
        None,
        (pairwise(Compare("GE", "FLOAT")), pairwise(Add())),
        (2,),
    )


# Measuring


def weft_call(row: Row) -> Call:
    """The kernel, on memory of its own."""
    from weft.ir.dense import Dense

    values = [
        apply(Constant(Dense(a.reshape(1), type_of(a)))).results[0]
        if n in row.constants
        else Value(type_of(a), None, n)
        for n, a in enumerate(row.arrays)
    ]
    node = apply(row.op, *values, regions=row.regions)
    kernel = alone(Placed(node, (0,) * len(values), (0,) * len(node.results)), ())
    assert kernel is not None, row.name
    (loaded,) = load([emit_alone(kernel)])
    given = [np.ascontiguousarray(a) for a in row.arrays]
    made = [np.zeros(o.shape, o.dtype.numpy) for o in kernel.outputs]
    commands = Commands()
    commands.kernel(loaded, [a.ctypes.data for a in (*given, *made)])

    def call() -> list[Array]:
        commands.run()
        return [*given, *made]

    return call


def jax_call(row: Row) -> Call:
    """XLA's program on arrays that are there."""
    import jax

    jax.config.update("jax_enable_x64", True)
    compiled = jax.jit(row.jax)
    given = [jax.device_put(a) for a in row.arrays]
    return lambda: jax.block_until_ready(compiled(*given))


def torch_call(row: Row) -> Call | None:
    """torch's own function."""
    import torch

    if row.torch is None:
        return None
    given = [torch.from_numpy(np.array(a)) for a in row.arrays if a.dtype != np.uint64]
    call = row.torch
    more = [torch.zeros(())] * (len(row.arrays) - len(given))
    return lambda: call(*given, *more)


def measure(row: Row, rounds: int) -> dict[str, float]:
    """Median microseconds of each side, taking turns."""
    calls = {"weft": weft_call(row), "xla": jax_call(row), "torch": torch_call(row)}
    times: dict[str, list[float]] = {name: [] for name, call in calls.items() if call}
    gc.disable()
    for turn in range(rounds + 2):
        for name, found in times.items():
            call = calls[name]
            assert call is not None
            begin = time.perf_counter()
            call()
            if turn >= 2:
                found.append(time.perf_counter() - begin)
    gc.enable()
    return {name: 1e6 * statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names of rows")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    print(f"{'':40}{'weft us':>12}{'xla us':>12}{'torch us':>12}{'best/weft':>12}")
    for row in rows():
        if arguments.names and not any(name in row.name for name in arguments.names):
            continue
        found = measure(row, arguments.rounds)
        others = [v for k, v in found.items() if k != "weft"]
        shown = [
            f"{found[k]:12.0f}" if k in found else f"{'':12}" for k in ("weft", "xla", "torch")
        ]
        print(f"{row.name:40}{''.join(shown)}{min(others) / found['weft']:12.2f}", flush=True)


if __name__ == "__main__":
    main()
