"""Examples of the ops of local programs: own pieces, own places, moves and sums along axes."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import array, dtypes, seeds
from tests.ops.example import Example
from tests.ops.program import OnDevices
from weft.ir.op import Op
from weft.ir.types import TensorType
from weft.mesh import Axis, DimSharding, Mesh, MeshAxes, Sharding
from weft.mesh.algebra import total_size
from weft.ops.combiners import SHORT_NAMES
from weft.ops.distributed.local import (
    CHANNEL,
    AllSlice,
    AxisIndex,
    PermuteAlongAxes,
    VariadicReduceScatter,
)
from weft.ops.distributed.ragged import RaggedAllToAll

NUMBERS = ("f32", "i32", "bf16", "ui8")
INTEGERS = ("i32", "ui8")
Axes = tuple[Axis, ...]
# Meshes, and axes of theirs that differ from one another.
MESHES: dict[Mesh, tuple[Axes, ...]] = {
    Mesh(x=2): ((Axis("x"),),),
    Mesh(x=2, y=2): ((Axis("x"),), (Axis("y"),), (Axis("y"), Axis("x"))),
    Mesh((("x", 2), ("y", 2)), (2, 0, 3, 1)): ((Axis("x"),), (Axis("x"), Axis("y"))),
    Mesh(z=8): ((Axis("z", 1, 2),), (Axis("z", 2, 4),), (Axis("z", 4, 2), Axis("z", 1, 2))),
    Mesh(x=3, one=1): ((Axis("x"),), (Axis("one"),)),
}


@composite
def places(draw: DrawFn) -> tuple[Mesh, Axes]:
    """A mesh and some of its axes."""
    mesh = draw(st.sampled_from(list(MESHES)))
    return mesh, draw(st.sampled_from(MESHES[mesh]))


@composite
def axis_index(draw: DrawFn) -> Example:
    mesh, axes = draw(places())
    return OnDevices(AxisIndex(MeshAxes(mesh, axes)), (), devices=mesh.size)


@composite
def all_slice(draw: DrawFn) -> Example:
    mesh, axes = draw(places())
    dim, local = draw(st.integers(0, 1)), [draw(st.integers(1, 3)), draw(st.integers(1, 3))]
    dtype, whole = draw(dtypes(NUMBERS)), list(local)
    whole[dim] *= total_size(axes, mesh)
    dims = tuple(DimSharding(axes if d == dim else ()) for d in range(2))
    op = AllSlice(Sharding(mesh, dims), TensorType(tuple(local), dtype))
    return OnDevices(op, (array((mesh.size, *whole), dtype, draw(seeds)),), devices=mesh.size)


@composite
def permute(draw: DrawFn) -> Example:
    mesh, axes = draw(places())
    sources = list(draw(st.permutations(range(total_size(axes, mesh)))))
    if draw(st.booleans()):
        sources[0] = -1
    stacks = tuple(
        array((mesh.size, 2, n + 1), draw(dtypes(NUMBERS)), draw(seeds))
        for n in range(draw(st.integers(1, 2)))
    )
    op = PermuteAlongAxes(MeshAxes(mesh, axes), tuple(sources))
    return OnDevices(op, stacks, devices=mesh.size)


@composite
def reduce_scatter(draw: DrawFn) -> Example:
    mesh, axes = draw(places())
    how = draw(st.sampled_from([*SHORT_NAMES.values()]))
    dtype = draw(dtypes(INTEGERS if how in ("and", "or", "xor") else NUMBERS))
    dims = tuple(draw(st.lists(st.integers(0, 1), min_size=1, max_size=2)))
    outs, stacks = [], []
    for dim in dims:
        whole = [2, 3]
        outs.append(TensorType(tuple(whole), dtype))
        whole[dim] *= total_size(axes, mesh)
        stacks.append(array((mesh.size, *whole), dtype, draw(seeds)))
    op = VariadicReduceScatter(dims, how, MeshAxes(mesh, axes), tuple(outs))
    return OnDevices(op, tuple(stacks), devices=mesh.size)


@composite
def ragged_all_to_all(draw: DrawFn) -> Example:
    """Every pair of devices has a size of its own; rows arrive in the order of their senders."""
    mesh, axes = draw(places())
    count, random = total_size(axes, mesh), np.random.default_rng(draw(seeds))
    dtype = draw(dtypes(NUMBERS))
    starts, sizes, to, awaited = (np.zeros((mesh.size, count), np.int32) for _ in range(4))
    for group in mesh.groups(axes):
        sent = random.integers(0, 3, (count, count))
        for n, device in enumerate(group):
            sizes[device], awaited[device] = sent[n], sent[:, n]
            starts[device] = np.cumsum(sent[n]) - sent[n]
            to[device] = (np.cumsum(sent, 0) - sent)[n]
    rows, room = (array((mesh.size, 2 * count, 2), dtype, draw(seeds)) for _ in range(2))
    op = RaggedAllToAll(MeshAxes(mesh, axes), CHANNEL)
    return OnDevices(op, (rows, room, starts, sizes, to, awaited), devices=mesh.size)


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    AxisIndex: axis_index(),
    AllSlice: all_slice(),
    PermuteAlongAxes: permute(),
    VariadicReduceScatter: reduce_scatter(),
    RaggedAllToAll: ragged_all_to_all(),
}
