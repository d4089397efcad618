"""The ragged all-to-all between processes: only the rows that are routed to a process are sent."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from weft.emit.numpy.by_group import flat_rows, rows_of
from weft.emit.numpy.peers import Peers
from weft.executable.items import Site
from weft.executable.process import DeviceGroup, Exchange, Peer, Values
from weft.ir.types import Array
from weft.kernels.host import HostKernel, in_two
from weft.ops.distributed.ragged import RaggedAllToAll

OwnOperands: TypeAlias = dict[int, Values]  # the operands of this process's devices
Pair: TypeAlias = tuple[DeviceGroup, int, int]  # a group, and the places of a sender and a receiver


def ragged_exchange(site: Site, peers: Peers) -> HostKernel:
    """A message for every pair of devices in different processes: its rows, and where they go."""
    routes = _Routes(site, peers)
    lead, transport = site.lead, peers.transport

    def begin(*arrays: Array) -> tuple[Any, ...]:
        places = rows_of(site, None, peers.process)
        devices = site.world.devices()[places.reshape(-1)].tolist()
        flat = [flat_rows(a, places.shape, lead) for a in arrays]
        mine = {d: tuple([a[n] for a in flat]) for n, d in enumerate(devices)}
        exchange = Exchange(peers.collective, *routes.messages(mine))
        return places.shape, mine, transport.start(exchange)

    def finish(begun: tuple[Any, ...]) -> Array:
        head, mine, started = begun
        made = routes.results(mine, transport.wait(started))
        stacked = np.stack([made[d] for d in mine])
        return stacked.reshape(*head, *stacked.shape[1:])

    return in_two(begin, finish)


class _Routes:
    """The pairs of devices of a ragged all-to-all, in an order that all processes agree on."""

    def __init__(self, site: Site, peers: Peers) -> None:
        assert isinstance(site.op, RaggedAllToAll)
        # Operands: rows, output, input offsets, send sizes, output offsets, receive sizes.
        self.site, self.op, self.peers = site, site.op, peers

    @cached_property
    def groups(self) -> list[DeviceGroup]:
        """The groups of devices, listed when they first meet."""
        return [tuple(group) for group in self.site.world.groups(self.op)]

    def pairs(self, mine: OwnOperands) -> Iterator[Pair]:
        """Every sender and receiver of which this process holds one."""
        for group in self.groups:
            if any(d in mine for d in group):
                for sender in range(len(group)):
                    for receiver in range(len(group)):
                        if group[sender] in mine or group[receiver] in mine:
                            yield group, sender, receiver

    def messages(self, mine: OwnOperands) -> tuple[dict[Peer, Values], dict[Peer, list[Any]]]:
        """The arrays for every other process, and the shapes of those that it sends."""
        sent: dict[Peer, Values] = {}
        awaited: dict[Peer, list[Any]] = {}
        for group, s, r in self.pairs(mine):
            sender, receiver = group[s], group[r]
            if receiver not in mine:
                peer = self.peers.peer(receiver)
                sent[peer] = sent.get(peer, ()) + self._sent(mine[sender], r, len(group))
            elif sender not in mine:
                own = mine[receiver]
                each = len(own[5]) // len(group)
                total = int(own[5][s * each : (s + 1) * each].sum())
                kinds = [((total, *own[0].shape[1:]), own[0].dtype), ((each,), own[4].dtype)]
                awaited.setdefault(self.peers.peer(sender), []).extend(kinds)
        return sent, awaited

    def _sent(self, own: Values, receiver: int, count: int) -> Values:
        """The rows that a device sends to another, and their places there."""
        each = len(own[2]) // count
        span = slice(receiver * each, (receiver + 1) * each)
        parts = []
        for start, size in zip(own[2][span].tolist(), own[3][span].tolist(), strict=True):
            self.op.check_rows(start, size, len(own[0]), "sent")
            parts.append(own[0][start : start + size])
        return np.concatenate(parts) if parts else own[0][:0], own[4][span]

    def results(self, mine: OwnOperands, got: Any) -> dict[int, Array]:
        """The output of every device of this process, with the rows that it receives."""
        outputs = {d: own[1].copy() for d, own in mine.items()}
        left = {peer: iter(values) for peer, values in got.items()}
        for group, s, r in self.pairs(mine):
            sender, receiver = group[s], group[r]
            if receiver not in mine:
                continue
            if sender in mine:
                found = self.op.slices(mine[sender], mine[receiver], s, r, len(group))
                for start, place, size in found:
                    rows = mine[sender][0][start : start + size]
                    outputs[receiver][place : place + size] = rows
                continue
            values = left[self.peers.peer(sender)]
            rows, places = next(values), next(values)
            each = len(places)
            sizes = mine[receiver][5][s * each : (s + 1) * each].tolist()
            at = 0
            for place, size in zip(places.tolist(), sizes, strict=True):
                self.op.check_rows(place, size, len(outputs[receiver]), "written")
                outputs[receiver][place : place + size] = rows[at : at + size]
                at += size
        return outputs
