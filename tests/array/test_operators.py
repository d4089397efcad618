"""Arrays in numpy's and JAX's world: operators, methods, functions of both, and other libraries."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft

A = np.linspace(-2, 3, 6, dtype=np.float32).reshape(2, 3)
MESH = weft.Mesh(d=2)

BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
    "<": operator.lt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
TYPES = ("float32", "bfloat16", "float16", "int32", "uint8", "bool", "complex64")
OTHERS: list[Any] = [2, 2.5, True, np.float64(1.5), np.int8(3), np.ones(3, np.float16)]


def split(array: Any = A) -> weft.Array:
    """An array on two devices."""
    return weft.put(array, weft.P("d"), MESH)


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(sorted(BINARY)), st.sampled_from(TYPES), st.sampled_from(OTHERS), st.booleans()
)
def test_operators_are_those_of_jax(name: str, dtype: str, other: Any, swapped: bool) -> None:
    values = np.array([[1, 2, 3], [3, 2, 1]]).astype(jnp.dtype(dtype))

    def both(x: Any) -> Any:
        return BINARY[name](other, x) if swapped else BINARY[name](x, other)

    try:
        expected = both(jnp.asarray(values))
    except TypeError:
        with pytest.raises(TypeError):
            both(split(values))
        return
    found = both(split(values))
    assert type(found) is weft.Array and found.dtype == expected.dtype
    np.testing.assert_allclose(
        np.asarray(found).astype(complex), np.asarray(expected).astype(complex), rtol=1e-2
    )


METHODS: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: x.mean(),
    "sum": lambda x: x.sum(axis=0, keepdims=True),
    "max": lambda x: x.max(1),
    "std": lambda x: x.std(axis=(0, 1)),
    "any": lambda x: (x > 2).any(),
    "argmax": lambda x: x.argmax(axis=1),
    "reshape": lambda x: x.reshape(3, -1),
    "reshape to a tuple": lambda x: x.reshape((6,)),
    "T": lambda x: x.T,
    "transpose": lambda x: x.transpose(1, 0),
    "astype": lambda x: x.astype(np.int32),
    "clip": lambda x: x.clip(-1, 1),
    "cumsum": lambda x: x.cumsum(axis=1),
    "round": lambda x: round(x, 1) if isinstance(x, weft.Array) else np.round(x, 1),
    "searchsorted": lambda x: x.reshape(6).searchsorted(np.ones(2, np.float32)),
    "power": lambda x: x**2 - 2.0**x,
    "matmul": lambda x: x @ x.T,
    "abs and minus": lambda x: abs(-x),
    "logic": lambda x: ~((x > 0) & (x < 2)) | (x == 0),
    "conj, real": lambda x: (x.conj() * x).real,
    "numpy's function": lambda x: np.exp(x) + np.maximum(x, 0) + np.mean(x, axis=0),
    "numpy on the left": lambda x: np.ones(3, np.float32) * x @ np.ones((3, 2), np.float32),
    "where": lambda x: x.sum(where=np.array([True, False, True])),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_give_what_numpy_gives_and_stay_arrays(name: str) -> None:
    found = METHODS[name](split())
    assert type(found) is weft.Array
    np.testing.assert_allclose(found, METHODS[name](A), rtol=1e-5)


def test_numbers_of_another_type_make_another_program() -> None:
    counts = weft.put(np.arange(3, dtype=np.int32))
    for other in (2, 2.0):
        expected = jnp.clip(jnp.arange(3), 0, other)
        assert counts.clip(0, other).dtype == expected.dtype
        assert np.float_power(counts, other).dtype == jnp.float32
        assert (counts**other).dtype == (jnp.arange(3) ** other).dtype


def test_results_stay_split() -> None:
    doubled = split() * 2 + 1
    assert doubled.mesh == MESH and doubled.sharding.dims == split().sharding.dims


def test_padded_pieces_make_padded_pieces(recwarn: pytest.WarningsRecorder) -> None:
    odd = np.arange(21, dtype=np.float32).reshape(7, 3)
    y = weft.put(odd, weft.P("d"), mesh=weft.Mesh(d=4))
    for made, expected in ((y * 2, odd * 2), (y.T + 1, odd.T + 1), (y.sum(1), odd.sum(1))):
        np.testing.assert_array_equal(made, expected)
        assert "d" in str(made.sharding), made.sharding
    assert float(y.sum()) == odd.sum()
    assert not [w for w in recwarn if "divide" in str(w.message)]


def test_with_arrays_of_jax_the_result_is_of_jax() -> None:
    for found in (split() + jnp.ones(3), jnp.ones(3) + split(), jnp.add(split(), split())):
        assert isinstance(found, jax.Array)
    assert jax.grad(lambda t: (split() * t).sum())(2.0) == A.sum()
    assert jax.jit(lambda t: t + (split() * 2).sum())(1.0) == 1 + 2 * A.sum()


JAX: dict[str, Callable[[Any], Any]] = {
    "jnp": lambda x: jnp.sum(x),
    "jit": lambda x: jax.jit(lambda a: a * 2)(x),
    "grad": lambda x: jax.grad(lambda a: (a * a).sum())(x),
    "vmap": lambda x: jax.vmap(jnp.sin)(x),
    "lax": lambda x: jax.lax.add(x, x),
    "scan": lambda x: jax.lax.scan(lambda c, a: (c + a, c), jnp.zeros(3), x)[0],
    "tree": lambda x: jax.tree.map(jnp.tanh, {"w": x})["w"],
    "asarray": lambda x: jnp.asarray(x),
    "at": lambda x: (x if isinstance(x, weft.Array) else jnp.asarray(x)).at[0].set(1),
    "device_put": lambda x: jax.device_put(x),
    "zeros_like": lambda x: jnp.zeros_like(x) + jnp.full_like(x, 2, dtype=jnp.float32),
    "closed over": lambda x: jax.jit(lambda: jnp.dot(x, x.T))(),
    "optax.global_norm": lambda x: optax.global_norm({"a": x, "b": [x, x]}),
    "optax.tree": lambda x: optax.tree.scale(0.5, {"a": x})["a"],
}


@pytest.mark.filterwarnings("ignore:optax.global_norm")
@pytest.mark.parametrize("name", JAX)
def test_functions_of_jax_take_arrays(name: str) -> None:
    found, expected = JAX[name](split()), JAX[name](jnp.asarray(A))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_numpy_writes_into_its_own_arrays() -> None:
    own = np.ones((2, 3), np.float32)
    own += split()
    np.testing.assert_array_equal(own, A + 1)
    np.testing.assert_array_equal(np.add.reduce(split()), A.sum(0))
    np.testing.assert_array_equal(np.concatenate([split(), A]), np.concatenate([A, A]))
    assert isinstance(split(), np.ndarray) and np.array_equal(split(), A)


def test_scalars_lengths_and_texts() -> None:
    total = split().sum()
    assert float(total) == 3.0 and int(total) == 3 and bool(total) and complex(total) == 3
    assert f"{total:.2f} {total}" == "3.00 3.0" and str(split()) == str(A)
    assert len(split()) == 2 and [float(row.sum()) for row in split()] == [-3.0, 6.0]
    assert [10, 20, 30][weft.put(np.int32(1))] == 20
    assert split().tolist() == A.tolist() and split().item(4) == A.item(4)
    assert split().tobytes() == A.tobytes()
    assert repr(split()).startswith("<weft.Array 2x3xf32")
    with pytest.raises(ValueError, match="ambiguous"):
        bool(split())
    with pytest.raises(TypeError):
        hash(split())
    with pytest.raises(TypeError):
        split() + "text"


@pytest.mark.parametrize(
    "again", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_copies_and_pickles_outlive_a_donation(again: Callable[[Any], Any]) -> None:
    made = split(A.astype(ml_dtypes.bfloat16)) * 1
    before = np.array(made)
    twin = again(made)
    weft.compile(lambda x: x * 0, donate_argnums=0)(made).wait()
    assert type(twin) is weft.Array and twin.sharding == split().sharding
    np.testing.assert_array_equal(np.asarray(twin), before)
    np.testing.assert_array_equal(np.asarray(twin.copy()), before)
