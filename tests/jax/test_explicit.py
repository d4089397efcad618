"""Shardings in types: what JAX writes for explicit axes, unreduced values, and loops."""

from __future__ import annotations

from tests.jax.door import run_on_weft

SCRIPT = """
import numpy as np, jax, jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P, reshard
mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Explicit,) * 2,
                     devices=jax.devices()[:4])
jax.set_mesh(mesh)
A = np.arange(64, dtype=np.float32).reshape(4, 4, 4)
put = lambda value, *spec, **more: jax.device_put(value, P(*spec, **more))
owing = P(unreduced={"x"})

# JAX constrains the scalars of reducers, too.
a = put(A[0], "x", "y")
largest, least = jax.jit(lambda a: (jnp.argmax(a, 0), jnp.argmin(a, 1)))(a)
np.testing.assert_array_equal(largest, A[0].argmax(0))
assert largest.sharding.spec == P("y") and least.sharding.spec == P("x")
at, new = put(np.array([1, 2, 3, 0]), "x"), put(A[1], "x", "y")
for change in ("set", "add", "mul", "max"):
    f = jax.jit(jax.vmap(lambda row, n, v: getattr(row.at[n], change)(v)))
    moved = f(put(A, "x", None, "y"), at, new)
    assert moved.sharding.spec == P("x", None, "y")
    expected = np.stack([getattr(jnp.asarray(r).at[n], change)(v)
                         for r, n, v in zip(A, [1, 2, 3, 0], A[1])])
    np.testing.assert_array_equal(moved, expected)

# A sum that a loop leaves to be made is made once, behind it.
rows = put(A, None, "x", None)

@jax.jit
def squares(rows):
    first = reshard(jnp.ones((4, 4)), owing)
    def add(total, row):
        return total + jnp.einsum("ab,ac->bc", row, row, out_sharding=owing), None
    return reshard(lax.scan(add, first, rows)[0], P())

np.testing.assert_array_equal(squares(rows), 1 + np.einsum("tab,tac->bc", A, A))
assert squares.lower(rows).compile().as_text().count("all-reduce(") == 1

@jax.jit
def gradients(weights, rows):
    loss = lambda w, row: jnp.sum(jnp.einsum("ab,bc->ac", row, w) ** 2)
    def add(total, row):
        return total + jax.grad(loss)(weights, row), None
    first = jax.grad(loss)(weights, rows[0])
    return reshard(lax.scan(add, first, rows[1:])[0], P("x", None))

weights = put(np.ones((4, 4), np.float32), reduced={"x"})
expected = sum(2 * row.T @ (row @ np.ones((4, 4))) for row in A)
np.testing.assert_allclose(gradients(weights, rows), expected, rtol=1e-6)

# Linear ops of what owes a sum owe it, too.
partly = jax.jit(lambda r: jnp.einsum("ab,ac->bc", r, r, out_sharding=owing))(put(A[0], "x", None))
whole, scale = A[0].T @ A[0], put(np.float32(3), reduced={"x"})
for f, expected in (
    (lambda p: p + p, 2 * whole),
    (lambda p: p.T, whole.T),
    (lambda p: p.astype(jnp.bfloat16).astype(jnp.float32), None),
    (lambda p: p * scale, 3 * whole),
    (lambda p: p[None], whole[None]),
    (lambda p: p.reshape(2, 8), whole.reshape(2, 8)),
    (lambda p: p[None][0], whole),
    (lambda p: jnp.where(True, p, p + p), whole),
    (lambda p: lax.slice(p, (1, 0), (3, 4)), whole[1:3]),
    (lambda p: lax.concatenate([p, p + p], 1), np.concatenate([whole, 2 * whole], 1)),
    (lambda p: lax.dynamic_update_slice(p, p + p, (0, 0)), 2 * whole),
    (lambda p: p.sum(), whole.sum()),
):
    made = jax.jit(f)(partly)
    assert made.sharding.spec.unreduced == {"x"}
    if expected is not None:
        np.testing.assert_array_equal(reshard(made, P()), expected)
    text = jax.jit(f).lower(partly).compile().as_text()
    assert expected is None or made.ndim == 0 or "all-reduce(" not in text, text

# A dim that is split by axes that are to be owed stays where it is: zeros around each piece.
B = np.arange(32, dtype=np.float32).reshape(8, 4)
for spec, asked, sums in (
    (P("x"), P(None, None, unreduced={"x"}), [120, 120, 376, 376]),
    (P(("y", "x")), P("y", None, unreduced={"x"}), [28, 156, 92, 220]),
    (P("x", "y"), P(None, None, unreduced={"x", "y"}), [52, 68, 180, 196]),
    (P(), P(None, None, unreduced={"x", "y"}), [496, 0, 0, 0]),
    (P("x"), P(None, None, unreduced={"x", "y"}), [120, 0, 376, 0]),
):
    split, owe = jax.device_put(B, spec), jax.jit(lambda b: reshard(b, asked))
    owes = owe(split)
    assert [np.asarray(s.data).sum() for s in owes.addressable_shards] == sums, (spec, asked)
    np.testing.assert_array_equal(reshard(owes, P()), B)
    text = owe.lower(split).compile().as_text()
    assert not any(f"{name}(" in text for name in ("all-gather", "all-reduce", "all-to-all"))

# The largest of rows that are longer than what is looked at first.
for length, k in ((100, 7), (130, 2), (300, 60)):
    rows = np.random.default_rng(0).standard_normal((4, length), np.float32)
    values, at = jax.jit(lambda rows: lax.top_k(rows, k))(put(rows, "x", None))
    expected = np.argsort(-rows, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(at, expected)
    np.testing.assert_array_equal(values, np.take_along_axis(rows, expected, 1))

# Zeros keep their signs.
below, above = jax.jit(lambda x: (x / np.float32(-0.0), x / np.float32(0.0)))(np.float32(1))
print(below, above)
"""


def test_explicit_axes() -> None:
    assert run_on_weft(SCRIPT) == "-inf inf\n"
