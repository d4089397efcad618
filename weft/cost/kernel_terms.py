"""Overheads of CPU kernels beside the roofline, counted by kind.

A roofline assumes full vector registers in every loop, and large products. Kernels of a few
microseconds have neither: their overheads are counted here, and priced by a machine's `overheads`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from weft.kernels.attention import Attention
from weft.kernels.group import Launch
from weft.kernels.kernel import Apply, Contract, Kernel, Load, Pick, Reduce, Store
from weft.kernels.single_node import SingleNode
from weft.kernels.work import product_flops, work_of
from weft.ops.elementwise.pointwise import Divide, Remainder

LANES = 16  # of a vector register
_DIVISIONS = (Divide, Remainder)


def kernel_terms(kernel: Launch) -> Mapping[str, float]:
    """The units of one launch, by the names of `weft.machine.OVERHEADS`."""
    if isinstance(kernel, Attention):
        # Scores of a few queries or keys take as long as those of a register of them.
        whole = math.prod(math.ceil(n / LANES) * LANES / n for n in (kernel.queries, kernel.keys))
        return {"head": math.prod(kernel.outer), "attention": kernel.flops * whole}
    if isinstance(kernel, SingleNode):
        work = work_of(kernel)
        products = sum(product_flops(kernel).values())
        return {"scalar": work.flops - products + work.transcendentals}
    if not isinstance(kernel, Kernel):
        return {}
    contract = next((n for n, s in enumerate(kernel.steps) if isinstance(s, Contract)), None)
    return _loop_terms(kernel) if contract is None else _product_terms(kernel, contract)


def _product_terms(kernel: Kernel, number: int) -> Mapping[str, float]:
    """The elements of a product's result and of its operands, which are packed."""
    step = kernel.steps[number]
    assert isinstance(step, Contract), step
    sizes = [_points(kernel, kernel.spans[n]) for n in (step.lhs, step.rhs)]
    return {"output": _points(kernel, kernel.spans[number]), "packed": sum(sizes)}


def _loop_terms(kernel: Kernel) -> Mapping[str, float]:
    """The register ops of fused loops; elements apart from their neighbours count one by one."""
    order = kernel.schedule.order or tuple(range(len(kernel.factors)))
    inner = order[-1] if order else -1
    terms: defaultdict[str, float] = defaultdict(float)
    for number, step in enumerate(kernel.steps):
        span = _span(kernel, number)
        points = _points(kernel, span)
        registers = points * _filled(kernel, inner, span)
        match step:
            case Load(at=at, shifts=shifts):
                apart = bool(shifts) or (inner in span and at.strides[inner] not in (0, 1))
                terms["strided" if apart else "register"] += points if apart else registers
            case Store(at=at):
                apart = inner in span and at.strides[inner] not in (0, 1)
                terms["strided" if apart else "register"] += points if apart else registers
            case Apply(op=op):
                terms["division" if isinstance(op, _DIVISIONS) else "register"] += registers
            case Reduce(over=over):
                terms["register"] += registers
                terms["across"] += _points(kernel, span - {*over}) if inner in over else 0
            case Pick():
                terms["register"] += registers
            case _:
                pass
    return terms


def _span(kernel: Kernel, number: int) -> frozenset[int]:
    """The factors at whose points a step runs."""
    match kernel.steps[number]:
        case Store(at=at, arg=arg):
            return kernel.spans[arg] | {n for n, stride in enumerate(at.strides) if stride}
        case Reduce(arg=arg, over=over):
            return kernel.spans[arg] | {*over}
        case Pick(key=key, value=value, over=over):
            return kernel.spans[key] | kernel.spans[value] | {*over}
    return kernel.spans[number]


def _filled(kernel: Kernel, inner: int, span: frozenset[int]) -> float:
    """Registers for each point: full ones along the innermost factor, else one for each point."""
    if inner not in span:
        return 1.0
    size = kernel.factors[inner].size
    return math.ceil(size / LANES) / size if size else 1.0


def _points(kernel: Kernel, span: frozenset[int]) -> int:
    return math.prod([kernel.factors[n].size for n in span])
