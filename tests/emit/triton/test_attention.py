"""Attention of the triton target: by PyTorch's definition, and by interpreted kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emit.triton.launching import launched
from tests.kernels.attention_cases import Sizes, backward, forward, inputs, kernels
from tests.kernels.interpret_attention import interpret_attention
from tests.tolerance import assert_close
from weft.array.torch_memory import torch_dtype
from weft.emit.triton.attention import attention_blocks, refuses_kernel
from weft.emit.triton.emit import emitted
from weft.emit.triton.emitted import GridLaunch
from weft.emit.triton.library.attention import attention_call
from weft.ir.types import DTYPES
from weft.kernels.attention import Attention, Window

torch = pytest.importorskip("torch")


def by_definition(kernel: Attention, arrays):
    """The outputs of PyTorch's call, on tensors of the host."""
    known = iter(arrays)
    tensors = []
    for operand in kernel.operands:
        held = np.zeros(operand.shape, operand.dtype.numpy)
        if not operand.output:
            held = np.array(next(known))
        flat = torch.from_numpy(held.reshape(-1).view(np.uint8))
        kind = operand.dtype.numpy
        tensors.append(flat.view(torch_dtype(kind)) if operand.size else torch.empty(0))
    attention_call(kernel).run(*tensors)
    outputs = [(o, t) for o, t in zip(kernel.operands, tensors, strict=True) if o.output]
    return [t.view(torch.uint8).numpy().view(o.dtype.numpy).reshape(o.shape) for o, t in outputs]


def compare(kernel: Attention, made, arrays, least=1.0):
    length = 8 * max(kernel.keys, kernel.queries, kernel.depth, kernel.value_depth)
    for n, (a, b) in enumerate(zip(made, interpret_attention(kernel, arrays), strict=True)):
        assert_close(a, b, length, f"output {n} of {kernel}", least=least)


@given(kernels(), st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_the_definition_forward(kernel, seed):
    arrays = inputs(kernel, seed)
    compare(kernel, by_definition(kernel, arrays), arrays)


@given(kernels(lse=True), st.integers(0, 9), st.booleans())
@settings(max_examples=25, deadline=None)
def test_the_definition_backward(kernel, seed, bias):
    arrays = inputs(kernel, seed)
    made = interpret_attention(kernel, arrays)
    dout = np.random.default_rng(7).standard_normal(made[0].shape).astype(made[0].dtype)
    gradient, given_arrays = backward(kernel, bias=bias), [*arrays, *made, dout]
    compare(gradient, by_definition(gradient, given_arrays), given_arrays)


def check_kernel(kernel: Attention) -> None:
    assert all(isinstance(part, GridLaunch) for part in emitted(kernel).parts)
    arrays = inputs(kernel)
    compare(kernel, launched(kernel, arrays, "cpu", poison=0), arrays)


@given(kernels())
@settings(max_examples=12, deadline=None)
def test_kernels(kernel):
    pytest.importorskip("triton")
    if refuses_kernel(kernel) is None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            if isinstance(emitted(kernel).parts[0], GridLaunch):
                check_kernel(kernel)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_keys_of_one_query_are_split(dtype, monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    sizes = Sizes((2, 4), (False, True), 1, 300, 20, 36)
    kernel = forward(sizes, DTYPES[dtype], mask=(False, True, True), fill=-1e30, lse=True)
    assert attention_blocks(kernel).parts > 1
    check_kernel(kernel)


def test_a_window_visits_its_keys_alone(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    sizes = Sizes((1, 2), (False, True), 130, 200, 16, 16)
    check_kernel(forward(sizes, DTYPES["f32"], window=Window(9, 5, 3), lse=True))
