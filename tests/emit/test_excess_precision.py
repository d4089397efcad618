"""Values are what their types can hold before anything reads them; without excess precision, all.

A kernel then computes in every bit what its ops compute one by one, whatever they are fused with.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import weft
from tests.emit.narrow_programs import (
    FLOATS,
    INTEGERS,
    arguments,
    one_by_one,
    program,
    same_bits,
)
from weft.capture import parse
from weft.evaluate import evaluate
from weft.ir.types import DTYPES
from weft.kernels.attention import Attention
from weft.run.parts import parts_of
from weft.tile.fusion import groups as grouping

SEEDS = st.integers(0, 1 << 30)
ROUNDED = [n for n in FLOATS if DTYPES[n].bits < 32 and n != "bf16"]
SMALL = [n for n in ROUNDED if DTYPES[n].bits == 8]


def listed(results):
    return list(results) if isinstance(results, tuple | list) else [results]


def check(seed: int, dtype: str, *, functions: bool, excess_precision: bool = False) -> None:
    """A random program as kernels and op by op: as kernels of one op each, or by the reference."""
    text, arrays = program(seed, dtype, functions=functions), arguments(seed, dtype)
    made = listed(weft.compile(text, excess_precision=excess_precision)(*arrays))
    module = parse(text)
    expected = one_by_one(module, *arrays) if functions else evaluate(module, *arrays)
    for n, (a, b) in enumerate(zip(made, expected, strict=True)):
        good = same_bits(a, b)
        assert good.all(), (n, np.asarray(a)[~good][:3], np.asarray(b)[~good][:3], text)


@given(SEEDS, st.sampled_from((*FLOATS, *INTEGERS)))
@settings(max_examples=8, deadline=None)
def test_kernels_are_what_their_ops_are_one_by_one(seed, dtype):
    check(seed, dtype, functions=True)


@given(SEEDS, st.sampled_from((*FLOATS, *INTEGERS)))
@settings(max_examples=12, deadline=None)
def test_kernels_are_what_the_reference_is(seed, dtype):
    check(seed, dtype, functions=False)


@pytest.mark.long
@given(SEEDS, st.sampled_from((*FLOATS, *INTEGERS)), st.booleans())
@settings(max_examples=600, deadline=None)
def test_many_kernels_are_what_their_ops_are(seed, dtype, functions):
    check(seed, dtype, functions=functions)


@given(SEEDS, st.sampled_from(ROUNDED))
@settings(max_examples=10, deadline=None)
def test_only_bf16_has_excess_precision_by_default(seed, dtype):
    """Products and sums of f32 and f64 may be joined; all that is narrower is rounded."""
    text = program(seed, dtype, functions=False)
    wide = any(f"x{name}>" in text for name in ("bf16", "f32", "f64"))
    check(seed, dtype, functions=False, excess_precision=not wide)


def test_what_overflows_is_infinite():
    x = np.float32([1, 2, 3])
    big = weft.compile(lambda x: jnp.isinf(x.astype("f2") * jnp.float16(65504) * jnp.float16(2)), x)
    assert np.asarray(big(x)).all()


def test_products_of_fp8_are_rounded():
    a = np.asarray(jnp.float32([1.2345678, 19.765625]).astype(jnp.float8_e5m2))
    squared = weft.compile(lambda a: (a * a).astype("f4"), a)
    np.testing.assert_array_equal(np.asarray(squared(a)), [1.5, 384.0])


@pytest.mark.parametrize("dtype", SMALL)
def test_sums_of_fp8_are_rounded_once(dtype):
    """20 ones are 20 where partial sums are not rounded, and what is read is rounded."""
    held = DTYPES[dtype].numpy
    for count in (9, 20, 100):
        x = np.ones((3, count), held)
        made = weft.compile(lambda x: x.sum(1).astype("f4"), x)(x)
        with np.errstate(all="ignore"):
            expected = np.float32(count).astype(held).astype(np.float32)
        np.testing.assert_array_equal(np.asarray(made), np.full(3, expected))


@pytest.mark.parametrize("excess", [True, False])
def test_a_product_is_rounded_before_what_comes_after_reads_it(excess):
    x = np.full((40, 64), 40, np.float16)  # 40 * 40 * 64 is more than f16 has room for

    def over(x, y):
        z = x @ y.T
        return jnp.isinf(z), z.astype("f4"), (z * jnp.float16(0.5)).astype("f4").sum(0)

    made = weft.compile(over, x, x, excess_precision=excess)(x, x)
    infinite, wide, total = map(np.asarray, made)
    assert infinite.all() and np.isinf(wide).all() and np.isinf(total).all()


def test_bf16_is_rounded_where_it_is_asked_for():
    a = np.asarray(jnp.float32([1.2345678, 19.7]).astype(jnp.bfloat16))
    squares = [
        np.asarray(weft.compile(lambda a: (a * a).astype("f4"), a, excess_precision=e)(a))
        for e in (True, False)
    ]
    exact = a.astype(np.float32) ** 2
    np.testing.assert_array_equal(squares[0], exact)
    np.testing.assert_array_equal(squares[1], exact.astype(a.dtype).astype(np.float32))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_cast_there_and_back_rounds(dtype, level):
    x = np.float32([0.1, 300.3, 70000.0, 1e-9])
    made = weft.compile(lambda x: x.astype(dtype).astype("f4") * 1.0, x, level=level)(x)
    with np.errstate(all="ignore"):
        expected = np.asarray(jnp.asarray(x).astype(dtype)).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(made), expected)


def attend(q, k, v):
    scores = jnp.einsum("qd,kd->qk", q, k)
    return jnp.einsum("qk,kd->qd", jax.nn.softmax(scores), v)


def test_scores_in_f16_that_overflow_are_infinite():
    q = np.full((32, 16), 100, np.float16)
    made = weft.compile(attend, q, q, q)
    assert np.isnan(np.asarray(made(q, q, q), np.float32)).all()


@pytest.mark.parametrize(
    ("dtype", "excess", "whole"),
    [("float32", False, True), ("bfloat16", True, True), ("bfloat16", False, False),
     ("float16", True, False)],
)  # fmt: skip
def test_attention_is_one_kernel_if_it_may_hold_more_than_its_type(dtype, excess, whole):
    q = np.asarray(jnp.ones((32, 16), dtype))
    made = weft.compile(attend, q, q, q, excess_precision=excess)
    kernels = [p.group.kernel for p in parts_of(made.program.local) if p.group]
    assert any(isinstance(k, Attention) for k in kernels) is whole


def test_what_is_remembered_on_disk_is_of_one_precision(monkeypatch, tmp_path):
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.setattr(grouping, "LARGE", 1)
    a = np.asarray(jnp.float32([19.7]).astype(jnp.bfloat16))
    exact = a.astype(np.float32) ** 2

    def squared(excess):
        made = weft.compile(lambda a: (a * a).astype("f4"), a, excess_precision=excess)
        return float(np.asarray(made(a))[0])

    rounded = float(exact.astype(a.dtype)[0])
    assert [squared(e) for e in (True, False, True, False)] == [float(exact[0]), rounded] * 2
