"""Collectives between processes with one or several devices each.

They are hierarchical: devices of a process reduce along the stack first. A small partial sum goes
to every other process of the group, a larger all_reduce is a reduce_scatter and an all_gather. A
piece that several devices of a process need, or hold, is sent once. Values are stacks whose leading
dims for other processes' devices have size 1; received stacks are concatenated along these dims.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from weft.array.tensor_stack import TensorStack, can_combine, is_tensor_type
from weft.emit.numpy import collective
from weft.emit.numpy.by_group import by_group
from weft.emit.numpy.peers import Peers, peers_of
from weft.emit.numpy.ragged import ragged_exchange
from weft.emit.numpy.stack_reduction import NAMED, changes_type, reduction
from weft.emit.numpy.ufuncs import is_native, ufunc_of
from weft.executable.items import Site
from weft.executable.process import Exchange, Peer, Process, Values
from weft.executable.stack_dims import StackDims, collective_dims
from weft.ir.op import Op
from weft.ir.types import Array
from weft.ir.work import moved
from weft.kernels.host import HostKernel, in_two
from weft.ops.distributed.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectiveBroadcast,
    CollectivePermute,
    ReduceScatter,
)
from weft.ops.distributed.local import PermuteAlongAxes, VariadicReduceScatter
from weft.ops.distributed.ragged import RaggedAllToAll
from weft.records import dataclass

ROUND_BYTES = 1 << 14  # from so many bytes on, a sum of several processes takes two rounds
PieceFunction: TypeAlias = Callable[[Array], Array]
Cut: TypeAlias = Callable[[Array, int], Array]  # the part of an array for the nth process
PeerParts: TypeAlias = Sequence[Array]  # the parts of all processes, this one included


class Workers(collective.Lockstep):
    """The collectives of a process that holds some of the devices, over a transport."""

    def __init__(self, process: Process) -> None:
        self.process = process

    def kernel(self, site: Site, stream: str | None = None) -> HostKernel:
        """The function of a collective, or of a node that reads its devices' positions."""
        if leaves(site):
            assert self.process is not None
            return across(site, self.process, stream)
        return super().kernel(site)


def leaves(site: Site) -> bool:
    """Whether a node communicates with other processes, or its groups follow no sub-axes."""
    if not site.op.collective or not site.stack_dims.absent:
        return False
    return collective_dims(site.op, site.stack_dims, site.world) is None


def across(site: Site, process: Process, stream: str | None) -> HostKernel:
    """The kernel of a collective over several processes."""
    peers = peers_of(site, process, stream)
    assert peers is not None, "there are other processes"
    exchange = None
    if isinstance(site.op, RaggedAllToAll) and not site.stack_dims.has_rows:
        exchange = ragged_exchange(site, peers)
    elif not site.stack_dims.has_rows:
        exchange = _permute(site, peers) if type(site.op) in _MOVES else _together(site, peers)
    if exchange is not None and not isinstance(site.op, RaggedAllToAll):
        exchange = replace(exchange, takes_tensors=partial(_takes_tensors, site))
    return collective.windowed(site, exchange or by_group(site, process, stream))


def _takes_tensors(site: Site) -> bool:
    """Whether PyTorch has the element types of a collective, and its reduction of them."""
    for n in range(len(site.given)):
        dtype = site.operand(n).dtype
        if not is_tensor_type(dtype.numpy):
            return False
        if isinstance(site.op, AllReduce | ReduceScatter | VariadicReduceScatter):
            combiner = combiner_of(site)
            ufunc = None if combiner is None else ufunc_of(combiner, dtype)
            if not can_combine(ufunc, dtype.numpy):
                return False
    return True


def combiner_of(site: Site) -> type[Op] | None:
    """The op of a reduction."""
    if isinstance(site.op, AllReduce):
        return NAMED.get(site.node.regions[0].body.combiners[0] or "")
    return collective.scattered(site)[1]


def _device_of(arrays: Sequence[Any]) -> Any:
    """PyTorch's device, if arrays are in its memory."""
    return arrays[0].tensor.device if arrays and isinstance(arrays[0], TensorStack) else None


# Groups


@dataclass(frozen=True, slots=True)
class _Part:
    """One operand: the parts to send by process, and the result from all parts."""

    first: PieceFunction  # local reduction along the stack, before sending
    cut: Cut
    last: Callable[[PeerParts], Array]


def _together(site: Site, peers: Peers) -> HostKernel | None:
    """A collective whose groups follow sub-axes; None if it has to run group by group."""
    sub_axes = site.world.group_sub_axes(site.op)
    if sub_axes is None:
        return None
    route = _Route(site, sub_axes)
    parts: list[_Part] = []
    for n in range(len(site.given)):
        part = _PARTS[type(site.op)](site, n, route)
        if part is None:
            return None
        parts.append(part)
    listed, here = peers.along(route.absent)
    others = [(n, peer) for n, peer in enumerate(listed) if n != here]
    # Every process sends its part to every other one, and sums or joins them itself: one round of
    # messages, and the same order of sums, hence the same bits, everywhere.
    senders, targets = others, others
    if isinstance(site.op, CollectiveBroadcast):
        # Only the first process of the group sends; the others wait for it alone.
        senders, targets = ([], others) if here == 0 else (others[:1], [])
    transport, ours = peers.transport, peers.collective
    if isinstance(site.op, AllReduce) and len(listed) > 2 and _is_large(site):
        return _in_two_rounds(parts, peers, listed, here)

    def begin(*arrays: Array) -> tuple[Values, object]:
        ready = [part.first(a) for part, a in zip(parts, arrays, strict=True)]
        # Its shapes are those of every other process's message, too: pieces are of equal size.
        own = tuple([part.cut(a, here) for part, a in zip(parts, ready, strict=True)])
        kinds = [(a.shape, a.dtype) for a in own]
        sent = {
            peer: tuple([part.cut(a, n) for part, a in zip(parts, ready, strict=True)])
            for n, peer in targets
        }
        awaited = {peer: kinds for _, peer in senders}
        device = _device_of(own)
        return own, transport.start(Exchange(ours, sent, awaited, listed, device))

    def finish(begun: tuple[Values, object]) -> Any:
        own, started = begun
        got = dict(transport.wait(started))
        got[listed[here]] = own
        # In the order of the group, not of arrival: sums must not depend on the network.
        found = [got[peer] for peer in listed if peer in got]
        made = tuple([part.last([f[n] for f in found]) for n, part in enumerate(parts)])
        return made[0] if len(made) == 1 else made

    return in_two(begin, finish)


def _is_large(site: Site) -> bool:
    """Whether the bytes of a sum cost more than a second round of messages."""
    return sum(moved(site.operand(n)) for n in range(len(site.given))) >= ROUND_BYTES


def _in_two_rounds(
    parts: Sequence[_Part], peers: Peers, listed: Sequence[Peer], here: int
) -> HostKernel:
    """An all_reduce as reduce_scatter and all_gather: each process sums one piece for all.

    Elements are summed in the same order as in one round, so the result has the same bits; each
    process sends twice the value instead of once to every other.
    """
    transport, ours, count = peers.transport, peers.collective, len(listed)
    others = [(n, peer) for n, peer in enumerate(listed) if n != here]

    def begin(*arrays: Array) -> tuple[Any, ...]:
        ready = [part.first(a) for part, a in zip(parts, arrays, strict=True)]
        flat = [a.reshape(-1) for a in ready]
        # Any size will do: pieces differ by an element at most, and may be empty.
        cuts = [[a.size * n // count for n in range(count + 1)] for a in flat]
        pieces = [
            [a[c[n] : c[n + 1]] for a, c in zip(flat, cuts, strict=True)] for n in range(count)
        ]
        kinds = [(a.shape, a.dtype) for a in pieces[here]]
        sent = {peer: tuple(pieces[n]) for n, peer in others}
        awaited = {peer: kinds for _, peer in others}
        device = _device_of(pieces[here])
        started = transport.start(Exchange(ours, sent, awaited, listed, device))
        return ready, pieces, started

    def finish(begun: tuple[Any, ...]) -> Any:
        ready, pieces, started = begun
        got = dict(transport.wait(started))
        got[listed[here]] = tuple(pieces[here])
        summed = tuple(
            [part.last([got[peer][n] for peer in listed]) for n, part in enumerate(parts)]
        )
        sent = {peer: summed for _, peer in others}
        awaited = {peer: [(a.shape, a.dtype) for a in pieces[n]] for n, peer in others}
        again = Exchange(ours, sent, awaited, listed, _device_of(summed))
        rest = dict(transport.wait(transport.start(again)))
        rest[listed[here]] = summed
        results = tuple(
            [
                np.concatenate([rest[peer][n] for peer in listed]).reshape(a.shape)
                for n, a in enumerate(ready)
            ]
        )
        return results[0] if len(results) == 1 else results

    return in_two(begin, finish)


class _Route:
    """The sub-axes of a collective's groups: those of other processes, and those stacked here."""

    def __init__(self, site: Site, sub_axes: Sequence[int]) -> None:
        self.site, self.sub_axes = site, tuple(sub_axes)
        stack_dims = site.stack_dims
        self.absent = tuple([d for d in sub_axes if d in stack_dims.absent])
        self.stacked = tuple([d for d in sub_axes if d not in stack_dims.absent])
        self.sizes = [site.world.sub_axes.sizes[d] for d in self.absent]
        self.count = math.prod(self.sizes)
        self.indices = [*np.ndindex(*self.sizes)]
        # The same program if these processes were one: their devices are in the stack.
        more = stack_dims.mask(self.absent)
        rest = tuple([d for d in stack_dims.absent if d not in sub_axes])
        whole = StackDims(stack_dims.sub_axes, absent=rest)
        # Joined stacks vary along the processes, even where a single one's value does not.
        given = tuple([site.mask(n) | more for n in range(len(site.given))])
        self.joined_site = replace(site, stack_dims=whole, given=given)

    def join(self, parts: PeerParts) -> Array:
        """Concatenate the parts of all processes into one stack."""
        lead, absent = self.site.lead, self.absent
        head = [size for d, size in enumerate(parts[0].shape[:lead]) if d not in absent]
        local = parts[0].shape[lead:]
        # [absent sub-axes, the other leading dims, local dims]: an absent dim of a part has size 1.
        stacked = np.stack(parts).reshape(*self.sizes, *head, *local)
        rest = [d for d in range(lead) if d not in absent]
        now = [*absent, *rest]
        order = [now.index(d) for d in range(lead)]
        return stacked.transpose(*order, *range(lead, lead + len(local)))

    def piece(self, dim: int) -> Cut:
        """The piece of a local dim for the devices of a process, in their order."""
        axis, sizes = self.site.lead + dim, self.site.world.sub_axes.sizes
        opened = [sizes[d] for d in self.sub_axes]
        windows = []
        for index in self.indices:
            at = dict(zip(self.absent, index, strict=True))
            chosen = [at.get(d, slice(None)) for d in self.sub_axes]
            windows.append((*(slice(None),) * axis, *chosen))

        def cut(x: Array, n: int) -> Array:
            before, size, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
            found = x.reshape(*before, *opened, size // math.prod(opened), *after)[windows[n]]
            piece: Array = found.reshape(*before, size // self.count, *after)
            return piece

        return cut


def _whole(x: Array, n: int) -> Array:
    return x


def _same(x: Array) -> Array:
    return x


def _first(parts: PeerParts) -> Array:
    # The part is a view of a message, or of the operand.
    return parts[0].copy()


def _fold(site: Site, index: int, op: type[Op]) -> Callable[[PeerParts], Array]:
    """Combine the partial results of all processes, in group order."""
    dtype = site.operand(index).dtype
    ufunc, narrow = ufunc_of(op, dtype), not is_native(dtype)
    assert ufunc is not None, "partial results are combined so"

    def run(parts: PeerParts) -> Array:
        # A copy: the parts are views of messages, or the program's own values.
        made = parts[0].astype(np.float32) if narrow else parts[0].copy()
        for part in parts[1:]:
            ufunc(made, part, out=made)
        return made.astype(dtype.numpy) if narrow else made

    return run


def _reduced(site: Site, index: int, route: _Route) -> _Part | None:
    op = NAMED.get(site.node.regions[0].body.combiners[0] or "")
    if op is None or changes_type(site):
        return None
    inner = reduction(site, index, op, route.stacked)
    return None if inner is None else _Part(inner.run, _whole, _fold(site, index, op))


def _scattered(site: Site, index: int, route: _Route) -> _Part | None:
    where, op = collective.scattered(site)
    if op is None or changes_type(site):
        return None
    inner, dim = reduction(site, index, op, route.stacked), where[index]
    if inner is None:
        return None
    sizes = [*site.operand(index).sizes]
    sizes[dim] //= route.count
    mask = site.mask(index) & ~site.stack_dims.mask(route.stacked)
    own = collective.own_pieces(site, mask, {dim: route.stacked}, index, sizes)
    fold = _fold(site, index, op)
    return _Part(inner.run, route.piece(dim), lambda parts: own(fold(parts)))


def _gathered(site: Site, index: int, route: _Route) -> _Part:
    assert isinstance(site.op, AllGather)
    axis = site.lead + site.op.all_gather_dim
    run = collective.gathered(route.joined_site, index, route.sub_axes, axis).run
    return _Part(_same, _whole, lambda parts: run(route.join(parts)))


def _exchanged(site: Site, index: int, route: _Route) -> _Part:
    op = site.op
    assert isinstance(op, AllToAll)
    run = collective.exchanged(route.joined_site, index, route.sub_axes, route.stacked, op).run
    return _Part(_same, route.piece(op.split_dimension), lambda parts: run(route.join(parts)))


def _broadcast(site: Site, index: int, route: _Route) -> _Part:
    window = tuple([slice(0, 1) if d in route.stacked else slice(None) for d in range(site.lead)])
    return _Part(lambda x: x[window], _whole, _first)


_PARTS: dict[type[Op], Callable[[Site, int, _Route], _Part | None]] = {
    AllReduce: _reduced,
    ReduceScatter: _scattered,
    VariadicReduceScatter: _scattered,
    AllGather: _gathered,
    AllToAll: _exchanged,
    CollectiveBroadcast: _broadcast,
}
_MOVES = (CollectivePermute, PermuteAlongAxes)


# Permutations


def _permute(site: Site, peers: Peers) -> HostKernel | None:
    """A permute along sub-axes; None if it has to run pair by pair."""
    sub_axes, sources = site.world.moves(site.op)  # type: ignore[arg-type]
    if sub_axes is None:
        return None
    route = _Route(site, sub_axes)
    listed, here = peers.along(route.absent)
    ways = [_Way(site, n, route, sources, here) for n in range(len(site.given))]
    # A value that varies less has fewer rows, but moves between the same processes.
    others = [(n, peer) for n, peer in enumerate(listed) if n != here]
    targets = [(n, peer) for n, peer in others if any(len(way.sent[n]) for way in ways)]
    senders = [(n, peer) for n, peer in others if any(len(way.got[n]) for way in ways)]
    transport, ours = peers.transport, peers.collective

    def begin(*arrays: Array) -> tuple[Any, ...]:
        rows = [way.rows(a) for way, a in zip(ways, arrays, strict=True)]
        pairs = [*zip(ways, rows, strict=True)]
        own = tuple([r[way.got[here]] for way, r in pairs])
        device = _device_of(own)
        if not targets and not senders and device is None:  # all of a group exchange on devices
            return own, None
        sent = {peer: tuple([r[way.sent[n]] for way, r in pairs]) for n, peer in targets}
        awaited = {
            peer: [((len(way.got[n]), *r.shape[1:]), r.dtype) for way, r in pairs]
            for n, peer in senders
        }
        return own, transport.start(Exchange(ours, sent, awaited, listed, device))

    def finish(begun: tuple[Any, ...]) -> Any:
        own, started = begun
        received = {} if started is None else dict(transport.wait(started))
        received[listed[here]] = own
        results = tuple(
            [
                way.as_stack([received[peer][n] for peer in listed if peer in received])
                for n, way in enumerate(ways)
            ]
        )
        return results[0] if len(results) == 1 else results

    return in_two(begin, finish)


class _Way:
    """The row movement of one operand: a row for each device along the sub-axes, if it varies."""

    def __init__(self, site: Site, index: int, route: _Route, sources: Array, here: int) -> None:
        sub_axes, mask, lead = site.world.sub_axes, site.mask(index), site.lead
        self.lead, self.stacked = lead, route.stacked
        self.sizes = [sub_axes.sizes[d] for d in route.stacked]
        rank = lead + site.operand(index).rank
        self.rest = [d for d in range(rank) if d not in route.stacked]
        self.back = np.argsort([*route.stacked, *self.rest])
        process, row = _numbers(route, mask)
        source = np.asarray(sources)
        where = np.where(source >= 0, process[source], -1)  # source process
        rows = row[source]
        mine = process == here
        # By process: the rows to send to it, and those to receive from it.
        self.sent = [np.unique(rows[(where == here) & (process == n)]) for n in range(route.count)]
        self.got = [np.unique(rows[mine & (where == n)]) for n in range(route.count)]
        # `as_stack` concatenates the rows of all processes, and zeros last, for devices without a
        # source.
        starts = np.cumsum([0, *map(len, self.got)])
        order = np.argsort(_along(route.stacked, route), kind="stable")
        positions = [
            starts[w] + np.searchsorted(self.got[w], r) if w >= 0 else starts[-1]
            for w, r in zip(where[order], rows[order], strict=True)
        ]
        is_mine = mine[order]
        self.positions = np.asarray(
            [c for c, k in zip(positions, is_mine, strict=True) if k], np.int64
        )
        self.has_holes = bool((self.positions == starts[-1]).any())

    def rows(self, x: Array) -> Array:
        """An operand as rows."""
        opened = x.transpose(*self.stacked, *self.rest)
        count = len(self.stacked)
        return opened.reshape(math.prod(opened.shape[:count]), *opened.shape[count:])

    def as_stack(self, parts: PeerParts) -> Array:
        """The received rows of this process's devices, as a stack."""
        table = np.concatenate(parts)
        if self.has_holes:
            table = np.concatenate([table, np.zeros_like(table, shape=(1, *table.shape[1:]))])
        made = table[self.positions]
        return made.reshape(*self.sizes, *made.shape[1:]).transpose(self.back)


def _numbers(route: _Route, mask: int) -> tuple[Array, Array]:
    """The process and row number for every index along the sub-axes."""
    varying = [d for d in route.stacked if mask >> d & 1]
    return _along(route.absent, route), _along(varying, route)


def _along(sub_axes: Sequence[int], route: _Route) -> Array:
    """The linear index along some sub-axes, for every index along those of a route."""
    sizes = [route.site.world.sub_axes.sizes[d] for d in route.sub_axes]
    places = np.indices(sizes).reshape(len(sizes), -1)
    found = np.zeros(math.prod(sizes), np.int64)
    for d in sub_axes:
        found = found * route.site.world.sub_axes.sizes[d] + places[route.sub_axes.index(d)]
    return found
