"""Predicted seconds of a kernel on a machine."""

from __future__ import annotations

import math

from weft.cost.gpu_kernels import gpu_seconds
from weft.cost.kernel_terms import kernel_terms
from weft.kernels.attention import Attention
from weft.kernels.flow import ControlFlow, FlowBlock, FlowLoop, KernelRun
from weft.kernels.group import AnyKernel
from weft.kernels.work import loop_limit, product_flops, work_of
from weft.machine import Machine
from weft.machine.machine import share_at


def kernel_seconds(kernel: AnyKernel, machine: Machine) -> float:
    """Roofline time of a launch, the slower of computing and of moving bytes, and its overheads.

    Where a machine's overheads were measured, small CPU kernels run on one thread, and
    larger ones on all if that outweighs handing them the work.
    """
    if isinstance(kernel, ControlFlow):
        return machine.launch + math.prod(kernel.devices) * _flow_seconds(kernel.body, machine)
    if machine.kind == "gpu":
        return machine.launch + gpu_seconds(kernel, machine)
    bytes_moved = work_of(kernel).bytes
    moving = bytes_moved / machine.bandwidth_at(bytes_moved)
    computing = computing_seconds(kernel, machine)
    if not machine.overheads:
        return machine.launch + max(computing, moving)
    if isinstance(kernel, Attention) and machine.overhead("attention"):
        computing = 0.0  # measured as a whole: its exponentials are not those of other kernels
    serial = computing * machine.threads + overhead_seconds(kernel, machine)
    shared = serial / machine.threads + machine.overhead("wake")
    return machine.launch + max(min(serial, shared), moving)


def computing_seconds(kernel: AnyKernel, machine: Machine) -> float:
    """Seconds of a kernel's arithmetic at the machine's rates."""
    work, products = work_of(kernel), product_flops(kernel)
    computing = sum(
        flops / (machine.rate(dtype) * share_at(machine.product_curve, flops))
        for dtype, flops in products.items()
    )
    computing += (work.flops - sum(products.values())) / machine.vector
    return computing + work.transcendentals / machine.transcendental


def overhead_seconds(kernel: AnyKernel, machine: Machine) -> float:
    """Seconds of a kernel on one thread beside the roofline."""
    return sum(count * machine.overhead(name) for name, count in kernel_terms(kernel).items())


def _flow_seconds(part: FlowBlock, machine: Machine) -> float:
    """Seconds of all statements; a loop without a known limit counts one iteration."""
    total = 0.0
    for statement in part.statements:
        if isinstance(statement, KernelRun):
            # A kernel inside a flow is a plain call: no launch.
            total += kernel_seconds(statement.kernel, machine) - machine.launch
            continue
        inner = [_flow_seconds(one, machine) for one in statement.parts]
        if isinstance(statement, FlowLoop):
            total += sum(inner) * (loop_limit(statement) or 1)
        else:
            total += max(inner, default=0.0)
    return total
