"""Random local programs: arithmetic, products, folds and every collective, on axes and parts."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, composite

from weft.ir.dense import Dense
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.op import Op
from weft.ir.types import F32, Array, TensorType
from weft.mesh import Axis, DimSharding, Mesh, MeshAxes, Sharding
from weft.mesh.algebra import total_size
from weft.ops.combiners import combiner
from weft.ops.contract import DotDims, DotGeneral
from weft.ops.control import If
from weft.ops.distributed.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectiveBroadcast,
    ReduceScatter,
)
from weft.ops.distributed.local import (
    CHANNEL,
    AllSlice,
    AxisIndex,
    PermuteAlongAxes,
    VariadicReduceScatter,
)
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Add, Compare, Maximum, Multiply, Negate, Subtract
from weft.ops.elementwise.transcendental import Tanh
from weft.ops.reduce import Reduce
from weft.ops.shape import BroadcastInDim, Constant, Reshape, Reverse, Transpose
from weft.ops.slicing import Concatenate, DynamicSlice, Slice

SIDE = 12  # the sizes of both dims: it divides by every group
MESHES = {
    Mesh(a=2, b=3): ((Axis("a"),), (Axis("b"),), (Axis("a"), Axis("b")), (Axis("b"), Axis("a"))),
    Mesh(c=12): (
        (Axis("c"),),
        (Axis("c", 1, 2),),
        (Axis("c", 2, 2),),
        (Axis("c", 4, 3),),
        (Axis("c", 4, 3), Axis("c", 1, 2)),
    ),
    Mesh((("a", 2), ("b", 2)), (3, 1, 0, 2)): ((Axis("a"),), (Axis("b"), Axis("a"))),
    Mesh(a=1, b=4): ((Axis("a"),), (Axis("b"),), (Axis("b", 1, 2),)),
}
WHOLE = TensorType((SIDE, SIDE), F32)


class Sample:
    """A program, stacks for its arguments, and its mesh."""

    def __init__(self, module: Module, stacks: tuple[Array, ...], mesh: Mesh) -> None:
        self.module = module
        self.stacks = stacks
        self.mesh = mesh

    def __repr__(self) -> str:
        return self.module.text()


@dataclass
class Lines:
    """A program that is being written; all its values are squares of one size."""

    draw: DrawFn
    mesh: Mesh
    axes: tuple[tuple[Axis, ...], ...]
    args: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    squares: list[Value] = field(default_factory=list)

    def pick(self) -> Value:
        return self.draw(st.sampled_from(self.squares))

    def some_axes(self) -> tuple[Axis, ...]:
        return self.draw(st.sampled_from(self.axes))

    def add(self, op: Op, *operands: Value, regions: tuple[Region, ...] = ()) -> Value:
        self.nodes.append(apply(op, *operands, regions=regions))
        return self.nodes[-1].results[0]

    def square(self, value: Value) -> Value:
        """A value made square again: repeated, or cut."""
        shape = value.type.sizes
        for dim, size in enumerate(shape):
            if size > SIDE:
                limits = [SIDE if d == dim else n for d, n in enumerate(value.type.sizes)]
                value = self.add(Slice((0, 0), tuple(limits), (1, 1)), value)
            elif size < SIDE:
                value = self.add(Concatenate(dim), *[value] * (SIDE // size))
        return value


def elementwise(lines: Lines) -> Value:
    op = lines.draw(st.sampled_from([Add(), Subtract(), Multiply(), Maximum(), Tanh(), Negate()]))
    return lines.add(op, *[lines.pick() for _ in range(op.arity)])


def product(lines: Lines) -> Value:
    left, right = lines.draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))
    value = lines.add(
        DotGeneral(DotDims((), (), (left,), (right,)), WHOLE), lines.pick(), lines.pick()
    )
    if lines.draw(st.booleans()):  # what is summed over devices at once
        value = all_reduced(lines, value, "add")
    return lines.add(Multiply(), value, scalar(lines, 1 / SIDE))


def scalar(lines: Lines, number: float) -> Value:
    one = lines.add(Constant(Dense(np.asarray(number, np.float32))))
    return lines.add(BroadcastInDim((), WHOLE), one)


def shuffled(lines: Lines) -> Value:
    op = lines.draw(
        st.sampled_from([Transpose((1, 0)), Reverse((0,)), Reshape(TensorType((SIDE * 3, 4), F32))])
    )
    value = lines.add(op, lines.pick())
    return lines.add(Reshape(WHOLE), value) if isinstance(op, Reshape) else value


def folded(lines: Lines) -> Value:
    dim = lines.draw(st.integers(0, 1))
    zero = lines.add(Constant(Dense(np.asarray(0, np.float32))))
    out = TensorType((SIDE,), F32)
    region = combiner("max" if lines.draw(st.booleans()) else "add", WHOLE)
    value = lines.add(Reduce((dim,), (out,)), lines.pick(), zero, regions=(region,))
    return lines.add(BroadcastInDim((lines.draw(st.integers(0, 1)),), WHOLE), value)


def all_reduced(lines: Lines, value: Value, how: str) -> Value:
    groups = MeshAxes("mesh", lines.some_axes())
    op = AllReduce(groups, CHANNEL, use_global_device_ids=True)
    made = lines.add(op, value, regions=(combiner(how, WHOLE),))
    return lines.add(Multiply(), made, scalar(lines, 0.5)) if how == "add" else made


def reduced(lines: Lines) -> Value:
    how = lines.draw(st.sampled_from(["add", "max", "min", "mul"]))
    return all_reduced(lines, lines.pick(), how)


def gathered(lines: Lines) -> Value:
    axes, dim = lines.some_axes(), lines.draw(st.integers(0, 1))
    shape = [SIDE, SIDE]
    shape[dim] *= total_size(axes, lines.mesh)
    outs = (TensorType(tuple(shape), F32),)
    op = AllGather(dim, MeshAxes("mesh", axes), outs, CHANNEL, use_global_device_ids=True)
    return lines.square(lines.add(op, lines.pick()))


def scattered(lines: Lines) -> Value:
    axes, dim = lines.some_axes(), lines.draw(st.integers(0, 1))
    shape = [SIDE, SIDE]
    shape[dim] //= total_size(axes, lines.mesh)
    out, groups = TensorType(tuple(shape), F32), MeshAxes("mesh", axes)
    if lines.draw(st.booleans()):
        made = lines.add(VariadicReduceScatter((dim,), "add", groups, (out,)), lines.pick())
    else:
        op = ReduceScatter(dim, groups, (out,), CHANNEL, use_global_device_ids=True)
        made = lines.add(op, lines.pick(), regions=(combiner("add", WHOLE),))
    return lines.add(Multiply(), lines.square(made), scalar(lines, 0.5))


def exchanged(lines: Lines) -> Value:
    axes = lines.some_axes()
    split, join = lines.draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))
    count = total_size(axes, lines.mesh)
    op = AllToAll(split, join, count, MeshAxes("mesh", axes), CHANNEL)
    return lines.square(lines.add(op, lines.pick()))


def moved(lines: Lines) -> Value:
    axes = lines.some_axes()
    sources = lines.draw(st.permutations(range(total_size(axes, lines.mesh))))
    holes = lines.draw(st.booleans())
    listed = tuple(-1 if holes and n == 0 else s for n, s in enumerate(sources))
    return lines.add(PermuteAlongAxes(MeshAxes("mesh", axes), listed), lines.pick())


def broadcast(lines: Lines) -> Value:
    groups = MeshAxes("mesh", lines.some_axes())
    return lines.add(CollectiveBroadcast(groups, CHANNEL), lines.pick())


def own_piece(lines: Lines) -> Value:
    axes, dim = lines.some_axes(), lines.draw(st.integers(0, 1))
    shape = [SIDE, SIDE]
    shape[dim] //= total_size(axes, lines.mesh)
    dims = tuple(DimSharding(axes if d == dim else ()) for d in range(2))
    op = AllSlice(Sharding("mesh", dims), TensorType(tuple(shape), F32))
    return lines.square(lines.add(op, lines.pick()))


def place(lines: Lines) -> Value:
    index = lines.add(AxisIndex(MeshAxes("mesh", lines.some_axes())))
    if lines.draw(st.booleans()):
        zero = lines.add(Constant(Dense(np.asarray(0, np.int32))))
        cut = lines.add(DynamicSlice((1, SIDE)), lines.pick(), index, zero)
        return lines.square(cut)
    number = lines.add(Convert(TensorType((), F32)), index)
    return lines.add(Multiply(), lines.pick(), lines.add(BroadcastInDim((), WHOLE), number))


def branched(lines: Lines) -> Value:
    """A branch that some devices take; the others take the other one."""
    index = lines.add(AxisIndex(MeshAxes("mesh", lines.some_axes())))
    zero = lines.add(Constant(Dense(np.asarray(0, np.int32))))
    chosen = lines.add(Compare("EQ"), index, zero)
    regions = []
    for _ in range(2):
        node = apply(lines.draw(st.sampled_from([Add(), Subtract()])), lines.pick(), lines.pick())
        regions.append(Region((), [node], node.results))
    return lines.add(If(), chosen, regions=tuple(regions))


STEPS = (
    elementwise,
    product,
    shuffled,
    folded,
    reduced,
    gathered,
    scattered,
    exchanged,
    moved,
    broadcast,
    own_piece,
    place,
    branched,
)


@composite
def programs(draw: DrawFn, steps: int = 8) -> Sample:
    """A program, stacks for its arguments, and its mesh."""
    mesh = draw(st.sampled_from(list(MESHES)))
    lines = Lines(draw, mesh, MESHES[mesh])
    attrs, stacks = [], []
    for n in range(2):
        lines.args.append(Value(WHOLE, None, n))
        axes = draw(st.sampled_from([(), *lines.axes]))
        sharding = Sharding("mesh", (DimSharding(), DimSharding()), unreduced=axes)
        attrs.append((("weft.sharding", str(sharding)),))
        stacks.append(differing(mesh, axes, draw(st.integers(0, 99))))
    lines.squares = [*lines.args]
    for _ in range(draw(st.integers(1, steps))):
        lines.squares.append(draw(st.sampled_from(STEPS))(lines))
    results = tuple(lines.squares[-2:])
    body = Region(tuple(lines.args), lines.nodes, results)
    main = Function("main", body, None, tuple(attrs))
    return Sample(Module({"main": main}, {"mesh": mesh}), tuple(stacks), mesh)


def differing(mesh: Mesh, axes: tuple[Axis, ...], seed: int) -> Array:
    """A square for each device, in the order of the devices' numbers; equal in each group."""
    numbers = np.random.default_rng(seed)
    out = np.empty((mesh.size, SIDE, SIDE), np.float32)
    base = numbers.standard_normal((total_size(axes, mesh), SIDE, SIDE)).astype(np.float32)
    for group in mesh.groups(axes):
        for n, device in enumerate(group):
            out[device] = base[n]
    return out
