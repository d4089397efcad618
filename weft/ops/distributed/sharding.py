"""The ops of the sdy dialect: sharding annotations in a program.

On global values they are the identity, except manual computations, whose body runs per device.
"""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np

from weft.errors import Unsupported, WeftError
from weft.ir.attrs import TEXT, Codec, integer
from weft.ir.check import require
from weft.ir.dense import Dense
from weft.ir.op import Body, Evaluation, Op, RegionCall, Steps, op
from weft.ir.rule import Rule
from weft.ir.types import Array, TensorType, Type, Types
from weft.ir.work import Work
from weft.mesh import Axis, Mesh, Sharding, parse_axes, parse_sharding, parse_shardings
from weft.ops.control import carried, opaque
from weft.ops.shape import Constant, local_value

Text = Annotated[str, TEXT]
OneSharding = Annotated[Sharding, Codec(parse_sharding, str)]
Shardings = Annotated[
    tuple[Sharding, ...],
    Codec(
        parse_shardings,
        lambda value: f"#sdy.sharding_per_value<[{', '.join(s.body() for s in value)}]>",
    ),
]
ManualAxes = Annotated[
    tuple[Axis, ...],
    Codec(parse_axes, lambda value: f"#sdy<manual_axes{{{', '.join(map(str, value))}}}>"),
]


def _sum_only(text: str) -> None:
    """The kind of a reduction; only sums are supported, the default in older versions of Shardy."""
    kind = int(text.partition(":")[0])
    if kind:
        raise Unsupported(
            f"a collective of Shardy's that takes the {'sum max min'.split()[kind]}",
            help="partial values that it reduces can be sums only; use stablehlo.all_reduce",
        )


Sum = Annotated[None, Codec(_sum_only, str)]


class Annotation(Op):
    """An annotation of its operand, which is returned unchanged."""

    __slots__ = ()

    def infer(self, operand: Type) -> Type:
        return operand

    def rule(self, operand: Type) -> Rule:
        return carried((operand,), (operand,))

    def reference(self, operand: Array) -> tuple[Array]:
        return (operand,)

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work()


@op("sdy.sharding_constraint")
class ShardingConstraint(Annotation):
    """A constraint: the value has this sharding here."""

    sharding: OneSharding


@op("sdy.reshard")
class Reshard(Annotation):
    """The value in another sharding."""

    sharding: OneSharding


@op("sdy.propagation_barrier")
class PropagationBarrier(Annotation):
    """Shardings pass only in the allowed direction."""

    allowed_direction: Annotated[int, integer("i32")]  # 0 none, 1 forward, 2 backward, 3 both


@op("sdy.data_flow_edge")
class DataFlowEdge(Annotation):
    """One sharding for a value across control flow."""

    sharding: OneSharding | None = None


@op("sdy.func_data_flow_edge")
class FuncDataFlowEdge(Annotation):
    """One sharding for a value across a call."""

    sharding: OneSharding | None = None


@op("sdy.all_gather")
class ShardyAllGather(Annotation):
    """The value, gathered along axes of each dim."""

    gathering_axes: Text
    out_sharding: OneSharding


@op("sdy.all_slice")
class ShardyAllSlice(Annotation):
    """The value, split along more axes of each dim."""

    slicing_axes: Text
    out_sharding: OneSharding


@op("sdy.all_to_all")
class ShardyAllToAll(Annotation):
    """The value, axes moved from one dim to another."""

    params: Text
    out_sharding: OneSharding


@op("sdy.all_reduce")
class ShardyAllReduce(Annotation):
    """The value, no longer unreduced over axes."""

    reduction_axes: Text
    out_sharding: OneSharding
    reduction_op: Sum = None


@op("sdy.reduce_scatter")
class ShardyReduceScatter(Annotation):
    """The value, reduced over axes and split along them."""

    reduce_scatter_axes: Text
    out_sharding: OneSharding
    reduction_op: Sum = None


@op("sdy.collective_permute")
class ShardyCollectivePermute(Annotation):
    """The value, its shards moved between devices."""

    out_sharding: OneSharding


@op("sdy.sharded_to_unreduced")
class ShardedToUnreduced(Annotation):
    """The value, unreduced over axes that split it before."""

    axes: Text
    out_sharding: OneSharding


@op("sdy.replicated_to_unreduced")
class ReplicatedToUnreduced(Annotation):
    """The value, unreduced over axes it was equal along before."""

    axes: Text
    out_sharding: OneSharding


@op("sdy.constant")
class ShardyConstant(Op):
    """A constant that passes do not merge with others."""

    value: Dense

    def infer(self) -> Type:
        return self.value.type

    def rule(self) -> Rule:
        return Constant(self.value).rule()

    def reference(self) -> Array:
        return self.value.array

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Constant(self.value).work(operands, results)

    def local(self, operands: Types, results: Types) -> Op:
        return self.replace(value=local_value(self.value, results[0]))


@op("sdy.sharding_group")
class ShardingGroup(Op):
    """Values of one group id have the same sharding."""

    group_id: int
    pure = False

    def infer(self, operand: Type) -> Types:
        return ()

    def rule(self, operand: Type) -> Rule:
        return opaque((operand,), ())

    def reference(self, operand: Array) -> tuple[()]:
        return ()

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return Work()


class Computation(Op):
    """An op whose region is inlined in the program around it."""

    __slots__ = ()
    regions = 1
    control = True

    def rule(self, *operands: Type, regions: tuple[Body, ...]) -> Rule:
        return opaque(operands, self.infer(*operands, regions=regions))  # type: ignore[arg-type]

    def work(self, operands: Types, results: Types, bodies: tuple[Work, ...] = ()) -> Work:
        return sum(bodies, Work())


@op("sdy.named_computation")
class NamedComputation(Computation):
    """A part of the program under a name."""

    name_: str
    in_shardings: Shardings | None = None
    out_shardings: Shardings | None = None

    def infer(self, *operands: Type, regions: tuple[Body, ...]) -> Types:
        require(
            regions[0].args == operands,
            f"sdy.named_computation {self.name_!r}: the region takes other types than it is given",
            "make the types of the operands and of the region's arguments agree",
        )
        return regions[0].results

    def reference(self, *values: Any, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        return (yield from regions[0].run(*values))


@op("sdy.manual_computation")
class ManualComputation(Computation):
    """The region runs on every device, on the shards of its operands along the manual axes."""

    in_shardings: Shardings
    out_shardings: Shardings
    manual_axes: ManualAxes
    outs: Types

    def infer(self, *operands: Type, regions: tuple[Body, ...]) -> Types:
        require(
            len(operands) == len(self.in_shardings) and len(self.outs) == len(self.out_shardings),
            f"{self.name}: {len(self.in_shardings)} shardings for {len(operands)} operands, "
            f"{len(self.out_shardings)} for {len(self.outs)} results",
            "give one sharding for each operand and each result",
        )
        return self.outs

    def reference(self, *values: Array, regions: tuple[RegionCall, ...], run: Evaluation) -> Steps:
        shardings = self.in_shardings + self.out_shardings
        if not shardings:  # no operands and results: one run stands for all devices
            return (yield from regions[0].run())
        mesh = shardings[0].resolve(run.meshes)
        manual = frozenset(axis.name for axis in self.manual_axes)
        places = coordinates(mesh)
        rows = [
            tuple(
                piece(value, sharding, mesh, manual, places[device])
                for value, sharding in zip(values, self.in_shardings, strict=True)
            )
            for device in range(mesh.size)
        ]
        results = run.everywhere(regions[0], rows)
        return tuple(
            assemble([r[n] for r in results], out, sharding, mesh, manual, places)
            for n, (out, sharding) in enumerate(zip(self.outs, self.out_shardings, strict=True))
            if isinstance(out, TensorType)
        )


Coordinates = dict[str, int]  # a device's position along each axis


def coordinates(mesh: Mesh) -> list[Coordinates]:
    """The position of each device along the axes of its mesh."""
    devices = mesh.devices()
    by_device: list[Coordinates] = [{} for _ in range(mesh.size)]
    for position in np.ndindex(devices.shape):
        names = (name for name, _ in mesh.axes)
        by_device[int(devices[position])] = dict(zip(names, position, strict=True))
    return by_device


def _slices(
    shape: tuple[int, ...],
    sharding: Sharding,
    mesh: Mesh,
    manual: frozenset[str],
    place: Coordinates,
) -> tuple[slice, ...]:
    """The slices of a device's shard in the global tensor, along the manual axes."""
    sizes = dict(mesh.axes)
    parts = []
    for size, dim in zip(shape, sharding.dims, strict=True):
        count, index = 1, 0
        for axis in dim.axes:
            if axis.name not in manual:
                continue
            # A sub-axis is a digit of the index along its axis: `before` counts the digits above
            # it, and `after` those below.
            part = axis.size or sizes[axis.name]
            after = sizes[axis.name] // (axis.before * part)
            count, index = count * part, index * part + place[axis.name] // after % part
        if size % count:
            raise WeftError(
                f"sdy.manual_computation: {count} devices do not divide a dim of size {size}",
                help="pad the dim, or split it along fewer axes",
            )
        parts.append(slice(index * (size // count), (index + 1) * (size // count)))
    return tuple(parts)


def piece(
    whole: Array, sharding: Sharding, mesh: Mesh, manual: frozenset[str], place: Coordinates
) -> Array:
    """The shard of a tensor on one device."""
    return whole[_slices(whole.shape, sharding, mesh, manual, place)]


def assemble(
    pieces: list[Array],
    out: TensorType,
    sharding: Sharding,
    mesh: Mesh,
    manual: frozenset[str],
    places: list[Coordinates],
) -> Array:
    """The global tensor from the shards of all devices."""
    whole = np.empty(out.sizes, out.dtype.numpy)
    for part, place in zip(pieces, places, strict=True):
        whole[_slices(whole.shape, sharding, mesh, manual, place)] = part
    return whole


# Explicit collectives: reshards with a kind.
SHARDY_COLLECTIVES = (
    ShardyAllGather,
    ShardyAllSlice,
    ShardyAllToAll,
    ShardyAllReduce,
    ShardyReduceScatter,
    ShardyCollectivePermute,
    ShardedToUnreduced,
    ReplicatedToUnreduced,
)
OPS: tuple[type[Op], ...] = (
    ShardingConstraint,
    Reshard,
    ShardingGroup,
    PropagationBarrier,
    DataFlowEdge,
    FuncDataFlowEdge,
    ManualComputation,
    NamedComputation,
    ShardyConstant,
    *SHARDY_COLLECTIVES,
)


# Ops that are the identity on global values.
ANNOTATIONS: tuple[type[Annotation], ...] = (
    ShardingConstraint,
    Reshard,
    PropagationBarrier,
    DataFlowEdge,
    FuncDataFlowEdge,
    *SHARDY_COLLECTIVES,
)
