"""Overheads of CPU kernels beside the roofline, counted by kind.

A roofline assumes full vector registers in every loop, and large products. Kernels of a few
microseconds have neither: their overheads are counted here, and priced by a machine's `overheads`.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from weft.kernels.attention import Attention
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import Apply, Contract, Kernel, Load, Pick, Reduce, Store, value_dtype
from weft.kernels.roles import roles_of, size_of
from weft.kernels.single_node import SingleNode
from weft.kernels.work import one_element, product_flops, work_of
from weft.ops.elementwise.pointwise import Divide, Remainder
from weft.ops.sort import Sort

LANES = 16  # of a vector register
_DIVISIONS = (Divide, Remainder)


def kernel_terms(kernel: AnyKernel) -> Mapping[str, float]:
    """The units of one launch, by the names of `weft.machine.OVERHEADS`."""
    if isinstance(kernel, Attention):
        return _attention_terms(kernel)
    if isinstance(kernel, SingleNode):
        work = work_of(kernel)
        if isinstance(kernel.op, Sort):
            return {"compared": _comparisons(kernel, kernel.op)}
        flops = work.flops - sum(product_flops(kernel).values()) + work.transcendentals
        return {"scalar": flops}
    if not isinstance(kernel, Kernel):
        return {}
    contract = next((n for n, s in enumerate(kernel.steps) if isinstance(s, Contract)), None)
    return _loop_terms(kernel) if contract is None else _product_terms(kernel, contract)


def _attention_terms(kernel: Attention) -> Mapping[str, float]:
    """Heads, and the flops of tiles of scores: whole registers of queries, keys and depth."""
    heads = math.prod(kernel.outer)
    queries, keys, depth = (
        math.ceil(n / LANES) * LANES for n in (kernel.queries, kernel.keys, kernel.depth)
    )
    scores: float = heads * queries * keys
    if kernel.points < heads * kernel.queries * kernel.keys:
        # Tiles at a window's edges are computed whole: half of one for each row of tiles.
        scores = min(scores, kernel.points + heads * queries * LANES / 2)
    each = kernel.flops / max(1, kernel.points)
    terms = {"head": heads, "attention": scores * each * depth / max(1, kernel.depth)}
    return terms if kernel.queries >= LANES else terms | {"few": heads * kernel.queries}


def _comparisons(kernel: SingleNode, op: Sort) -> float:
    """The comparisons of merging all rows."""
    sizes = kernel.inputs[0].shape
    return math.prod(sizes) * math.log2(max(2, sizes[kernel.lead :][op.dimension]))


def _product_terms(kernel: Kernel, number: int) -> Mapping[str, float]:
    """The elements of a product's result and of its operands, which are packed; what pads them."""
    step = kernel.steps[number]
    assert isinstance(step, Contract), step
    sizes = [_points(kernel, kernel.spans[n]) for n in (step.lhs, step.rhs)]
    roles = roles_of(kernel)
    sides = [size_of(kernel, role) for role in (roles.rows, roles.columns)]
    # Registers hold columns; the sides are swapped where that wastes less.
    whole = min((math.ceil(n / LANES) * LANES / n for n in sides if n), default=1.0)
    flops = sum(product_flops(kernel).values())
    outputs = _points(kernel, kernel.spans[number])
    return {"padding": flops * (whole - 1), "output": outputs, "packed": sum(sizes)}


def _loop_terms(kernel: Kernel) -> Mapping[str, float]:
    """The register ops of fused loops; elements apart from their neighbours count one by one."""
    order = kernel.schedule.order or tuple(range(len(kernel.factors)))
    order = tuple(n for n in order if kernel.factors[n].size > 1)
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
                if _is_transcendental(kernel, step):
                    terms["partial"] += registers * LANES - points
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


def _is_transcendental(kernel: Kernel, step: Apply) -> bool:
    dtypes = tuple([value_dtype(kernel.steps[arg]) for arg in step.args])
    return one_element(step.op, dtypes, step.dtype).transcendentals > 0


def _points(kernel: Kernel, span: frozenset[int]) -> int:
    return math.prod([kernel.factors[n].size for n in span])
