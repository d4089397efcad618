"""Kernels for processors with shorter registers, and for those of another make."""

from __future__ import annotations

import math
import platform

import pytest
from hypothesis import given, settings

from tests.emit.llvm.launching import check
from tests.kernels.building import Building
from tests.kernels.chains import CHAINS
from tests.kernels.random_kernels import kernels
from weft.emit.llvm.emit import emit
from weft.emit.llvm.jit.machine_code import assembly
from weft.emit.llvm.jit.processor import Processor, host
from weft.ir.types import F32, dtype
from weft.kernels.kernel import Kernel

HASWELL = Processor(host().triple, "haswell")
PLAIN = Processor(host().triple, "x86-64")
ARM = Processor("aarch64-unknown-linux-gnu", "generic")
ours = pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86 instructions")


@ours
@pytest.mark.parametrize("processor", [HASWELL, PLAIN], ids=lambda p: p.cpu)
@pytest.mark.parametrize("kind", ["f32", "bf16"])
@pytest.mark.parametrize("name", CHAINS)
def test_chains_without_long_registers(name: str, kind: str, processor: Processor):
    b = CHAINS[name](5, 112, dtype(kind))
    check(b.kernel(), b.arrays(), 112, processor)


@ours
@settings(max_examples=10)
@given(kernels())
def test_random_kernels_without_long_registers(made: tuple[Building, Kernel]):
    b, kernel = made
    check(kernel, b.arrays(), 16 * math.prod(b.sizes.values()), HASWELL)


@pytest.mark.parametrize("name", ["softmax", "layer_norm", "rotary"])
def test_chains_for_arm(name: str):
    text = emit(CHAINS[name](64, 128, F32).kernel(), ARM).text
    made = assembly(text, ARM)
    assert "fmla" in made and "exp" not in made, "vectors, and no calls"
