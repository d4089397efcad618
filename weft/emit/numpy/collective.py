"""Collectives on stacks: sums, copies and transposes along the leading dims; no device blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.emit.numpy.by_group import by_group
from weft.emit.numpy.device_numbers import (
    axis_index,
    partition_id,
    replica_id,
    result_window,
    with_device,
)
from weft.emit.numpy.stack_reduction import NAMED, SAME, ArrayStep, changes_type, reduction
from weft.executable.items import Site
from weft.executable.process import Process
from weft.executable.stack_dims import group_dims, moves
from weft.ir.op import Op
from weft.ir.types import Array
from weft.kernels.host import HostKernel, in_two
from weft.ops.combiners import COMBINERS
from weft.ops.distributed.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectiveBroadcast,
    CollectivePermute,
    PartitionId,
    ReduceScatter,
    ReplicaId,
)
from weft.ops.distributed.local import AllSlice, AxisIndex, PermuteAlongAxes, VariadicReduceScatter
from weft.ops.distributed.ragged import RaggedAllToAll


def each(kernels: Sequence[HostKernel]) -> HostKernel:
    """One kernel for each operand."""
    if len(kernels) == 1:
        return kernels[0]
    steps = [kernel.run for kernel in kernels]

    def run(*arrays: Array) -> tuple[Array, ...]:
        return tuple([step(a) for step, a in zip(steps, arrays, strict=True)])

    return HostKernel(run, shares=any(kernel.shares for kernel in kernels))


def spread(site: Site, index: int, dims: Sequence[int]) -> ArrayStep:
    """The operand broadcast along leading dims that it does not vary along."""
    stack_dims, mask = site.stack_dims, site.mask(index)
    missing = {d: stack_dims.size(d) for d in dims if not mask >> d & 1}
    if not missing:
        return lambda x: x

    def run(x: Array) -> Array:
        shape = list(x.shape)
        for dim, size in missing.items():
            shape[dim] = size
        return np.broadcast_to(x, shape)

    return run


# Reductions


def all_reduce(site: Site, process: Process | None) -> HostKernel:
    """Sums along the leading dims of a group; replicated values are multiplied by its size."""
    dims = group_dims(site.op, site.stack_dims, site.world)
    names = site.node.regions[0].body.combiners
    op = NAMED.get(names[0] or "")
    if dims is None or op is None or changes_type(site):
        return _grouped(site, process)
    steps = [reduction(site, n, op, dims) for n in range(len(site.given))]
    found = [s for s in steps if s is not None]
    return each(found) if len(found) == len(steps) else _grouped(site, process)


def _grouped(site: Site, process: Process | None) -> HostKernel:
    """By the reference, one group at a time, reduced to the result's mask."""
    return windowed(site, by_group(site, process))


def windowed(site: Site, kernel: HostKernel) -> HostKernel:
    """A split kernel with broadcast results, reduced to their masks."""
    masks = [site.out(n) for n in range(len(site.node.results))]
    everything = site.stack_dims.everything
    begin, finish = kernel.begin, kernel.finish
    assert begin is not None and finish is not None
    if all(m == everything for m in masks):
        return kernel
    windows = [result_window(site, n) for n in range(len(masks))]
    if len(windows) == 1:
        (only,) = windows
        rest = (kernel.reads_rows, kernel.takes_tensors)
        return in_two(begin, lambda begun: finish(begun)[only], *rest)

    def cut(begun: Any) -> tuple[Array, ...]:
        return tuple([x[window] for x, window in zip(finish(begun), windows, strict=True)])

    return in_two(begin, cut, kernel.reads_rows, kernel.takes_tensors)


def reduce_scatter(site: Site, process: Process | None) -> HostKernel:
    """The sums, of which each device sees its own piece as a view."""
    dims = group_dims(site.op, site.stack_dims, site.world)
    where, combiner = scattered(site)
    if dims is None or combiner is None or changes_type(site):
        return _grouped(site, process)
    parts: list[HostKernel] = []
    for n, dim in enumerate(where):
        summed = reduction(site, n, combiner, dims)
        if summed is None:
            return _grouped(site, process)
        cut = own_pieces(site, site.mask(n) & ~site.stack_dims.mask(dims), {dim: dims}, n)
        parts.append(HostKernel(_then(summed.run, cut), shares=True))
    return each(parts)


def scattered(site: Site) -> tuple[Sequence[int], type[Op] | None]:
    """The scatter dim of each operand, and the reduction op."""
    op = site.op
    if isinstance(op, ReduceScatter):
        combiner = NAMED.get(site.node.regions[0].body.combiners[0] or "")
        return (op.scatter_dimension,) * len(site.given), combiner
    assert isinstance(op, VariadicReduceScatter)
    return op.scatter_dimensions, type(COMBINERS[op.combine])


def _then(first: ArrayStep, second: ArrayStep) -> ArrayStep:
    return lambda x: second(first(x))


# Own pieces


def own_pieces(
    site: Site,
    mask: int,
    splits: dict[int, Sequence[int]],
    index: int = 0,
    sizes: Sequence[int] | None = None,
) -> ArrayStep:
    """A view in which each device sees its own piece along some local dims.

    `mask` is the value's mask; a leading dim that is in it and also splits the value gives a
    diagonal. `sizes` are local sizes, by default the operand's.
    """
    lead, stack_dims = site.lead, site.stack_dims
    used = {d for dims in splits.values() for d in dims}
    # Leading dims of size 1 make room for the dims of pieces.
    before = [d for d in range(lead) if d not in used or mask >> d & 1]
    # Each local dim that is split opens into the device dims that split it and what is left.
    labels, shape = list(before), []
    local_dims = []
    for dim, size in enumerate(sizes or site.operand(index).sizes):
        dims = splits.get(dim, ())
        count = math.prod(stack_dims.size(d) for d in dims)
        labels += [*dims, lead + dim]
        shape += [*(stack_dims.size(d) for d in dims), size // max(count, 1)]
        local_dims.append(lead + dim)
    tail, order = tuple(shape), [*range(lead), *local_dims]
    if len(set(labels)) == len(labels):
        permutation = [labels.index(label) for label in order]
        return lambda x: x.reshape([x.shape[d] for d in before] + list(tail)).transpose(permutation)

    def run(x: Array) -> Array:
        opened = x.reshape([x.shape[d] for d in before] + list(tail))
        # einsum with a repeated label takes the diagonal: device d of the stack and piece d of its
        # value.
        return np.asarray(np.einsum(opened, labels, order))

    return run


def all_slice(site: Site, process: Process | None) -> HostKernel:
    """A view of each device's own piece."""
    op = site.op
    assert isinstance(op, AllSlice)
    splits: dict[int, Sequence[int]] = {}
    for dim, sharding in enumerate(op.pieces.dims):
        sub_axes = site.world.axis_dims(op.pieces.mesh, sharding.axes)
        dims = site.stack_dims.dims(sub_axes)
        if dims is None:
            return with_device(site, process)
        if dims:
            splits[dim] = dims
    return HostKernel(own_pieces(site, site.mask(0), splits), shares=True)


# Copies


def all_gather(site: Site, process: Process | None) -> HostKernel:
    """The leading dims of a group are merged into a local dim."""
    op, dims, lead = site.op, group_dims(site.op, site.stack_dims, site.world), site.lead
    assert isinstance(op, AllGather)
    if dims is None:
        return _grouped(site, process)
    axis = lead + op.all_gather_dim
    return each([gathered(site, n, dims, axis) for n in range(len(site.given))])


def gathered(site: Site, index: int, dims: Sequence[int], axis: int) -> HostKernel:
    """An operand whose leading dims are merged into a local one."""
    lead, stack_dims, full = site.lead, site.stack_dims, spread(site, index, dims)
    sizes = site.result(index).sizes
    rank = lead + len(sizes)
    order = [d for d in range(axis) if d not in dims] + [*dims, *range(axis, rank)]
    # Then a gather is a reshape: device dims that stand right before the gathered dim are its major
    # part.
    if order == sorted(order) and not stack_dims.has_rows:  # the pieces are contiguous already
        mask = site.mask(index) & ~stack_dims.mask(dims)
        shape = stack_dims.shape(mask) + sizes
        return HostKernel(lambda x: full(x).reshape(shape), shares=True)

    def head(x: Array) -> tuple[int, ...]:
        return tuple([1 if d in dims else x.shape[d] for d in range(lead)])

    return rearranged(lambda x: full(x).transpose(order), lambda x: head(x) + sizes)


def rearranged(moved: ArrayStep, shape: Callable[[Array], tuple[int, ...]]) -> HostKernel:
    """A copy of a view, in another shape."""

    def run(x: Array) -> Array:
        made = moved(x).reshape(shape(x))
        # A reshape may be a view of the operand, which could be overwritten while the result lives.
        return made.copy() if np.may_share_memory(made, x) else made

    def into(x: Array, out: Array) -> None:
        view = moved(x)
        opened = out.reshape(view.shape)
        if np.may_share_memory(opened, out):
            np.copyto(opened, view)
        else:
            # The output cannot be opened without a copy, so the view is copied once more instead.
            np.copyto(out, view.reshape(out.shape))

    return HostKernel(run, into)


def all_to_all(site: Site, process: Process | None) -> HostKernel:
    """A transpose: the dim of pieces swaps with the device dims."""
    op, dims = site.op, group_dims(site.op, site.stack_dims, site.world)
    assert isinstance(op, AllToAll)
    if dims is None:
        return _grouped(site, process)
    return each([exchanged(site, n, dims, dims, op) for n in range(len(site.given))])


def exchanged(
    site: Site, index: int, dims: Sequence[int], split: Sequence[int], op: AllToAll
) -> HostKernel:
    """An operand of which every device gets pieces of the devices along the leading dims.

    The operand has pieces for the devices along the `split` dims: all of them, unless other
    processes hold some.
    """
    lead, stack_dims, full = site.lead, site.stack_dims, spread(site, index, dims)
    operand_sizes, sizes = site.operand(index).sizes, site.result(index).sizes
    opened: list[int] = []
    places: list[int] = []  # position of each local dim after the reshape
    pieces: dict[int, int] = {}
    for dim, size in enumerate(operand_sizes):
        if dim == op.split_dimension:
            for d in split:
                pieces[d] = lead + len(opened)
                opened.append(stack_dims.size(d))
            size //= op.split_count
        places.append(lead + len(opened))
        opened.append(size)
    dropped = {*dims} - {*split}
    order = [pieces.get(d, d) for d in range(lead) if d not in dropped]
    for dim, place in enumerate(places):
        order += [*dims, place] if dim == op.concat_dimension else [place]

    def moved(x: Array) -> Array:
        spelled = full(x)
        return spelled.reshape((*spelled.shape[:lead], *opened)).transpose(order)

    def head(x: Array) -> tuple[int, ...]:
        return tuple([1 if d in dropped else s for d, s in enumerate(full(x).shape[:lead])])

    return rearranged(moved, lambda x: head(x) + sizes)


def collective_broadcast(site: Site, process: Process | None) -> HostKernel:
    """The first device of each group stands for all."""
    dims = group_dims(site.op, site.stack_dims, site.world)
    if dims is None:
        return _grouped(site, process)
    window = tuple([slice(0, 1) if d in dims else slice(None) for d in range(site.lead)])
    return each([HostKernel(lambda x: x[window], shares=True)] * len(site.given))


def permute(site: Site, process: Process | None) -> HostKernel:
    """A permute along leading dims; a replicated value is unchanged."""
    found = moves(site.op, site.stack_dims, site.world)
    if found is None:
        return _grouped(site, process)
    dims, sources = found
    if not dims and sources[0] < 0:  # nothing is sent
        return each([HostKernel(np.zeros_like)] * len(site.given))
    moved = site.stack_dims.mask(dims)
    parts = [
        _move(site, n, dims, sources) if site.out(n) & moved else SAME
        for n in range(len(site.given))
    ]
    return each(parts)


def _move(site: Site, index: int, dims: Sequence[int], sources: Array) -> HostKernel:
    lead, full = site.lead, spread(site, index, dims)
    rest = [d for d in range(lead + site.operand(index).rank) if d not in dims]
    order = [*dims, *rest]
    back = np.argsort(order)
    holes = np.flatnonzero(sources < 0)
    # Devices without a source read any row, which is zeroed afterwards: `take` has no mask.
    sources_at = np.maximum(sources, 0)

    def along_one(x: Array, out: Array | None = None) -> Array:
        result: Array = full(x).take(sources_at, dims[0], out, "clip")
        if len(holes):
            result[(slice(None),) * dims[0] + (holes,)] = np.zeros((), result.dtype)
        return result

    def along_several(x: Array) -> Array:
        spelled = full(x).transpose(order)
        flat = spelled.reshape(len(sources), *spelled.shape[len(dims) :])
        result = flat.take(sources_at, axis=0)
        result[holes] = np.zeros((), result.dtype)  # not 0: e8m0 reads that as NaN
        return result.reshape(spelled.shape).transpose(back)

    return HostKernel(along_one, along_one) if len(dims) == 1 else HostKernel(along_several)


KERNELS: dict[type[Op], Callable[[Site, Process | None], HostKernel]] = {
    AllReduce: all_reduce,
    AllGather: all_gather,
    ReduceScatter: reduce_scatter,
    VariadicReduceScatter: reduce_scatter,
    AllToAll: all_to_all,
    CollectiveBroadcast: collective_broadcast,
    CollectivePermute: permute,
    PermuteAlongAxes: permute,
    RaggedAllToAll: _grouped,
    AllSlice: all_slice,
    AxisIndex: axis_index,
    PartitionId: partition_id,
    ReplicaId: replica_id,
}


class Lockstep:
    """The collectives of a process that holds all devices: along the stack."""

    process: Process | None = None

    def kernel(self, site: Site, stream: str | None = None) -> HostKernel:
        """The function of a collective, or of a node that reads its devices' positions."""
        return KERNELS[type(site.op)](site, self.process)
