"""Calls of what weft.compile makes: seen at a glance, they run the program that they are for."""

from __future__ import annotations

import gc
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft
from weft import Mesh, P, WeftError
from weft.array import put

X = np.arange(12, dtype=np.float32).reshape(3, 4)


def test_other_settings_of_jax_make_other_programs():
    compiled = weft.compile(lambda x: x * jnp.arange(4).astype(float).sum())
    x = put(X)
    for _ in range(2):
        assert compiled(x).dtype == np.float32
        with jax.enable_x64(True):
            assert compiled(x).dtype == np.float64
        with jax.default_matmul_precision("highest"):
            compiled(x)
    assert len(compiled._programs) == 3


def test_settings_for_all_threads_count_too():
    compiled = weft.compile(lambda x: x + jnp.zeros((), float))
    x = put(X)
    assert compiled(x).dtype == np.float32
    jax.config.update("jax_enable_x64", True)
    try:
        assert compiled(x).dtype == np.float64
    finally:
        jax.config.update("jax_enable_x64", False)
    assert compiled(x).dtype == np.float32


def test_numpy_arrays_that_become_others_are_seen_again():
    compiled = weft.compile(lambda x: x + x)
    x = np.ones((2, 6), np.float32)
    assert np.array_equal(compiled(x), 2 * x)
    x.shape = (3, 4)
    assert np.array_equal(compiled(x), 2 * x)
    x.dtype = np.int32
    assert compiled(x).dtype == np.int32 and np.array_equal(compiled(x), 2 * x)
    x[...] = 7
    assert np.array_equal(compiled(x), 2 * x)


@pytest.mark.parametrize("kind", ["weft", "numpy", "jax"])
def test_arrays_of_any_kind_come_by_turns(kind: str):
    compiled = weft.compile(lambda x, y: {"sum": x + y, "all": (x, y)})
    make = {"weft": put, "numpy": np.array, "jax": jnp.asarray}[kind]
    for n in range(3):
        for dtype in (np.float32, np.int32):
            x = (X + n).astype(dtype)
            made = compiled(make(x), put(x))
            assert np.array_equal(made["sum"], 2 * x) and made["sum"].dtype == dtype
            assert np.array_equal(made["all"][0], x)
    assert len(compiled._programs) == 2


def test_weak_types_and_scalars():
    compiled = weft.compile(lambda x, scale: x * scale)
    x = put(X.astype(np.float16))
    half, wide = np.float16, np.float32
    for scale, dtype in ((2.0, half), (3, half), (np.float32(2), wide), (True, half)):
        for _ in range(2):
            made = compiled(x, scale)
            assert made.dtype == dtype
            assert np.array_equal(made, X.astype(np.float16) * scale)
    weak, strong = jnp.asarray(2.0), jnp.ones((), np.float32)
    for _ in range(2):
        assert compiled(x, weak).dtype == np.float16
        assert compiled(x, strong).dtype == np.float32
    with pytest.raises(OverflowError):
        compiled(x, 1 << 40)


def test_static_arguments_are_told_apart():
    compiled = weft.compile(lambda x, how, n=1: x * n if how else -x, static_argnums=(1,))
    x = put(X)
    for _ in range(2):
        for how in (True, False, 1, "yes", ""):
            assert np.array_equal(compiled(x, how), X if how else -X)
        assert np.array_equal(compiled(x, True, n=2), 2 * X)
    assert len(compiled._programs) == 6
    with pytest.raises(WeftError, match="cannot be hashed"):
        compiled(x, [1])
    with pytest.raises(WeftError, match="static_argnums"):
        compiled(x)


def test_how_arrays_are_split_is_seen():
    mesh = Mesh(data=2)
    compiled = weft.compile(lambda x: x - 1, mesh=mesh)
    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    for _ in range(2):
        for spec in (P(), P("data"), P(None, "data")):
            assert np.array_equal(compiled(put(x, spec, mesh)), x - 1)


def test_donated_arrays_are_gone_every_time():
    compiled = weft.compile(lambda x, y: x + y, donate_argnums=0)
    y = put(X)
    for n in range(4):
        x = put(X * n)
        made = compiled(x, y)
        assert np.array_equal(made, X * n + X)
        with pytest.raises(WeftError, match="donated"):
            compiled(x, y)
        x = compiled(made, y)
        assert made.is_deleted and np.array_equal(x, X * n + 2 * X)


def test_an_array_that_failed_or_is_deleted_is_not_taken():
    compiled = weft.compile(lambda x: x + 1)
    x = put(X)
    compiled(x)
    broken = put(X)
    pending = type(broken).of(None, broken.spec).failed(ZeroDivisionError("no elements"))
    with pytest.raises(ZeroDivisionError):
        compiled(pending).wait()
    x.delete()
    with pytest.raises(WeftError, match="deleted"):
        compiled(x)


def test_a_module_checks_its_arguments_every_time():
    text = """func.func @main(%x: tensor<3x4xf32>) -> tensor<3x4xf32> {
      %0 = stablehlo.add %x, %x : tensor<3x4xf32>
      return %0 : tensor<3x4xf32>
    }"""
    compiled = weft.compile(text)
    x = put(X)
    for _ in range(2):
        (made,) = compiled(x)
        assert np.array_equal(made, 2 * X)
        with pytest.raises(WeftError, match="shape"):
            compiled(put(X[:2]))
        with pytest.raises(WeftError, match="float64"):
            compiled(put(X.astype(np.float64)))
        with pytest.raises(WeftError, match="1 arguments, not 2"):
            compiled(x, x)
        with pytest.raises(WeftError, match="no names"):
            compiled(x=x)


def test_results_in_every_form():
    forms: list[Any] = [
        lambda x: x + 1,
        lambda x: (x + 1,),
        lambda x: [x + 1, None],
        lambda x: {"a": x + 1, "b": ()},
        lambda x: None,
    ]
    for fn in forms:
        compiled = weft.compile(fn)
        for _ in range(2):
            made = compiled(put(X))
            expected = fn(X)
            assert jax.tree.structure(made) == jax.tree.structure(expected)
            assert all(map(np.array_equal, jax.tree.leaves(made), jax.tree.leaves(expected)))


def test_the_latest_program_is_that_of_the_latest_call():
    compiled = weft.compile(lambda x: x + 1)
    for shape in ((2,), (3,), (2,), (3,)):
        compiled(put(np.ones(shape, np.float32)))
        assert compiled.program.local.arg_types[0].sizes == shape


def test_threads_may_call_at_once_with_settings_of_their_own():
    compiled = weft.compile(lambda x: x + jnp.ones((), float))
    wrong: list[object] = []

    def work(wide: bool) -> None:
        x = put(X)
        with jax.enable_x64(wide):
            for _ in range(50):
                if compiled(x).dtype != (np.float64 if wide else np.float32):
                    wrong.append(wide)

    threads = [threading.Thread(target=work, args=(n % 2 == 1,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_numpy_arguments_are_read_in_place_and_never_kept():
    """Short programs read a caller's arrays where they are, whatever is written there later."""
    compiled = weft.compile(lambda x, y: (x + y, x), np.zeros((3, 4), np.float32), np.float32(0))
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for turn in range(4):
        want = x + turn
        both = compiled(x, np.float32(turn))
        kept = x.copy()
        x += 100
        np.testing.assert_array_equal(np.asarray(both[0]), want)
        np.testing.assert_array_equal(np.asarray(both[1]), kept)
    added = weft.compile(lambda x, y: x + 2 * y, x, x)
    for _ in range(3):
        made = added(x, x)
        want, x[...] = 3 * x, x + 1
        np.testing.assert_array_equal(np.asarray(made), want)
    for odd in (np.asfortranarray(x), np.ones((3, 8), np.float32)[:, ::2], x[::-1]):
        np.testing.assert_array_equal(np.asarray(added(odd, x)), odd + 2 * x)
        np.testing.assert_array_equal(np.asarray(added(made, odd)), np.asarray(made) + 2 * odd)
    frozen = x.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(np.asarray(added(frozen, made)), frozen + 2 * np.asarray(made))


def test_the_least_recently_used_program_is_dropped():
    """And said, once; the others stay, by their cheap keys, too."""
    compiled = weft.compile(lambda x: x * 2, programs=2)
    calls = [np.ones(n, np.float32) for n in (1, 2, 1, 3)]
    with pytest.warns(RuntimeWarning, match="more than 2 types of arguments") as warned:
        for x in calls:
            np.testing.assert_array_equal(compiled(x), 2 * x)
    assert len(warned) == 1 and len(compiled._programs) == len(compiled._known) == 2
    kept = [ready.captured.arguments[0].shape for ready in compiled._programs.values()]
    assert kept == [(1,), (3,)]
    np.testing.assert_array_equal(compiled(calls[1]), 2 * calls[1])
    assert "the latest of 2 programs, and 2 were dropped" in str(compiled)
    with pytest.raises(weft.WeftError, match="programs=0 is no count"):
        weft.compile(lambda x: x, programs=0)


def test_quick_calls_read_what_they_are_given():
    """After two calls of one type native code looks at the arguments; others take the long way."""
    compiled = weft.compile(lambda x, y: (x * 2 + y, x - y))

    def check(x: Any, y: Any) -> None:
        added, less = compiled(x, y)
        one, other = np.asarray(x), np.asarray(y)
        assert np.array_equal(added, one * 2 + other) and np.array_equal(less, one - other)
        assert added.dtype == (one + other).dtype

    for n in range(4):
        check(X + n, X * n)
    assert compiled._quick is not None
    first, _ = compiled(X, X)
    second, _ = compiled(X + 1, X)  # results have memory of their own
    assert np.array_equal(first, X * 3) and np.array_equal(second, X * 3 + 2)
    wide = np.arange(24, dtype=np.float32).reshape(3, 8)
    check(wide[:, ::2], X)  # not dense
    check(np.asfortranarray(X), X)
    check(X.astype(">f4").astype(np.float32), X)
    for _ in range(3):
        check(put(X + 5), X)
        check(X, put(X + 6))
        check(X.astype(np.int32), X.astype(np.int32))
        check(X[0], X)
        check(X[:1], X[:1])
    check(X, X)
    check(X, X)
    with pytest.raises(TypeError):
        compiled(X)
    gone = put(X)
    check(gone, X)
    gone.delete()
    with pytest.raises(WeftError):
        compiled(gone, X)


def test_quick_calls_read_arrays_of_jax_in_place():
    compiled = weft.compile(lambda x, y: (x @ y, x * 2))
    for n in range(5):
        x, y = jnp.full((3, 4), float(n)), jnp.arange(8.0).reshape(4, 2) * n
        for given in ((x, y), (np.asarray(x), y), (x, np.asarray(y))):
            product, twice = compiled(*given)
            np.testing.assert_array_equal(product, np.asarray(x) @ np.asarray(y))
            np.testing.assert_array_equal(twice, np.asarray(x) * 2)
    compiled(x, y)
    compiled(x, y)
    assert compiled._quick is not None and compiled._quick((x, y)) is not None
    y.delete()
    with pytest.raises(RuntimeError, match="deleted"):
        compiled(x, y)
    scaled = weft.compile(lambda x: x * np.float16(2))
    for _ in range(3):  # weak types are other programs
        assert scaled(jnp.float32(3)).dtype == np.float32
        assert scaled(jnp.asarray(3.0)).dtype == (jnp.asarray(3.0) * np.float16(2)).dtype


def test_quick_calls_of_a_program_without_sizes_and_of_none():
    for shape in ((), (0,), (1, 1), (2, 0, 3)):
        compiled = weft.compile(lambda x: jnp.exp(x) + 1)
        x = np.full(shape, 0.5, np.float32)
        for _ in range(4):
            made = compiled(x)
            assert made.shape == shape
            np.testing.assert_allclose(made, np.exp(x) + 1, np.finfo(np.float32).eps * 4)
    empty = weft.compile(lambda x: None)
    assert [empty(X) for _ in range(3)] == [None, None, None]


def test_no_lowered_module_of_jax_stays():
    """JAX's caches would keep one for each shape, with an MLIR context of its own."""
    context = pytest.importorskip("jaxlib.mlir.ir").Context
    if not hasattr(context, "_get_live_count"):
        pytest.skip("this jaxlib does not count contexts")
    compiled = weft.compile(lambda x: jnp.tanh(x).sum())
    counts = []
    for n in (3, 4, 5):
        compiled.prepare(np.ones(n, np.float32))
        gc.collect()
        counts.append(context._get_live_count())
    assert counts[0] == counts[2]
