"""Transposed accesses: operands contiguous along another factor than the lanes' are tiled."""

from __future__ import annotations

from weft.kernels.kernel import Kernel, Load, Pick, Reduce, Store
from weft.records import dataclass

TILE = 64  # indices of both factors
LINES = 1024  # lines of a tile that holds all of them
LEAST = 3  # a shorter factor is not worth a tile


@dataclass(frozen=True, slots=True)
class TransposedAccesses:
    """Loads and stores that are contiguous along another factor than that of the lanes."""

    vector: int
    lines: int  # the factor along which they are contiguous
    loads: tuple[int, ...]
    stores: tuple[int, ...]
    whole: bool  # tiles hold all lines: reductions along them are possible

    def nbytes(self, kernel: Kernel, size: int) -> int:
        """The bytes of a tile for an element size; the last vector may exceed it."""
        lines = kernel.factors[self.lines].size if self.whole else TILE
        # Whole squares of 8 lines, and one line that the last vector may overhang into.
        return (-(-lines // 8) * 8 + 1) * TILE * size


def find_transposed(kernel: Kernel, vector: int) -> TransposedAccesses | None:
    """The accesses to transpose, if there are any."""
    transposes: dict[int, list[int]] = {}
    for n, step in enumerate(kernel.steps):
        if isinstance(step, Load | Store):
            lines = lines_of(kernel, step, vector)
            if lines is not None and _is_outer(kernel, n, vector, lines):
                transposes.setdefault(lines, []).append(n)
    if not transposes or kernel.factors[vector].size < LEAST:
        return None
    lines = max(transposes, key=lambda f: (len(transposes[f]), f))
    loads = tuple([n for n in transposes[lines] if isinstance(kernel.steps[n], Load)])
    stores = tuple([n for n in transposes[lines] if n not in loads])
    return TransposedAccesses(vector, lines, loads, stores, _has_reductions(kernel))


def lines_of(kernel: Kernel, step: Load | Store, vector: int) -> int | None:
    """The factor along which an access is transposed; None if it is not."""
    lines = [f for f, stride in enumerate(step.at.strides) if stride == 1]
    odd = step.guards or (isinstance(step, Load) and step.shifts)
    small = kernel.operands[step.operand].dtype.numpy.itemsize <= 8
    across = step.at.strides[vector] not in (0, 1, -1)
    if odd or not across or not small or len(lines) != 1:
        return None
    size = kernel.factors[lines[0]].size
    whole = size <= LINES if _has_reductions(kernel) else _spans_all(kernel)
    return lines[0] if whole and size >= LEAST else None


def _is_outer(kernel: Kernel, n: int, vector: int, lines: int) -> bool:
    """Whether all other factors of an access are open where its tile is transposed."""
    if not _has_reductions(kernel):
        return True
    summed = {f for s in kernel.steps if isinstance(s, Reduce | Pick) for f in s.over}
    outer = range(vector)
    return vector not in summed and all(
        f in outer and f not in summed for f in kernel.spans[n] - {vector, lines}
    )


def _has_reductions(kernel: Kernel) -> bool:
    return any(isinstance(step, Reduce | Pick) for step in kernel.steps)


def _spans_all(kernel: Kernel) -> bool:
    """Whether every store spans every factor, so that all of them may be tasks."""
    count = len(kernel.factors)
    spans = [s for n, s in enumerate(kernel.spans) if isinstance(kernel.steps[n], Store)]
    return all(len(span) == count for span in spans)
