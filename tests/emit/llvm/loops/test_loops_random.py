"""Random kernels mean the same as LLVM text and as they are interpreted."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tests.emit.llvm.launching import check
from tests.kernels.building import Building
from tests.kernels.random_kernels import kernels
from weft.kernels.kernel import Kernel


@given(kernels(), st.integers(0, 3))
def test_random_kernels(made: tuple[Building, Kernel], seed: int):
    b, kernel = made
    check(kernel, b.arrays(seed), 16 * math.prod(b.sizes.values()))
