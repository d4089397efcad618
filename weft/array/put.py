"""Putting values onto devices: a whole array becomes pieces, copied only where it must be."""

from __future__ import annotations

from typing import Any

from weft.array.array import Array, atoms_for
from weft.array.exchange import to_numpy
from weft.array.jax_types import make_known_to_jax
from weft.array.stacked import split
from weft.errors import WeftError
from weft.ir.types import dtype_of
from weft.mesh import Mesh, P, as_mesh, as_sharding
from weft.mesh.spelling import held_mesh


def put(array: Any, sharding: Any = None, mesh: Any = None) -> Array:
    """An array on the devices of a mesh, split as a sharding says; equal everywhere without one.

    The elements are not copied unless a dim must be padded, so whoever gives an array away must
    not change it afterwards.
    """
    if isinstance(array, Array):
        if sharding is None and mesh is None:
            return array
        own = held_mesh(sharding)  # a sharding that knows its mesh moves the array to it
        return put(array.numpy(), sharding, mesh or own or array.mesh)
    make_known_to_jax()
    held = to_numpy(array)
    ours = as_mesh(mesh) if mesh is not None else mesh_of(sharding)
    ours.check_listed()
    given = as_sharding(P() if sharding is None else sharding, held.ndim, ours)
    stacked = split(held, given, ours, atoms_for(given, ours))
    return Array(held.shape, dtype_of(held.dtype), given, ours, stacked)


def mesh_of(sharding: Any) -> Mesh:
    """The mesh that a sharding knows; one device if there is no sharding."""
    if sharding is None:
        return Mesh(device=1)
    mesh = held_mesh(sharding)
    if mesh is None:
        raise WeftError(
            f"{sharding} needs a mesh to be a sharding",
            help="weft.put(array, sharding, mesh) with a weft.Mesh(data=2, model=4)",
        )
    return as_mesh(mesh)
