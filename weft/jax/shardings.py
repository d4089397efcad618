"""How arguments and results are split, in the words that JAX reads back: tiles of devices."""

from __future__ import annotations

import math

import numpy as np

from weft.array.atoms import span_of
from weft.array.put import atoms_for
from weft.mesh import Mesh, Sharding
from weft.mesh.pieces import counts
from weft.run import LocalProgram


def argument_tiles(program: LocalProgram) -> list[str]:
    """The sharding of each argument."""
    return [tiles(program, sharding) for sharding in program.shardings]


def result_tiles(program: LocalProgram) -> list[str]:
    """The sharding of each result."""
    return [tiles(program, sharding) for sharding in program.result_shardings]


def tiles(program: LocalProgram, sharding: Sharding | None) -> str:
    """A sharding as HLO writes it: `{devices=[2,1,4]0,1,2,3,4,5,6,7 last_tile_dim_replicate}`."""
    if sharding is None:
        return "{replicated}"
    mesh = program.mesh if isinstance(sharding.mesh, str) else sharding.mesh
    split = counts(sharding, mesh)
    if math.prod(split) == 1:
        return "{replicated}"
    order = _in_order(sharding, mesh, program.world.places())
    copies = mesh.size // math.prod(split)
    shape = ",".join(map(str, [*split, copies] if copies > 1 else split))
    last = " last_tile_dim_replicate" if copies > 1 else ""
    return f"{{devices=[{shape}]{','.join(map(str, order))}{last}}}"


def _in_order(sharding: Sharding, mesh: Mesh, places: np.ndarray) -> list[int]:
    """The partitions, sorted by the tile that they hold."""
    atoms = atoms_for(sharding, mesh)
    tile = np.zeros(mesh.size, np.int64)
    for dim in sharding.dims:
        spans = [span_of(axis, mesh) for axis in dim.axes]
        digits = atoms.dims_of(spans)
        assert digits is not None, "the digits are those of the sharding"
        size = math.prod(size for _, size in spans)
        tile = tile * size + atoms.index(digits, places)
    return [int(n) for n in np.argsort(tile, kind="stable")]
