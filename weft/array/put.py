"""Placing values on devices: a global array is split into pieces, copied only if necessary."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from weft.array.addressable import Addressable, addressable_along
from weft.array.array import Array, sub_axes_for
from weft.array.device import device_at
from weft.array.exchange import to_numpy
from weft.array.jax_types import make_known_to_jax
from weft.array.memory import DeviceBuffer, DeviceMemory, on_host
from weft.array.stacked import Stacked, split, split_plan
from weft.array.torch_memory import memory_of
from weft.errors import WeftError
from weft.ir.types import Array as Numpy
from weft.ir.types import dtype_of
from weft.mesh import Axis, Mesh, P, Sharding, as_mesh, as_sharding
from weft.mesh.pieces import counts, piece_index
from weft.mesh.spelling import held_mesh
from weft.mesh.sub_axes import span_of
from weft.workers import cluster_holding

if TYPE_CHECKING:
    from weft.array.strings import StringArray
    from weft.executable.process import Process


@overload
def put(
    array: StringArray | str | list[str],
    sharding: Any = None,
    mesh: Any = None,
    *,
    stacked: Iterable[Axis | str] | None = None,
    process: Process | None = None,
    device: str | None = None,
) -> StringArray: ...


@overload
def put(
    array: Any,
    sharding: Any = None,
    mesh: Any = None,
    *,
    stacked: Iterable[Axis | str] | None = None,
    process: Process | None = None,
    device: str | None = None,
) -> Array: ...


def put(
    array: Any,
    sharding: Any = None,
    mesh: Any = None,
    *,
    stacked: Iterable[Axis | str] | None = None,
    process: Process | None = None,
    device: str | None = None,
) -> Any:
    """An array on the devices of a mesh with a sharding; replicated without one.

    The elements are not copied unless a dim must be padded, so the caller must not mutate the array
    afterwards.

    A `process` that has only the devices along `stacked` axes puts its own shards of the array; a
    launched worker knows its devices by itself.

    With a PyTorch `device`, such as "cuda", the pieces are placed in its memory, where the triton
    target computes; an array of another package that is there already is not copied.

    Strings, in an array of numpy's `StringDType`, of `str` or of Python's objects, make a
    `weft.array.strings.StringArray`, which no program reads.
    """
    if isinstance(array, Array):
        if sharding is None and mesh is None and stacked is None and device is None:
            return array
        own = held_mesh(sharding)  # a sharding with its own mesh moves the array there
        mesh = mesh or own or array.mesh
        if not array.is_fully_addressable and cluster_holding(array.mesh) is not None:
            resharded: Array = array.compute("reshard", (array, sharding, as_mesh(mesh)), {})
            return resharded
        array = array.numpy()
    make_known_to_jax()
    text = _text_of(array)
    if device is not None and text is None:
        return _put_in(memory_of(device), array, sharding, mesh)
    if device is not None:
        raise WeftError(f"strings in the memory of {device!r}", help="put them without a device")
    held = to_numpy(array) if text is None else text
    if text is not None:
        mesh = mesh or held_mesh(sharding) or getattr(array, "mesh", None)
    ours = as_mesh(mesh) if mesh is not None else mesh_of(sharding)
    ours.check_listed()
    resolved = as_sharding(P() if sharding is None else sharding, held.ndim, ours)
    if stacked is None and (workers := cluster_holding(ours)) is not None:
        stacked, process = workers.holding(ours)
    here = None if stacked is None else _here(ours, stacked, process)
    if text is not None:
        from weft.array.strings import put_strings

        return put_strings(text, resolved, ours, here)
    return put_here(held, resolved, ours, here)


def _text_of(array: Any) -> Numpy | None:
    """The strings of an array of them; None for numbers, which need nothing of strings."""
    kind = getattr(getattr(array, "dtype", None), "kind", "O")
    if kind not in ("T", "U", "O"):
        return None
    from weft.array.strings import strings_of

    return strings_of(array)


def put_local(array: Any, sharding: Any, mesh: Any = None) -> Array:
    """A global array from the workers' parts: each passes its own rows, or another box of elements.

    The parts of all workers have the same shape. In a process that was started alone this is `put`.
    """
    make_known_to_jax()
    ours = as_mesh(mesh) if mesh is not None else mesh_of(sharding)
    workers = cluster_holding(ours)
    if workers is None:
        whole: Array = put(array, sharding, mesh)
        return whole
    held = to_numpy(array)
    resolved = as_sharding(sharding, held.ndim, ours)
    here = _here(ours, *workers.holding(ours))
    assert here is not None, "other workers hold the rest"
    return _local(held, resolved, ours, here)


def _local(part: Numpy, sharding: Sharding, mesh: Mesh, here: Addressable) -> Array:
    """The shards of this process, cut from its part of the global value."""
    # The coordinates of each shard among all shards; those of this process must form a box.
    at = {
        place: piece_index(sharding, mesh, [n for _, n in device_at(mesh, place).position])
        for place in here.places
    }
    first = [min(index) for index in zip(*at.values(), strict=True)]
    spread = [len({*index}) for index in zip(*at.values(), strict=True)]
    if len({*at.values()}) != math.prod(spread):
        raise WeftError(
            f"the shards of process {here.index} are not one contiguous block: {sharding.body()}",
            help="use weft.put with the whole array, or axes that keep a worker's shards together",
        )
    uneven = [
        n for n, (size, count) in enumerate(zip(part.shape, spread, strict=True)) if size % count
    ]
    if uneven:
        raise WeftError(
            f"dim {uneven[0]} of a part of {part.shape[uneven[0]]} does not divide over the "
            f"{spread[uneven[0]]} shards of this process",
            help="give every worker the same number of elements for each of its devices, as a "
            "DataLoader does with drop_last=True",
        )
    sizes = tuple([size // count for size, count in zip(part.shape, spread, strict=True)])
    shape = tuple([size * n for size, n in zip(sizes, counts(sharding, mesh), strict=True)])
    sub_axes = sub_axes_for(sharding, mesh, here)
    used = sub_axes.dims_of([span_of(a, mesh) for dim in sharding.dims for a in dim.axes]) or ()
    away = sub_axes.dims_of(here.absent) or ()
    # [sub-axes of this process's devices, 1 along all others, the shape of a shard]
    lead = [n if d in used and d not in away else 1 for d, n in enumerate(sub_axes.sizes)]
    data = np.empty((*lead, *sizes), part.dtype)
    for place, index in at.items():
        coordinates = [
            int(n) if size > 1 else 0
            for n, size in zip(sub_axes.coordinates(np.array(place)), lead, strict=True)
        ]
        begins = [(n - low) * size for n, low, size in zip(index, first, sizes, strict=True)]
        window = tuple([slice(b, b + size) for b, size in zip(begins, sizes, strict=True)])
        data[tuple(coordinates)] = part[window]
    return Array(shape, dtype_of(part.dtype), sharding, mesh, Stacked(data, sub_axes, True), here)


def converted(array: Array, dtype: Any) -> Array:
    """An array with its elements in another type of numpy; each process converts its own pieces."""
    if array.is_fully_addressable:
        whole: Array = put(array.numpy().astype(dtype), array.sharding, array.mesh)
        return whole
    if array.sharding.unreduced:  # rounding comes after the sum
        reduced = replace(array.sharding, unreduced=())
        array = array.compute("reshard", (array, reduced, array.mesh), {})
    pieces = array.pinned()
    data = np.asarray(on_host(pieces.data)).astype(dtype)
    stacked = Stacked(data, pieces.sub_axes, True)
    return Array(array.shape, dtype_of(dtype), array.sharding, array.mesh, stacked, array.spec.here)


def _put_in(memory: DeviceMemory, array: Any, sharding: Any, mesh: Any) -> Array:
    """An array in a device's memory."""
    held = memory.adopt(array)
    held = memory.place(to_numpy(array)) if held is None else held
    ours = as_mesh(mesh) if mesh is not None else mesh_of(sharding)
    ours.check_listed()
    resolved = as_sharding(P() if sharding is None else sharding, len(held.shape), ours)
    return placed_in(held, resolved, ours)


def placed_in(buffer: DeviceBuffer, sharding: Sharding, mesh: Mesh) -> Array:
    """A buffer of a device's memory as an array: split there, or through the host if padded."""
    sub_axes, shape, memory = sub_axes_for(sharding, mesh), buffer.shape, buffer.memory
    plan = split_plan(shape, sharding, mesh, sub_axes)
    if plan is None or plan.room != shape:
        pieces = split(buffer.numpy(), sharding, mesh, sub_axes)
        stacked = Stacked(memory.place(pieces.data), sub_axes)
    elif plan.order == tuple(range(len(plan.order))):
        stacked = Stacked(buffer.reshape(plan.shape), sub_axes)
    else:
        moved = memory.rearranged(buffer, plan.apart, plan.order)
        stacked = Stacked(moved.reshape(plan.shape), sub_axes)
    return Array(shape, dtype_of(buffer.dtype), sharding, mesh, stacked)


def put_here(array: Numpy, sharding: Sharding, mesh: Mesh, here: Addressable | None) -> Array:
    """This process's shards of an array."""
    held = split(array, sharding, mesh, sub_axes_for(sharding, mesh, here))
    if here is not None:
        held = here.window(held)
    return Array(array.shape, dtype_of(array.dtype), sharding, mesh, held, here)


def _here(mesh: Mesh, stacked: Iterable[Axis | str], process: Process | None) -> Addressable | None:
    here = addressable_along(mesh, stacked, None if process is None else process.device)
    if here is not None and process is None:
        raise WeftError(
            "the mesh spans several processes, and this one does not know which devices it has",
            help="pass a Process: one of its devices, and the transport to the others",
        )
    return here


def mesh_of(sharding: Any) -> Mesh:
    """The mesh of a sharding; a single device without a sharding."""
    if sharding is None:
        return Mesh(device=1)
    mesh = held_mesh(sharding)
    if mesh is None:
        raise WeftError(
            f"{sharding} has no mesh",
            help="weft.put(array, sharding, mesh) with a weft.Mesh(data=2, model=4)",
        )
    return as_mesh(mesh)
