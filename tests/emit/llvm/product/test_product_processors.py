"""Products for processors with shorter registers, and for those of another make."""

from __future__ import annotations

import platform

import pytest

from tests.emit.llvm.launching import check
from tests.emit.llvm.product.products import product
from weft.emit.llvm.emit import emit
from weft.emit.llvm.jit.machine_code import assembly
from weft.emit.llvm.jit.processor import Processor, host
from weft.ir.types import DTYPES, F32, I32
from weft.ops.elementwise.pointwise import Add

HASWELL = Processor(host().triple, "haswell", "+avx,+avx2,+fma")
PLAIN = Processor(host().triple, "x86-64")
ARM = Processor("aarch64-unknown-linux-gnu", "generic")
ours = pytest.mark.skipif(platform.machine() != "x86_64", reason="runs x86 instructions")


@ours
@pytest.mark.parametrize("processor", [HASWELL, PLAIN], ids=lambda p: p.cpu)
@pytest.mark.parametrize("dims", [("mk", "kn", "mn"), ("km", "nk", "mn")], ids=str)
@pytest.mark.parametrize("kind", ["f32", "bf16", "f64", "i8"])
def test_products_without_long_registers(
    kind: str, dims: tuple[str, str, str], processor: Processor
):
    dtype = DTYPES[kind]
    held = I32 if dtype.is_integer else F32 if dtype.bits < 64 else dtype
    b, total = product(dims, {"m": 37, "n": 45, "k": 70}, dtype, held, held)
    b.write("mn", b.apply(Add(), total, b.read("n", held)))
    check(b.kernel("packed"), b.arrays(), 70, processor)


@ours
@pytest.mark.parametrize("processor", [HASWELL, PLAIN], ids=lambda p: p.cpu)
def test_few_rows_without_long_registers(processor: Processor):
    for dims in (("mk", "kn", "mn"), ("mk", "nk", "mn")):
        b, total = product(dims, {"m": 2, "n": 45, "k": 70})
        b.write("mn", total)
        check(b.kernel("packed"), b.arrays(), 70, processor)


def test_products_for_arm():
    b, total = product(("mk", "kn", "mn"), {"m": 64, "n": 64, "k": 64})
    b.write("mn", total)
    made = assembly(emit(b.kernel("packed"), ARM).text, ARM)
    assert "fmla" in made and "fmaf" not in made, "vectors, and no calls"


def test_pairs_of_bf16_where_the_processor_has_them():
    b, total = product(("mk", "kn", "mn"), {"m": 40, "n": 33, "k": 21}, DTYPES["bf16"], F32, F32)
    b.write("mn", total)
    kernel, wide = b.kernel("packed"), "+avx512f,+avx512bw,+avx512vl"
    with_pairs = Processor("x86_64-unknown-linux-gnu", "cooperlake", f"{wide},+avx512bf16")
    assert "vdpbf16ps" in emit(kernel, with_pairs).text
    for processor in (HASWELL, ARM, Processor("x86_64-unknown-linux-gnu", "skx", wide)):
        assert "vdpbf16ps" not in emit(kernel, processor).text
