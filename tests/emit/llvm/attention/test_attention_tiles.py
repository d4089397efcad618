"""Attention in bf16 on matrix tiles, and the same in vectors, against what it means."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emit.llvm.attention.test_attention import check, launch
from tests.emit.llvm.product.emulated_tiles import HAVE, TILED
from tests.kernels.attention_cases import Sizes, forward, inputs, windows
from tests.kernels.interpret_attention import interpret_attention
from tests.tolerance import assert_close
from weft.emit.llvm.attention.attention import emit_attention
from weft.emit.llvm.jit.caches import Caches
from weft.emit.llvm.jit.machine_code import assembly
from weft.emit.llvm.jit.processor import Processor, host
from weft.ir.types import DTYPES, F32
from weft.kernels.attention import Window

BF16 = DTYPES["bf16"]
WITHOUT = replace(host(), features=host().features.replace("+amx", "-amx"))
needs_tiles = pytest.mark.skipif(not HAVE, reason="this machine gives us no matrix tiles")
needs_vectors = pytest.mark.skipif(not host().has("avx512f"), reason="no vectors of 512 bits")
PROCESSORS = [
    pytest.param(TILED, id="tiles", marks=needs_vectors),
    pytest.param(WITHOUT, id="vectors"),
]
LENGTHS = [
    (70, 90, 48, 40),
    (64, 128, 64, 64),
    (33, 145, 80, 17),
    (530, 300, 32, 96),
    (17, 64, 33, 31),
]


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
def test_lengths_and_depths(lengths: tuple[int, int, int, int], processor: Processor):
    kernel = forward(Sizes((2, 2), (False, True), *lengths), BF16, lse=True)
    check(kernel, inputs(kernel), processor)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize(
    "window",
    [
        Window(None, 0),
        Window(None, 0, 20),
        Window(40, 5),
        Window(-3, 10),
        Window(None, -100),
    ],
    ids=str,
)
def test_windows(window: Window, processor: Processor):
    for queries, keys in ((70, 290), (300, 130)):
        kernel = forward(
            Sizes((2,), (False,), queries, keys, 64, 48), BF16, lse=True, window=window
        )
        check(kernel, inputs(kernel), processor)


@settings(deadline=None, max_examples=10)
@given(st.data())
@pytest.mark.parametrize("processor", PROCESSORS)
def test_any_attention(processor: Processor, data: st.DataObject):
    """Masks, biases, layouts, and tiles of any size."""
    queries, keys = data.draw(st.integers(17, 150)), data.draw(st.integers(1, 300))
    depth, value_depth = data.draw(st.integers(1, 140)), data.draw(st.integers(1, 140))
    alike = st.none() | st.tuples(st.booleans(), st.booleans(), st.booleans())
    kernel = forward(
        Sizes((2, 2), (data.draw(st.booleans()), False), queries, keys, depth, value_depth),
        BF16,
        tuple(data.draw(st.sampled_from(("orc", "roc"))) for _ in range(4)),
        mask=data.draw(alike),
        bias=data.draw(alike),
        fill=data.draw(st.sampled_from((-math.inf, -1e30))),
        lse=data.draw(st.booleans()),
        window=data.draw(windows(queries, keys)),
        empty=data.draw(st.sampled_from(("zero", "nan"))),
        bias_scale=data.draw(st.sampled_from((1.0, -1.0))),
    )
    options = {"vectors": st.integers(1, 4), "keys": st.sampled_from((32, 64, 100))}
    chosen = {n: data.draw(o) for n, o in options.items() if data.draw(st.booleans())}
    check(replace(kernel, options=tuple(chosen.items())), inputs(kernel), processor)


@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_tile_that_ends_inside_of_a_register_block(processor: Processor):
    kernel = forward(
        Sizes((2, 2), (False, False), 97, 101, 1, 1), BF16, window=Window(None, 0), empty="zero"
    )
    check(replace(kernel, options=(("keys", 100),)), inputs(kernel), processor)


@needs_vectors
@pytest.mark.parametrize("depth", [64, 40])
def test_keys_without_room_for_all(depth: int):
    kernel = forward(Sizes((2,), (False,), 70, 301, depth, 40), BF16, window=Window(None, 9, 100))
    check(kernel, inputs(kernel), replace(TILED, caches=Caches(l2=0)))


@needs_vectors
def test_probabilities_have_more_bits_than_bf16():
    """Values that cancel: what is left would be lost if probabilities were rounded."""
    kernel = forward(Sizes((1,), (False,), 64, 256, 64, 64), BF16)
    operands = list(kernel.operands)
    operands[kernel.out.operand] = replace(operands[kernel.out.operand], dtype=F32)
    kernel = replace(kernel, operands=tuple(operands))
    arrays = inputs(kernel, spread=0.05)
    arrays[2] = np.tile(np.float32([1, -1]).repeat(64), 128).astype(BF16.numpy)
    (found,), (expected,) = launch(kernel, arrays, TILED), interpret_attention(kernel, arrays)
    assert_close(found, expected.astype(np.float32), 256, least=0.05)


@pytest.mark.parametrize("processor", PROCESSORS)
def test_scores_far_apart(processor: Processor):
    """Probabilities down to 0, by way of those that are hardly normal."""
    for spread in (3.0, 8.0, 30.0):
        kernel = forward(Sizes((1,), (False,), 64, 300, 64, 64), BF16, lse=True)
        check(kernel, inputs(kernel, spread=spread), processor)


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_none(bad: float, processor: Processor):
    for operand in range(3):
        kernel = forward(Sizes((2,), (False,), 40, 70, 64, 64), BF16, lse=True)
        arrays = inputs(kernel)
        arrays[operand].reshape(-1)[200] = bad
        with np.errstate(all="ignore"):
            check(kernel, arrays, processor)


@needs_tiles
def test_tiles_are_used_and_given_back():
    kernel = forward(Sizes((2,), (False,), 64, 64, 64, 64), BF16)
    made = assembly(emit_attention(kernel).text)
    assert "tdpbf16ps" in made and "ldtilecfg" in made and "tilerelease" in made
    assert "tile" not in assembly(emit_attention(kernel, WITHOUT).text, WITHOUT)
