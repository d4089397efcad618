"""The LLVM text of a kernel, by its schedule."""

from __future__ import annotations

from weft.emit.llvm.code import module_text
from weft.emit.llvm.loops_order import loop_order
from weft.emit.llvm.loops_plan import FEW_LANES, LANES, Plan, plan
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
    processor = processor or host()
    if kernel.schedule.kind == "packed":
        return emit_product(kernel, processor)
    return emit_loops(kernel, LANES if processor.has("avx512f") else FEW_LANES)


def emit_loops(kernel: Kernel, lanes: int = LANES) -> Emitted:
    """A kernel without a product: one function, or one for each stage of reductions."""
    order = loop_order(kernel)
    simple = simplify(kernel, kernel.schedule.order if order is None else order)
    if not any(isinstance(step, Store) for step in simple.steps):
        return Emitted("", ())
    if order is not None:
        made = plan(simple, lanes)
        if made.is_spread:
            return _emitted([made], kernel, [], 0)
    stages = split(simple)
    shared: list[int] = []
    end = 0
    for operand in stages[0].kernel.operands[len(kernel.operands) :]:
        shared.append(end)
        end += -(-operand.nbytes // ALIGNED) * ALIGNED
    return _emitted([_planned(stage, lanes) for stage in stages], kernel, shared, end)


def _planned(stage: Stage, lanes: int) -> Plan:
    cut, order = stage.cut, loop_order(stage.kernel)
    assert order is not None, "a stage has an order of loops"
    apart = () if cut is None else (cut.part, cut.factor)
    simple = simplify(stage.kernel, order, apart)
    if cut is None:
        return plan(simple, lanes)
    (factor,) = [n for n, f in enumerate(simple.factors) if f.name == cut.factor]
    return plan(simple, lanes, (factor, cut.block))


def _emitted(plans: list[Plan], kernel: Kernel, shared: list[int], nbytes: int) -> Emitted:
    names = [kernel.name if len(plans) == 1 else f"{kernel.name}_{n}" for n in range(len(plans))]
    made = [
        tasks_text(one, name, len(kernel.operands), shared)
        for one, name in zip(plans, names, strict=True)
    ]
    phases = [Phase(name, one.count, one.chunk) for one, name in zip(plans, names, strict=True)]
    scratch = max(need for _, need in made)
    functions = {code.name: code for codes, _ in made for code in codes}  # stages share some
    return Emitted(module_text(*functions.values()), tuple(phases), scratch, nbytes)
