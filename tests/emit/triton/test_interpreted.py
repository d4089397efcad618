"""Emitted kernels and programs through Triton's interpreter, on the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import weft
from tests.emit.triton.corpus import CASES
from tests.emit.triton.launching import check, kernels_of
from weft import P
from weft.kernels.kernel import Kernel

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.mark.parametrize("name", CASES)
def test_kernels_match_the_reference(name):
    function, arguments, _ = CASES[name]
    program = weft.compile(function, *arguments, target="triton").program.local
    for kernel in kernels_of(program):
        if isinstance(kernel, Kernel):
            check(kernel, "cpu")


def block(x, w):
    h = jax.nn.softmax(x @ w["q"]) @ w["v"]
    return x + jax.nn.gelu(h) @ w["o"]


def arguments():
    rng = np.random.default_rng(0)
    w = {name: rng.standard_normal((16, 16)).astype("f") / 4 for name in "qvo"}
    return rng.standard_normal((4, 16)).astype("f"), w


def test_a_mesh_in_lockstep_and_its_gradient():
    x, w = arguments()
    split = {"q": P(None, "model"), "v": P("model"), "o": P(None, "model")}
    options = {"mesh": weft.Mesh(data=2, model=2), "in_shardings": (P("data"), split)}
    gradient = jax.grad(lambda x, w: (block(x, w) ** 2).sum(), (0, 1))
    made = weft.compile(gradient, x, w, target="triton", **options)(x, w)
    for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(gradient(x, w)), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-4, atol=1e-5)


def test_loops_branches_and_library_calls():
    def program(x, t):
        def body(n, y):
            return jax.lax.cond(n % 2 == 0, lambda y: y * 0.5, lambda y: y + 1, y)

        y = jax.lax.fori_loop(0, 3, body, x)
        rows = jnp.zeros((6, 4)).at[t].add(y)
        return jnp.sort(rows, 1), jax.lax.top_k(y, 2), jnp.cumsum(y, 1)

    x, t = np.random.default_rng(0).standard_normal((5, 4)).astype("f"), np.array([1, 1, 9, 0, 3])
    made = weft.compile(program, x, t, target="triton")(x, t)
    for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(program(x, t)), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-6, atol=1e-6)


def test_memory_is_shared_with_pytorch():
    torch = pytest.importorskip("torch")
    x = torch.randn(6, 8)
    held = weft.put(x, device="cpu")
    compiled = weft.compile(lambda a: a * 2, held, target="triton")
    assert held.to_torch().data_ptr() == x.data_ptr() == torch.from_dlpack(held).data_ptr()
    x.add_(1)  # seen: no copy was made
    torch.testing.assert_close(compiled(held).to_torch(), x * 2)
    split = weft.put(x, P("x", "y"), weft.Mesh(x=2, y=2), device="cpu")
    np.testing.assert_array_equal(np.asarray(split), x.numpy())


def test_attention_by_pytorch():
    from weft.kernels.attention import Attention

    def attend(q, k, v):
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=jnp.float32) * 0.25
        seen = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf)).astype(q.dtype)
        return jnp.einsum("bhqk,bhkd->bhqd", weights, v)

    rng = np.random.default_rng(0)
    given = [jnp.asarray(rng.standard_normal((2, 3, 32, 16)), jnp.bfloat16) for _ in range(3)]
    compiled = weft.compile(attend, *given, target="triton")
    assert any(isinstance(k, Attention) for k in kernels_of(compiled.program.local))
    made, expected = (np.asarray(x, "f") for x in (compiled(*given), attend(*given)))
    np.testing.assert_allclose(made, expected, atol=0.03)


@pytest.mark.parametrize("sizes", [(2, 4), pytest.param((4, 4), marks=pytest.mark.long)])
def test_a_softmax_that_is_split_along_its_rows(sizes):
    x, w = (np.random.default_rng(0).standard_normal(s).astype("f") for s in ((64, 32), (32, 64)))

    def program(x, w):
        return jax.nn.softmax(jax.nn.gelu(x @ w))

    mesh, splits = weft.Mesh(data=sizes[0], model=sizes[1]), (P("data"), P(None, "model"))
    compiled = weft.compile(program, x, w, mesh=mesh, in_shardings=splits, target="triton")
    np.testing.assert_allclose(compiled(x, w), program(x, w), rtol=1e-5, atol=1e-6)
