"""Nodes that read the position of their device: its ids, its index along axes, its slice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.emit.numpy.by_group import rows_of
from weft.emit.numpy.one_by_one import OneDevice, finished
from weft.executable.items import Site
from weft.executable.process import Process
from weft.ir.types import Array
from weft.kernels.host import HostKernel
from weft.ops.distributed.local import AxisIndex


def result_window(site: Site, index: int = 0) -> tuple[slice, ...]:
    """The window of a broadcast stack that a result's mask keeps: elsewhere the first index."""
    mask = site.out(index)
    return tuple([slice(None) if mask >> d & 1 else slice(0, 1) for d in range(site.lead)])


def _reading_places(
    site: Site, process: Process | None, index: Callable[[Array], Array]
) -> HostKernel:
    """Numbers derived from device positions."""
    stack_dims, mask = site.stack_dims, site.out()
    window = result_window(site)
    held = site.result().dtype.numpy
    if stack_dims.has_rows and mask & 1:

        def run(active: Array) -> Array:
            return index(rows_of(site, active, process))[window].astype(held)

        return HostKernel(run, reads_rows=True)
    rows = np.zeros(1, np.int64) if stack_dims.has_rows else None
    made = index(rows_of(site, rows, process))[window].astype(held)
    return HostKernel(lambda: made, shares=True)


def partition_id(site: Site, process: Process | None) -> HostKernel:
    """The numbers of the partitions."""
    world = site.world
    return _reading_places(site, process, lambda places: world.devices()[places] % world.shape[1])


def replica_id(site: Site, process: Process | None) -> HostKernel:
    """The numbers of the replicas."""
    world = site.world
    return _reading_places(site, process, lambda places: world.devices()[places] // world.shape[1])


def axis_index(site: Site, process: Process | None) -> HostKernel:
    """Device positions along axes."""
    op, world = site.op, site.world
    assert isinstance(op, AxisIndex)
    dims = world.axis_dims(op.over.mesh, op.over.axes)
    if dims is None:
        return with_device(site, process)
    found = dims
    return _reading_places(site, process, lambda places: world.sub_axes.index(found, places))


def with_device(site: Site, process: Process | None) -> HostKernel:
    """By the reference, once for each device, given its number."""
    node, lead = site.node, site.lead
    has_rows, partitions = site.stack_dims.has_rows, site.world.shape[1]
    type, window = site.result(), result_window(site)

    def run(*arrays: Any) -> Array:
        places = rows_of(site, arrays[-1] if has_rows else None, process)
        out = np.empty(places.shape + type.sizes, type.dtype.numpy)
        devices = site.world.devices()[places]
        full = [
            np.broadcast_to(a, places.shape + a.shape[lead:]) for a in arrays[: len(site.given)]
        ]
        for index in np.ndindex(places.shape):
            # Devices are numbered replica by replica.
            device = OneDevice(site.module, divmod(int(devices[index]), partitions))
            steps = node.op.reference(*[a[index] for a in full], regions=(), run=device)
            (out[index],) = finished(steps)
        return out[window]

    return HostKernel(run, reads_rows=has_rows)
