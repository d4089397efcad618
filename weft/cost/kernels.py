"""Predicted seconds of a kernel on a machine."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

from weft.cost.gpu_kernels import gpu_seconds
from weft.ir.types import F32
from weft.kernels.flow import ControlFlow, FlowBlock, FlowLoop, KernelRun
from weft.kernels.group import AnyKernel
from weft.kernels.work import loop_limit, product_flops, work_of
from weft.machine import Machine
from weft.machine.machine import share_at

# A target's count of a kernel's instructions, by the names of `weft.machine.OVERHEADS`, and as
# `multiplied` the flops that its products take the time of; as `tasks` what threads can share.
Units: TypeAlias = Callable[[AnyKernel], Mapping[str, float]]
MULTIPLIED, TASKS = "multiplied", "tasks"


def kernel_seconds(
    kernel: AnyKernel, machine: Machine, units: Units | None = None, footprint: float = 0.0
) -> float:
    """Roofline time of a launch, the slower of computing and of moving bytes.

    Where a machine's overheads were measured and a target counts them, they are the seconds of
    computing: on one thread, or on all if that outweighs handing them the work. Operands come from
    the cache that holds the program's `footprint`, all bytes that it touches from step to step.
    """
    if isinstance(kernel, ControlFlow):
        devices = math.prod(kernel.devices)
        return machine.launch + devices * _flow_seconds(kernel.body, machine, units, footprint)
    if machine.kind == "gpu":
        return machine.launch + gpu_seconds(kernel, machine)
    bytes_moved = work_of(kernel).bytes
    moving = bytes_moved / machine.bandwidth_at(bytes_moved)
    if not machine.overheads or units is None:
        return machine.launch + max(computing_seconds(kernel, machine), moving)
    counted = units(kernel)
    serial = serial_seconds(kernel, counted, machine)
    shared = serial * largest_share(counted, machine) + machine.overhead("wake")
    # The kernel itself was measured on operands that the nearest caches hold.
    far = bytes_moved / machine.bandwidth_at(max(footprint, bytes_moved)) - moving
    return machine.launch + max(min(serial, shared), moving) + max(0.0, far)


def computing_seconds(kernel: AnyKernel, machine: Machine) -> float:
    """Seconds of a kernel's arithmetic at the machine's rates."""
    work, products = work_of(kernel), product_flops(kernel)
    computing = sum(
        flops / (machine.rate(dtype) * share_at(machine.product_curve, flops))
        for dtype, flops in products.items()
    )
    computing += (work.flops - sum(products.values())) / machine.vector
    return computing + work.transcendentals / machine.transcendental


def largest_share(units: Mapping[str, float], machine: Machine) -> float:
    """The share of a kernel's tasks that the thread with most of them runs."""
    tasks = units.get(TASKS, machine.threads)
    return math.ceil(tasks / machine.threads) / tasks if tasks else 1.0


def serial_seconds(kernel: AnyKernel, units: Mapping[str, float], machine: Machine) -> float:
    """Seconds of a kernel on one thread: its products at their rate, and all it is counted for."""
    dtypes = [*product_flops(kernel)] or [F32]
    multiplying = units.get(MULTIPLIED, 0.0) / machine.rate(dtypes[0]) * machine.threads
    return multiplying + sum(
        count * machine.overhead(name)
        for name, count in units.items()
        if name not in (MULTIPLIED, TASKS)
    )


def _flow_seconds(
    part: FlowBlock, machine: Machine, units: Units | None, footprint: float
) -> float:
    """Seconds of all statements; a loop without a known limit counts one iteration."""
    total = 0.0
    for statement in part.statements:
        if isinstance(statement, KernelRun):
            # A kernel inside a flow is a plain call: no launch.
            total += kernel_seconds(statement.kernel, machine, units, footprint) - machine.launch
            continue
        inner = [_flow_seconds(one, machine, units, footprint) for one in statement.parts]
        if isinstance(statement, FlowLoop):
            total += sum(inner) * (loop_limit(statement) or 1)
        else:
            total += max(inner, default=0.0)
    return total
