"""Placing values on devices: a global array is split into pieces, copied only if necessary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from weft.array.addressable import Addressable, addressable_along
from weft.array.array import Array, atoms_for
from weft.array.exchange import to_numpy
from weft.array.jax_types import make_known_to_jax
from weft.array.stacked import split
from weft.errors import WeftError
from weft.ir.types import Array as Numpy
from weft.ir.types import dtype_of
from weft.mesh import Axis, Mesh, P, Sharding, as_mesh, as_sharding
from weft.mesh.spelling import held_mesh

if TYPE_CHECKING:
    from weft.executable.process import Process


def put(
    array: Any,
    sharding: Any = None,
    mesh: Any = None,
    *,
    stacked: Iterable[Axis | str] | None = None,
    process: Process | None = None,
) -> Array:
    """An array on the devices of a mesh with a sharding; replicated without one.

    The elements are not copied unless a dim must be padded, so the caller must not mutate the array
    afterwards.

    A `process` that has only the devices along `stacked` axes puts its own shards of the array.
    """
    if isinstance(array, Array):
        if sharding is None and mesh is None and stacked is None:
            return array
        own = held_mesh(sharding)  # a sharding with its own mesh moves the array there
        array, mesh = array.numpy(), mesh or own or array.mesh
    make_known_to_jax()
    held = to_numpy(array)
    ours = as_mesh(mesh) if mesh is not None else mesh_of(sharding)
    ours.check_listed()
    given = as_sharding(P() if sharding is None else sharding, held.ndim, ours)
    here = None if stacked is None else _here(ours, stacked, process)
    return put_here(held, given, ours, here)


def put_here(array: Numpy, sharding: Sharding, mesh: Mesh, here: Addressable | None) -> Array:
    """This process's shards of an array."""
    held = split(array, sharding, mesh, atoms_for(sharding, mesh, here))
    if here is not None:
        held = here.window(held)
    return Array(array.shape, dtype_of(array.dtype), sharding, mesh, held, here)


def _here(mesh: Mesh, stacked: Iterable[Axis | str], process: Process | None) -> Addressable | None:
    found = addressable_along(mesh, stacked, None if process is None else process.device)
    if found is not None and process is None:
        raise WeftError(
            "the mesh spans several processes, and this one does not know which devices it has",
            help="pass a Process: one of its devices, and the transport to the others",
        )
    return found


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
