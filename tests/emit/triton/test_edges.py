"""Edge cases on the triton target: on a GPU, and interpreted on the host; there most are long."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
import pytest
import torch

import weft
from tests.emit.triton.edges import CASES
from tests.emit.triton.edges_torch import MODULES

pytest.importorskip("triton")
SAMPLE = {
    *("integers of uint32", "scattered float32", "moved bool", "empty bfloat16", "unaligned"),
    *("rows of special values", "special values", "conj input", "neg input", "empty"),
    *("ends of exponentials", "ends of divisors"),
}
# Relative errors: of sums in another order, and of roundings between fused ops.
LIMITS = {"bfloat16": 2**-5, "float16": 2**-9, "float32": 3e-5, "complex64": 3e-5}


def sampled(names: Iterable[str]) -> list[Any]:
    return [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.long) for n in names]


def assert_same(made: Any, expected: Any, kinds: Iterable[str]) -> None:
    """Equal types, integers, NaN and infinities; floats as precise as the narrowest of kinds."""
    one, other = np.asarray(made), np.asarray(expected)
    assert (one.shape, one.dtype) == (other.shape, other.dtype)
    if other.dtype.kind in "iub":
        np.testing.assert_array_equal(one, other)
        return
    limit = max([LIMITS.get(kind, 1e-9) for kind in (*kinds, str(other.dtype))])
    wide = np.complex128 if other.dtype.kind == "c" else np.float64
    one, other = one.astype(wide), other.astype(wide)
    finite = np.isfinite(other)
    np.testing.assert_array_equal(one[~finite], other[~finite])
    mean = np.abs(other[finite]).mean() if finite.any() else 0
    allowed = limit * np.maximum(np.abs(other[finite]), mean + 1e-9)
    worst = (np.abs(one[finite] - other[finite]) / allowed).max(initial=0)
    assert worst <= 1, f"{worst:.2g} times the allowed error of {limit:.1g}"


def check_function(name: str, runs: int) -> None:
    function, given = CASES[name]
    kinds = {str(x.dtype) for x in given if np.asarray(x).dtype.kind not in "iub"}
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        expected = jax.tree.leaves(jax.jit(function)(*given))
        compiled = weft.compile(function, *given, target="triton")
        for _ in range(runs):  # launched, captured, replayed
            for one, other in zip(jax.tree.leaves(compiled(*given)), expected, strict=True):
                assert_same(one, other, kinds)


def numpy(tensor: torch.Tensor) -> Any:
    held = tensor.detach().cpu().resolve_conj().resolve_neg()
    return held.float().numpy() if held.dtype == torch.bfloat16 else held.numpy()


def check_module(name: str, device: str, runs: int) -> None:
    module, given = MODULES[name]
    reference, ours = copy.deepcopy(module), copy.deepcopy(module).to(device)
    kinds = [str(x.dtype)[6:] for x in given if
             x.is_floating_point() or x.is_complex()]  # fmt: skip
    arguments, leaves = [x.to(device) for x in given], torch.utils._pytree.tree_leaves
    compiled = weft.compile(ours, target="triton")
    with torch.no_grad():
        for _ in range(runs):
            expected, made = leaves(reference(*given)), leaves(compiled(*arguments))
            buffers = [*reference.buffers()], [*ours.buffers()]
            for one, other in zip([*made, *buffers[1]], [*expected, *buffers[0]], strict=True):
                assert one.dtype == other.dtype
                assert_same(numpy(one), numpy(other), [*kinds, str(other.dtype)[6:]])


@pytest.mark.parametrize("name", sampled(CASES))
def test_functions(name, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    check_function(name, 1)


@pytest.mark.parametrize("name", sampled(MODULES))
def test_modules(name, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    check_module(name, "cpu", 1)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_functions_on_a_gpu(name):
    check_function(name, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("name", MODULES)
def test_modules_on_a_gpu(name):
    check_module(name, "cuda", 3)
