"""What a caller names is what they get: padded pieces where sizes do not divide."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import weft
from tests.tolerance import assert_close
from weft import Mesh, P
from weft.errors import WeftWarning
from weft.mesh.algebra import append_merged, is_list_prefix
from weft.mesh.pieces import local_shape

FOUR = Mesh(data=4)
MESHES = (
    Mesh(a=2),
    Mesh(a=4),
    Mesh(a=8),
    Mesh(a=2, b=3),
    Mesh(a=2, b=2, c=2),
    Mesh(a=1, b=4),
    Mesh((("a", 2), ("b", 2)), (3, 1, 0, 2)),
)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "map": lambda x, y: jnp.where(x > y, x, y) + 1,
    "product": lambda x, y: x @ y.T,
    "contracted": lambda x, y: x.T @ y,
    "sums": lambda x, y: (x.sum(0, dtype=x.dtype), y.max(1, initial=0), x.prod(0, dtype=x.dtype)),
    "order": lambda x, y: (jnp.sort(x, 0), jnp.cumsum(y, 1, dtype=y.dtype)),
    "places": lambda x, y: (jnp.roll(x, 1, 0), y.T[::-1], jnp.concatenate([x, y]), x[1:]),
    "flat": lambda x, y: (x.reshape(-1), y.T.reshape(x.shape)),
    "padded": lambda x, y: jnp.pad(x, ((1, 2), (0, 1))) + jnp.pad(y, ((2, 1), (1, 0))),
    "indexed": lambda x, y: x.at[jnp.arange(x.shape[0]) // 2].add(y[: x.shape[0]]),
    "loops": lambda x, y: lax.scan(lambda c, r: (c + r, c), x.sum(0, dtype=x.dtype), y),
    "branch": lambda x, y: lax.cond(x.sum() > 0, lambda: x, lambda: y),
    "called": lambda x, y: jax.jit(lambda a: jax.jit(jnp.square)(a) + 1)(x) + y,
    "windows": lambda x, y: lax.reduce_window(
        x, np.zeros((), x.dtype), lax.add, (3, 2), (1, 1), "SAME"
    ),
}


@st.composite
def spelled(draw: st.DrawFn, rank: int, mesh: Mesh, *, whole: bool = False) -> P:
    """Axes or parts of them for some dims, each used once; dims may stay open."""
    axes: list[str] = []
    for name, size in mesh.axes:
        parts = not whole and size in (4, 8) and draw(st.booleans())
        axes += [f"{name}:(1)2", f"{name}:(2){size // 2}"] if parts else [name]
    axes = list(draw(st.permutations(axes)))
    dims: list[Any] = []
    for _ in range(rank):
        count = draw(st.sampled_from([0, 1, 1, 2]))
        taken, axes = axes[:count], axes[count:]
        is_open = not whole and draw(st.integers(0, 3)) == 0
        dims.append((*taken, *([...] if is_open else [])) or None)
    return P(*dims)


def assert_split(array: Any, named: P) -> None:
    """An array is split as named, further only where a dim was left open; the pieces are padded."""
    wanted = named.sharding(array.ndim, array.mesh)
    for have, want in zip(array.sharding.dims, wanted.dims, strict=True):
        axes: list[Any] = []
        for axis in want.axes:
            if (axis.size or array.mesh.axis_sizes[axis.name]) > 1:
                append_merged(axes, axis, array.mesh)
        fits = is_list_prefix(axes, have.axes) if want.is_open else list(have.axes) == axes
        assert fits, f"{array.sharding} instead of {named}"
    assert array.stacked.shape == local_shape(array.shape, array.sharding, array.mesh)


@settings(max_examples=15)
@given(
    st.sampled_from(sorted(FUNCTIONS)),
    st.sampled_from(MESHES),
    st.tuples(*[st.sampled_from([0, 1, 2, 3, 5, 7, 8])] * 2),
    st.sampled_from(["float32", "int32", "bfloat16", "uint8"]),
    st.sampled_from([0, 1, 2]),
    st.sampled_from(["llvm", "numpy"]),
    st.data(),
)
def test_any_size_on_any_mesh(
    name: str,
    mesh: Mesh,
    shape: tuple[int, ...],
    dtype: str,
    level: Any,
    target: str,
    data: st.DataObject,
) -> None:
    fn, rng = FUNCTIONS[name], np.random.default_rng(0)
    x, y = (np.asarray(jnp.asarray(rng.integers(0, 4, shape)).astype(dtype)) for _ in range(2))
    ins = tuple(data.draw(spelled(2, mesh)) for _ in range(2))
    pin = data.draw(spelled(2, mesh, whole=True))
    outs = jax.tree.map(lambda s: data.draw(spelled(s.ndim, mesh)), jax.eval_shape(fn, x, y))
    donated = data.draw(st.sampled_from([(), (0,), (0, 1)]))

    def pinned(x: Any, y: Any) -> Any:
        return fn(weft.constrain(x, pin), y)

    how: dict[str, Any] = {"in_shardings": ins, "out_shardings": outs, "donate_argnums": donated}
    compiled = weft.compile(pinned, x, y, mesh=mesh, level=level, target=target, **how)
    wanted = jax.tree.leaves(weft.compile(fn, x, y)(x, y))
    split = [weft.put(v, s, mesh) for v, s in zip((x, y), ins, strict=True)]
    for arguments in ((x, y), split):
        found = jax.tree.leaves(compiled(*arguments))
        for mine, theirs, named in zip(found, wanted, jax.tree.leaves(outs), strict=True):
            assert_close(mine, theirs, 64)
            assert_split(mine, named)
    assert compiled.memory().peak >= 0 and compiled.collectives() is not None


def test_seven_rows_on_four_devices() -> None:
    x = np.arange(21, dtype=np.float32).reshape(7, 3)
    named = {"in_shardings": P("data"), "out_shardings": P("data")}
    compiled = weft.compile(lambda x: x * 2, x, mesh=FOUR, **named)
    y = compiled(x)
    assert_split(y, P("data"))
    assert [p.shape for p in map(y.stacked.piece, range(4))] == [(2, 3)] * 4
    assert compiled.collectives() == []
    np.testing.assert_array_equal(compiled(y), x * 4)  # the padding of a result is read by nobody


def test_constraints_name_what_comes_in_and_out() -> None:
    x = np.arange(7, dtype=np.float32)
    inner = jax.jit(lambda x: weft.constrain(x, P("data")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = weft.compile(lambda x: weft.constrain(x, P("data")).sum(), x, mesh=FOUR)
        how: dict[str, Any] = {"mesh": FOUR, "in_shardings": P("data")}
        out = weft.compile(lambda x: weft.constrain(x + 1, P("data")), x, **how)
        called = weft.compile(lambda x: inner(x), x, **how)
    assert_split(out(x), P("data"))
    assert_split(called(x), P("data"))
    assert "tensor<2xf32> {weft.global = tensor<7xf32>" in first.text()
    np.testing.assert_array_equal(first(x), x.sum())


FILE = """
sdy.mesh @mesh = <["data"=4]>
func.func @main(%x: tensor<7xf32> IN) -> (tensor<7xf32> OUT) {
  %0 = stablehlo.negate %x : tensor<7xf32>
  return %0 : tensor<7xf32>
}
"""
NAMED = '{sdy.sharding = #sdy.sharding<@mesh, [{"data"}]>}'


@pytest.mark.parametrize("door", ["annotations", "options"])
def test_files(door: str) -> None:
    named = NAMED if door == "annotations" else ""
    text = FILE.replace("IN", named).replace("OUT", named)
    how = {} if named else {"in_shardings": P("data"), "out_shardings": P("data")}
    compiled = weft.compile(text, **how)
    x = np.arange(7, dtype=np.float32)
    (y,) = compiled(x)
    assert_split(y, P("data"))
    np.testing.assert_array_equal(y, -x)


def test_inferred_shardings_that_do_not_divide_are_said_once() -> None:
    x = np.ones((7, 3), np.float32)
    with pytest.warns(WeftWarning, match="result 0 is not split along dim 0.*4 pieces") as caught:
        compiled = weft.compile(lambda x: x * 2, x, mesh=FOUR, in_shardings=P("data"))
        first = len(caught)
        y = compiled(x)
    assert first == len(caught) == 1
    assert "test_named_shardings.py" in str(caught[0].message)
    assert_split(y, P())


def test_the_trace_says_it_too(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_TRACE", str(tmp_path))
    x = np.ones(7, np.float32)
    with pytest.warns(WeftWarning, match="do not divide"):
        weft.compile(lambda x: x * 2, x, mesh=FOUR, in_shardings=P("data"))
    (notes,) = tmp_path.glob("*/notes.txt")
    assert notes.read_text().startswith("result 0 is not split along dim 0")
