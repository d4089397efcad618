"""Texts of kernels: which are compiled in a hurry, and how often loops look at the clock."""

from __future__ import annotations

import pytest

from tests.kernels.building import Building
from weft.emit.llvm.flow.interrupt_poll import BUDGET, round_work
from weft.emit.llvm.texts import emitted
from weft.kernels.flow import FlowBlock, FlowLoop, KernelRun
from weft.kernels.kernel import Kernel
from weft.kernels.work import work_of
from weft.ops.elementwise.pointwise import Add
from weft.ops.elementwise.transcendental import Exponential


def chain(size: int, inputs: int) -> Kernel:
    """The exponential of a sum of inputs."""
    b = Building(i=size)
    total = b.read("i")
    for _ in range(inputs - 1):
        total = b.apply(Add(), total, b.read("i"))
    b.write("i", b.apply(Exponential(), total))
    return b.kernel()


@pytest.mark.parametrize(
    ("size", "inputs", "brief"),
    [(1024, 1, True), (1025, 1, False), (700, 2, False), (680, 2, True)],
)
def test_few_points_of_few_bytes_are_compiled_in_a_hurry(size: int, inputs: int, brief: bool):
    assert emitted(chain(size, inputs)).brief is brief


def test_rounds_of_loops_count_what_they_compute():
    def looped(size: int) -> FlowLoop:
        body = FlowBlock((KernelRun(chain(size, 1), ()),) * 2, ())
        return FlowLoop((), (), FlowBlock((), ()), body, ())

    one = work_of(chain(1600, 1))
    assert one.flops + one.bytes >= 8 * 1600 and one.transcendentals == 1600
    each = (one.flops + one.bytes) // 8 + 1600
    assert round_work(looped(1600)) == 2 + 2 + 2 * each < BUDGET
    assert round_work(looped(1 << 20)) == BUDGET
