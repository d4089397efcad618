"""Predicted seconds of a collective: a ring inside a fast domain, a speed-of-light curve beyond."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from weft.errors import WeftError
from weft.machine import Links, Machine
from weft.mesh import Axis, Groups, Mesh, MeshAxes
from weft.mesh.algebra import size_of

TrafficKind: TypeAlias = Literal["gather", "reduce", "scatter", "exchange", "permute"]
_OVERHEAD = 1.025  # the payload's share of a message, the rest being headers


@dataclass(frozen=True, slots=True)
class Reach:
    """The size of a collective's group, and the number of fast domains that it spans."""

    devices: int
    domains: int = 1


def reach(groups: Groups, meshes: Mapping[str, Mesh], devices: int, machine: Machine) -> Reach:
    """The reach of a collective's first group; an empty list of groups means all devices."""
    if isinstance(groups, MeshAxes):
        mesh = groups.mesh
        if isinstance(mesh, str):
            if mesh not in meshes:
                known = ", ".join(meshes) or "none"
                raise WeftError(f"the module has no mesh {mesh!r}", help=f"known: {known}")
            mesh = meshes[mesh]
        return _reach_along(mesh, groups.axes, machine.fast_devices)
    members = np.array(groups[0]) if groups else np.arange(devices)
    return _spread(members, machine.fast_devices)


@lru_cache(maxsize=4096)
def _reach_along(mesh: Mesh, axes: tuple[Axis, ...], fast: int | None) -> Reach:
    members = np.zeros(1, np.int64)
    for axis in axes:
        steps = np.arange(size_of(axis, mesh)) * _stride(axis, mesh)
        members = (members[:, None] + steps).reshape(-1)
    if mesh.device_ids is not None:
        members = np.array(mesh.device_ids)[members]
    return _spread(members, fast)


def _stride(axis: Axis, mesh: Mesh) -> int:
    """The stride of an axis in device order."""
    at = [name for name, _ in mesh.axes].index(axis.name)
    inner = mesh.axes[at][1] // (axis.before * size_of(axis, mesh))
    return inner * math.prod(size for _, size in mesh.axes[at + 1 :])


def _spread(members: npt.NDArray[np.int64], fast: int | None) -> Reach:
    return Reach(len(members), 1 if fast is None else len(np.unique(members // fast)))


def travel_seconds(kind: TrafficKind, size: int, reach: Reach, machine: Machine) -> float:
    """Seconds of a collective.

    `size` is in bytes: the result's of a gather, the operand's of all others.
    """
    if reach.devices <= 1 or size == 0:
        return 0.0
    if reach.domains == 1 or len(machine.links) == 1:
        return ring_seconds(kind, size, reach.devices, machine.fast)
    touched = 3 * size if kind in ("reduce", "scatter") else 2 * size
    return speed_of_light(kind, size, reach, machine.links[1]) + touched / machine.bandwidth


def ring_seconds(kind: TrafficKind, size: int, devices: int, links: Links) -> float:
    """A ring inside a fast domain: every device sends to its neighbour at full bandwidth."""
    if kind == "permute":
        return links.launch + links.latency + size / links.bandwidth
    share = size * (devices - 1) / devices
    sent = 2 * share if kind == "reduce" else share
    return links.launch + links.latency * (devices - 1) + sent / links.bandwidth


def speed_of_light(kind: TrafficKind, size: int, reach: Reach, links: Links) -> float:
    """OpenXLA's model across domains: chunks that are prepared, sent and acknowledged."""
    devices, domains = reach.devices, reach.domains
    if kind == "exchange":
        peers = devices // domains * (domains - 1)
        return peers * _message(size / (devices - 1), links) + links.launch
    if kind == "permute":
        return _message(size, links) * (1 if domains > 1 else 0.5) + links.launch
    rounds = (devices - 1) / (devices // domains)
    twice = 2 if kind == "reduce" else 1
    return _message(size / devices, links) * rounds * twice + links.launch


def _message(size: float, links: Links) -> float:
    chunks = math.ceil(size / links.chunk)
    return _OVERHEAD * size / links.bandwidth + chunks * links.prepare + links.latency
