"""Predicted seconds of a kernel on a machine."""

from __future__ import annotations

from weft.kernels.group import Launch
from weft.kernels.work import product_flops, work_of
from weft.machine import Machine
from weft.machine.machine import share_at


def kernel_seconds(kernel: Launch, machine: Machine) -> float:
    """Roofline time of a launch: the slower of computing and of moving bytes."""
    work, products = work_of(kernel), product_flops(kernel)
    computing = sum(
        flops / (machine.rate(dtype) * share_at(machine.product_curve, flops))
        for dtype, flops in products.items()
    )
    computing += (work.flops - sum(products.values())) / machine.vector
    computing += work.transcendentals / machine.transcendental
    return machine.launch + max(computing, work.bytes / machine.bandwidth_at(work.bytes))
