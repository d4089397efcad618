"""Everything for real, on a GPU: `pytest -m gpu tests/emit/triton`."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import weft
from tests.emit.triton.corpus import CASES, ON_GPU
from tests.emit.triton.launching import check, kernels_of
from weft.kernels.kernel import Kernel

pytestmark = pytest.mark.gpu
ALL = CASES | ON_GPU


@pytest.mark.parametrize("name", ALL)
def test_kernels_match_the_reference(name):
    function, arguments, _ = ALL[name]
    program = weft.compile(function, *arguments, target="triton").program.local
    for kernel in kernels_of(program):
        if isinstance(kernel, Kernel):
            check(kernel, "cuda:0")


@pytest.mark.parametrize("name", ALL)
def test_programs_match_numpy_again_and_again(name):
    function, arguments, _ = ALL[name]
    compiled = weft.compile(function, *arguments, target="triton")
    expected = weft.compile(function, *arguments, target="numpy")(*arguments)
    for _ in range(3):  # launched, captured, replayed
        made = compiled(*arguments)
        for one, other in zip(jax.tree.leaves(made), jax.tree.leaves(expected), strict=True):
            narrow = any(str(getattr(a, "dtype", "")) == "bfloat16" for a in arguments)
            limit = 2e-2 if narrow else 2e-5
            found, wide = np.asarray(one, "d"), np.asarray(other, "d")
            np.testing.assert_array_equal(np.isnan(found), np.isnan(wide))
            scale = np.abs(np.nan_to_num(wide)).max(initial=1e-6)
            assert np.abs(np.nan_to_num(found - wide)).max(initial=0) <= limit * scale


def test_pytorch_shares_memory_and_chooses_the_target():
    import torch

    model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.GELU()).cuda()
    x = torch.randn(8, 64, device="cuda")
    made = weft.compile(model, x)(x)
    assert made.device == x.device
    torch.testing.assert_close(made, model(x), rtol=1e-4, atol=1e-5)
    held = weft.put(x, device="cuda")
    assert held.to_torch().data_ptr() == x.data_ptr()
