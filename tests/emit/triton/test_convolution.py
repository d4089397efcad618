"""Convolutions of PyTorch's library, read off the guards of kernels, on the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.emit.triton.test_emit import without_a_device  # noqa: F401
from tests.emit.triton.test_tuned import kernels_of
from weft.compiled import compile as compiled
from weft.emit.triton.collapse import collapsed
from weft.emit.triton.emit import emitted
from weft.emit.triton.emitted import LibraryCall
from weft.emit.triton.library import convolution
from weft.emit.triton.library.convolution import convolution_call, library_convolution
from weft.kernels.kernel import Contract

# Input, weights, strides, pads and dilations.
CASES = {
    "strided": ((2, 5, 10, 12), (7, 5, 3, 3), (2, 2), [(1, 1), (1, 1)], (1, 1)),
    "wide window": ((1, 4, 9, 9), (6, 4, 3, 5), (1, 1), [(1, 1), (2, 2)], (1, 1)),
    "dilated": ((2, 4, 9, 9), (6, 4, 3, 3), (1, 1), [(2, 2), (2, 2)], (2, 2)),
    "pad at one end": ((2, 3, 8, 9), (4, 3, 3, 3), (1, 1), [(1, 0), (1, 1)], (1, 1)),
    "one dim": ((3, 4, 19), (6, 4, 5), (3,), [(2, 2)], (1,)),
}


def program(strides, pads, dilations):
    return lambda x, w: jnp.maximum(
        jax.lax.conv_general_dilated(x, w, strides, pads, rhs_dilation=dilations), 0
    )


@pytest.fixture(autouse=True)
def always(monkeypatch):
    monkeypatch.setattr(convolution, "LEAST", 1)
    emitted.cache_clear()
    yield
    emitted.cache_clear()


@pytest.mark.parametrize("name", CASES)
def test_convolutions_equal_jax(name):
    import torch

    x_shape, w_shape, *numbers = CASES[name]
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype("f") for s in (x_shape, w_shape))
    function = program(*numbers)
    (kernel,) = kernels_of(compiled(function, x, w, target="triton").program.local)
    call, _ = emitted(kernel).parts
    assert isinstance(call, LibraryCall) and "convolution by PyTorch" in call.text
    found = library_convolution(collapsed(kernel))
    assert found is not None
    memory = [torch.empty(o.size) for o in (*kernel.operands, *found.scratch)]
    for n, operand in enumerate(kernel.operands):
        if not operand.output:
            memory[n][:] = torch.from_numpy((x if operand.size == x.size else w).ravel())
    one = convolution_call("convolve", found)
    one.run(*[memory[n] for n in one.operands])
    assert any(isinstance(s, Contract) for s in kernel.steps)
    made = np.maximum(memory[-1].reshape(found.out.sizes).numpy(), 0)
    np.testing.assert_allclose(made, np.asarray(function(x, w)), rtol=1e-5, atol=1e-5)


def test_other_windows_are_tiles(monkeypatch):
    flipped = lambda x, w: jax.lax.conv(x, w[:, :, ::-1, ::-1], (1, 1), "SAME")  # noqa: E731
    grouped = lambda x, w: jax.lax.conv_general_dilated(  # noqa: E731
        x, w, (1, 1), "SAME", feature_group_count=2
    )
    x = np.ones((2, 4, 9, 9), "f")
    for function, weights in ((flipped, (6, 4, 3, 3)), (grouped, (6, 2, 3, 3))):
        made = compiled(function, x, np.ones(weights, "f"), target="triton")
        for kernel in kernels_of(made.program.local):
            if any(isinstance(s, Contract) for s in getattr(kernel, "steps", ())):
                assert library_convolution(collapsed(kernel)) is None
    monkeypatch.setattr(convolution, "LEAST", 1 << 40)
    (kernel,) = kernels_of(
        compiled(program((1, 1), "SAME", (1, 1)), x, np.ones((6, 4, 3, 3), "f"), target="triton")
        .program.local
    )  # fmt: skip
    assert library_convolution(collapsed(kernel)) is None
