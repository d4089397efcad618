"""Indexing kernels: reads and writes at indices that may vary between devices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from weft.emit.numpy.one_by_one import one_by_one, plain_region
from weft.emit.numpy.reduce import spread
from weft.emit.numpy.stack_reduction import NAMED
from weft.emit.numpy.ufuncs import is_native, ufunc_of
from weft.executable.items import Site
from weft.ir.module import is_elementwise
from weft.ir.op import Op
from weft.ir.types import Array
from weft.ir.uses import free_variables
from weft.kernels.host import HostKernel, Maker, single_result_convention
from weft.ops.index import Gather, Windows, gather, gather_windows
from weft.ops.linalg import Cholesky, Fft, TriangularSolve
from weft.ops.scatter import Scatter, conflict_free, update_targets
from weft.ops.slicing import DynamicSlice, DynamicUpdateSlice

Slices = tuple[slice, ...]


# Slices at dynamic indices


def _start(array: Array, room: int) -> int:
    return min(max(int(array.reshape(-1)[0]), 0), room)


def dynamic_slice(site: Site) -> HostKernel:
    """A view if all devices use one index; else one copy, or one for each device."""
    op, lead = site.op, site.lead
    assert isinstance(op, DynamicSlice)
    rooms = [size - n for size, n in zip(site.operand(0).sizes, op.slice_sizes, strict=True)]
    sizes = op.slice_sizes
    moving = [d for d in range(len(sizes)) if site.mask(d + 1) and rooms[d]]
    head = (slice(None),) * lead

    def window(starts: tuple[Array, ...]) -> Slices:
        at = [_start(s, room) for s, room in zip(starts, rooms, strict=True)]
        return tuple([slice(a, a + n) for a, n in zip(at, sizes, strict=True)])

    def together(x: Array, *starts: Array) -> Array:
        return np.broadcast_to(x[head + window(starts)], _head(x, starts, lead) + sizes)

    if not moving and site.out() == site.mask(0):
        return HostKernel(lambda x, *starts: x[head + window(starts)], shares=True)
    if not moving:
        return HostKernel(together, shares=True)
    if len(moving) == 1 and not site.mask(0) & site.mask(moving[0] + 1):
        return _take_per_device(site, moving[0], rooms, window)

    def run(x: Array, *starts: Array) -> Array:
        return _each_window(x, starts, lead, sizes, window)

    return HostKernel(run)


def _head(x: Array, starts: tuple[Array, ...], lead: int) -> tuple[int, ...]:
    """The leading dims of a slice's mask, also those of starts that do not matter."""
    return np.broadcast_shapes(x.shape[:lead], *[s.shape for s in starts])


def _take_per_device(
    site: Site, dim: int, rooms: list[int], window: Callable[[tuple[Array, ...]], Slices]
) -> HostKernel:
    """Devices read at different indices along one dim of a value that they share."""
    op, lead = site.op, site.lead
    assert isinstance(op, DynamicSlice)
    length = np.arange(op.slice_sizes[dim])

    def run(x: Array, *starts: Array) -> Array:
        start = np.clip(starts[dim].astype(np.int64), 0, rooms[dim])
        places = start.reshape(*start.shape, 1) + length
        cut = list(window(starts))
        cut[dim] = slice(None)
        seen = x[(slice(None),) * lead + tuple(cut)]
        elements = seen.take(places, axis=lead + dim)  # lead, before, devices, length, after
        # Each leading dim appears twice, once with size 1: put the two side by side and merge.
        where = lead + dim
        order = [n for d in range(lead) for n in (d, where + d)]
        rest = [n for n in range(elements.ndim) if n not in order]
        both = elements.transpose(order + rest)
        sizes = [both.shape[2 * d] * both.shape[2 * d + 1] for d in range(lead)]
        merged = both.reshape(sizes + list(both.shape[2 * lead :]))
        return np.broadcast_to(merged, _head(x, starts, lead) + op.slice_sizes)

    return HostKernel(run)


def _each_window(
    x: Array,
    starts: tuple[Array, ...],
    lead: int,
    sizes: tuple[int, ...],
    window: Callable[[tuple[Array, ...]], Slices],
) -> Array:
    head = np.broadcast_shapes(x.shape[:lead], *[s.shape for s in starts])
    full = np.broadcast_to(x, head + x.shape[lead:])
    at = [np.broadcast_to(s, head) for s in starts]
    out = np.empty(head + sizes, x.dtype)
    for index in np.ndindex(head):
        out[index] = full[index][window(tuple([a[index] for a in at]))]
    return out


def dynamic_update_slice(site: Site) -> HostKernel:
    """The operand, copied unless it is its last use, with a window overwritten."""
    lead, rank = site.lead, site.operand(0).rank
    rooms = [size - n for size, n in zip(site.operand(0).sizes, site.operand(1).sizes, strict=True)]
    sizes = site.operand(1).sizes
    same_place = not any(site.mask(2 + d) for d in range(rank) if rooms[d])
    head_slices = (slice(None),) * lead

    def window(starts: tuple[Array, ...]) -> Slices:
        at = [_start(s, room) for s, room in zip(starts, rooms, strict=True)]
        return tuple([slice(a, a + n) for a, n in zip(at, sizes, strict=True)])

    def into(x: Array, update: Array, *rest: Array) -> None:
        starts, out = rest[:-1], rest[-1]
        if out is not x:
            np.copyto(out, x)
        if same_place:
            out[head_slices + window(starts)] = update
            return
        head = out.shape[:lead]
        news = np.broadcast_to(update, head + update.shape[lead:])
        at = [np.broadcast_to(s, head) for s in starts]
        for index in np.ndindex(head):
            out[index][window(tuple([a[index] for a in at]))] = news[index]

    def run(x: Array, update: Array, *starts: Array) -> Array:
        head = np.broadcast_shapes(x.shape[:lead], update.shape[:lead], *[s.shape for s in starts])
        out = np.empty(head + x.shape[lead:], x.dtype)
        into(x, update, *starts, out)
        return out

    return HostKernel(run, into, in_place=(0,))


# Gather and scatter


def batched(windows: Windows, lead: int) -> Windows:
    """A gather's dimension numbers with the leading dims as batching dims."""

    def up(dims: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(lead + d for d in dims)

    batch = tuple(range(lead))
    return Windows(
        up(windows.window),
        up(windows.inserted),
        batch + up(windows.operand_batching),
        batch + up(windows.indices_batching),
        up(windows.start_map),
        lead + windows.vector,
    )


def gathered(site: Site) -> HostKernel:
    """Whole rows by numpy's take; other windows element by element, all devices at once."""
    op, lead = site.op, site.lead
    assert isinstance(op, Gather)
    windows = gather_windows(op.dimension_numbers)
    axis = _row_axis(site, windows, op.slice_sizes)
    if axis is not None and not site.mask(0) & site.mask(1):
        return _rows(site, windows, axis)
    stacked, sizes = batched(windows, lead), (1,) * lead + op.slice_sizes

    def run(x: Array, indices: Array) -> Array:
        x, indices = spread((x, indices), lead)
        return gather(stacked, sizes, x, indices)

    return HostKernel(run)


def _row_axis(site: Site, windows: Windows, sizes: tuple[int, ...]) -> int | None:
    """The dim of a gather that only takes whole rows, or None."""
    operand, indices = site.operand(0), site.operand(1)
    simple = len(windows.start_map) == 1 and not windows.operand_batching
    if not simple or windows.inserted != windows.start_map or 0 in operand.sizes:
        return None
    if windows.vector != indices.rank and windows.vector != indices.rank - 1:
        return None
    axis = windows.start_map[0]
    whole = all(n == sizes[d] for d, n in enumerate(operand.sizes) if d != axis)
    return axis if whole and sizes[axis] == 1 else None


def _rows(site: Site, windows: Windows, axis: int) -> HostKernel:
    lead, room = site.lead, site.operand(0).sizes[axis]
    flat = windows.vector < site.operand(1).rank
    rank = site.result().rank
    target = [*windows.batch(rank), *windows.window]
    dtype = site.operand(1).dtype
    held = dtype.numpy
    last = min(room - 1, int(dtype.limits[1]))  # the indices may have few bits

    def run(x: Array, indices: Array) -> Array:
        at = indices[..., 0] if flat else indices
        # The upper end in the indices' own type: a large unsigned one would be negative as an
        # int64.
        places = np.maximum(np.minimum(at, held.type(last)).astype(np.int64), 0)
        counts = places.ndim - lead
        elements = x.take(places, axis=lead + axis)  # lead, before, lead again, counts, after
        where = lead + axis
        order = [n for d in range(lead) for n in (d, where + d)]
        order += range(where + lead, where + lead + counts)
        order += [n for n in range(elements.ndim) if n not in order]
        both = elements.transpose(order)
        head = [both.shape[2 * d] * both.shape[2 * d + 1] for d in range(lead)]
        rows = both.reshape(head + list(both.shape[2 * lead :]))
        return np.moveaxis(rows, range(lead, lead + rank), [lead + d for d in target])

    return HostKernel(run)


def scattered(site: Site) -> HostKernel:
    """The reference with the leading dims as batching dims; sums by numpy."""
    op, lead, count = site.op, site.lead, len(site.node.results)
    assert isinstance(op, Scatter)
    body = site.node.regions[0]
    if free_variables(site.node) or not is_elementwise(body):
        return one_by_one(site)
    windows, region = batched(op.windows, lead), plain_region(site)
    types = [site.result(n).dtype.numpy for n in range(count)]
    adds = _plain_sum(site)

    def run(*arrays: Array) -> tuple[Array, ...]:
        operands = spread(arrays, lead)
        shape = operands[0].shape
        target, source = update_targets(windows, shape, operands[count], operands[-1].shape)
        out = [np.array(a, t).reshape(-1) for a, t in zip(operands[:count], types, strict=True)]
        new = [
            a.astype(t, copy=False).reshape(-1)
            for a, t in zip(operands[count + 1 :], types, strict=True)
        ]
        if adds:
            # Not `out[target] += ..`, which adds one of several updates of an element.
            np.add.at(out[0], target, new[0][source])
        else:
            _combine(out, new, target, source, region)
        return tuple([a.reshape(shape) for a in out])

    return HostKernel(single_result_convention(run, count))


def _plain_sum(site: Site) -> bool:
    name = site.node.regions[0].body.combiners[0]
    dtype = site.result().dtype
    one = len(site.node.results) == 1 and len(site.node.regions[0].nodes) == 1
    return one and is_native(dtype) and ufunc_of(NAMED.get(name or "", Op), dtype) is np.add


def _combine(out: list[Array], new: list[Array], target: Array, source: Array, region: Any) -> None:
    for batch in conflict_free(target):
        at, made = target[batch], [a[source[batch]] for a in new]
        combined = region.each(*[a[at] for a in out], *made)
        for held, values in zip(out, combined, strict=True):
            held[at] = values


# Ops that look at the last dims only


def last_dims(site: Site) -> HostKernel:
    """The reference on whole stacks: it accepts any number of dims before its own."""
    op, lead = site.op, site.lead
    return HostKernel(lambda *arrays: op.reference(*spread(arrays, lead)))


KERNELS: dict[type[Op], Maker] = {
    DynamicSlice: dynamic_slice,
    DynamicUpdateSlice: dynamic_update_slice,
    Gather: gathered,
    Scatter: scattered,
    Fft: last_dims,
    Cholesky: last_dims,
    TriangularSolve: last_dims,
}
