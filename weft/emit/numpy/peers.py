"""Peer processes of a collective."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from weft.executable.items import Site
from weft.executable.process import DeviceGroup, Peer, Process, ProcessCollective, Transport
from weft.mesh import Mesh
from weft.mesh.sub_axes import SubAxes
from weft.ops.distributed.collective import CollectivePermute
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Peers:
    """The processes of a program, and the transport to them."""

    site: Site
    process: Process
    collective: ProcessCollective
    processes: Mapping[int, Peer]  # process by device, for other processes' devices

    @property
    def transport(self) -> Transport:
        """The transport between them."""
        return self.process.transport

    def has(self, device: int) -> bool:
        """Whether another process holds a device."""
        return device in self.processes

    def peer(self, device: int) -> Peer:
        """The process that holds a device."""
        return self.processes[device]

    def apart(self, group: DeviceGroup) -> Mapping[Peer, list[int]]:
        """The devices of a group that other processes hold, by process."""
        devices: dict[Peer, list[int]] = {}
        for device in group:
            if device in self.processes:
                devices.setdefault(self.processes[device], []).append(device)
        return devices

    def along(self, sub_axes: Sequence[int]) -> tuple[list[Peer], int]:
        """The processes along some absent sub-axes, in order, and the index of this one."""
        world, all_axes = self.site.world, self.site.world.sub_axes
        place = int(world.places()[self.process.device])
        own = [int(at) for at in all_axes.coordinates(np.asarray(place))]
        base = place - sum(own[d] * all_axes.strides[d] for d in sub_axes)
        sizes = [all_axes.sizes[d] for d in sub_axes]
        places = [
            base + sum(n * all_axes.strides[d] for n, d in zip(index, sub_axes, strict=True))
            for index in np.ndindex(*sizes)
        ]
        devices = world.devices()[places].tolist()
        here = next(n for n, other in enumerate(devices) if other not in self.processes)
        return [self.processes.get(d, self.collective.here) for d in devices], here


def peers_of(site: Site, process: Process | None, stream: str | None) -> Peers | None:
    """The peers; None if there are none, or this process's identity is unknown."""
    world, absent = site.world, site.stack_dims.absent
    if process is None or not absent:
        return None
    devices = _processes(world.mesh, world.sub_axes, absent)
    others = _elsewhere(world.mesh, world.sub_axes, absent, process.device)
    groups = [g for g in _groups(site) if any(d not in others for d in g)]
    here = next(peer for peer, group in devices.items() if process.device in group)
    return Peers(site, process, ProcessCollective(here, site.node, stream, groups, devices), others)


@lru_cache(maxsize=64)
def _processes(
    mesh: Mesh, sub_axes: SubAxes, absent: tuple[int, ...]
) -> Mapping[Peer, DeviceGroup]:
    """The devices of every process."""
    which = sub_axes.index(absent, np.arange(sub_axes.count)).tolist()
    listed: dict[int, list[int]] = {}
    for number, device in zip(which, mesh.devices().reshape(-1).tolist(), strict=True):
        listed.setdefault(number, []).append(device)
    # The least device of a process is its name.
    return {min(group): tuple(sorted(group)) for group in listed.values()}


@lru_cache(maxsize=64)
def _elsewhere(
    mesh: Mesh, sub_axes: SubAxes, absent: tuple[int, ...], device: int
) -> Mapping[int, Peer]:
    """The processes of the devices that this device's process does not hold."""
    found = _processes(mesh, sub_axes, absent)
    return {d: peer for peer, group in found.items() if device not in group for d in group}


def _groups(site: Site) -> list[DeviceGroup]:
    """The groups of devices; for a permute, its pairs; all devices for a call of Python."""
    world, op = site.world, site.op
    if not op.collective:
        return [tuple(world.devices().tolist())]
    if not isinstance(op, CollectivePermute):
        return [tuple(group) for group in world.groups(op)]
    devices, sources = world.devices().tolist(), world.sources(op).tolist()
    return [(devices[s], d) for d, s in zip(devices, sources, strict=True) if s >= 0]
