"""The instructions of packed contractions, by their blocks: multiplying, packing, finishing."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

from weft.emit.llvm.jit.processor import Processor
from weft.emit.llvm.product.blocking.blocking import Blocking, Panels, ProductShape, chip_of
from weft.emit.llvm.product.blocking.choice import choose_blocking
from weft.emit.llvm.product.emit import described
from weft.emit.llvm.product.points import lane_count
from weft.emit.llvm.product.product import Product, required_steps
from weft.emit.llvm.product.shape import plain_store
from weft.emit.llvm.units.instructions import instructions_of
from weft.kernels.kernel import Apply, Kernel, Load, Reduce, Store

_LANES = 16
_FLOPS = 4 * _LANES  # of two fused multiply-adds, which start in each cycle
_LATENCY = 4.0  # cycles of a fused multiply-add: fewer sums than eight wait for it
_ISSUED = 6.0  # instructions of a cycle


def product_units(kernel: Kernel, processor: Processor) -> Mapping[str, float]:
    """Flops that the multiplying takes the time of, elements that are packed, and the epilogue."""
    chip, options = chip_of(processor), dict(kernel.schedule.options)
    product, shape = described(kernel, chip)
    blocking = choose_blocking(shape, chip, options)
    units: defaultdict[str, float] = defaultdict(float)
    units["multiplied"] = _cycles(shape, blocking) * shape.batch * _FLOPS * shape.group
    units["block"] = shape.batch * blocking.parts * blocking.rows.count * blocking.vectors.count
    along_rows = -(-blocking.rows.count // blocking.task_rows)
    along_columns = -(-blocking.vectors.count // blocking.task_vectors)
    units["tasks"] = shape.batch * blocking.parts * along_rows * along_columns
    _packing(product, shape, blocking, units)
    stored = plain_store(product) if blocking.parts == 1 and blocking.stores(shape) else None
    if stored is None:
        _finishing(product, units)
    return dict(units)


def _cycles(shape: ProductShape, blocking: Blocking) -> float:
    """Cycles of all blocks of one batch point."""
    steps = -(-shape.k // blocking.inner) if blocking.inner else shape.k
    total = 0.0
    for m, rows in _counted(blocking.rows):
        for n, columns in _counted(blocking.vectors):
            # Multiply-adds, loads, and what the loop itself issues; or the latency of a sum.
            step = max(m * n / 2, (m + n) / 2, (m * n + m + n + 3) / _ISSUED, _LATENCY)
            total += step * rows * columns * steps
    return total / (shape.pace if shape.tiled else 1)


def _counted(panels: Panels) -> tuple[tuple[int, int], ...]:
    """Panel sizes, and the number of each."""
    return (panels.size, panels.count - panels.large), (panels.size + 1, panels.large)


def _packing(
    product: Product, shape: ProductShape, blocking: Blocking, units: defaultdict[str, float]
) -> None:
    """Registers of both sides that are copied to panels, and what computes them there."""
    rows = -(-blocking.rows.count // blocking.task_rows)
    columns = -(-blocking.vectors.count // blocking.task_vectors)
    # Panels are lines of K of the left side, and of columns of the right one.
    sides = (
        (product.contract.lhs, blocking.lhs, columns, shape.lhs_lines == "k", product.rows),
        (product.contract.rhs, blocking.rhs, rows, shape.rhs_lines == "columns", product.columns),
    )
    for number, (side, mode, again, is_line, across) in enumerate(sides):
        if mode == "direct":
            continue
        points = (1 if mode == "shared" else again) * _points(product.kernel, side)
        role = product.k if is_line == (number == 0) else across
        lanes = contiguous_lanes(product, role)
        unit = "packed" if is_line else "transposed"
        units[unit if lanes else "gathered"] += points / max(1, lanes)
        for before in required_steps(product.kernel.steps, [side], ()):
            if isinstance(product.kernel.steps[before], Apply):
                own, count = instructions_of(product.kernel.steps[before])
                units[own] += count * points / (lanes or _LANES)


def _finishing(product: Product, units: defaultdict[str, float]) -> None:
    """The steps after the sums."""
    kernel, after = product.kernel, {*product.after}
    lanes = contiguous_lanes(product, product.columns)
    for number, step in enumerate(kernel.steps):
        late = number in after or isinstance(step, Reduce)
        if late or (isinstance(step, Load) and number > product.at):
            unit, count = instructions_of(step)
            points = count * _points(kernel, number)
            if isinstance(step, Load | Store) and not lanes:
                units["strided"] += points
            else:
                units[unit] += points / (lanes or _LANES)


def contiguous_lanes(product: Product, role: tuple[int, ...]) -> int:
    """The lanes of a register whose elements lie in one factor of a role; 0 for too few."""
    factors = product.kernel.factors
    found = lane_count(factors, role, _LANES)
    return found if len(role) < 2 or factors[role[-1]].size % found == 0 else 0


def _points(kernel: Kernel, number: int) -> int:
    span = kernel.spans[number]
    return math.prod([kernel.factors[f].size for f in span])
