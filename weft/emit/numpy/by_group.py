"""Collectives without a kernel on stacks: by their own references, one group at a time.

So do those whose groups are not all in this process: it sends what its devices bring, and waits for
what the others do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from weft.emit.numpy.one_by_one import empty, plain_region, store
from weft.errors import WeftError
from weft.executable.items import Site
from weft.executable.process import Process, Transport, Values
from weft.ir.module import Node
from weft.ir.types import Array
from weft.kernels.host import HostKernel, several
from weft.ops.collective import CollectivePermute


def rows_of(site: Site, active: Array | None, process: Process | None) -> Array:
    """The place in the mesh of every row of a stack that is spelled out."""
    layout, atoms = site.layout, site.world.atoms
    kept = [np.arange(atoms.sizes[a]) * atoms.strides[a] for a in layout.kept]
    if layout.absent:
        mine = atoms.digits(np.array([_place(site, process)]))
        here = {a: mine[a] * atoms.strides[a] for a in layout.absent}
        kept = [here.get(a, k) for k, a in zip(kept, layout.kept, strict=True)]
    grids = [k.reshape([-1 if d == n else 1 for d in range(len(kept))]) for n, k in enumerate(kept)]
    base = sum(grids, np.zeros((1,) * len(kept), np.int64))
    if active is None:
        return np.asarray(base)
    first, rest = np.zeros_like(active), active
    for atom in reversed(layout.rows):
        rest, digit = np.divmod(rest, atoms.sizes[atom])
        first = first + digit * atoms.strides[atom]
    return np.asarray(first.reshape(-1, *(1,) * len(kept)) + base)


def _place(site: Site, process: Process | None) -> int:
    """The place in the mesh of a device of this process; any will do as long as none is told."""
    return 0 if process is None else int(site.world.places()[process.device])


def by_group(site: Site, process: Process | None) -> HostKernel:
    """Run a collective for one group of devices at a time."""
    node, world, lead = site.node, site.world, site.lead
    there = _elsewhere(site, process)
    sends = isinstance(node.op, CollectivePermute) and bool(site.layout.absent)
    meet = _sent(site, there, process) if sends else _met(site, there, process)
    has_rows = site.layout.has_rows

    def run(*arrays: Any) -> tuple[Any, ...]:
        active = arrays[-1] if has_rows else None
        places = rows_of(site, active, process)
        devices = world.devices()[places.reshape(-1)].tolist()
        flat = [_flat(a, places.shape, lead) for a in arrays[: len(node.operands)]]
        mine = {d: tuple([a[n] for a in flat]) for n, d in enumerate(devices)}
        made = meet(mine)
        outs: tuple[Any, ...] | None = None
        for n, d in enumerate(devices):
            outs = store(outs, made[d], (len(devices),), (n,))
        if outs is None:
            return empty(site, places.shape)
        return tuple([o.reshape(places.shape + o.shape[1:]) for o in outs])

    return HostKernel(several(run, len(node.results)), reads_rows=has_rows)


def _flat(array: Array, head: tuple[int, ...], lead: int) -> Array:
    full = np.broadcast_to(array, head + array.shape[lead:])
    return full.reshape(math.prod(head), *array.shape[lead:])


def _elsewhere(site: Site, process: Process | None) -> set[int]:
    """The devices of other processes."""
    world, absent = site.world, site.layout.absent
    if not absent:
        return set()
    which = world.atoms.index(absent, np.arange(world.count))
    return {*world.devices()[which != which[_place(site, process)]].tolist()}


Meet = Callable[[Mapping[int, Values]], Mapping[int, Values]]


def _met(site: Site, there: set[int], process: Process | None) -> Meet:
    """What devices of this process get from what they bring, by groups."""
    node = site.node
    groups = [tuple(group) for group in site.world.groups(node.op)]
    calls = tuple([plain_region(site, n) for n in range(len(node.regions))])
    extra = {"regions": calls} if calls else {}

    def meet(mine: Mapping[int, Values]) -> Mapping[int, Values]:
        made: dict[int, Values] = {}
        present = [group for group in groups if any(d in mine for d in group)]
        for group in present:
            if any(d not in mine and d not in there for d in group):
                raise not_all_there(node, group, [d for d in group if d in mine])
        far = [(group, d) for group in present for d in group if d in there]
        known = {(group, d): mine[d] for group in present for d in group if d in mine}
        if far:
            crossing = {group for group, _ in far}
            sent = [entry for entry in known.items() if entry[0][0] in crossing]
            known.update(zip(far, _transport(process).exchange(node, sent, far), strict=True))
        for group in present:
            members = [known[group, d] for d in group]
            made.update(zip(group, node.op.reference(*members, **extra), strict=True))
        for d in mine:
            if d not in made:
                made[d] = _alone(site, d, mine[d])
        return made

    return meet


def _alone(site: Site, device: int, values: Values) -> Values:
    """What a device gets that is in no group."""
    op = site.op
    if not hasattr(op, "alone"):
        raise WeftError(
            f"{op.name}: device {device} is in no group",
            help=f"the groups must name every one of the {site.world.count} devices",
        )
    made: Values = op.alone(values)
    return made


def _sent(site: Site, there: set[int], process: Process | None) -> Meet:
    """What devices of this process get if only those meet that send to one another."""
    node, world = site.node, site.world
    assert isinstance(node.op, CollectivePermute)
    devices, sources = world.devices().tolist(), world.sources(node.op).tolist()
    source = {t: devices[s] for t, s in zip(devices, sources, strict=True) if s >= 0}

    def meet(mine: Mapping[int, Values]) -> Mapping[int, Values]:
        pairs = [(s, t) for t, s in source.items() if s in mine or t in mine]
        for pair in pairs:
            if any(d not in mine and d not in there for d in pair):
                raise not_all_there(node, pair, [d for d in pair if d in mine])
        sent = [((pair, pair[0]), mine[pair[0]]) for pair in pairs if pair[1] in there]
        far = [(pair, pair[0]) for pair in pairs if pair[0] in there]
        known = dict(mine)
        if sent or far:
            got = _transport(process).exchange(node, sent, far)
            known.update((s, values) for (_, s), values in zip(far, got, strict=True))
        nothing = {d: tuple([np.zeros_like(a) for a in mine[d]]) for d in mine if d not in source}
        return nothing | {d: known[source[d]] for d in mine if d in source}

    return meet


def _transport(process: Process | None) -> Transport:
    assert process is not None, "a program that has devices elsewhere is told who it is"
    return process.transport


def not_all_there(node: Node, group: Sequence[int], present: Sequence[int]) -> WeftError:
    """The error for a collective that part of a group never comes to."""
    gone = [d for d in group if d not in present]
    return WeftError(
        f"{node.op.name}: devices {list(present)[:8]} meet here, but devices {gone[:8]} of their "
        "group went another way",
        help="every device of a group must reach the same collective; "
        "on a real machine this program hangs",
    )
