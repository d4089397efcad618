"""Predicted seconds of a collective: measured tables or rings inside a domain, models beyond."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from weft.cost.measured import CollectiveShape, Estimate, measured
from weft.errors import WeftError
from weft.machine import Links, Machine, Provenance
from weft.mesh import Axis, Groups, Mesh, MeshAxes
from weft.mesh.algebra import size_of
from weft.records import dataclass

TrafficKind: TypeAlias = Literal["gather", "reduce", "scatter", "exchange", "permute"]
Pattern: TypeAlias = Literal["one_way", "mutual", "ring"]
OP_NAMES: Mapping[TrafficKind, str] = {
    "gather": "all-gather",
    "reduce": "all-reduce",
    "scatter": "reduce-scatter",
    "exchange": "all-to-all",
    "permute": "collective-permute",
}
# How far off a ring's model is where its bandwidth was measured, published or guessed.
_OFF: Mapping[Provenance, float] = {"measured": 1.6, "published": 1.8, "guessed": 2.5}
_OVERHEAD = 1.025  # bytes on the wire for a byte of payload: headers are the rest


@dataclass(frozen=True, slots=True)
class GroupExtent:
    """The size of a collective's group, and the number of fast domains that it spans."""

    devices: int
    domains: int = 1


def group_extent(
    groups: Groups, meshes: Mapping[str, Mesh], devices: int, machine: Machine
) -> GroupExtent:
    """The extent of a collective's widest group; an empty list of groups means all devices."""
    if isinstance(groups, MeshAxes):
        mesh = groups.mesh
        if isinstance(mesh, str):
            if mesh not in meshes:
                known = ", ".join(meshes) or "none"
                raise WeftError(f"the module has no mesh {mesh!r}", help=f"known: {known}")
            mesh = meshes[mesh]
        return extent_along(mesh, groups.axes, machine)
    return _widest([np.array(group) for group in groups] or [np.arange(devices)], machine)


def pairs_extent(pairs: Iterable[tuple[int, int]], machine: Machine) -> GroupExtent:
    """The extent of a permutation: two devices, and two domains if a pair crosses their border."""
    moves = np.array([pair for pair in pairs if pair[0] != pair[1]], np.int64)
    if not len(moves):
        return GroupExtent(1)
    domains = machine.domains_of(moves)  # [pairs, source and target]
    return GroupExtent(2, 2 if (domains[:, 0] != domains[:, 1]).any() else 1)


def pattern_of(pairs: Iterable[tuple[int, int]]) -> Pattern:
    """How a permutation sends: no receiver sends, pairs swap, or neither."""
    moves = {pair for pair in pairs if pair[0] != pair[1]}
    if not {source for source, _ in moves} & {target for _, target in moves}:
        return "one_way"
    return "mutual" if all((b, a) in moves for a, b in moves) else "ring"


@lru_cache(maxsize=4096)
def extent_along(mesh: Mesh, axes: tuple[Axis, ...], machine: Machine) -> GroupExtent:
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


def _widest(groups: Iterable[npt.NDArray[np.int64]], machine: Machine) -> GroupExtent:
    """The extent of the group over most domains, or else of the largest."""
    if isinstance(groups, np.ndarray) and not machine.domain_ids and groups.size:
        count = groups.shape[1]
        if machine.fast_devices is None:
            return GroupExtent(count, 1)
        domains = np.sort(machine.domains_of(groups), axis=1)
        spread = 1 + (domains[:, 1:] != domains[:, :-1]).sum(axis=1)
        return GroupExtent(count, int(spread.max()))
    found = [GroupExtent(len(g), len(np.unique(machine.domains_of(g))) or 1) for g in groups]
    return max(found, key=lambda r: (r.domains, r.devices), default=GroupExtent(1))


def travel_seconds(
    kind: TrafficKind,
    size: int,
    extent: GroupExtent,
    machine: Machine,
    dtype: str = "f32",
    pattern: Pattern = "ring",
) -> float:
    """Seconds of a collective.

    `size` is in bytes: the result's of a gather, the operand's of all others.
    """
    return travel_estimate(kind, size, extent, machine, dtype, pattern).seconds


def travel_estimate(
    kind: TrafficKind,
    size: int,
    extent: GroupExtent,
    machine: Machine,
    dtype: str = "f32",
    pattern: Pattern = "ring",
) -> Estimate:
    """Seconds of a collective by the best algorithm of a collective library, and their source."""
    if extent.devices <= 1 or size == 0:
        return Estimate(0.0, 0.0, 0.0, "nothing is sent")
    if extent.domains == 1 or len(machine.links) == 1:
        return one_domain_estimate(kind, size, extent.devices, machine, dtype, pattern)
    flat, *others = multi_domain_estimates(kind, size, extent, machine, dtype)
    return min((flat, *others), key=lambda estimate: estimate.seconds)


def one_domain_estimate(
    kind: TrafficKind,
    size: int,
    devices: int,
    machine: Machine,
    dtype: str = "f32",
    pattern: Pattern = "ring",
) -> Estimate:
    """A collective inside one fast domain: from the table of its machine, or else by a ring."""
    if not machine.table:
        seconds = ring_seconds(kind, size, devices, machine.fast)
        off = _OFF[machine.provenance("links.0.bandwidth")]
        source = f"modelled as a ring over {machine.fast.name}"
        return Estimate(seconds, seconds / off, seconds * off, source)
    # The groups of a domain run at the same time, and rows of the table say how many there were.
    whole = machine.fast_devices or devices
    if kind == "permute":
        return _of_table(machine.table, kind, dtype, 1, max(whole, devices), pattern, size)
    return _of_table(machine.table, kind, dtype, max(1, whole // devices), devices, "", size)


@lru_cache(maxsize=4096)
def _of_table(
    table: str, kind: TrafficKind, dtype: str, groups: int, devices: int, pattern: str, size: int
) -> Estimate:
    shape = CollectiveShape(table, OP_NAMES[kind], dtype, groups, devices, pattern, size)
    return measured().estimate(shape)


def multi_domain_estimates(
    kind: TrafficKind, size: int, extent: GroupExtent, machine: Machine, dtype: str = "f32"
) -> list[Estimate]:
    """Algorithms over several fast domains: a flat ring first, then one by levels."""
    network = machine.links[1]
    # Passes over a device's own memory: read and write, and of a reduction a second operand.
    touched = (3 * size if kind in ("reduce", "scatter") else 2 * size) / machine.bandwidth
    flat = speed_of_light(kind, size, extent, network) + touched
    estimates = [_modelled(flat, f"speed of light over {extent.domains} domains by {network.name}")]
    near = extent.devices // extent.domains
    if kind == "permute" or near == 1 or extent.devices % extent.domains:
        return estimates
    far = GroupExtent(extent.domains, extent.domains)
    # Every device talks to its peers in the other domains only, with its own network card.
    inner: tuple[TrafficKind, ...] = ("scatter", "gather") if kind == "reduce" else (kind,)
    outer = size if kind == "exchange" else size // near
    seconds = speed_of_light(kind, outer, far, network) + touched
    seconds += sum(one_domain_estimate(part, size, near, machine, dtype).seconds for part in inner)
    estimates.append(
        _modelled(seconds, f"by levels: {near} inside, {extent.domains} domains outside")
    )
    return estimates


def _modelled(seconds: float, source: str) -> Estimate:
    return Estimate(seconds, seconds / 1.5, seconds * 1.5, source)


def copies(size: int, devices: int, machine: Machine) -> Estimate:
    """An all-to-all inside a domain by copies between memories, which no library call starts."""
    share = size * (devices - 1) / devices / machine.fast.bandwidth
    seconds = machine.launch + 2 * machine.fast.latency + share
    return Estimate(seconds, seconds / 2, seconds * 2, "copies between the memories of a domain")


def ring_seconds(kind: TrafficKind, size: int, devices: int, links: Links) -> float:
    """A ring inside a fast domain: every device sends to its neighbour at full bandwidth."""
    if kind == "permute":
        return links.launch + links.latency + size / (links.bandwidth * _lanes(1, links))
    # In a ring each device forwards all parts but its own. An all-reduce does so twice: it is a
    # reduce-scatter and an all-gather.
    share = size * (devices - 1) / devices
    sent = 2 * share if kind == "reduce" else share
    hops, used = devices - 1, 1
    if links.torus:
        used = _sides(devices, links)
        # Rings along the sides of a torus are shorter than one through all devices.
        hops = math.ceil(used * (devices ** (1 / used) - 1))  # a ring along each side
    return links.launch + links.latency * hops + sent / (links.bandwidth * _lanes(used, links))


def _sides(devices: int, links: Links) -> int:
    """The number of sides of a torus that so many devices extend along, the longest sides first."""
    reached, sides = 1, 0
    for side in sorted(links.torus, reverse=True):
        if reached >= devices and sides:
            break
        reached, sides = reached * side, sides + 1
    return sides


def _lanes(used: int, links: Links) -> float:
    """The share of a device's bandwidth that some sides have; the way back on a line takes half."""
    if not links.torus:
        return 1.0
    return used / len(links.torus) * (1.0 if links.wraps else 0.5)


def speed_of_light(kind: TrafficKind, size: int, extent: GroupExtent, links: Links) -> float:
    """OpenXLA's model across domains: chunks that are prepared, sent and acknowledged."""
    devices, domains = extent.devices, extent.domains
    if kind == "exchange":
        # Only messages that leave a domain use the network.
        peers = devices // domains * (domains - 1)
        return peers * _message(size / (devices - 1), links) + links.launch
    if kind == "permute":
        return _message(size, links) * (1 if domains > 1 else 0.5) + links.launch
    # Rings through all devices run in parallel, one for each network card of a domain.
    rounds = (devices - 1) / (devices // domains)
    twice = 2 if kind == "reduce" else 1
    return _message(size / devices, links) * rounds * twice + links.launch


def _message(size: float, links: Links) -> float:
    chunks = math.ceil(size / links.chunk)
    # Seconds: payload with headers over byte/s, each chunk's preparation, and one way.
    return _OVERHEAD * size / links.bandwidth + chunks * links.prepare + links.latency
