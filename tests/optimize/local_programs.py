"""Random local programs: what every device runs, with collectives along axes of a mesh.

A program is made from a seed and a number of steps; the first steps of a longer program are those
of a shorter one, so a failure shrinks by itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from weft.ir.dense import Dense
from weft.ir.location import Location
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.op import Op
from weft.ir.types import BOOL, DTYPES, I32, Array, DType, TensorType
from weft.ir.verify import verify
from weft.mesh import Axis, DimSharding, Mesh, MeshAxes, Sharding
from weft.mesh.algebra import total_size
from weft.mesh.pieces import index_along
from weft.ops.combiners import combiner
from weft.ops.contract import DotDims, DotGeneral
from weft.ops.control import Call, If, While
from weft.ops.distributed.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectivePermute,
    ReduceScatter,
)
from weft.ops.distributed.local import CHANNEL, AllSlice, AxisIndex, PermuteAlongAxes
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import (
    Add,
    Compare,
    Maximum,
    Minimum,
    Multiply,
    Negate,
    Select,
    Subtract,
)
from weft.ops.reduce import Reduce
from weft.ops.shape import BroadcastInDim, Constant, Iota, Reshape, Transpose
from weft.ops.slicing import Concatenate, Pad, Slice

MESHES = (
    Mesh(x=2, y=4),
    Mesh(x=2, y=2, z=2),
    Mesh(x=4, one=1, y=2),
    Mesh((("x", 4), ("y", 2)), (3, 1, 4, 0, 5, 2, 7, 6)),
)
SIZES = (2, 4, 8)
MOST = 128  # elements of a value
NARROW = {"f32": "bf16", "i32": "i16", "f64": "f32", "i64": "i32"}
SCALAR = TensorType((), BOOL)
INDEX = TensorType((), I32)


@dataclass
class Block:
    """The nodes of one region, and the tensors that they may read."""

    nodes: list[Node] = field(default_factory=list)
    seen: list[Value] = field(default_factory=list)

    def inner(self) -> Block:
        """A region inside this one."""
        return Block([], list(self.seen))


class Maker:
    """Makes one program."""

    def __init__(self, seed: int, mesh: Mesh, dtype: DType) -> None:
        self.pick = random.Random(seed)
        self.mesh = mesh
        self.dtype = dtype
        self.functions: dict[str, Function] = {}
        self.line = 0
        self.last: tuple[Axis, ...] = ()
        self.steps: tuple[Callable[[Block], Value | None], ...] = (
            self.collective,
            self.collective,
            self.chain,
            self.chain,
            self.sums,
            self.binary,
            self.binary,
            self.unary,
            self.reshaped,
            self.cut,
            self.dot,
            self.fold,
            self.constant,
            self.converted,
        )

    # Pieces of a program

    def add(
        self, block: Block, op: Op, *operands: Value, regions: tuple[Region, ...] = ()
    ) -> Value:
        """Append a node on a line of its own; its first result."""
        self.line += 1
        loc = Location(f'"program.py":{self.line}:1')
        node = apply(op, *operands, regions=regions, loc=loc)
        block.nodes.append(node)
        return node.results[0]

    def value(self, block: Block) -> Value:
        """One of the tensors, the latest more often."""
        return block.seen[self.pick.randint(max(0, len(block.seen) - 4), len(block.seen) - 1)]

    def axes(self) -> tuple[Axis, ...]:
        """Some axes, or parts of one; often those of before."""
        if self.last and self.pick.random() < 0.5:
            return self.last
        self.last = self._axes()
        return self.last

    def _axes(self) -> tuple[Axis, ...]:
        names = [name for name, _ in self.mesh.axes]
        kind = self.pick.randint(0, 5)
        if kind == 0:
            whole = [n for n, size in self.mesh.axes if size == 4]
            if whole:
                return (Axis(whole[0], *self.pick.choice(((1, 2), (2, 2)))),)
        chosen = self.pick.sample(names, self.pick.choice((1, 1, 1, 2)))
        return tuple(Axis(name) for name in chosen)

    def groups(self, axes: tuple[Axis, ...]) -> MeshAxes | tuple[tuple[int, ...], ...]:
        """Who meets: by axes, or now and then as lists."""
        groups = MeshAxes("mesh", axes)
        return groups.lists({"mesh": self.mesh}) if self.pick.random() < 0.1 else groups

    def splat(self, block: Block, number: int, type: TensorType) -> Value:
        """A constant whose elements are alike."""
        held = np.asarray(number).astype(type.dtype.numpy)
        return self.add(block, Constant(Dense(held, type)))

    # Steps: each makes a value or nothing

    def collective(self, block: Block) -> Value | None:
        """A collective on one value."""
        x, axes = self.value(block), self.axes()
        type, dim = x.type, self.pick.randint(0, 1)
        count = total_size(axes, self.mesh)
        sizes = list(type.sizes)
        match self.pick.randint(0, 5):
            case 0:
                op = AllReduce(self.groups(axes), CHANNEL, use_global_device_ids=True)
                how = self.pick.choice(("add", "add", "max", "min"))
                return self.add(block, op, x, regions=(combiner(how, type),))
            case 1:
                sizes[dim] *= count
                if np.prod(sizes) > MOST:
                    return None
                outs = (type.with_shape(tuple(sizes)),)
                op = AllGather(dim, self.groups(axes), outs, CHANNEL, use_global_device_ids=True)
                return self.add(block, op, x)
            case 2 if sizes[dim] % count == 0:
                sizes[dim] //= count
                outs = (type.with_shape(tuple(sizes)),)
                groups = self.groups(axes)
                op = ReduceScatter(dim, groups, outs, CHANNEL, use_global_device_ids=True)
                how = self.pick.choice(("add", "add", "max"))
                return self.add(block, op, x, regions=(combiner(how, type),))
            case 3 if sizes[dim] % count == 0 and sizes[1 - dim] * count <= 64:
                return self.add(block, AllToAll(dim, 1 - dim, count, self.groups(axes), CHANNEL), x)
            case 4:
                return self.permute(block, x, axes, count)
            case 5 if sizes[dim] % count == 0:
                sizes[dim] //= count
                split = tuple(DimSharding(axes if d == dim else ()) for d in range(2))
                return self.add(
                    block, AllSlice(Sharding("mesh", split), type.with_shape(tuple(sizes))), x
                )
        return None

    def chain(self, block: Block) -> Value | None:
        """Collectives on what collectives made, which nothing else reads."""
        made: Value | None = None
        for _ in range(self.pick.choice((2, 2, 3))):
            made = self.collective(Block(block.nodes, [made or self.value(block)])) or made
            if made is not None and self.pick.random() < 0.2:
                made = self.add(block, Negate(), made)
        return made

    def sums(self, block: Block) -> Value | None:
        """A sum of two collectives of one kind."""
        x = self.value(block)
        y = self.add(block, Negate(), self.value_like(block, x))
        groups, type = MeshAxes("mesh", self.axes()), x.type
        count = total_size(groups.axes, self.mesh)
        op: Op = AllReduce(groups, CHANNEL, use_global_device_ids=True)
        if type.sizes[0] % count == 0 and self.pick.random() < 0.5:
            outs = (type.with_shape((type.sizes[0] // count, type.sizes[1])),)
            op = ReduceScatter(0, groups, outs, CHANNEL, use_global_device_ids=True)
        left, right = (self.add(block, op, v, regions=(combiner("add", type),)) for v in (x, y))
        return self.add(block, self.pick.choice((Add(), Subtract())), left, right)

    def permute(self, block: Block, x: Value, axes: tuple[Axis, ...], count: int) -> Value:
        """Pieces move; some devices may get nothing."""
        sources = list(range(count))
        match self.pick.randint(0, 2):
            case 0:
                sources = sources[1:] + sources[:1]
            case 1:
                sources = [*sources[1:], -1]
            case 2:
                self.pick.shuffle(sources)
        op = PermuteAlongAxes(MeshAxes("mesh", axes), tuple(sources))
        if self.pick.random() < 0.2:
            return self.add(block, CollectivePermute(op.pairs({"mesh": self.mesh}), CHANNEL), x)
        return self.add(block, op, x)

    def binary(self, block: Block) -> Value | None:
        """An op on two values of one type."""
        x = self.value(block)
        alike = [v for v in block.seen if v.type is x.type]
        op = self.pick.choice((Add(), Add(), Subtract(), Maximum(), Minimum()))
        return self.add(block, op, x, self.pick.choice(alike))

    def unary(self, block: Block) -> Value | None:
        """An op on one value, or with a constant, or with a device's place."""
        x = self.value(block)
        match self.pick.randint(0, 4):
            case 0:
                return self.add(block, Negate(), x)
            case 1:
                number = self.pick.choice((0, 1, 2, -1))
                op = self.pick.choice((Multiply(), Add(), Subtract()))
                return self.add(block, op, x, self.splat(block, number, x.type))
            case 2:
                places = self.add(block, AxisIndex(MeshAxes("mesh", self.axes())))
                held = self.add(block, Convert(x.type.with_shape(())), places)
                return self.add(block, Add(), x, self.add(block, BroadcastInDim((), x.type), held))
            case 3:
                flags = Dense(np.asarray(self.pick.random() < 0.5), x.type.with_dtype(BOOL))
                pred = self.add(block, Constant(flags))
                return self.add(block, Select(), pred, x, self.add(block, Negate(), x))
            case _:
                twice = self.add(block, Negate(), self.add(block, Negate(), x))
                return self.add(block, Transpose((0, 1)), twice)

    def reshaped(self, block: Block) -> Value | None:
        """The elements in another order or shape."""
        x = self.value(block)
        rows, columns = x.type.sizes
        match self.pick.randint(0, 3):
            case 0:
                return self.add(block, Transpose((1, 0)), x)
            case 1 if rows % 2 == 0:
                return self.add(block, Reshape(x.type.with_shape((rows // 2, columns * 2))), x)
            case 2 if rows == 2 and columns <= 8:
                first = self.add(block, Slice((0, 0), (1, columns), (1, 1)), x)
                return self.add(
                    block, BroadcastInDim((0, 1), x.type.with_shape((4, columns))), first
                )
            case 3:
                row = self.add(block, Reshape(x.type.with_shape((rows * columns,))), x)
                return self.add(block, Reshape(x.type.with_shape((columns, rows))), row)
        return None

    def cut(self, block: Block) -> Value | None:
        """Part of a value, or more than it."""
        x = self.value(block)
        rows, columns = x.type.sizes
        match self.pick.randint(0, 2):
            case 0 if rows % 2 == 0:
                begin = self.pick.choice((0, rows // 2))
                cut = Slice((begin, 0), (begin + rows // 2, columns), (1, 1))
                return self.add(block, cut, x)
            case 1 if rows * columns <= MOST // 2:
                return self.add(block, Concatenate(0), x, self.value_like(block, x))
            case 2 if rows * columns <= MOST // 2:
                zero = self.splat(block, 0, x.type.with_shape(()))
                return self.add(block, Pad((0, 0), (rows, 0), (0, 0)), x, zero)
        return None

    def value_like(self, block: Block, x: Value) -> Value:
        """A value of the same type."""
        return self.pick.choice([v for v in block.seen if v.type is x.type])

    def dot(self, block: Block) -> Value | None:
        """A product of a value and small constants."""
        x = self.value(block)
        columns = x.type.sizes[1]
        ones = np.eye(columns, 4).astype(x.type.dtype.numpy)
        other = self.add(block, Constant(Dense(ones)))
        out = x.type.with_shape((x.type.sizes[0], 4))
        return self.add(block, DotGeneral(DotDims((), (), (1,), (0,)), out), x, other)

    def fold(self, block: Block) -> Value | None:
        """A dim folded away and put back."""
        x = self.value(block)
        dim = self.pick.randint(0, 1)
        how = self.pick.choice(("add", "max"))
        zero = self.splat(block, 0, x.type.with_shape(()))
        row = x.type.with_shape((x.type.sizes[1 - dim],))
        folded = self.add(block, Reduce((dim,), (row,)), x, zero, regions=(combiner(how, x.type),))
        out = x.type.with_shape((row.sizes[0], 2))
        return self.add(block, BroadcastInDim((0,), out), folded)

    def constant(self, block: Block) -> Value | None:
        """A value that every device knows."""
        type = TensorType((self.pick.choice(SIZES), self.pick.choice(SIZES)), self.dtype)
        match self.pick.randint(0, 2):
            case 0:
                return self.splat(block, self.pick.randint(-2, 2), type)
            case 1:
                return self.add(block, Iota(self.pick.randint(0, 1), type))
            case _:
                held = np.arange(type.size).reshape(type.sizes) % 3
                return self.add(block, Constant(Dense(held.astype(type.dtype.numpy))))

    def converted(self, block: Block) -> Value | None:
        """A narrower type and back, perhaps with a collective between."""
        x = self.value(block)
        small = Dense(np.asarray(3).astype(x.type.dtype.numpy), x.type)
        least = self.add(block, Negate(), self.add(block, Constant(small)))
        most = self.add(block, Constant(small))
        held = self.add(block, Minimum(), self.add(block, Maximum(), x, least), most)
        if self.pick.random() < 0.5:
            held = self.collective(Block(block.nodes, [held])) or held
        narrow = held.type.with_dtype(DTYPES[NARROW[x.type.dtype.name]])
        between = Block(block.nodes, [self.add(block, Convert(narrow), held)])
        if self.pick.random() < 0.5:
            made = self.collective(between)
            between.seen.extend([made] if made else [])
        last = between.seen[-1]
        return self.add(block, Convert(last.type.with_dtype(x.type.dtype)), last)

    # Control flow

    def run(self, block: Block, steps: int, depth: int) -> None:
        """So many steps."""
        for _ in range(steps):
            if depth and self.pick.random() < 0.12:
                made = self.pick.choice((self.loop, self.branch, self.call))(block, depth - 1)
            else:
                made = self.pick.choice(self.steps)(block)
            if made is not None and made.type.rank == 2:
                block.seen.append(made)

    def loop(self, block: Block, depth: int) -> Value:
        """A loop of two turns that carries two values, one of which may never change."""
        x, other = self.value(block), self.value(block)
        zero = self.add(block, Constant(Dense(np.asarray(0, np.int32))))
        types = (INDEX, x.type, other.type)
        condition = Block()
        args = tuple(Value(t, None, n) for n, t in enumerate(types))
        limit = self.add(condition, Constant(Dense(np.asarray(2, np.int32))))
        again = self.add(condition, Compare("LT", "SIGNED"), args[0], limit)
        first = Region(args, condition.nodes, (again,))
        body = block.inner()
        args = tuple(Value(t, None, n) for n, t in enumerate(types))
        body.seen.extend(args[1:])
        self.run(body, self.pick.randint(1, 5), depth)
        one = self.add(body, Constant(Dense(np.asarray(1, np.int32))))
        count = self.add(body, Add(), args[0], one)
        new = [v for v in body.seen if v.type is x.type][-1]
        changed = self.add(body, Minimum(), new, args[1])
        second = Region(args, body.nodes, (count, changed, args[2]))
        return self.results(block, While(), (zero, x, other), (first, second))

    def results(
        self, block: Block, op: Op, operands: tuple[Value, ...], regions: tuple[Region, ...]
    ) -> Value:
        """Append a node of control flow; its last result but one, or a late one."""
        self.add(block, op, *operands, regions=regions)
        made = [v for v in block.nodes[-1].results if v.type is not INDEX]
        block.seen.extend(made)
        return self.pick.choice(made)

    def branch(self, block: Block, depth: int) -> Value:
        """Two branches, by what all devices agree upon."""
        x = self.value(block)
        flag = self.add(block, Constant(Dense(np.asarray(self.pick.random() < 0.5))))
        regions = []
        for _ in range(2):
            inner = block.inner()
            self.run(inner, self.pick.randint(1, 4), depth)
            last = [v for v in inner.seen if v.type is x.type][-1]
            regions.append(Region((), inner.nodes, (last, x)))
        return self.results(block, If(), (flag,), tuple(regions))

    def call(self, block: Block, depth: int) -> Value:
        """A function, made now or called before."""
        x = self.value(block)
        known = [f for f in self.functions.values() if f.arg_types == (x.type,)]
        if not known:
            inner = Block([], [Value(x.type, None, 0)])
            args = tuple(inner.seen)
            self.run(inner, self.pick.randint(1, 5), depth)
            name = f"f{len(self.functions)}"
            body = Region(args, inner.nodes, (inner.seen[-1],))
            known = [Function(name, body, "private")]
            self.functions[name] = known[0]
        chosen = self.pick.choice(known)
        return self.add(block, Call(chosen.name, chosen.result_types), x)


@dataclass(frozen=True)
class LocalProgram:
    """A program, its mesh, and the axes that each argument varies along."""

    module: Module
    mesh: Mesh
    varies: tuple[tuple[Axis, ...], ...]

    def arrays(self, seed: int, special: bool = False) -> list[Array]:
        """Arguments for every device: small whole numbers, equal where the program says so."""
        found = []
        for n, type in enumerate(self.module.function("main").arg_types):
            assert isinstance(type, TensorType)
            rows = []
            for device in range(self.mesh.size):
                at = index_along(self.varies[n], self.mesh, self.mesh.position(device))
                draw = np.random.default_rng((seed, n, at))
                row = draw.integers(-3, 4, type.sizes).astype(type.dtype.numpy)
                if special and type.dtype.is_float:
                    odd = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0], type.dtype.numpy)
                    where = draw.random(type.sizes) < 0.1
                    row = np.where(where, draw.choice(odd, type.sizes), row)
                rows.append(row)
            found.append(np.stack(rows).astype(type.dtype.numpy))
        return found


def local_program(seed: int, steps: int, dtype: str = "i32") -> LocalProgram:
    """A random program of so many steps."""
    pick = random.Random(seed)
    mesh = pick.choice(MESHES)
    maker = Maker(seed, mesh, DTYPES[dtype])
    args, varies, attrs = [], [], []
    for n in range(3):
        type = TensorType((pick.choice(SIZES), pick.choice(SIZES)), DTYPES[dtype])
        args.append(Value(type, None, n))
        axes = tuple(Axis(name) for name, _ in mesh.axes if pick.random() < 0.4)
        varies.append(axes)
        split = (DimSharding(axes), DimSharding())
        attrs.append((("weft.sharding", str(Sharding("mesh", split))),))
    if pick.random() < 0.3:
        varies[0] = tuple(Axis(name) for name, _ in mesh.axes)
        attrs[0] = ()
    block = Block([], list(args))
    maker.run(block, steps, 2)
    made = block.seen[3:] or block.seen
    results = tuple(maker.pick.sample(made, min(len(made), 3)))
    main = Function("main", Region(tuple(args), block.nodes, results), None, tuple(attrs))
    module = Module(
        {"main": main, **maker.functions},
        {"mesh": mesh},
        attrs=(("mhlo.num_partitions", f"{mesh.size} : i32"), ("mhlo.num_replicas", "1 : i32")),
    )
    return LocalProgram(verify(module), mesh, tuple(varies))
