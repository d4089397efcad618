"""Examples of collectives: groups as lists and as mesh axes, over replicas and over partitions."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy, composite

from tests.ops.draw import array, dtypes, seeds, shapes
from tests.ops.example import Example, binary_region
from tests.ops.program import OnDevices
from weft.ir.op import Op
from weft.ir.types import Array, DType, TensorType, type_of
from weft.mesh import Axis, Groups, Mesh, MeshAxes
from weft.ops.distributed.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    ChannelHandle,
    CollectiveBroadcast,
    CollectivePermute,
    PartitionId,
    ReduceScatter,
    ReplicaId,
)
from weft.ops.elementwise.pointwise import Add, Maximum

MESH = Mesh((("x", 2), ("y", 2)))
CHANNEL = ChannelHandle(1, 0)  # with it, the partitions of one replica meet
# How many devices there are, the groups in which they meet, and the size of these.
GROUPS: tuple[tuple[int, Groups, int], ...] = (
    (2, ((0, 1),), 2),
    (2, ((1, 0),), 2),
    (2, ((0,), (1,)), 1),
    (2, MeshAxes(Mesh((("x", 2),)), (Axis("x"),)), 2),
    (4, ((0, 1, 2, 3),), 4),
    (4, ((0, 2), (1, 3)), 2),
    (4, ((3, 1), (2, 0)), 2),
    (4, MeshAxes(MESH, (Axis("x"),)), 2),
    (4, MeshAxes(MESH, (Axis("y"), Axis("x"))), 4),
    (4, MeshAxes(Mesh((("z", 4),)), (Axis("z", 1, 2),)), 2),
)
groupings = st.sampled_from(GROUPS)
NUMBERS = ("f32", "f64", "i32", "bf16", "ui8")


@composite
def stacked(draw: DrawFn, devices: int, shape: tuple[int, ...]) -> Array:
    """An array of that shape for each device."""
    return array((devices, *shape), draw(dtypes(NUMBERS)), draw(seeds))


def _dtype(stack: Array) -> DType:
    return type_of(stack).dtype


@composite
def some_shape(draw: DrawFn) -> tuple[list[int], int]:
    """A shape and one of its dims, which has elements."""
    shape = list(draw(shapes(1)))
    dim = draw(st.integers(0, len(shape) - 1))
    shape[dim] = max(1, shape[dim])
    return shape, dim


@composite
def all_gather(draw: DrawFn) -> Example:
    devices, groups, count = draw(groupings)
    shape, dim = draw(some_shape())
    dtype, number = draw(dtypes(NUMBERS)), draw(st.integers(1, 2))
    stacks = tuple(array((devices, *shape), dtype, draw(seeds)) for _ in range(number))
    shape[dim] *= count
    outs = (TensorType(tuple(shape), dtype),) * number
    op = AllGather(dim, groups, outs, CHANNEL, use_global_device_ids=True)
    return OnDevices(op, stacks, devices=devices)


@composite
def all_reduce(draw: DrawFn) -> Example:
    devices, groups, _ = draw(groupings)
    stack = draw(stacked(devices, draw(shapes())))
    body = binary_region(draw(st.sampled_from((Add(), Maximum()))), _dtype(stack).name)
    op = AllReduce(groups, CHANNEL, use_global_device_ids=True)
    return OnDevices(op, (stack,), (body,), devices=devices)


@composite
def reduce_scatter(draw: DrawFn) -> Example:
    devices, groups, count = draw(groupings)
    shape, dim = draw(some_shape())
    dtype = draw(dtypes(NUMBERS))
    out = TensorType(tuple(shape), dtype)
    shape[dim] *= count
    stack = array((devices, *shape), dtype, draw(seeds))
    op = ReduceScatter(dim, groups, (out,), CHANNEL, use_global_device_ids=True)
    return OnDevices(op, (stack,), (binary_region(Add(), dtype.name),), devices=devices)


@composite
def all_to_all(draw: DrawFn) -> Example:
    devices, groups, count = draw(groupings)
    shape, split = draw(some_shape())
    join = draw(st.integers(0, len(shape) - 1))
    shape[split] *= count
    stack = draw(stacked(devices, tuple(shape)))
    return OnDevices(AllToAll(split, join, count, groups, CHANNEL), (stack,), devices=devices)


@composite
def collective_broadcast(draw: DrawFn) -> Example:
    lists = [(d, g) for d, g, _ in GROUPS if not isinstance(g, MeshAxes)]
    devices, groups = draw(st.sampled_from([*lists, (4, ((2, 1),))]))
    op = CollectiveBroadcast(groups, CHANNEL)
    return OnDevices(op, (draw(stacked(devices, draw(shapes()))),), devices=devices)


@composite
def collective_permute(draw: DrawFn) -> Example:
    devices = draw(st.sampled_from((2, 4)))
    sources = draw(st.lists(st.integers(0, devices - 1), unique=True, min_size=1))
    targets = draw(st.permutations(range(devices)))[: len(sources)]
    op = CollectivePermute(tuple(zip(sources, targets, strict=True)), CHANNEL)
    return OnDevices(op, (draw(stacked(devices, draw(shapes()))),), devices=devices)


EXAMPLES: dict[type[Op], SearchStrategy[Example]] = {
    AllGather: all_gather(),
    AllReduce: all_reduce(),
    ReduceScatter: reduce_scatter(),
    AllToAll: all_to_all(),
    CollectiveBroadcast: collective_broadcast(),
    CollectivePermute: collective_permute(),
    ReplicaId: st.just(OnDevices(ReplicaId(), (), devices=2)),
    PartitionId: st.just(OnDevices(PartitionId(), (), devices=2)),
}
