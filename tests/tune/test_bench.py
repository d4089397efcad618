"""Measurements of candidates: the elements that they are compared on."""

from __future__ import annotations

import pytest

from tests.kernels.building import Building
from weft.emit.llvm.target import LLVM
from weft.ir.types import DTYPES
from weft.kernels.kernel import Kernel
from weft.ops.elementwise.pointwise import Add, Subtract
from weft.tune.bench import Bench


def kernel(name: str, *others: type) -> Kernel:
    """x + x, or that with more ops of x."""
    b = Building(i=300)
    x = b.read("i", DTYPES[name])
    total = b.apply(Add(), x, x)
    for op in others:
        total = b.apply(op(), total, x)
    b.write("i", total)
    return b.kernel()


@pytest.mark.parametrize("name", ["f32", "bf16", "f64", "i8", "ui8", "i16", "i32", "ui32", "i64"])
def test_a_wrong_candidate_is_seen_but_of_integers_that_may_be_indices(name: str):
    right, same = kernel(name), kernel(name, Add, Subtract)
    bench = Bench(right, {"right": right, "same": same, "wrong": kernel(name, Add)}, LLVM())
    assert bench.mismatch("right") is None and bench.mismatch("same") is None
    may_be_indices = "i" in name and not name.endswith("i8")
    assert (bench.mismatch("wrong") is None) == may_be_indices
