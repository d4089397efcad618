"""Loops that can be interrupted: they count their work, and ask now and then whether to go on."""

from __future__ import annotations

from weft.emit.llvm.flow.interrupts import GOES_ON
from weft.emit.llvm.writer.code import Writer
from weft.kernels.flow import FlowLoop, KernelRun
from weft.kernels.work import work_of

BUDGET = 1 << 17  # about as many nanoseconds pass between two looks at the clock


class InterruptPoll:
    """Counts the work of rounds, and asks when there was enough of it."""

    def __init__(self, code: Writer) -> None:
        self.code = code
        self.left = code.let("alloca i64, align 8")
        self.since = code.let("alloca i64, align 8")
        code.declare(f"declare i32 @{GOES_ON}(ptr)")
        code.do(f"store i64 {BUDGET}, ptr {self.left}, align 8")
        code.do(f"store i64 0, ptr {self.since}, align 8")

    def count(self, work: int) -> None:
        """Count a round; the function ends if the answer is no."""
        code = self.code
        before = code.let(f"load i64, ptr {self.left}, align 8")
        after = code.let(f"sub i64 {before}, {work}")
        code.do(f"store i64 {after}, ptr {self.left}, align 8")
        ask, end, on = code.fresh("ask"), code.fresh("end"), code.fresh("on")
        spent = code.let(f"icmp slt i64 {after}, 0")
        code.do(f"br i1 {spent}, label %{ask}, label %{on}")
        code.start(ask)
        code.do(f"store i64 {BUDGET}, ptr {self.left}, align 8")
        answer = code.let(f"call i32 @{GOES_ON}(ptr {self.since})")
        stop = code.let(f"icmp eq i32 {answer}, 0")
        code.do(f"br i1 {stop}, label %{end}, label %{on}")
        code.start(end)
        code.do("ret void")
        code.start(on)


def round_work(loop: FlowLoop) -> int:
    """About how many nanoseconds a round takes, without those of inner loops."""
    kernels = [s.kernel for part in loop.parts for s in part.statements if isinstance(s, KernelRun)]
    works = [work_of(kernel) for kernel in kernels]
    spent = sum((w.flops + w.bytes) // 8 + w.transcendentals for w in works)
    return min(2 + len(works) + spent, BUDGET)
