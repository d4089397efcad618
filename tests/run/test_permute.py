"""Values that move between devices: a kernel, or part of one, with the bits of the reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.capture import parse
from weft.evaluate import evaluate
from weft.ir.types import DTYPES
from weft.pipeline import local_program
from weft.run import LocalProgram, run
from weft.run.parts import parts_of

pytestmark = pytest.mark.parametrize("target", ["llvm"], indirect=True)
DEVICES = 8
SPLITS = {'{"x"}': 4, '{"y"}': 2, '{"x", "y"}': 8, "{}": 1}  # how many parts they make
PAIRS = {
    "ring": [(n, (n + 1) % 8) for n in range(8)],
    "shift": [(n, n + 1) for n in range(7)],
    "neighbours": [(n, n ^ 1) for n in range(8)],
    "transpose": [(2 * n + m, 4 * m + n) for n in range(4) for m in range(2)],
    "two": [(0, 3), (5, 6)],
    "nobody moves": [(n, n) for n in range(8)],
}


def text(pairs: list[tuple[int, int]], split: str, dtype: str = "f32", after: str = "") -> str:
    """A program that permutes pieces of 4x5 elements, and does something to what arrives."""
    kind, listed = f"tensor<4x5x{dtype}>", ", ".join(f"[{a}, {b}]" for a, b in pairs)
    table = f"dense<[{listed}]> : tensor<{len(pairs)}x2xi64>"
    return f"""
module {{
  sdy.mesh @mesh = <["x"=4, "y"=2]>
  func.func @main(%x: {kind} {{weft.sharding = #sdy.sharding<@mesh, [{split}, {{}}]>}})
      -> ({kind} {{weft.sharding = #sdy.sharding<@mesh, [{{"x", "y"}}, {{}}]>}}) {{
    %0 = "stablehlo.collective_permute"(%x) <{{
      channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
      source_target_pairs = {table}}}> : ({kind}) -> {kind}
    {after.replace("TYPE", kind)}
    return %{after.count(" = ")} : {kind}
  }}
}}"""


def pieces(split: str, dtype: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A whole argument, and what each device holds of it."""
    count, rng = SPLITS[split], np.random.default_rng(seed)
    held = DTYPES[dtype].numpy
    whole = rng.integers(0, 2 if dtype == "i1" else 100, (4 * count, 5)).astype(held)
    if held.kind == "f":
        whole[0, :3] = np.nan, np.inf, -0.0
    coordinates = {'{"x"}': lambda d: d // 2, '{"y"}': lambda d: d % 2, "{}": lambda d: 0}
    where = coordinates.get(split, lambda d: d)
    return whole, np.stack([whole.reshape(count, 4, 5)[where(d)] for d in range(DEVICES)])


def check(source: str, split: str, dtype: str = "f32", *, bits: bool = True) -> LocalProgram:
    """Run a program by kernels, and compare it with the reference, NaN bit by bit if asked."""
    module = parse(source)
    program = local_program(module)
    whole, parts = pieces(split, dtype)
    (made,) = run(program, whole)
    (wanted,) = evaluate(module, parts, devices=DEVICES)
    got, want = made.numpy(), wanted.reshape(made.numpy().shape)
    if bits:
        np.testing.assert_array_equal(
            np.ascontiguousarray(got).view(np.uint8), np.ascontiguousarray(want).view(np.uint8)
        )
    else:
        np.testing.assert_array_equal(got, want)
    assert all(part.group is not None for part in parts_of(program)), "all of it is kernels"
    return program


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", PAIRS)
def test_who_sends_to_whom(name: str, split: str):
    check(text(PAIRS[name], split), split)


@pytest.mark.parametrize(
    "dtype", ["f64", "bf16", "f16", "f8E4M3FN", "i1", "i8", "i16", "ui32", "i64", "complex<f32>"]
)
def test_dtypes(dtype: str):
    split = '{"x", "y"}'
    check(text(PAIRS["shift"], split, dtype), split, dtype)


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(DEVICES)), st.integers(1, DEVICES), st.sampled_from(list(SPLITS)))
def test_any_pairs(targets: list[int], count: int, split: str):
    check(text(list(enumerate(targets))[:count], split), split)


AFTER = """%1 = stablehlo.negate %0 : TYPE
    %2 = stablehlo.add %1, %x : TYPE"""


@pytest.mark.parametrize("name", PAIRS)
def test_what_follows_is_in_the_same_kernel(name: str):
    program = check(text(PAIRS[name], '{"x", "y"}', after=AFTER), '{"x", "y"}', bits=False)
    assert len(parts_of(program)) == 1
