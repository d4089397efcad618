"""Dims of a loop nest with strides in several buffers."""

from __future__ import annotations

from collections.abc import Sequence

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class LoopDim:
    """A dim of a nest: its size, and its stride in each buffer."""

    size: int
    steps: tuple[int, ...]


def merged(dims: Sequence[LoopDim]) -> list[LoopDim]:
    """The same nest with fewer dims: size-1 dims dropped, contiguous neighbours merged."""
    fused: list[LoopDim] = []
    for dim in dims:
        if dim.size == 1:
            continue
        # Merged only if contiguous in every buffer at once: the loop has one index for all.
        joined = tuple([step * dim.size for step in dim.steps])
        if fused and fused[-1].steps == joined:
            fused[-1] = LoopDim(fused[-1].size * dim.size, dim.steps)
        else:
            fused.append(dim)
    return fused
