"""The corpus of JAX programs and the zoo of models on a GPU: `pytest -m gpu tests/emit/triton`."""

from __future__ import annotations

import importlib.util

import jax
import numpy as np
import pytest

import weft
from benchmarks.programs import MESHES, PROGRAMS
from weft.zoo import ZOO
from weft.zoo.check import check

pytestmark = pytest.mark.gpu
# Decompositions that are determined up to signs.
UNDETERMINED = ("eigh", "svd", "qr")
# Counts of chaotic iterations, of which a few pixels in 65,536 turn at the last rounding.
CHAOTIC = ("julia",)


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in MESHES])
def test_programs_equal_jax(name):
    function, arguments = PROGRAMS[name]()
    host = jax.devices("cpu")[0]
    with jax.default_device(host):
        expected = jax.jit(function)(*jax.tree.map(lambda x: jax.device_put(x, host), arguments))
        made = weft.compile(function, *arguments, target="triton")(*arguments)
        for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
            found, wide = np.asarray(one), np.asarray(other)
            assert (found.shape, found.dtype) == (wide.shape, wide.dtype)
            if name.startswith(UNDETERMINED):
                found, wide = np.abs(found), np.abs(wide)
            if name.startswith(CHAOTIC):
                assert (found != wide).mean() < 1e-3 and np.abs(found - wide).max() <= 1
                continue
            scale = np.abs(wide[np.isfinite(wide)]).max(initial=1e-6)
            np.testing.assert_allclose(found, wide, rtol=0, atol=1e-4 * scale)


@pytest.mark.parametrize("what", ["forward", "gradients"])
@pytest.mark.parametrize("name", ZOO)
def test_models_equal_eager(name, what):
    model = ZOO[name]
    if model.library == "transformers" and importlib.util.find_spec("transformers") is None:
        pytest.skip("pip install 'weft[zoo]'")
    (result,) = check(model, "f32", ["1"], [what], device="cuda")
    assert result.verdict == "equal", f"{result.error:.2g} > {result.allowed:.2g} {result.detail}"
