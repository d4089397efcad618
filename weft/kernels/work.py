"""The work of a kernel, counted from its steps: bytes, flops, transcendental calls."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType

from weft.ir.module import Region
from weft.ir.op import Op
from weft.ir.types import DType, TensorType
from weft.ir.work import Work
from weft.kernels.attention import Attention
from weft.kernels.flow import ControlFlow, FlowBlock, FlowLoop, KernelRun
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import (
    Apply,
    Contract,
    Fill,
    Kernel,
    Load,
    Pick,
    Reduce,
    Store,
    args_of,
    value_dtype,
)
from weft.kernels.single_node import SingleNode
from weft.ops.elementwise.pointwise import Compare
from weft.ops.ragged import RaggedDot

_CALL = 16  # operations of a transcendental function, about
# Iterations assumed for a loop of unknown trip count, and the largest integer that is taken for a
# trip count: sentinels like 2^31 - 1 are none.
_ROUNDS, _MOST_ROUNDS = 100, 1 << 20


def work_of(kernel: AnyKernel) -> Work:
    """The work of one launch; an element of an operand counts once, however often it is read.

    A step counts once for each point of the factors that it spans: loop-invariant steps are
    hoisted.
    """
    if isinstance(kernel, SingleNode):
        return _single_node_work(kernel)
    if isinstance(kernel, Attention):
        return _attention_work(kernel)
    if isinstance(kernel, ControlFlow):
        return Work(flops=kernel.arithmetic, bytes=sum(o.nbytes for o in kernel.operands))
    total = Work(bytes=bytes_moved(kernel))
    for n in range(len(kernel.steps)):
        total += _step_work(kernel, n)
    return total


def bytes_moved(kernel: Kernel) -> int:
    """The bytes of operands that are read or written, each counted once."""
    # By operand and index: equal loads read the same elements, others may read different ones.
    touched: dict[tuple[int, object], int] = {}
    for step in kernel.steps:
        if isinstance(step, Load | Store):
            touched[step.operand, _place(step)] = _reached(kernel, step)
    elements: dict[int, int] = {}
    for (operand, _), count in touched.items():
        elements[operand] = elements.get(operand, 0) + count
    # At most the whole operand: the loads of a window read the same elements again.
    return sum(
        min(count, kernel.operands[n].size) * kernel.operands[n].dtype.numpy.itemsize
        for n, count in elements.items()
    )


def _single_node_work(kernel: SingleNode) -> Work:
    """The work of the op on every device; replicated operands are moved once."""
    operand_types, result_types = (
        tuple([TensorType(o.shape[kernel.lead :], o.dtype) for o in listed])
        for listed in (kernel.inputs, kernel.outputs)
    )
    bodies = tuple([_region_work(region) for region in kernel.regions])
    one = kernel.op.work(operand_types, result_types, bodies)
    every = one.times(math.prod(kernel.devices))
    moved = min(every.bytes, sum(operand.nbytes for operand in kernel.operands))
    return Work(every.flops, every.transcendentals, moved)


def _attention_work(kernel: Attention) -> Work:
    """Contractions, one exponential a score, and the arithmetic on each score."""
    moved = sum(operand.nbytes for operand in kernel.operands)
    return Work(kernel.flops + 4 * kernel.points, kernel.points, moved)


def _flow_work(part: FlowBlock, known: Mapping[int, int]) -> Work:
    """The work of all statements: of all iterations of loops, and of all parts of branches."""
    total = Work()
    for statement in part.statements:
        if isinstance(statement, KernelRun):
            total += work_of(statement.kernel)
            continue
        trips = rounds_of(statement, known) if isinstance(statement, FlowLoop) else 1
        for inner in statement.parts:
            total += _flow_work(inner, known).times(trips)
    return total


def flow_steps(flow: ControlFlow, known: Mapping[int, int]) -> int:
    """The estimated operations of a flow, given the integers that some values hold."""
    return _operations(_flow_work(flow.body, known).times(math.prod(flow.devices)))


def operations_of(kernel: AnyKernel) -> int:
    """The estimated operations of a launch."""
    return kernel.arithmetic if isinstance(kernel, ControlFlow) else _operations(work_of(kernel))


def _operations(work: Work) -> int:
    # Small kernels run from registers and the nearest cache: 8 bytes are about one operation.
    return work.flops + work.bytes // 8 + _CALL * work.transcendentals


def rounds_of(loop: FlowLoop, known: Mapping[int, int]) -> int:
    """The trip count of a loop that counts up to a known number; else an assumed one."""
    return loop_limit(loop, known) or _ROUNDS


def loop_limit(loop: FlowLoop, known: Mapping[int, int] = MappingProxyType({})) -> int | None:
    """The number that a loop counts up to, if its test compares with one.

    `known` are the integers that some values hold.
    """
    for statement in loop.test.statements:
        if isinstance(statement, KernelRun) and isinstance(kernel := statement.kernel, Kernel):
            limit = limit_in(kernel, [known.get(value, 0) for value in statement.read])
            if limit is not None:
                return limit
    return None


def limit_in(kernel: Kernel, known: Sequence[int] = ()) -> int | None:
    """The number that a loop's test compares with: a constant, or one of its known operands."""
    fills = [step for step in kernel.steps if isinstance(step, Fill)]
    limits = [int(f.value.real) for f in fills if f.dtype.is_integer]
    limit = max([*limits, *known], default=0)
    ops = [step.op for step in kernel.steps if isinstance(step, Apply)]
    compares = any(isinstance(op, Compare) for op in ops)
    return limit if 0 < limit <= _MOST_ROUNDS and compares else None


def _region_work(region: Region) -> Work:
    total = Work()
    for node in region.nodes:
        bodies = tuple([_region_work(inner) for inner in node.regions])
        total += node.op.work(node.operand_types, node.types, bodies)
    return total


def product_flops(kernel: AnyKernel) -> Mapping[DType, int]:
    """The flops of the kernel's contractions, by the element type of their operands."""
    flops: dict[DType, int] = {}
    if isinstance(kernel, Attention):
        return {kernel.operands[kernel.q.operand].dtype: kernel.flops}
    if isinstance(kernel, SingleNode) and isinstance(kernel.op, RaggedDot):
        return {kernel.operands[0].dtype: _single_node_work(kernel).flops}
    if isinstance(kernel, SingleNode | ControlFlow):
        return flops
    for step in kernel.steps:
        if isinstance(step, Contract):
            dtype = value_dtype(kernel.steps[step.lhs])
            flops[dtype] = flops.get(dtype, 0) + _contracted(kernel, step)
    return flops


def _contracted(kernel: Kernel, step: Contract) -> int:
    span = kernel.spans[step.lhs] | kernel.spans[step.rhs] | {*step.over}
    return 2 * _points(kernel, span)


def _step_work(kernel: Kernel, number: int) -> Work:
    step = kernel.steps[number]
    match step:
        case Apply(op=op, args=args, dtype=dtype):
            dtypes = tuple([value_dtype(kernel.steps[arg]) for arg in args])
            return one_element(op, dtypes, dtype).times(_points(kernel, kernel.spans[number]))
        case Reduce(arg=arg, over=over):
            return Work(flops=_points(kernel, kernel.spans[arg] | {*over}))
        case Pick(key=key, value=value, over=over):
            return Work(flops=_points(kernel, kernel.spans[key] | kernel.spans[value] | {*over}))
        case Contract():
            return Work(flops=_contracted(kernel, step))
        case _:
            return Work()


@cache
def one_element(op: Op, operands: tuple[DType, ...], result: DType) -> Work:
    """The work of an elementwise op for one element, without memory traffic."""
    counted = op.work(tuple([TensorType((), d) for d in operands]), (TensorType((), result),))
    return Work(counted.flops, counted.transcendentals)


def _points(kernel: Kernel, span: frozenset[int]) -> int:
    return math.prod([kernel.factors[n].size for n in span])


def _place(step: Load | Store) -> object:
    shifts = step.shifts if isinstance(step, Load) else ()
    return step.at, step.guards, shifts


def _reached(kernel: Kernel, step: Load | Store) -> int:
    """The most elements of its operand that a step can read or write."""
    span = {n for n, stride in enumerate(step.at.strides) if stride}
    if isinstance(step, Load):
        for arg in args_of(step):  # a dynamic index may be anywhere
            span |= kernel.spans[arg]
    return _points(kernel, frozenset(span))
