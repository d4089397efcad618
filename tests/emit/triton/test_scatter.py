"""Scatters and updates of slices: kernels through Triton's interpreter, and in whole programs."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import weft
from tests.emit.triton.scatters import SCATTERS
from weft import P

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.mark.parametrize("name", SCATTERS)
def test_updates(name):
    function, arguments = SCATTERS[name]
    compiled = weft.compile(function, *arguments, target="triton")
    made, expected = compiled(*arguments), jax.jit(function)(*arguments)
    limit = 1e-2 if name == "narrow" else 1e-6  # JAX rounds after every sum
    one, other = (np.asarray(x, "d") for x in (made, expected))
    np.testing.assert_allclose(one, other, rtol=limit, atol=limit)


def test_updates_on_a_mesh():
    function, arguments = SCATTERS["rows added"]
    mesh, splits = weft.Mesh(x=2), (P(), P("x"), P("x"))
    compiled = weft.compile(function, *arguments, mesh=mesh, in_shardings=splits, target="triton")
    expected = jax.jit(function)(*arguments)
    np.testing.assert_allclose(compiled(*arguments), expected, rtol=1e-6, atol=1e-6)
