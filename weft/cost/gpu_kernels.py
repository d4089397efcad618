"""Predicted seconds of a GPU's kernels, without their launch.

The kernels of the triton target: products by a library, with later steps in a pass of their own;
attention by a library; rows that one block reduces; ops that are several kernels of a library.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from weft.ir.types import DType
from weft.kernels.attention import Attention
from weft.kernels.group import AnyKernel
from weft.kernels.kernel import Apply, Contract, Kernel, Operand, Reduce
from weft.kernels.single_node import SingleNode
from weft.kernels.work import product_flops, work_of
from weft.machine import Machine
from weft.machine.machine import share_at
from weft.ops.ragged import RaggedDot
from weft.ops.scatter import Scatter
from weft.ops.sort import Sort, TopK

_LITTLE = 1 << 18  # bytes; kernels of more wait for the memory
_BACKWARD = 2.5  # flops of attention's backward pass for each of the forward pass


def gpu_seconds(kernel: AnyKernel, machine: Machine) -> float:
    """Latency, and the slower of computing and of moving bytes."""
    if isinstance(kernel, Attention):
        return _attention_seconds(kernel, machine)
    work = work_of(kernel)
    products = product_flops(kernel)
    rest = work.flops - sum(products.values())
    pointwise = rest / machine.vector + work.transcendentals / machine.transcendental
    if isinstance(kernel, Kernel) and products:
        return _product_seconds(kernel, pointwise, machine)
    moving = work.bytes / machine.bandwidth_at(work.bytes)
    row = reduced_row(kernel)
    # Writes do not wait for the memory. A reduction needs all of its row before anything else: it
    # waits in any case.
    read = sum(operand.nbytes for operand in kernel.operands if not operand.output)
    waited = latency(max(min(work.bytes, read), _LITTLE if row else 0), machine)
    # Products outside of a loop nest: a ragged dot.
    computing = max(pointwise, _computing(products, machine))
    seconds = waited + max(computing, moving) + row * machine.overhead("element")
    if isinstance(kernel, SingleNode) and not isinstance(kernel.op, RaggedDot):
        seconds += _library_seconds(kernel, machine)
    return seconds


def _library_seconds(kernel: SingleNode, machine: Machine) -> float:
    """The kernels of a library's call, which pass over their elements several times."""
    seconds = machine.overhead("library")
    if isinstance(kernel.op, Sort | TopK):
        seconds += kernel.inputs[0].size * machine.overhead("sorted")
    elif isinstance(kernel.op, Scatter) and _is_narrow(kernel.inputs[0]):
        # Narrow elements are summed in f32, on scratch that two passes write and read.
        seconds += kernel.inputs[-1].size * machine.overhead("scattered")
    return seconds


def _is_narrow(operand: Operand) -> bool:
    return operand.dtype.is_float and operand.dtype.bits < 32


def latency(size: float, machine: Machine) -> float:
    """Seconds before the first bytes of a kernel arrive."""
    return machine.overhead("latency") + machine.overhead("cold") * min(1.0, size / _LITTLE)


def reduced_row(kernel: AnyKernel) -> int:
    """The elements along which a kernel reduces, one block a row; 0 without a reduction."""
    if not isinstance(kernel, Kernel):
        return 0
    rows = [
        math.prod(kernel.factors[n].size for n in step.over)
        for step in kernel.steps
        if isinstance(step, Reduce)
    ]
    # Long ones are cut into parts that run side by side.
    return min(max(rows, default=0), _LITTLE // 8)


def _attention_seconds(kernel: Attention, machine: Machine) -> float:
    """Attention reaches a share of either roof, which grows with the work of a head."""
    work, dtype = work_of(kernel), kernel.operands[kernel.q.operand].dtype
    head = kernel.flops / max(1, math.prod(kernel.outer))
    if kernel.gradients is not None:
        head /= _BACKWARD
    share = share_at(machine.attention_curve, head)
    computing = kernel.flops / (machine.rate(dtype) * share)
    return latency(work.bytes, machine) + max(computing, work.bytes / (machine.bandwidth * share))


def _operands(size: float, machine: Machine) -> float:
    """Seconds that the bytes of a product take: read by few blocks, or more than once."""
    if not machine.operand_curve:
        return size / machine.bandwidth_at(size)
    return size / (machine.bandwidth * share_at(machine.operand_curve, size))


def _computing(products: Mapping[DType, int], machine: Machine) -> float:
    """Seconds of products at the rates of their element types."""
    return sum(
        flops / (machine.rate(dtype) * share_at(machine.product_curve, flops))
        for dtype, flops in products.items()
    )


def _product_seconds(kernel: Kernel, pointwise: float, machine: Machine) -> float:
    """The product, and a pass over its result where steps come after it."""
    total = work_of(kernel).bytes
    computing = _computing(product_flops(kernel), machine)
    number = next(n for n, step in enumerate(kernel.steps) if isinstance(step, Contract))
    result = math.prod(kernel.factors[n].size for n in kernel.spans[number])
    own = _operand_bytes(kernel, number) + result * _item_size(kernel, number)
    after = [step for step in kernel.steps[number + 1 :] if isinstance(step, Apply)]
    # A matrix times a vector is a kernel of Weft's own, which computes what comes after, too.
    fused = computing < _operands(own, machine) or not _is_pass(after)
    if fused:
        return latency(total, machine) + max(computing, _operands(total, machine))
    # The second pass reads the product's result again, and everything else but its operands.
    again = total - _operand_bytes(kernel, number) + result * _item_size(kernel, number)
    product = max(computing, _operands(own, machine))
    second = max(pointwise, again / machine.bandwidth_at(again))
    return latency(total, machine) + product + machine.launch + second


def _is_pass(after: list[Apply]) -> bool:
    """Whether steps after a product are more than a conversion, which the library does itself."""
    return any(step.op.name != "stablehlo.convert" for step in after)


def _operand_bytes(kernel: Kernel, number: int) -> float:
    step = kernel.steps[number]
    assert isinstance(step, Contract), step
    return sum(
        math.prod(kernel.factors[n].size for n in kernel.spans[operand])
        * _item_size(kernel, operand)
        for operand in (step.lhs, step.rhs)
    )


def _item_size(kernel: Kernel, number: int) -> int:
    """The bytes of an element as the library stores it."""
    step = kernel.steps[number]
    if isinstance(step, Contract):
        return _item_size(kernel, step.lhs)
    return step.dtype.numpy.itemsize  # type: ignore[union-attr]  # a value, not a store
