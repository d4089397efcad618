"""Odd shapes on workers: uneven shards, axes of size 1, arrays without elements.

weft launch --workers 2 tests/workers/launched_shapes.py FOLDER [CASES SEED]
"""

from __future__ import annotations

import itertools
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import weft
from weft import Mesh, P

MESHES = (
    Mesh(x=4),
    Mesh(x=2, y=2),
    Mesh(x=1, y=4),
    Mesh(x=4, y=1),
    Mesh(x=2, o=1, y=2),
    Mesh((("x", 4),), (3, 1, 2, 0)),
)
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 9)


def drawn_specs(rng: np.random.Generator, mesh: Mesh, rank: int, count: int) -> list[P]:
    """Some shardings of so many dims, along single axes and along all of them."""
    names = [name for name, _ in mesh.axes]
    choices = [(), *((name,) for name in names), (*names,)]
    found = itertools.product(choices, repeat=rank)
    listed = [P(*dims) for dims in found if len({*sum(dims, ())}) == len(sum(dims, ()))]
    return [listed[n] for n in rng.integers(0, len(listed), count)]


def same(found: Any, expected: Any) -> None:
    whole = np.asarray(found.gathered())
    assert whole.shape == expected.shape and whole.dtype == expected.dtype
    np.testing.assert_allclose(whole, expected, rtol=2e-6)


def moved(rng: np.random.Generator, mesh: Mesh) -> None:
    """Put, resharded, computed with, gathered."""
    shape = tuple(map(int, rng.choice(SIZES, rng.integers(0, 4))))
    array = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    first, second = drawn_specs(rng, mesh, len(shape), 2)
    x = weft.put(array, first, mesh)
    y = weft.put(x, second)
    for shard in (*x.addressable_shards, *y.addressable_shards):
        np.testing.assert_array_equal(shard.data, array[shard.index])
    same(y * 2 + x, array * 3)


def computed(rng: np.random.Generator, mesh: Mesh) -> None:
    """A program of arrays that have its sharding, and of arrays that have another."""
    m, k, n = map(int, rng.choice(SIZES, 3))
    a, b = (rng.integers(-2, 3, size).astype(np.float32) for size in ((m, k), (k, n)))

    def function(a: Any, b: Any) -> tuple[Any, ...]:
        steps = jax.lax.fori_loop(0, 3, lambda _, c: jnp.sort(c, 0) + 1, a)
        ends = jnp.max(a, axis=1, initial=-5.0), jnp.concatenate([a, 2 * a]), a[::-1]
        return (a @ b).sum(0), steps, jnp.cumsum(a, 0), jnp.pad(a, ((1, 2), (0, 0))), *ends

    chosen = drawn_specs(rng, mesh, 2, 3)
    program = weft.compile(function, a, b, mesh=mesh, in_shardings=(chosen[0], chosen[1]))
    wide = weft.put(a.astype(np.float64), chosen[2], mesh)
    for given in (a, weft.put(a, chosen[0], mesh), weft.put(a, chosen[2], mesh), wide):
        made = program(given, b)
        for found, expected in zip(made, function(a, b), strict=True):
            same(found, np.asarray(expected))


def mapped(rng: np.random.Generator, mesh: Mesh) -> None:
    """Collectives of shard_map, along axes of size 1, too."""
    names = tuple(name for name, _ in mesh.axes)
    jax_mesh = jax.sharding.AbstractMesh(tuple(size for _, size in mesh.axes), names)
    rows, spec = int(rng.choice([0, 1, 3])), jax.sharding.PartitionSpec
    x = np.arange(mesh.size * rows * 2, dtype=np.float32).reshape(mesh.size * rows, 2)

    def body(x: Any) -> tuple[Any, ...]:
        summed = jax.lax.psum(x, names), jax.lax.psum(jax.lax.pmax(x, names[0]), names[-1])
        return *summed, jax.lax.all_gather(x, names, axis=1, tiled=True)

    function = jax.shard_map(
        body, mesh=jax_mesh, in_specs=spec(names), out_specs=spec(names), check_vma=False
    )
    made = weft.compile(function, x, mesh=Mesh(**dict(mesh.axes)))(x)
    same(made[0], np.tile(x.reshape(mesh.size, rows, 2).sum(0), (mesh.size, 1)))
    wide = np.concatenate(np.split(x, mesh.size), 1)
    same(made[2], np.tile(wide, (mesh.size, 1)))


def saved(folder: Path, mesh: Mesh) -> None:
    """A checkpoint, loaded as it was and on another mesh; parts of arrays of all workers."""
    axis, workers = mesh.axes[-1][0], int(os.environ["WORLD_SIZE"])
    arrays = {
        "uneven": np.arange(15, dtype=np.float32).reshape(5, 3),
        "empty": np.zeros((0, 4), np.int8),
        "one": np.ones(1, np.int64),
        "number": np.float32(3),
    }
    state = {n: weft.put(v, P(axis) if np.ndim(v) else P(), mesh) for n, v in arrays.items()}
    weft.save_state(state, folder)
    elsewhere = {"uneven": P(None, "q")}
    for loaded in (
        weft.load_state(folder, state),
        weft.load_state(folder, mesh=Mesh(q=4), plan=elsewhere),
    ):
        for name, array in arrays.items():
            same(loaded[name], array)
    for shape in ((4 // workers, 2), (0, 3), (4 // workers, 0)):
        part = np.full(shape, os.environ["RANK"], np.float32)
        found = weft.put_local(part, P(("o", "x")), Mesh(o=1, x=4))
        whole = [np.full(shape, rank, np.float32) for rank in range(workers)]
        same(found, np.concatenate(whole))


def main(folder: str, cases: int = 4, seed: int = 0) -> None:
    warnings.simplefilter("ignore")  # of dims that do not divide
    rng, count = np.random.default_rng(seed), 0
    kinds: tuple[Callable[[np.random.Generator, Mesh], None], ...] = (moved, computed, mapped)
    for number in range(cases):
        for kind in kinds:
            mesh = MESHES[rng.integers(len(MESHES))]
            try:
                kind(rng, mesh)
            except Exception as error:
                raise AssertionError(f"{kind.__name__} on {mesh}, case {number}") from error
            count += 1
    saved(Path(folder), MESHES[4])
    print(f"{count} cases are equal")


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
