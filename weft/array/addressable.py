"""The addressable devices of a process, where other processes hold the rest of the mesh."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from weft.array.stacked import Stacked
from weft.errors import WeftError
from weft.ir.types import Array
from weft.mesh import Axis, Mesh
from weft.mesh.spelling import as_axes
from weft.mesh.sub_axes import AxisSpan, SubAxes, mesh_spans, separate_spans, span_of, sub_axes_of
from weft.records import dataclass


@dataclass(frozen=True)
class Addressable:
    """The devices of a process: those with equal coordinates along the absent sub-axes."""

    count: int  # of all devices
    absent: tuple[AxisSpan, ...]  # sub-axes that are distributed over processes
    index: int  # process number: the linear index along the absent sub-axes

    @cached_property
    def processes(self) -> Array:
        """The process of the device at each place."""
        return process_at(self.absent, np.arange(self.count))

    @cached_property
    def places(self) -> tuple[int, ...]:
        """The places of this process's devices."""
        return tuple(np.flatnonzero(self.processes == self.index).tolist())

    def window(self, stacked: Stacked) -> Stacked:
        """This process's part of a stack of all devices, whose sub-axes separate the processes."""
        sub_axes, place = stacked.sub_axes, self.places[0]
        away = sub_axes.dims_of(self.absent)
        assert away is not None, "absent sub-axes are sub-axes of the stack"
        index = [slice(None)] * len(sub_axes.sizes)
        for dim in away:
            if stacked.data.shape[dim] > 1:
                at = place // sub_axes.strides[dim] % sub_axes.sizes[dim]
                index[dim] = slice(at, at + 1)
        return Stacked(stacked.data[tuple(index)], sub_axes, stacked.owned)


def process_at(absent: Sequence[AxisSpan], places: Array) -> Array:
    """Process numbers of the devices at these places."""
    found = np.zeros_like(places)
    for stride, size in absent:
        found = found * size + places // stride % size
    return found


def addressable(sub_axes: SubAxes, absent: Iterable[int], place: int) -> Addressable | None:
    """The devices of the process that holds a place; None if it holds all of them."""
    spans: list[AxisSpan] = []
    for dim in sorted(absent):
        stride, size = sub_axes.strides[dim], sub_axes.sizes[dim]
        if spans and spans[-1][0] == stride * size:  # they form one span
            size *= spans.pop()[1]
        spans.append((stride, size))
    if not spans:
        return None
    return Addressable(sub_axes.count, tuple(spans), int(process_at(spans, np.array(place))))


def addressable_along(
    mesh: Mesh, stacked: Iterable[Axis | str], device: int | None = None
) -> Addressable | None:
    """The devices of the process that holds a device and those along some axes; None if all.

    The default is the first process.
    """
    place = 0
    if device is not None:
        where = np.flatnonzero(mesh.devices().reshape(-1) == device)
        if not len(where):
            raise WeftError(
                f"the process has device {device}, which is not in the mesh",
                help=f"its devices are {', '.join(map(str, mesh.devices().reshape(-1)[:8]))}, ...",
            )
        place = int(where[0])
    return addressable(*_apart(mesh, as_axes(stacked)), place)


def _apart(mesh: Mesh, stacked: Sequence[Axis]) -> tuple[SubAxes, tuple[int, ...]]:
    spans = [span_of(axis, mesh) for axis in stacked]
    separated = separate_spans(sub_axes_of(mesh.size, mesh_spans(mesh)), spans)
    if separated is None:
        raise WeftError(
            f"the devices along {', '.join(map(str, stacked))} cannot be stacked: parts cross",
            help="stack whole axes, or parts of which one divides the other",
        )
    return separated
