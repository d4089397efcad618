"""Register blocking: the panel sizes with the fewest estimated cycles."""

from __future__ import annotations

from weft.emit.llvm.product.blocking.blocking import Chip, Panels, ProductShape, panels

FEW_LINES = 4  # rows or columns for vectorization along K
_MOST_VECTORS, _MOST_ROWS = 6, 12  # largest block tried: vectors of a row, and rows
_ISSUE_WIDTH = 3.2  # instructions issued a cycle, with hyper-threads sharing a core
_MIDDLE_BYTES = 24.0  # bytes from L2 a cycle


def inner_panels(shape: ProductShape) -> tuple[Panels, Panels]:
    """Panels for vectorization along K: enough sums to hide the FMA latency."""
    rows = panels(shape.rows, shape.rows if shape.rows <= FEW_LINES else 8)
    # Eight sums at least: an FMA takes four cycles and two start in each.
    columns = 8 if rows.most <= 2 else 4
    if shape.columns <= FEW_LINES:
        columns = shape.columns
        rows = panels(shape.rows, 8 if columns <= 2 else 4)
    return rows, panels(max(1, shape.columns), max(1, columns))


def register_panels(
    shape: ProductShape, chip: Chip, width: int, options: dict[str, int]
) -> tuple[Panels, Panels]:
    """The panels of rows and columns with the least estimated time."""
    in_vectors = max(1, -(-shape.columns // width))
    wanted = options.get("vectors")
    candidates: list[tuple[float, Panels, Panels]] = []
    for most in (wanted,) if wanted else range(1, _MOST_VECTORS + 1):
        vectors = panels(in_vectors, most)
        # Accumulators get what is left by one line of the RHS and one broadcast element; a
        # spilled accumulator costs a load and a store at every K step.
        registers = (chip.registers - vectors.most - 1) // vectors.most
        most_rows = options.get("rows") or max(1, min(registers, _MOST_ROWS))
        rows = panels(shape.rows, most_rows)
        candidates.append((_cycles(rows, vectors, chip, shape.k), rows, vectors))
    _, rows, vectors = min(candidates, key=lambda one: one[0])
    return rows, vectors


def _cycles(rows: Panels, vectors: Panels, chip: Chip, k: int) -> float:
    """Estimated cycles of one K step, for all blocks.

    Per cycle: two FMAs, two loads, and a limited issue width; an FMA has a latency of four cycles;
    rows of the RHS come from L2.
    """
    total = 0.0
    for m, row_panels in _counted(rows):
        for n, column_panels in _counted(vectors):
            # FMAs, broadcasts, loads, and three for the loop itself.
            begun = (m * n + m + n + 3) / _ISSUE_WIDTH
            far = n * chip.vector / _MIDDLE_BYTES
            step = max(m * n / 2, (m + n) / 2, begun, far, 4.0)
            ends = (m * n + 20) / max(1, k)  # storing a block, and its overhead
            total += (step + ends) * row_panels * column_panels
    # Each block size is a function of its own: more code to compile and to keep in the instruction
    # cache, so a near tie goes to fewer of them.
    variants = len(rows.sizes) * len(vectors.sizes)
    return total * (1 + 0.01 * variants)


def _counted(all_panels: Panels) -> list[tuple[int, int]]:
    """Panel sizes, and the number of each."""
    large = (all_panels.size + 1, all_panels.large)
    return [(all_panels.size, all_panels.count - all_panels.large), large]
