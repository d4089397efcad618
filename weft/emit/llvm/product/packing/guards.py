"""Guards of a packed side: rows in which all guards hold are packed without them."""

from __future__ import annotations

from dataclasses import replace

from weft.emit.llvm.product.points import FactorPoint, place
from weft.emit.llvm.product.product import Product, required_steps
from weft.emit.llvm.writer.vector import Vectors
from weft.kernels.kernel import Guard, Load


def guards_of(product: Product, side: int) -> list[Guard]:
    """The guards of all loads of a side."""
    steps = product.kernel.steps
    loads = [s for n in required_steps(steps, [side], ()) if isinstance(s := steps[n], Load)]
    return [guard for load in loads for guard in load.guards]


def without_guards(product: Product, side: int) -> Product | None:
    """The product with one side's loads unguarded; None if they already are."""
    if not guards_of(product, side):
        return None
    steps = list(product.kernel.steps)
    for n in required_steps(product.kernel.steps, [side], ()):
        step = steps[n]
        if isinstance(step, Load):
            steps[n] = replace(step, guards=())
    return replace(product, kernel=replace(product.kernel, steps=tuple(steps)))


def always(one: Vectors, product: Product, side: int, row: FactorPoint) -> str:
    """Whether all guards of a side hold over all of K of a row: an i1."""
    code, held = one.code, "true"
    for guard in guards_of(product, side):
        # An affine index has its extremes over K at the ends of each factor's range.
        low = high = 0
        for f in product.k:
            far = guard.index.strides[f] * (product.kernel.factors[f].size - 1)
            low, high = low + min(far, 0), high + max(far, 0)
        base = place(one, guard.index, row).base
        above = code.let(f"icmp sge i64 {base}, {guard.low - low}")
        below = code.let(f"icmp slt i64 {base}, {guard.high - high}")
        held = code.let(f"and i1 {held}, {above}")
        held = code.let(f"and i1 {held}, {below}")
    return held
