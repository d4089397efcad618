"""Which axes of a mesh have their devices in one process, by the process of each device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from weft.errors import Unsupported
from weft.mesh.axes import Axis, Mesh

# Axes whose devices are all in one process, or what gives them for a mesh.
StackedAxes: TypeAlias = Sequence[Axis] | Callable[[Mesh], Sequence[Axis]]


def owned_axes(mesh: Mesh, owners: Mapping[int, int]) -> tuple[Axis, ...]:
    """The axes, or a part of each, along which all devices are of one process.

    Together they must reach all devices of a process, and each process has as many.
    """
    processes = np.vectorize(owners.__getitem__, otypes=[np.int64])(mesh.devices())
    axes, reach = [], 1
    for dim, (name, size) in enumerate(mesh.axes):
        before, run = _same_along(processes, dim)
        reach *= run
        if run > 1:
            axes.append(Axis(name) if run == size else Axis(name, before, run))
    _, counts = np.unique(processes, return_counts=True)
    if set(counts.tolist()) != {reach}:
        raise Unsupported(
            f"the devices of a process do not follow the axes of the mesh {mesh}: processes have "
            f"{', '.join(map(str, counts.tolist()[:8]))} of its devices",
            help="take as many devices of each process, all of those along some axes of the mesh",
        )
    return tuple(axes)


def _same_along(
    processes: np.ndarray[tuple[int, ...], np.dtype[np.int64]], dim: int
) -> tuple[int, int]:
    """The size of the longest part of an axis that is in one process, after that before it."""
    shape, size = processes.shape, processes.shape[dim]
    for run in [n for n in range(size, 1, -1) if size % n == 0]:
        for before in [n for n in range(1, size // run + 1) if size // run % n == 0]:
            # The axis as (before, run, after): the process must not change along `run`.
            parts = (*shape[:dim], before, run, size // (before * run), *shape[dim + 1 :])
            split = processes.reshape(parts)
            if np.array_equal(split, np.broadcast_to(split.take([0], dim + 1), parts)):
                return before, run
    return 1, 1
