"""Attention kernels: every shape, layout, window, mask and dtype against their meaning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emit.llvm.product.emulated_tiles import check_faults, load_tiled
from tests.kernels.attention_cases import Sizes, backward, forward, inputs, kernels, windows
from tests.kernels.interpret_attention import interpret_attention
from tests.tolerance import assert_close
from weft.emit.llvm.attention.attention import emit_attention
from weft.emit.llvm.jit.processor import Processor, host
from weft.emit.llvm.pool.commands import CommandList
from weft.ir.types import DTYPES, F32, Array
from weft.kernels.attention import Attention, Window

GUARD = 64  # elements around every buffer that must not change


def launch(
    kernel: Attention, arrays: Sequence[Array], processor: Processor | None = None
) -> tuple[Array, ...]:
    """The outputs of a kernel; what lies around the operands is not written."""
    loaded = load_tiled(emit_attention(kernel, processor))
    given_arrays = iter(arrays)
    buffers: list[Array] = []
    for operand in kernel.operands:
        held = np.zeros(operand.size + 2 * GUARD, operand.dtype.numpy)
        if not operand.output:
            held[GUARD:-GUARD] = np.ravel(next(given_arrays))
        buffers.append(held)
    commands = CommandList()
    commands.kernel(loaded, [b.ctypes.data + GUARD * b.itemsize for b in buffers])
    commands.run()
    check_faults()
    pairs = [(o, b) for o, b in zip(kernel.operands, buffers, strict=True) if o.output]
    for _, buffer in pairs:
        assert not buffer[:GUARD].any() and not buffer[-GUARD:].any(), "written outside"
    return tuple([b[GUARD:-GUARD].reshape(o.shape) for o, b in pairs])


def check(
    kernel: Attention, arrays: Sequence[Array], processor: Processor | None = None
) -> tuple[Array, ...]:
    """Run a kernel and compare it with its meaning."""
    made, expected = launch(kernel, arrays, processor), interpret_attention(kernel, arrays)
    length = 4 * max(kernel.keys, kernel.queries, kernel.depth, kernel.value_depth)
    for n, (a, b) in enumerate(zip(made, expected, strict=True)):
        assert_close(a, b, length, f"output {n} of {kernel}", least=1.0)
    return made


def with_outputs(kernel: Attention, made: Sequence[Array], arrays: Sequence[Array]) -> list[Array]:
    """What the backward kernel of a forward one reads: its inputs, its outputs, a gradient."""
    rng = np.random.default_rng(7)
    dout = rng.standard_normal(made[0].shape).astype(made[0].dtype)
    return [*arrays, *made, dout]


@given(kernels(), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_forward(kernel: Attention, seed: int):
    check(kernel, inputs(kernel, seed))


@given(kernels(lse=True), st.integers(0, 9), st.booleans())
@settings(max_examples=40, deadline=None)
def test_backward(kernel: Attention, seed: int, bias: bool):
    arrays = inputs(kernel, seed)
    made = interpret_attention(kernel, arrays)
    check(backward(kernel, bias=bias), with_outputs(kernel, made, arrays))


@given(
    st.integers(1, 9),
    st.integers(1, 4),
    st.sampled_from((1, 7, 64, 300)),
    st.sampled_from(("f32", "bf16", "f64")),
    st.booleans(),
    st.data(),
)
@settings(max_examples=30, deadline=None)
def test_few_queries(
    queries: int, heads: int, keys: int, dtype: str, masked: bool, data: st.DataObject
):
    """One token after another: heads that share keys become queries."""
    sizes = Sizes((2, heads), (False, True), queries, keys, 20, 36)
    alike = (False, True, True) if masked else None
    kernel = forward(
        sizes,
        DTYPES[dtype],
        mask=alike,
        bias=alike,
        fill=-1e30,
        lse=True,
        window=data.draw(windows(queries, keys)),
    )
    check(kernel, inputs(kernel))


SIZES = Sizes((2, 3), (False, True), 70, 90, 48, 40)


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16", "f16"])
@pytest.mark.parametrize(
    "window",
    [
        Window(),
        Window(None, 0),
        Window(None, 0, 20),
        Window(9, 5),
        Window(-3, 10),
    ],
    ids=str,
)
def test_windows_and_dtypes(dtype: str, window: Window):
    kernel = forward(SIZES, DTYPES[dtype], lse=True, window=window)
    arrays = inputs(kernel)
    made = check(kernel, arrays)
    check(backward(kernel), with_outputs(kernel, made, arrays))


@pytest.mark.parametrize("features", ["", "+avx2,+fma"])
def test_other_processors(features: str):
    """Vectors of 128 and 256 bits, as LLVM makes them of what this machine has."""
    narrow = replace(host(), features=features or host().features.replace("+avx", "-avx"))
    for sizes in (SIZES, Sizes((2,), (False,), 5, 130, 16, 16)):
        kernel = forward(sizes, F32, lse=True, window=Window(30, 3))
        arrays = inputs(kernel)
        made = check(kernel, arrays, narrow)
        check(backward(kernel), with_outputs(kernel, made, arrays), narrow)


@pytest.mark.parametrize(("queries", "keys"), [(40, 8), (8, 3)])
def test_queries_that_see_nothing(queries: int, keys: int):
    sizes = Sizes((2,), (False,), queries, keys, 16, 16)
    kernel, last = forward(sizes, lse=True, window=Window(2, 2)), keys + 2
    out, lse = check(kernel, inputs(kernel))
    assert not out.reshape(2, queries, 16)[:, last:].any()
    assert (lse.reshape(2, queries)[:, last:] == -math.inf).all()
    nan = replace(kernel, empty="nan")
    assert np.isnan(check(nan, inputs(nan))[0].reshape(2, queries, 16)[:, last:]).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("operand", [0, 1, 2])
def test_numbers_that_are_none(bad: float, operand: int):
    """They spoil the rows that they reach, and no others."""
    kernel = forward(Sizes((2,), (False,), 20, 70, 16, 16), lse=True, window=Window(None, 0, 50))
    arrays = inputs(kernel)
    arrays[operand].reshape(-1)[200] = bad
    with np.errstate(all="ignore"):
        check(kernel, arrays)


def test_large_scores_do_not_overflow():
    kernel = forward(Sizes((1,), (False,), 33, 150, 32, 16), lse=True)
    arrays = inputs(kernel, spread=30.0)
    made = check(kernel, arrays)
    gradients = launch(backward(kernel), with_outputs(kernel, made, arrays))
    assert all(np.isfinite(g).all() for g in gradients)


@pytest.mark.parametrize("outer", [(), (0, 2), (1, 1)])
def test_outer_dims(outer: tuple[int, ...]):
    kernel = forward(Sizes(outer, (False,) * len(outer), 9, 7, 5, 3))
    check(kernel, inputs(kernel))


def test_few_points_share_their_keys_among_tasks():
    kernel = forward(
        Sizes((1, 2), (False, True), 64, 300, 32, 32), lse=True, window=Window(None, 40)
    )
    emitted = emit_attention(backward(kernel))
    assert len(emitted.phases) == 2 and emitted.phases[0].tasks > 1
    arrays = inputs(kernel)
    made = check(kernel, arrays)
    check(backward(kernel), with_outputs(kernel, made, arrays))
