"""Predicted seconds of a collective: a ring inside a fast domain, a speed-of-light curve beyond."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
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
    """The reach of a collective's widest group; an empty list of groups means all devices."""
    if isinstance(groups, MeshAxes):
        mesh = groups.mesh
        if isinstance(mesh, str):
            if mesh not in meshes:
                known = ", ".join(meshes) or "none"
                raise WeftError(f"the module has no mesh {mesh!r}", help=f"known: {known}")
            mesh = meshes[mesh]
        return _reach_along(mesh, groups.axes, machine)
    return _widest([np.array(group) for group in groups] or [np.arange(devices)], machine)


def reach_of_pairs(pairs: Iterable[tuple[int, int]], machine: Machine) -> Reach:
    """The reach of a permutation: two devices, and two domains if a pair crosses their border."""
    moves = np.array([pair for pair in pairs if pair[0] != pair[1]], np.int64)
    if not len(moves):
        return Reach(1)
    domains = machine.domains_of(moves)
    return Reach(2, 2 if (domains[:, 0] != domains[:, 1]).any() else 1)


@lru_cache(maxsize=4096)
def _reach_along(mesh: Mesh, axes: tuple[Axis, ...], machine: Machine) -> Reach:
    """The widest group along axes, by the order of the mesh's devices."""
    members = np.arange(mesh.size).reshape([size for _, size in mesh.axes])
    parts, along = _split_axes(mesh, axes)
    members = members.reshape(parts)
    rest = [n for n in range(members.ndim) if n not in along]
    groups = members.transpose(*rest, *along).reshape(-1, math.prod(parts[n] for n in along))
    if mesh.device_ids is not None:
        groups = np.array(mesh.device_ids)[groups]
    return _widest(groups, machine)


def _split_axes(mesh: Mesh, axes: tuple[Axis, ...]) -> tuple[list[int], list[int]]:
    """The sizes of a mesh's axes, split where a part of one is named, and the parts of `axes`."""
    parts: list[int] = []
    places: dict[tuple[str, int], int] = {}
    for name, size in mesh.axes:
        named = sorted((a for a in axes if a.name == name), key=lambda a: a.before)
        before = 1
        for axis in named:
            parts.append(axis.before // before)  # what lies before it
            places[name, axis.before] = len(parts)
            parts.append(size_of(axis, mesh))
            before = axis.before * size_of(axis, mesh)
        parts.append(size // before)
    return parts, [places[axis.name, axis.before] for axis in axes]


def _widest(groups: Iterable[npt.NDArray[np.int64]], machine: Machine) -> Reach:
    """The reach of the group over most domains, or else of the largest."""
    if isinstance(groups, np.ndarray) and not machine.domain_ids and groups.size:
        count = groups.shape[1]
        if machine.fast_devices is None:
            return Reach(count, 1)
        domains = np.sort(machine.domains_of(groups), axis=1)
        spread = 1 + (domains[:, 1:] != domains[:, :-1]).sum(axis=1)
        return Reach(count, int(spread.max()))
    found = [Reach(len(g), len(np.unique(machine.domains_of(g))) or 1) for g in groups]
    return max(found, key=lambda r: (r.domains, r.devices), default=Reach(1))


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
