"""The work of kernels: counted from their steps, and turned into seconds."""

from __future__ import annotations

import pytest

from tests.kernels.building import Building
from weft.cost.kernels import kernel_seconds
from weft.ir.types import DTYPES, F32, I32, tensor
from weft.ir.work import Work
from weft.kernels.attention import Access, Attention, Window
from weft.kernels.kernel import Operand, Shift
from weft.kernels.single_node import SingleNode
from weft.kernels.work import bytes_moved, product_flops, work_of
from weft.machine import HOST
from weft.ops.elementwise.pointwise import Add, Multiply, Subtract
from weft.ops.elementwise.transcendental import Exponential
from weft.ops.shape import Reverse
from weft.ops.slicing import DynamicSlice

BF16 = DTYPES["bf16"]


def test_a_chain_counts_every_operand_once():
    k = Building(i=4, j=8)
    x, bias = k.read("ij"), k.read("j")
    k.write("ij", k.apply(Multiply(), k.apply(Add(), x, bias), x))
    assert work_of(k.kernel()) == Work(flops=64, bytes=4 * (32 + 8 + 32))


def test_what_is_the_same_in_a_row_is_computed_once():
    k = Building(i=4, j=8)
    x = k.read("ij")
    largest = k.reduce("max", x, "j")
    powers = k.apply(Exponential(), k.apply(Subtract(), x, largest))
    total = k.reduce("add", powers, "j")
    k.write("ij", k.apply(Multiply(), powers, k.apply(Exponential(), total)))
    counted = work_of(k.kernel())
    assert counted.transcendentals == 32 + 4
    assert counted.flops == 4 * 32  # largest, difference, sum and product
    assert counted.bytes == 2 * 4 * 32


def test_a_part_of_an_operand_is_a_part_of_its_bytes():
    k = Building(i=4, j=8)
    whole = k.input(4, 100)
    k.write("ij", k.load(whole, k.affine(3, i=100, j=1)))
    assert bytes_moved(k.kernel()) == 2 * 4 * 32


def test_two_reads_of_one_place_move_it_once():
    k = Building(i=4, j=4)
    x = k.input(4, 4)
    once, again = k.load(x, k.rows("ij")), k.load(x, k.rows("ij"))
    turned = k.load(x, k.rows("ji"))
    k.write("ij", k.apply(Add(), k.apply(Add(), once, again), turned))
    assert bytes_moved(k.kernel()) == 4 * (16 + 16)


def test_rows_found_at_run_time_are_counted_by_how_many_there_are():
    k = Building(i=5, j=8)
    table, index = k.input(100, 8), k.read("i", I32)
    k.write("ij", k.load(table, k.affine(j=1), shifts=[Shift(index, 99, 8)]))
    assert bytes_moved(k.kernel()) == 4 * (40 + 5 + 40)


def test_a_product_counts_two_flops_a_point():
    k = Building(i=4, j=8, k=16)
    k.write("ij", k.contract(k.read("ik", BF16), k.read("kj", BF16), "k"), BF16)
    kernel = k.kernel("packed")
    assert product_flops(kernel) == {BF16: 2 * 4 * 8 * 16}
    assert work_of(kernel) == Work(flops=1024, bytes=2 * (64 + 128 + 32))


def test_nothing_is_done_for_no_elements():
    k = Building(i=0, j=8)
    k.write("ij", k.apply(Exponential(), k.read("ij")))
    assert work_of(k.kernel()) == Work()


def test_a_node_alone_works_on_every_device():
    stack = (Operand(F32, (4, 1, 8)), Operand(F32, (4, 1, 8), output=True))
    assert work_of(SingleNode("reverse", Reverse((0,)), stack, 2)).bytes == 2 * 4 * 32


def test_what_devices_share_is_moved_once():
    op = DynamicSlice((2,))
    table, index = Operand(F32, (1, 100)), Operand(I32, (4,))
    found = Operand(F32, (4, 2), output=True)
    counted = work_of(SingleNode("slice", op, (table, index, found), 1))
    one = op.work((tensor(100), tensor(dtype=I32)), (tensor(2),))
    assert counted.bytes == min(4 * one.bytes, 4 * (100 + 4 + 8))


def attention(window: Window) -> Attention:
    operands = [Operand(BF16, (2, 4, 8, 16), output=n == 3) for n in range(4)]
    q, k, v, out = (Access(n, (512, 128), 16, 1) for n in range(4))
    return Attention(
        "attention", (2, 4), 8, 8, 16, 16, tuple(operands), q, k, v, out, window=window
    )


def test_attention_counts_the_scores_that_are_seen():
    counted = work_of(attention(Window()))
    points = 2 * 4 * 8 * 8
    assert counted.transcendentals == points
    assert counted.flops == 2 * points * 32 + 4 * points
    assert counted.bytes == 4 * 2 * (2 * 4 * 8 * 16)
    assert product_flops(attention(Window())) == {BF16: 2 * points * 32}
    causal = work_of(attention(Window(right=0)))
    assert causal.transcendentals == 2 * 4 * (8 * 9 // 2)


def test_a_kernel_takes_as_long_as_the_slower_of_computing_and_moving():
    chain = Building(i=1000, j=1000)
    chain.write("ij", chain.apply(Add(), chain.read("ij"), chain.read("ij")))
    moving = 12e6 / HOST.bandwidth
    assert kernel_seconds(chain.kernel(), HOST) == pytest.approx(HOST.launch + moving)
    product = Building(i=512, j=512, k=512)
    product.write("ij", product.contract(product.read("ik"), product.read("kj"), "k"))
    computing = 2 * 512**3 / HOST.rate(F32)
    assert kernel_seconds(product.kernel("packed"), HOST) == pytest.approx(HOST.launch + computing)
