"""The LLVM text of a kernel, by its schedule."""

from __future__ import annotations

from weft.emit.llvm.code import module_text
from weft.emit.llvm.loops_order import loop_order
from weft.emit.llvm.loops_plan import Plan, plan
from weft.emit.llvm.loops_simplify import simplify
from weft.emit.llvm.loops_split import Stage, split
from weft.emit.llvm.loops_tasks import tasks_text
from weft.emit.llvm.machine_code import Processor, host
from weft.emit.llvm.product_emit import emit_product
from weft.kernels.emitted import Emitted, Phase
from weft.kernels.kernel import Kernel, Store

ALIGNED = 64


def emit(kernel: Kernel, processor: Processor | None = None) -> Emitted:
    """A kernel as LLVM text: functions that run its tasks, and how to call them."""
    if kernel.schedule.kind == "packed":
        return emit_product(kernel, processor or host())
    return emit_loops(kernel)


def emit_loops(kernel: Kernel) -> Emitted:
    """A kernel without a product: one function, or one for each stage of reductions."""
    order = loop_order(kernel)
    simple = simplify(kernel, kernel.schedule.order if order is None else order)
    if not any(isinstance(step, Store) for step in simple.steps):
        return Emitted("", ())
    if order is not None:
        made = plan(simple)
        if made.is_spread:
            return _emitted([made], kernel, [], 0)
    stages = split(simple)
    shared: list[int] = []
    end = 0
    for operand in stages[0].kernel.operands[len(kernel.operands) :]:
        shared.append(end)
        end += -(-operand.nbytes // ALIGNED) * ALIGNED
    return _emitted([_planned(stage) for stage in stages], kernel, shared, end)


def _planned(stage: Stage) -> Plan:
    cut, order = stage.cut, loop_order(stage.kernel)
    assert order is not None, "a stage has an order of loops"
    apart = () if cut is None else (cut.part, cut.factor)
    simple = simplify(stage.kernel, order, apart)
    if cut is None:
        return plan(simple)
    (factor,) = [n for n, f in enumerate(simple.factors) if f.name == cut.factor]
    return plan(simple, (factor, cut.block))


def _emitted(plans: list[Plan], kernel: Kernel, shared: list[int], nbytes: int) -> Emitted:
    names = [kernel.name if len(plans) == 1 else f"{kernel.name}_{n}" for n in range(len(plans))]
    made = [
        tasks_text(one, name, len(kernel.operands), shared)
        for one, name in zip(plans, names, strict=True)
    ]
    phases = [Phase(name, one.count, one.chunk) for one, name in zip(plans, names, strict=True)]
    scratch = max(need for _, need in made)
    functions = [code for codes, _ in made for code in codes]
    return Emitted(module_text(*functions), tuple(phases), scratch, nbytes)
