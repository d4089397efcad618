"""Effects of compiled functions: what a callback sees, how often, and in which order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback
from jax.sharding import PartitionSpec as JaxP

import weft
from tests.capture.test_jax import assert_same
from weft import Mesh, P

See = Callable[..., Any]
MESH = Mesh(data=2, model=4)
X = np.arange(48, dtype=np.float32).reshape(8, 6) - 20
MESHES = {"2x4": (Mesh(a=2, b=4), P("a", "b")), "3x2": (Mesh(a=3, b=2), P("a", "b"))}


def jitted(see: See, x: Any) -> Any:
    jax.jit(lambda y: see("inside", y.sum()))(x)
    return x * 2


def jitted_without_arguments(see: See, x: Any) -> Any:
    jax.jit(lambda: see("inside"))()
    return x * 2


def nothing_at_all(see: See, x: Any) -> Any:
    jax.jit(lambda y: None)(x)
    see("outside", x.max())
    return x * 2


def branch_without_results(see: See, x: Any) -> Any:
    lax.cond(x.sum() > 0, lambda: see("above", x.sum(0)), lambda: see("below", x.sum(1)))
    return x * 2


def one_of_many(see: See, x: Any) -> Any:
    lax.switch(1, [lambda: None, lambda: see("second", x.max(0)), lambda: None])
    return x * 2


def loop_that_carries_nothing(see: See, x: Any) -> Any:
    lax.fori_loop(0, 3, lambda i, c: see("step", i) or c, ())
    return x * 2


def branch_in_a_scan(see: See, x: Any) -> Any:
    def body(total: Any, row: Any) -> Any:
        lax.cond(row[0] > 0, lambda: see("row", row), lambda: None)
        return total + row, total.max()

    return lax.scan(body, jnp.zeros(6), x)


def each_of_many(see: See, x: Any) -> Any:
    for n in range(4):  # each waits for a sum of its own
        see(n, (x * n).sum(0))
    return x * 2


PROGRAMS = [
    jitted,
    jitted_without_arguments,
    nothing_at_all,
    branch_without_results,
    one_of_many,
    loop_that_carries_nothing,
    branch_in_a_scan,
    each_of_many,
]


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "ordered"])
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.__name__)
def test_callbacks_run_as_often_as_under_jax(program: Any, mesh: str, ordered: bool):
    seen: list[Any] = []

    def see(tag: Any, *values: Any) -> None:
        def note(*found: Any) -> None:
            seen.append((tag, [np.asarray(v).tolist() for v in found]))

        jax.debug.callback(note, *values, ordered=ordered)

    def fn(x: Any) -> Any:
        return program(see, x)

    expected = jax.block_until_ready(jax.jit(fn)(X))
    jax.effects_barrier()
    told, seen[:] = list(seen), []
    sizes, split = MESHES[mesh]
    for level in (0, 1, 2):
        compiled = weft.compile(fn, X, mesh=sizes, in_shardings=split, level=level)
        seen.clear()
        assert_same(compiled(X), expected)
        assert sorted(seen, key=str) == sorted(told, key=str)
        assert not ordered or seen == told


def test_callbacks_for_every_row():
    seen: list[float] = []

    def fn(x: Any) -> Any:
        jax.vmap(lambda row: jax.debug.callback(lambda v: seen.append(float(v)), row.sum()))(x)
        return x * 2

    for level in (0, 1, 2):
        seen.clear()
        compiled = weft.compile(fn, X, mesh=Mesh(a=2), in_shardings=P("a"), level=level)
        assert_same(compiled(X), X * 2)
        assert sorted(seen) == sorted(X.sum(1).tolist())


def test_callbacks_run_once_on_whole_values():
    seen = []

    def fn(x):
        io_callback(lambda v: seen.append(np.asarray(v).sum()), None, x, ordered=True)
        jax.debug.callback(lambda v: seen.append(v.shape), x)
        return jax.pure_callback(lambda v: np.asarray(v) * 2, x, x) + 1

    x = np.arange(8, dtype=np.float32)
    compiled = weft.compile(fn, x, mesh=MESH, in_shardings=P("data"), out_shardings=P("model"))
    assert_same(compiled(x), x * 2 + 1)
    assert seen == [28.0, (8,)]


def test_ordered_callbacks_in_a_loop():
    seen = []

    def fn(x):
        def body(i, total):
            io_callback(lambda v: seen.append(int(v)), None, i, ordered=True)
            return total + x.sum()

        return jax.lax.fori_loop(0, 3, body, 0.0)

    x = np.ones(8, np.float32)
    compiled = weft.compile(fn, x, mesh=MESH, in_shardings=P("data"))
    assert_same(compiled(x), jnp.float32(24))
    assert seen == [0, 1, 2]


def test_callbacks_of_every_device():
    seen = []

    def body(a):
        jax.debug.callback(lambda v: seen.append(float(v[0])), a)
        return a

    def fn(x):
        return jax.shard_map(body, in_specs=JaxP("data"), out_specs=JaxP("data"))(x)

    compiled = weft.compile(fn, np.arange(2.0, dtype=np.float32), mesh=Mesh(data=2))
    compiled(np.arange(2.0, dtype=np.float32)).wait()
    assert sorted(seen) == [0.0, 1.0]


def test_a_callback_may_compile_and_run():
    inner = weft.compile(lambda v: v * 3)

    def fn(x):
        return jax.pure_callback(lambda v: np.asarray(inner(np.asarray(v))), x, x)

    compiled = weft.compile(fn, np.float32(2), mesh=MESH)
    assert float(compiled(np.float32(2))) == 6
