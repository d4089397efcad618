"""Collectives without a stacked form: by their references, one group at a time.

Used for groups that follow no sub-axes, and for divergent code. Where groups span processes, every
process sends its devices' operands once to each other process.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from weft.emit.numpy.one_by_one import empty, plain_region, store
from weft.emit.numpy.peers import Peers, peers_of
from weft.errors import WeftError
from weft.executable.items import Site
from weft.executable.process import DeviceGroup, Exchange, Peer, Process, Values
from weft.ir.module import Node
from weft.ir.types import Array
from weft.kernels.host import HostKernel, in_two
from weft.ops.distributed.collective import CollectiveBroadcast, CollectivePermute

Mine: TypeAlias = Mapping[int, Values]  # by device of this process
GroupLists: TypeAlias = Mapping[Peer, Sequence[int]]  # devices by process


def rows_of(site: Site, active: Array | None, process: Process | None) -> Array:
    """The mesh position of every row of a broadcast stack."""
    stack_dims, sub_axes = site.stack_dims, site.world.sub_axes
    offsets = [np.arange(sub_axes.sizes[a]) * sub_axes.strides[a] for a in stack_dims.kept]
    if stack_dims.absent:
        mine = sub_axes.coordinates(np.array([_place(site, process)]))
        here = {a: mine[a] * sub_axes.strides[a] for a in stack_dims.absent}
        offsets = [here.get(a, k) for k, a in zip(offsets, stack_dims.kept, strict=True)]
    own = [
        k.reshape([-1 if d == n else 1 for d in range(len(offsets))]) for n, k in enumerate(offsets)
    ]
    base = sum(own, np.zeros((1,) * len(offsets), np.int64))
    if active is None:
        return np.asarray(base)
    first, rest = np.zeros_like(active), active
    for sub_axis in reversed(stack_dims.rows):
        rest, coordinate = np.divmod(rest, sub_axes.sizes[sub_axis])
        first = first + coordinate * sub_axes.strides[sub_axis]
    return np.asarray(first.reshape(-1, *(1,) * len(offsets)) + base)


def _place(site: Site, process: Process | None) -> int:
    """The mesh position of a device of this process; arbitrary if it is unknown."""
    return 0 if process is None else int(site.world.places()[process.device])


def by_group(site: Site, process: Process | None, stream: str | None = None) -> HostKernel:
    """Run a collective one group of devices at a time."""
    node, world, lead = site.node, site.world, site.lead
    sends = isinstance(node.op, CollectivePermute) and bool(site.stack_dims.absent)
    peers = peers_of(site, process, stream)
    routes = (_Pairs if sends else _Groups)(site, peers)
    has_rows = site.stack_dims.has_rows

    def begin(*arrays: Any) -> tuple[Any, ...]:
        active = arrays[-1] if has_rows else None
        places = rows_of(site, active, process)
        devices = world.devices()[places.reshape(-1)].tolist()
        flat = [flat_rows(a, places.shape, lead) for a in arrays[: len(node.operands)]]
        mine = {d: tuple([a[n] for a in flat]) for n, d in enumerate(devices)}
        sent, awaited = routes.messages(mine)
        return places.shape, mine, awaited, _started(site, peers, mine, sent, awaited)

    def finish(begun: tuple[Any, ...]) -> Any:
        head, mine, awaited, started = begun
        known = dict(mine)
        if started is not None:
            assert peers is not None
            for peer, got in peers.transport.wait(started).items():
                count = len(node.operands)
                for n, d in enumerate(awaited[peer]):
                    known[d] = got[n * count : (n + 1) * count]
        made, outs = routes.results(mine, known), None
        for n, d in enumerate(mine):
            outs = store(outs, made[d], (len(mine),), (n,))
        if outs is None:
            outs = empty(site, head)
        else:
            outs = tuple([o.reshape(head + o.shape[1:]) for o in outs])
        return outs[0] if len(node.results) == 1 else outs

    return in_two(begin, finish, has_rows)


def _started(
    site: Site, peers: Peers | None, mine: Mine, sent: GroupLists, awaited: GroupLists
) -> object:
    """The exchange of whole operands; None if nothing leaves the process."""
    if peers is None or not (sent or awaited):
        return None
    types = [site.operand(n) for n in range(len(site.node.operands))]
    kinds = [(type.sizes, type.dtype.numpy) for type in types]
    messages = {peer: tuple([a for d in listed for a in mine[d]]) for peer, listed in sent.items()}
    kinds_of = {peer: kinds * len(listed) for peer, listed in awaited.items()}
    return peers.transport.start(Exchange(peers.collective, messages, kinds_of))


def flat_rows(array: Array, head: tuple[int, ...], lead: int) -> Array:
    """A stack with one row for each device: leading dims are broadcast and merged."""
    full = np.broadcast_to(array, head + array.shape[lead:])
    return full.reshape(math.prod(head), *array.shape[lead:])


class _Groups:
    """Groups in which every device contributes."""

    def __init__(self, site: Site, peers: Peers | None) -> None:
        self.site, self.peers = site, peers
        node = site.node
        calls = tuple([plain_region(site, n) for n in range(len(node.regions))])
        self.extra = {"regions": calls} if calls else {}
        self.first = isinstance(node.op, CollectiveBroadcast)  # the first one is representative

    @cached_property
    def groups(self) -> list[DeviceGroup]:
        """The groups of devices, listed when they first meet."""
        # A program that is only predicted is never called: 100,000 devices are not listed for it.
        return [tuple(group) for group in self.site.world.groups(self.site.node.op)]

    def present(self, mine: Mine) -> list[DeviceGroup]:
        """The groups with devices of this process."""
        return [group for group in self.groups if any(d in mine for d in group)]

    def messages(self, mine: Mine) -> tuple[GroupLists, GroupLists]:
        """The devices whose operands are sent to other processes, and those to receive."""
        sent: dict[Peer, dict[int, None]] = {}
        awaited: dict[Peer, dict[int, None]] = {}
        for group in self.present(mine):
            _all_there(self.site.node, group, mine, self.peers)
            if self.peers is None:
                continue
            senders = group[:1] if self.first else group
            for peer, theirs in self.peers.apart(group).items():
                if found := [d for d in senders if d in mine]:
                    sent.setdefault(peer, {}).update(dict.fromkeys(found))
                if found := [d for d in senders if d in theirs]:
                    awaited.setdefault(peer, {}).update(dict.fromkeys(found))
        return _lists(sent), _lists(awaited)

    def results(self, mine: Mine, known: Mine) -> Mine:
        """The results of this process's devices."""
        results: dict[int, Values] = {}
        for group in self.present(mine):
            members = [known.get(d, known[group[0]]) if self.first else known[d] for d in group]
            results.update(zip(group, self.site.op.reference(*members, **self.extra), strict=True))
        for d in mine:
            if d not in results:
                results[d] = _alone(self.site, d, mine[d])
        return results


class _Pairs:
    """Source and target pairs of devices."""

    def __init__(self, site: Site, peers: Peers | None) -> None:
        self.site, self.peers = site, peers

    @cached_property
    def source(self) -> dict[int, int]:
        """The device that sends to each one that receives, listed when they first meet."""
        op, world = self.site.op, self.site.world
        assert isinstance(op, CollectivePermute)
        devices, sources = world.devices().tolist(), world.sources(op).tolist()
        pairs = zip(devices, sources, strict=True)
        return {target: devices[source] for target, source in pairs if source >= 0}

    def messages(self, mine: Mine) -> tuple[GroupLists, GroupLists]:
        """The devices whose operands are sent to other processes, and those to receive."""
        sent: dict[Peer, dict[int, None]] = {}
        awaited: dict[Peer, dict[int, None]] = {}
        for target, source in self.source.items():
            if source not in mine and target not in mine:
                continue
            _all_there(self.site.node, (source, target), mine, self.peers)
            assert self.peers is not None
            if target not in mine:
                sent.setdefault(self.peers.peer(target), {})[source] = None
            elif source not in mine:
                awaited.setdefault(self.peers.peer(source), {})[source] = None
        return _lists(sent), _lists(awaited)

    def results(self, mine: Mine, known: Mine) -> Mine:
        """The results of this process's devices."""
        return {
            d: known[self.source[d]] if d in self.source else tuple(map(np.zeros_like, mine[d]))
            for d in mine
        }


def _lists(by_peer: Mapping[Peer, Iterable[int]]) -> GroupLists:
    """Devices in an order that sender and receiver agree on."""
    return {peer: sorted(devices) for peer, devices in by_peer.items()}


def _alone(site: Site, device: int, values: Values) -> Values:
    """The result of a device that is in no group."""
    op = site.op
    if not hasattr(op, "alone"):
        raise WeftError(
            f"{op.name}: device {device} is in no group",
            help=f"the groups must name every one of the {site.world.count} devices",
        )
    made: Values = op.alone(values)
    return made


def _all_there(node: Node, group: Sequence[int], mine: Mine, peers: Peers | None) -> None:
    """Raise if devices of a group diverged, or do not exist."""
    if any(d not in mine and (peers is None or not peers.has(d)) for d in group):
        raise not_all_there(node, group, [d for d in group if d in mine])


def not_all_there(node: Node, group: Sequence[int], present: Sequence[int]) -> WeftError:
    """The error for a collective that part of its group never reaches."""
    gone = [d for d in group if d not in present]
    return WeftError(
        f"{node.op.name}: devices {list(present)[:8]} meet here, but devices {gone[:8]} of their "
        "group went another way",
        help="every device of a group must reach the same collective; "
        "on a real machine this program hangs",
    )
