"""The text of kernels."""

from __future__ import annotations

import pytest

from tests.kernels.building import Building
from weft.ir.types import F32, I32
from weft.kernels.alone import Alone
from weft.kernels.attention import Access, Attention, Window
from weft.kernels.kernel import Operand, Shift
from weft.kernels.text import kernel_text
from weft.ops.pointwise import Compare, Multiply, Subtract
from weft.ops.shape import Reverse
from weft.ops.transcendental import Exponential


def test_a_chain_with_a_reduction():
    k = Building(i=4, j=8)
    x = k.read("ij")
    powers = k.apply(Exponential(), k.apply(Subtract(), x, k.reduce("max", x, "j")))
    k.write("ij", powers)
    assert kernel_text(k.kernel(width=16)) == (
        """\
kernel kernel
  factor i = 4  parallel
  factor j = 8  parallel
  input #0: 4x8xf32
  output #1: 4x8xf32
    %0: f32 = load #0[8*i + j]
    %1: f32 = reduce max %0 over j
    %2: f32 = subtract %0, %1
    %3: f32 = exponential %2
    store #1[8*i + j] %3
  schedule rows: tasks of i, then j, width=16"""
    )


def test_every_kind_of_step():
    k = Building(i=4, j=8)
    table, index = k.input(9, 8), k.read("i", I32)
    found = k.load(table, k.affine(j=1), [k.guard(0, 3, i=1)], [Shift(index, 8, 8, clamped=False)])
    zero = k.fill(0.0)
    total = k.reduce("add", found, "j", zero)
    padded = k.choose([k.guard(1, 5, 2, j=1)], found, zero)
    place = k.position(k.affine(j=1))
    first = k.pick("max", padded, place, "j")
    product = k.contract(k.apply(Multiply(), total, total), found, "j")
    k.apply(Compare("GT"), product, total)
    k.write("i", first)
    text = kernel_text(k.kernel(order="ij", tasks=0))
    for line in (
        "%1: f32 = load #0[j + 8*%0?(0..8)] where 0 <= i < 3",
        "%2: f32 = fill 0.0",
        "%3: f32 = reduce add %1 from %2 over j",
        "%4: f32 = choose %1 else %2 where 1 <= j + 2 < 5",
        "%5: i32 = position j",
        "%6: i32 = pick max %5 by %4 over j",
        "%8: f32 = contract %7, %1 over j in f32",
        "%9: i1 = compare(comparison_direction=GT) %8, %3",
        "schedule rows: tasks of nothing, then i j",
    ):
        assert line in text


def test_a_node_alone():
    stack = (Operand(F32, (4, 1, 8)), Operand(F32, (4, 1, 8), output=True))
    assert kernel_text(Alone("reverse", Reverse((0,)), stack, 2)) == (
        """\
kernel reverse: reverse(dimensions=(0,))
  input #0: 4x1x8xf32
  output #1: 4x1x8xf32"""
    )


@pytest.mark.parametrize(
    ("window", "seen"),
    [
        (Window(), "first..last"),
        (Window(right=0), "first..i"),
        (Window(left=2, right=-1, shift=4), "i + 2..i + 3"),
        (Window(left=3), "i - 3..last"),
    ],
)
def test_attention(window, seen):
    operands = tuple([Operand(F32, (2, 8, 16), output=n == 3) for n in range(4)])
    q, k, v, out = (Access(n, (128,), 16, 1) for n in range(4))
    made = Attention("a", (2,), 8, 8, 16, 16, operands, q, k, v, out, window=window)
    assert kernel_text(made).splitlines()[0] == (
        "kernel a: forward attention at 2 points, 8 queries x 16 and 8 keys x 16; "
        f"query i sees keys {seen}"
    )
