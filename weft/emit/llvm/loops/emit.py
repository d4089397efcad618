"""Emission of loop kernels: one function, or one for each stage of reductions."""

from __future__ import annotations

from collections.abc import Sequence

from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.jit.caches import Caches
from weft.emit.llvm.jit.processor import Processor
from weft.emit.llvm.loops.accumulate import accumulated
from weft.emit.llvm.loops.order import loop_order
from weft.emit.llvm.loops.plan import FEW_LANES, LANES, LoopPlan, plan
from weft.emit.llvm.loops.simplify import simplify
from weft.emit.llvm.loops.split import Stage, split
from weft.emit.llvm.loops.tasks import tasks_text
from weft.emit.llvm.writer.code import Writer, module_text
from weft.kernels.kernel import Kernel, Store

ALIGNED = 64


def emit_loops(kernel: Kernel, processor: Processor) -> Emitted:
    """Emit a loop kernel."""
    functions, made = loop_functions(kernel, processor)
    return Emitted(module_text(*functions), made.phases, made.scratch, made.shared)


def loop_functions(
    kernel: Kernel, processor: Processor, offsets: Sequence[int] = (), room: int = 0
) -> tuple[list[Writer], Emitted]:
    """The functions of a loop kernel and their calling convention (without text).

    Its last operands may be at `offsets` in the workspace, of which `room` bytes are in use.
    """
    plans = loop_plans(kernel, processor)
    if not plans:
        return [], Emitted("", (), shared=room)
    own_operands = len(kernel.operands) - len(offsets)
    shared = [*offsets]
    # Stages have one list of operands: those behind the kernel's carry values from stage to stage.
    for operand in plans[0].kernel.operands[len(kernel.operands) :]:
        shared.append(room)
        room += -(-operand.nbytes // ALIGNED) * ALIGNED
    return _emitted(plans, kernel.name, own_operands, shared, room)


def loop_plans(kernel: Kernel, processor: Processor) -> list[LoopPlan]:
    """The loop nests of a kernel: one, or one for each stage of its reductions.

    Operands beyond those of the kernel carry values between stages.
    """
    kernel = accumulated(kernel)
    lanes = LANES if processor.has("avx512f") else FEW_LANES
    order = loop_order(kernel)
    simple = simplify(kernel, kernel.schedule.order if order is None else order)
    if not any(isinstance(step, Store) for step in simple.steps):
        return []
    if order is not None:
        made = plan(simple, lanes, processor.caches)
        if made.is_spread:
            return [made]
    return [_planned(stage, lanes, processor.caches) for stage in split(simple)]


def _planned(stage: Stage, lanes: int, caches: Caches) -> LoopPlan:
    cut, order = stage.cut, loop_order(stage.kernel)
    assert order is not None, "a stage has an order of loops"
    apart = () if cut is None else (cut.part, cut.factor)
    simple = simplify(stage.kernel, order, apart)
    if cut is None:
        return plan(simple, lanes, caches)
    (factor,) = [n for n, f in enumerate(simple.factors) if f.name == cut.factor]
    return plan(simple, lanes, caches, (factor, cut.block))


def _emitted(
    plans: list[LoopPlan], name: str, operands: int, shared: list[int], nbytes: int
) -> tuple[list[Writer], Emitted]:
    names = [name if len(plans) == 1 else f"{name}_{n}" for n in range(len(plans))]
    pairs = [*zip(plans, names, strict=True)]
    made = [tasks_text(one, named, operands, shared) for one, named in pairs]
    phases = tuple([Phase(named, one.count, one.chunk) for one, named in pairs])
    scratch = max(need for _, need in made)
    functions = {code.name: code for codes, _ in made for code in codes}  # stages share some values
    return [*functions.values()], Emitted("", phases, scratch, nbytes)
