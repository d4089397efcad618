"""Collectives: ops that communicate within groups of devices.

The reference of a collective takes the operands of each device of one group, in the group's order,
and returns the results of each. Groups are mesh axes if the program has them, else lists of ids.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np

from weft.errors import WeftError
from weft.ir.attrs import MATRIX, UNIT, Codec, struct
from weft.ir.check import dims_in_range, require, tensor_type
from weft.ir.op import Body, Evaluation, Op, RegionCall, op
from weft.ir.rule import Rule, RuleBuilder
from weft.ir.types import UI32, Array, TensorType, Type, Types
from weft.ir.work import Work, elements, moved
from weft.mesh import Groups, Lists, Mesh, MeshAxes, parse_mesh_axes
from weft.mesh.groups import cross_partition, cross_replica, cross_replica_and_partition
from weft.records import dataclass

DeviceValues = tuple[Array, ...]  # the operands, or the results, of one device of a group


@dataclass(frozen=True, slots=True)
class ChannelHandle:
    """The channel id of a collective; 0 for none."""

    handle: int
    type: int  # XLA's: 1 between devices, 2 to the host, 3 from it
    codec: ClassVar[Codec]


ChannelHandle.codec = struct("stablehlo.channel_handle")(ChannelHandle)


def _read_groups(text: str) -> Groups:
    if text.startswith("dense"):
        rows: Lists = MATRIX.read(text)
        # -1 pads the rows of shorter groups.
        return tuple(tuple(d for d in row if d >= 0) for row in rows)
    return parse_mesh_axes(text)


def _write_groups(groups: Groups) -> str:
    if isinstance(groups, MeshAxes):
        return str(groups)
    width = max((len(group) for group in groups), default=0)
    return MATRIX.write(tuple(group + (-1,) * (width - len(group)) for group in groups))


GROUPS = Codec(_read_groups, _write_groups)
ReplicaGroups = Annotated[Groups, GROUPS]
Flag = Annotated[bool, UNIT]


def device_lists(groups: Groups, meshes: Mapping[str, Mesh]) -> Lists:
    """Groups as lists of ids."""
    return groups.lists(meshes) if isinstance(groups, MeshAxes) else groups


class CollectiveOp(Op):
    """A communicating op."""

    __slots__ = ()
    collective = True
    replica_groups: ReplicaGroups
    channel_handle: ChannelHandle | None

    @property
    def channel(self) -> int:
        """The channel's number, 0 for none."""
        return self.channel_handle.handle if self.channel_handle else 0

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        # Each of g devices sends (g - 1) / g of these bytes: the limit for large groups.
        sent = max(moved(*operands), moved(*results))
        return Work(bytes=moved(*operands, *results), sent=sent)


class GlobalGroups(CollectiveOp):
    """A collective whose groups are cross_replica, cross_replica_and_partition or flattened_ids."""

    __slots__ = ()
    use_global_device_ids: Flag

    def groups(self, replicas: int, partitions: int, meshes: Mapping[str, Mesh]) -> Lists:
        """The groups as lists of devices."""
        lists = device_lists(self.replica_groups, meshes)
        if self.channel <= 0:
            require(
                not self.use_global_device_ids,
                f"{self.name}: use_global_device_ids without a channel",
                "give a channel_handle greater than 0",
            )
            everyone = lists or (tuple(range(replicas)),)
            return cross_replica(everyone, replicas, partitions)
        if self.use_global_device_ids:
            return lists or (tuple(range(replicas * partitions)),)
        everyone = lists or (tuple(range(replicas)),)
        # With a channel but without global ids the groups list replicas; each of these stands for
        # all of its partitions (StableHLO's cross_replica_and_partition).
        return cross_replica_and_partition(everyone, replicas, partitions)


class LocalGroups(CollectiveOp):
    """A collective whose groups are cross_replica, or with a channel cross_partition."""

    __slots__ = ()

    def groups(self, replicas: int, partitions: int, meshes: Mapping[str, Mesh]) -> Lists:
        """The groups as lists of devices."""
        lists = device_lists(self.replica_groups, meshes)
        if self.channel <= 0:
            everyone = lists or (tuple(range(replicas)),)
            return cross_replica(everyone, replicas, partitions)
        everyone = lists or (tuple(range(partitions)),)
        return cross_partition(everyone, replicas, partitions)


def dim_by_dim(operands: Types, results: Types, *changed: int) -> Rule:
    """A factor per dim, of each operand, or of all if their shapes are equal; changed: whole."""
    builder = RuleBuilder(operands, results)
    count = range(len(operands))
    alike = len({t.shape for t in operands if isinstance(t, TensorType)}) == 1
    for members in [set(count)] if alike else [{n} for n in count]:
        first = min(members)
        operand, result = operands[first], results[first]
        assert isinstance(operand, TensorType) and isinstance(result, TensorType)
        nowhere = [None] * len(operands)
        for dim, size in enumerate(operand.bounds):
            if dim not in changed:
                where = [dim if n in members else None for n in count]
                builder.factor(where, where, size)
        for dim in dict.fromkeys(changed):
            where = [dim if n in members else None for n in count]
            # Two factors, since the sizes differ: neither may be split any further by propagation.
            builder.factor(where, nowhere, operand.bounds[dim], "whole")
            builder.factor(nowhere, where, result.bounds[dim], "whole")
    return builder.build()


def tensors(name: str, operands: Types) -> tuple[TensorType, ...]:
    """The operands of a collective: at least one, and tensors."""
    require(len(operands) > 0, f"{name}: has no operands", "give at least one")
    return tuple(tensor_type(name, n, t) for n, t in enumerate(operands))


def _changed(
    name: str, operands: Types, outs: Types, check: Callable[[TensorType, TensorType], None]
) -> Types:
    """The declared result types of a collective on several operands, each checked."""
    require(
        len(operands) == len(outs) > 0,
        f"{name}: has {len(operands)} operands and {len(outs)} results",
        "give one result for each operand, and at least one",
    )
    for index, (operand, out) in enumerate(zip(operands, outs, strict=True)):
        source, result = tensor_type(name, index, operand), tensor_type(name, index, out)
        require(
            source.rank == result.rank and source.dtype is result.dtype,
            f"{name}: result {index} is {result}, but operand {index} is {source}",
            "only sizes may differ",
        )
        check(source, result)
    return outs


def _others_equal(name: str, given: TensorType, made: TensorType, *changed: int) -> None:
    for dim, (size, other) in enumerate(zip(given.shape, made.shape, strict=True)):
        require(
            dim in changed or size == other,
            f"{name}: dim {dim} of the result is {other}, but {size} in the operand",
            "only the dims that the collective splits or joins may change",
        )


def _has_elements(name: str, what: str, type: TensorType, dim: int) -> None:
    require(
        type.bounds[dim] > 0,
        f"{name}: dim {dim} of the {what} has no elements",
        "only a dim with elements can be joined or split",
    )


def _divides(name: str, what: str, whole: int, part: int, count: int | None) -> None:
    # Without a known group size the ratio is only checked to be a whole number.
    fits = whole == part * count if count else (whole % part == 0 if part else whole == 0)
    require(
        fits,
        f"{name}: {what} is {whole}, which is not {count or 'a multiple'} times {part}",
        "the sizes must follow from the size of the groups",
    )


def _group_size(op: CollectiveOp) -> int | None:
    """The group size, if it follows from the op alone."""
    groups = op.replica_groups
    if isinstance(groups, MeshAxes) or not groups:
        return None
    # With a channel and no global ids, groups of replicas include all their partitions.
    if op.channel > 0 and isinstance(op, GlobalGroups) and not op.use_global_device_ids:
        return None
    return len(groups[0])


def _check_split_dim(
    op: GlobalGroups, word: str, dim: int, operand: TensorType, out: TensorType
) -> None:
    """Check a dim that is whole on one side, and split over the devices of a group on the other."""
    dims_in_range(op.name, word, (dim,), operand.rank)
    sides = {"operand": operand, "result": out}
    part, whole = [*sides] if isinstance(op, AllGather) else [*reversed(sides)]
    _has_elements(op.name, part, sides[part], dim)
    _others_equal(op.name, operand, out, dim)
    sizes = sides[whole].bounds[dim], sides[part].bounds[dim]
    _divides(op.name, f"the {whole}'s dim {dim}", *sizes, _group_size(op))


@op("stablehlo.all_gather")
class AllGather(GlobalGroups):
    """Every device gets the operands of its whole group, concatenated along a dim."""

    all_gather_dim: int
    replica_groups: ReplicaGroups
    outs: Types
    channel_handle: ChannelHandle | None = None
    use_global_device_ids: Flag = False

    def infer(self, *operands: Type) -> Types:
        def check(operand: TensorType, out: TensorType) -> None:
            _check_split_dim(self, "all_gather_dim", self.all_gather_dim, operand, out)

        return _changed(self.name, operands, self.outs, check)

    def rule(self, *operands: TensorType) -> Rule:
        return dim_by_dim(operands, self.outs, self.all_gather_dim)

    def reference(self, *members: DeviceValues) -> list[DeviceValues]:
        whole = tuple(
            np.concatenate(each, self.all_gather_dim) for each in zip(*members, strict=True)
        )
        # One array for all: evaluation never writes into its values.
        return [whole] * len(members)


def _fold(members: Sequence[DeviceValues], body: RegionCall) -> tuple[Array, ...]:
    """All devices' operands combined, as a tree of neighbours."""
    # The order of a collective's sum is not specified; a tree rounds less than a chain.
    level = list(members)
    while len(level) > 1:
        pairs = [
            tuple(body.each(a, b)[0] for a, b in zip(x, y, strict=True))
            for x, y in zip(level[::2], level[1::2], strict=False)
        ]
        level = pairs + level[2 * len(pairs) :]
    return level[0]


def _combined_types(name: str, operands: Types, regions: tuple[Body, ...]) -> Types:
    """The operand types with the element type of the combining region."""
    (body,) = regions
    require(
        len(body.args) == 2 and len(body.results) == 1,
        f"{name}: the region takes {len(body.args)} values and gives {len(body.results)}",
        "it must combine two scalars into one",
    )
    made = tensor_type(name, 0, body.results[0])
    return tuple(tensor_type(name, n, t).with_dtype(made.dtype) for n, t in enumerate(operands))


@op("stablehlo.all_reduce")
class AllReduce(GlobalGroups):
    """Every device gets the elementwise combination of its group's operands."""

    replica_groups: ReplicaGroups
    channel_handle: ChannelHandle | None = None
    use_global_device_ids: Flag = False
    regions = 1

    def infer(self, *operands: Type, regions: tuple[Body, ...]) -> Types:
        return _combined_types(self.name, tensors(self.name, operands), regions)

    def rule(self, *operands: TensorType, regions: tuple[Body, ...]) -> Rule:
        return dim_by_dim(operands, self.infer(*operands, regions=regions))

    def reference(
        self, *members: DeviceValues, regions: tuple[RegionCall, ...]
    ) -> list[DeviceValues]:
        return [_fold(members, regions[0])] * len(members)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        size = moved(*operands)
        count = sum(elements(t) for t in operands)
        # A reduce-scatter and an all-gather, each of which sends nearly the whole size.
        return bodies[0].times(count) + Work(bytes=size + moved(*results), sent=2 * size)


@op("stablehlo.reduce_scatter")
class ReduceScatter(GlobalGroups):
    """The operands of the group are combined, and every device gets its shard of the result."""

    scatter_dimension: int
    replica_groups: ReplicaGroups
    outs: Types
    channel_handle: ChannelHandle | None = None
    use_global_device_ids: Flag = False
    regions = 1

    def infer(self, *operands: Type, regions: tuple[Body, ...]) -> Types:
        def check(operand: TensorType, out: TensorType) -> None:
            _check_split_dim(self, "scatter_dimension", self.scatter_dimension, operand, out)

        return _changed(self.name, _combined_types(self.name, operands, regions), self.outs, check)

    def rule(self, *operands: TensorType, regions: tuple[Body, ...]) -> Rule:
        return dim_by_dim(operands, self.outs, self.scatter_dimension)

    def reference(
        self, *members: DeviceValues, regions: tuple[RegionCall, ...]
    ) -> list[DeviceValues]:
        whole = _fold(members, regions[0])
        pieces = [np.split(w, len(members), self.scatter_dimension) for w in whole]
        return [tuple(piece[n] for piece in pieces) for n in range(len(members))]

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        count = sum(elements(t) for t in operands)
        bytes_ = moved(*operands, *results)
        return bodies[0].times(count) + Work(bytes=bytes_, sent=moved(*operands))


@op("stablehlo.all_to_all")
class AllToAll(LocalGroups):
    """Every device splits its operand, sends part n to device n of the group, and concatenates."""

    split_dimension: int
    concat_dimension: int
    split_count: int
    replica_groups: ReplicaGroups
    channel_handle: ChannelHandle | None = None

    def infer(self, *operands: Type) -> Types:
        require(
            self.split_count > 0,
            f"{self.name}: split_count is {self.split_count}",
            "split into 1 or more",
        )
        size = _group_size(self)
        require(
            size in (None, self.split_count),
            f"{self.name}: split_count is {self.split_count}, but the groups have {size} devices",
            "split into as many pieces as a group has devices",
        )
        return tuple(self._result(t) for t in tensors(self.name, operands))

    def _result(self, operand: TensorType) -> TensorType:
        split, join, count = self.split_dimension, self.concat_dimension, self.split_count
        dims_in_range(self.name, "split_dimension", (split,), operand.rank)
        dims_in_range(self.name, "concat_dimension", (join,), operand.rank)
        shape = list(operand.sizes)
        require(
            shape[split] % count == 0,
            f"{self.name}: dim {split} is {shape[split]}, which {count} pieces do not divide",
            "pad the dim or split another",
        )
        shape[split] //= count
        shape[join] *= count
        return operand.with_shape(tuple(shape))

    def rule(self, *operands: TensorType) -> Rule:
        changed = (self.split_dimension, self.concat_dimension)
        return dim_by_dim(operands, self.infer(*operands), *changed)

    def reference(self, *members: DeviceValues) -> list[DeviceValues]:
        pieces = [[np.split(a, self.split_count, self.split_dimension) for a in m] for m in members]
        return [
            tuple(
                np.concatenate([p[operand][n] for p in pieces], self.concat_dimension)
                for operand in range(len(members[0]))
            )
            for n in range(len(members))
        ]


@op("stablehlo.collective_broadcast")
class CollectiveBroadcast(LocalGroups):
    """Every device gets the operand of the first of its group."""

    replica_groups: ReplicaGroups
    channel_handle: ChannelHandle | None = None

    def infer(self, *operands: Type) -> Types:
        return tensors(self.name, operands)

    def rule(self, *operands: TensorType) -> Rule:
        return dim_by_dim(operands, operands)

    def alone(self, operands: DeviceValues) -> DeviceValues:
        """The result on a device in no group: zeros."""
        return tuple(np.zeros_like(a) for a in operands)

    def reference(self, *members: DeviceValues) -> list[DeviceValues]:
        return [members[0]] * len(members)


@op("stablehlo.collective_permute")
class CollectivePermute(Op):
    """Each source sends its operand to its target; devices that are not targets get zeros."""

    source_target_pairs: tuple[tuple[int, int], ...]
    channel_handle: ChannelHandle | None = None
    collective = True

    def infer(self, *operands: Type) -> Types:
        for what, end in (("source", 0), ("target", 1)):
            ids = [pair[end] for pair in self.source_target_pairs]
            require(
                len(set(ids)) == len(ids) and all(i >= 0 for i in ids),
                f"{self.name}: {what}s {ids} repeat or are negative",
                f"name each {what} at most once",
            )
        return tensors(self.name, operands)

    def rule(self, *operands: TensorType) -> Rule:
        return dim_by_dim(operands, operands)

    def groups(self, replicas: int, partitions: int, meshes: Mapping[str, Mesh]) -> Lists:
        """All replicas, or all partitions if there is a channel."""
        if self.channel_handle is not None and self.channel_handle.handle > 0:
            return cross_partition((tuple(range(partitions)),), replicas, partitions)
        return cross_replica((tuple(range(replicas)),), replicas, partitions)

    def reference(self, *members: DeviceValues) -> list[DeviceValues]:
        results = [tuple(np.zeros_like(a) for a in member) for member in members]
        for source, target in self.source_target_pairs:
            if max(source, target) >= len(members):
                raise WeftError(
                    f"{self.name}: {source} sends to {target} in a group of {len(members)} devices",
                    help="run on more devices, or correct source_target_pairs",
                )
            results[target] = members[source]
        return results

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*operands, *results), sent=moved(*operands))


class DeviceId(Op):
    """An op that gives the id of the device."""

    __slots__ = ()
    control = True
    assembly = " : $type"
    which: ClassVar[int]

    def infer(self) -> Type:
        return TensorType((), UI32)

    def rule(self) -> Rule:
        return RuleBuilder((), (self.infer(),)).build()

    def reference(
        self, regions: tuple[RegionCall, ...], run: Evaluation
    ) -> Generator[Any, Any, tuple[Array]]:
        yield from ()
        return (np.asarray(run.device[self.which], np.uint32),)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work(bytes=moved(*results))


@op("stablehlo.replica_id")
class ReplicaId(DeviceId):
    """The id of this device's replica."""

    which = 0


@op("stablehlo.partition_id")
class PartitionId(DeviceId):
    """The id of this device's partition."""

    which = 1


OPS: tuple[type[Op], ...] = (
    AllGather,
    AllReduce,
    ReduceScatter,
    AllToAll,
    CollectiveBroadcast,
    CollectivePermute,
    ReplicaId,
    PartitionId,
)
