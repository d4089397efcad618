"""Convolutions with channels last, through Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from tests.emit.triton.channels import Net, compare_networks, convolve_all
from tests.emit.triton.launching import check, kernels_of
from weft.compiled import compile as compiled
from weft.emit.triton.collapse import collapsed
from weft.emit.triton.emit import emitted
from weft.emit.triton.library.convolution import library_convolution
from weft.kernels.kernel import Kernel

pytest.importorskip("triton")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    convolve_all(monkeypatch)
    yield
    emitted.cache_clear()


def test_networks_equal_pytorch():
    compare_networks("cpu", torch.bfloat16)


def test_convolutions_absorb_what_follows():
    torch.manual_seed(0)
    with torch.no_grad():
        model, x = Net().bfloat16().eval(), torch.randn(2, 3, 21, 19).bfloat16()
        program = compiled(model, x, target="triton").program.local
    kernels = [k for k in kernels_of(program) if isinstance(k, Kernel)]
    found = [library_convolution(collapsed(k)) for k in kernels if k.schedule.kind == "matrix"]
    stem, second, last = (one for one in found if one is not None)
    # Three channels are padded to eight; five results are none that cuDNN has a kernel for.
    assert (stem.image.sizes[1], stem.absorbed.shown) == (8, " + bias")
    assert second.absorbed.shown == " + bias" and second.epilogue is None
    assert last.absorbed.is_nothing
    assert all(one.is_channels_last for one in (stem, second, last))
    for kernel in kernels:
        check(kernel, "cpu")
