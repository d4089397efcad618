"""Operands that lie across the lanes: which loads are turned in tiles before the loops run."""

from __future__ import annotations

from dataclasses import dataclass

from weft.kernels.kernel import Kernel, Load, Pick, Reduce, Store

TILE = 64  # indices of both factors
LEAST = 8  # a factor that is shorter is not worth a tile


@dataclass(frozen=True, slots=True)
class Turned:
    """Loads whose neighbours lie along another factor than that of the lanes."""

    vector: int
    lines: int  # the factor along which they lie in memory
    loads: tuple[int, ...]
    sizes: tuple[int, ...]  # the bytes of an element, for each size that there is


def turned_loads(kernel: Kernel, vector: int) -> Turned | None:
    """The loads of an elementwise kernel that are to be turned, if there are any."""
    if any(isinstance(step, Reduce | Pick) for step in kernel.steps):
        return None
    if kernel.factors[vector].size < LEAST or not _all_stored(kernel):
        return None
    found: dict[int, list[int]] = {}
    for n, step in enumerate(kernel.steps):
        if isinstance(step, Load) and not step.guards and not step.shifts:
            stride = step.at.strides[vector]
            lines = [f for f, s in enumerate(step.at.strides) if s == 1]
            plain = kernel.operands[step.operand].dtype.numpy.itemsize <= 8
            if plain and stride not in (0, 1, -1) and len(lines) == 1:
                found.setdefault(lines[0], []).append(n)
    able = {f: loads for f, loads in found.items() if kernel.factors[f].size >= LEAST}
    if not able:
        return None
    lines = max(able, key=lambda f: (len(able[f]), f))
    sizes = {_bytes(kernel, n) for n in able[lines]}
    return Turned(vector, lines, tuple(able[lines]), tuple(sorted(sizes)))


def _all_stored(kernel: Kernel) -> bool:
    """Whether every store spans every factor, so that all of them may be tasks."""
    count = len(kernel.factors)
    spans = [s for n, s in enumerate(kernel.spans) if isinstance(kernel.steps[n], Store)]
    return all(len(span) == count for span in spans)


def _bytes(kernel: Kernel, load: int) -> int:
    step = kernel.steps[load]
    assert isinstance(step, Load)
    return int(kernel.operands[step.operand].dtype.numpy.itemsize)
