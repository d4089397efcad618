"""Layouts of convolutions and unrolled windows: the same numbers, in other orders of dims."""

from __future__ import annotations

from importlib import import_module

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import weft
from weft.capture import capture
from weft.evaluate import evaluate
from weft.ops.convolution import Convolution
from weft.ops.shape import Transpose
from weft.ops.window import ReduceWindow
from weft.optimize.layout import channels_last, narrow_ragged_dots, unroll_windows
from weft.pipeline import compile_module


def values(*shapes, dtype=ml_dtypes.bfloat16):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def captured(function, given):
    program = compile_module(capture(function, tuple(given)).module, to="optimized")
    return program.module


def same_results(module, after, given):
    for one, other in zip(evaluate(module, *given), evaluate(after, *given), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one, "f"), np.asarray(other, "f"))


def of(module, *kinds):
    return [node for node in module.nodes() if isinstance(node.op, kinds)]


def convolve(x, w, dims=("NCHW", "OIHW", "NCHW"), strides=(1, 1), pads="SAME"):
    return jax.lax.conv_general_dilated(x, w, strides, pads, dimension_numbers=dims)


def between(x, w, v, c):
    """Ops that keep the layout between two convolutions."""
    y = jax.nn.relu(convolve(x, w) + c[None, :, None, None])
    y = jnp.concatenate([y, y * 2], 1)
    groups = y.reshape(y.shape[0], 2, y.shape[1] // 2, -1).astype("f4")
    y = (groups - groups.mean((2, 3), keepdims=True)).reshape(y.shape).astype(y.dtype)
    y = jnp.pad(y, ((0, 0), (0, 0), (1, 0), (0, 2)))[:, :, ::2, 1:]
    y = y.at[:, :, jnp.array([2, 0, 1])].get()
    z = convolve(y, v, strides=(2, 1))
    return z, y.sum((0, 3)), jnp.max(z, (2, 3))


def of_scans(x, w):
    """A convolution that a loop reads."""
    y = convolve(x, w)
    return jax.lax.fori_loop(
        0, 3, lambda n, s: s + y[:, :, 0, 0] * n, jnp.zeros_like(y[:, :, 0, 0])
    )


CASES = {
    "between": (between, [(2, 3, 7, 6), (4, 3, 3, 3), (5, 8, 3, 3), (4,)]),
    "a loop": (of_scans, [(2, 3, 5, 6), (4, 3, 3, 3)]),
    "channels last already": (
        lambda x, w: jax.nn.relu(convolve(x, w, ("NHWC", "HWIO", "NHWC"))),
        [(2, 5, 6, 3), (3, 3, 3, 4)],
    ),
    "three dims": (
        lambda x, w: convolve(x, w, ("NCDHW", "OIDHW", "NCDHW"), (1, 2, 1), [(1, 0)] * 3) * 2,
        [(1, 3, 4, 5, 6), (4, 3, 2, 2, 2)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_channels_last(name, monkeypatch):
    monkeypatch.setattr(import_module("weft.optimize.layout.channels_last"), "LEAST", 1)
    function, shapes = CASES[name]
    given = values(*shapes)
    module = captured(function, given)
    after = channels_last(module)
    same_results(module, after, given)
    for node in of(after, Convolution):
        dims = node.op.dimension_numbers
        last = len(dims.input) - 1
        assert (dims.input[1], dims.kernel[0], dims.output[1]) == (last, last, last)
    if name == "between":  # both sides of each convolution, and the two results that have a layout
        assert len(of(after, Transpose)) <= 5


def test_small_and_exact_convolutions_are_left():
    for dtype in (np.float32, ml_dtypes.bfloat16):
        given = values((2, 3, 7, 6), (4, 3, 3, 3), dtype=dtype)
        module = captured(convolve, given)
        assert channels_last(module) is module


def pool(how, start, window, strides, pads, dilation=(1, 1, 1, 1)):
    return lambda x: jax.lax.reduce_window(
        x, np.asarray(start, x.dtype)[()], how, window, strides, pads, window_dilation=dilation
    )


def spatial(*pads):
    return [(0, 0), (0, 0), *pads]


POOLS = {
    "maxima": (
        pool(jax.lax.max, -np.inf, (1, 1, 3, 3), (1, 1, 2, 2), spatial((1, 1), (1, 1))),
        9,
    ),
    "sums": (pool(jax.lax.add, 0, (1, 1, 2, 2), (1, 1, 2, 1), "VALID"), 4),
    "dilated": (pool(jax.lax.min, np.inf, (1, 2, 1, 3), (1, 1, 1, 2), "SAME", (1, 1, 1, 2)), 6),
    "cropped": (
        pool(jax.lax.max, -np.inf, (1, 1, 2, 2), (1, 1, 1, 1), spatial((-1, 1), (0, -1))),
        4,
    ),
    "large": (pool(jax.lax.add, 0, (1, 1, 5, 5), (1, 1, 1, 1), "SAME"), None),
    "a larger start": (pool(jax.lax.max, 0, (1, 1, 2, 2), (1, 1, 2, 2), "SAME"), None),
    "another start": (pool(jax.lax.add, 1, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"), None),
    "pads alone": (
        pool(jax.lax.max, -np.inf, (1, 1, 2, 1), (1, 1, 1, 1), spatial((29, 0), (0, 0))),
        2,
    ),
}


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("name", POOLS)
def test_unrolled_windows(name, dtype):
    function, taps = POOLS[name]
    given = values((2, 3, 7, 6), dtype=dtype)
    module = captured(function, given)
    after = unroll_windows(module)
    assert bool(of(after, ReduceWindow)) == (taps is None)
    same_results(module, after, given)


def test_ragged_dots_round_where_nothing_reads_their_wide_sums():
    def experts(x, up, down, sizes):
        made = jax.lax.ragged_dot(x, up, sizes, preferred_element_type=jnp.float32)
        narrow = jax.nn.relu(made.astype(jnp.bfloat16))
        last = jax.lax.ragged_dot(narrow, down, sizes, preferred_element_type=jnp.float32)
        return last.astype(jnp.bfloat16), last.sum()

    def of(*shape):
        return jnp.asarray(np.random.default_rng(0).integers(-2, 3, shape), jnp.bfloat16)

    given = (of(6, 4), of(2, 4, 5), of(2, 5, 4), np.array([2, 3], "i"))
    module = weft.compile(experts, *given).program.module
    after = narrow_ragged_dots(module)
    made = [str(n.types[0]) for n in after.nodes() if n.op.name == "chlo.ragged_dot"]
    assert made == ["tensor<6x5xbf16>", "tensor<6x4xf32>"]
    for one, other in zip(evaluate(after, *given), evaluate(module, *given), strict=True):
        np.testing.assert_array_equal(np.asarray(one, "f"), np.asarray(other, "f"))
