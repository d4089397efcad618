"""Panels of a product for registers: which blocks multiply with the fewest cycles."""

from __future__ import annotations

from weft.emit.llvm.product.blocking.blocking import Chip, Panels, ProductShape, panels

FEW_LINES = 4  # rows or columns that are multiplied along the depth, where that is possible
_MOST_VECTORS, _MOST_ROWS = 6, 12  # of a block
_BEGUN = 3.2  # instructions a cycle, where cores are shared by threads
_MIDDLE_BYTES = 24.0  # that the second cache gives in a cycle


def inner_panels(shape: ProductShape) -> tuple[Panels, Panels]:
    """Panels of few rows or columns: about as many sums as cover the time that one takes."""
    rows = panels(shape.rows, shape.rows if shape.rows <= FEW_LINES else 8)
    columns = 8 if rows.most <= 2 else 4
    if shape.columns <= FEW_LINES:
        columns = shape.columns
        rows = panels(shape.rows, 8 if columns <= 2 else 4)
    return rows, panels(max(1, shape.columns), max(1, columns))


def register_panels(
    shape: ProductShape, chip: Chip, width: int, options: dict[str, int]
) -> tuple[Panels, Panels]:
    """The panels of rows and of columns that are expected to take the least time."""
    in_vectors = max(1, -(-shape.columns // width))
    wanted = options.get("vectors")
    found: list[tuple[float, Panels, Panels]] = []
    for most in (wanted,) if wanted else range(1, _MOST_VECTORS + 1):
        vectors = panels(in_vectors, most)
        registers = (chip.registers - vectors.most - 1) // vectors.most
        most_rows = options.get("rows") or max(1, min(registers, _MOST_ROWS))
        rows = panels(shape.rows, most_rows)
        found.append((_cycles(rows, vectors, chip, shape.depth), rows, vectors))
    _, rows, vectors = min(found, key=lambda one: one[0])
    return rows, vectors


def _cycles(rows: Panels, vectors: Panels, chip: Chip, depth: int) -> float:
    """About how many cycles one step of the depth takes, for all blocks.

    In a cycle, two vectors are multiplied, two are loaded, and instructions begin that are not
    many more; a sum takes four cycles until the next product can be added to it; and rows of the
    right side come from the second cache.
    """
    total = 0.0
    for m, row_panels in _counted(rows):
        for n, column_panels in _counted(vectors):
            begun = (m * n + m + n + 3) / _BEGUN
            far = n * chip.vector / _MIDDLE_BYTES
            step = max(m * n / 2, (m + n) / 2, begun, far, 4.0)
            ends = (m * n + 20) / max(1, depth)  # writing a block, and all around it
            total += (step + ends) * row_panels * column_panels
    variants = len(rows.sizes) * len(vectors.sizes)
    return total * (1 + 0.01 * variants)


def _counted(all_panels: Panels) -> list[tuple[int, int]]:
    """Sizes of panels, and how many there are of each."""
    large = (all_panels.size + 1, all_panels.large)
    return [(all_panels.size, all_panels.count - all_panels.large), large]
