"""Programs of single collectives, on values that vary along some axes.

The numbers are whole, and small enough that the order of sums does not matter: whatever runs such a
program gives the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.run.processes import Processes
from tests.run.stacks import shared
from weft.ir.attrs import STRING
from weft.ir.dense import Dense
from weft.ir.location import Location
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.names import STREAM
from weft.ir.op import Op
from weft.ir.types import DTYPES, Array, DType, TensorType
from weft.ir.verify import verify
from weft.mesh import Axis, DimSharding, Mesh, MeshAxes, Sharding
from weft.mesh.algebra import total_size
from weft.ops.control import If, While
from weft.ops.distributed.collective import (
    AllGather,
    AllReduce,
    AllToAll,
    CollectiveBroadcast,
    CollectivePermute,
    ReduceScatter,
)
from weft.ops.distributed.local import (
    CHANNEL,
    COMBINERS,
    AllSlice,
    AxisIndex,
    PermuteAlongAxes,
    VariadicReduceScatter,
    combiner,
)
from weft.ops.elementwise.pointwise import Add, Compare, Multiply
from weft.ops.shape import Constant
from weft.optimize.scheduling.split_async import pair
from weft.pipeline import local_program

HERE = Location('"model.py":7:3')
MESHES = (
    Mesh(x=2),
    Mesh(x=4),
    Mesh(x=8),
    Mesh(x=2, y=2),
    Mesh(x=2, y=4),
    Mesh(x=2, y=2, z=2),
    Mesh((("x", 4), ("y", 2)), (3, 1, 4, 0, 5, 2, 7, 6)),
)
KINDS = (
    *(f"all_reduce {how}" for how in COMBINERS),
    *("reduce_scatter add", "reduce_scatter max", "scatter together", "all_gather"),
    *("all_to_all", "all_to_all same", "broadcast", "permute", "permute pairs", "slice", "index"),
)
WAYS = ("plain", "asynchronous", "loop", "branch")
ROWS = 8


def parts(mesh: Mesh) -> list[Axis]:
    """The axes of a mesh, and parts of them."""
    found = [Axis(name) for name, _ in mesh.axes]
    for name, size in mesh.axes:
        found += [
            Axis(name, before, count)
            for before in (1, 2, 4)
            for count in (2, 4)
            if before * count <= size and count < size
        ]
    return found


def disjoint(axes: Sequence[Axis], mesh: Mesh) -> list[Axis]:
    """Those axes that do not overlap earlier ones."""
    found: list[Axis] = []
    for axis in axes:
        if not any(_factors(axis, mesh) & _factors(other, mesh) for other in found):
            found.append(axis)
    return found


def _factors(axis: Axis, mesh: Mesh) -> set[tuple[str, int]]:
    size = dict(mesh.axes)[axis.name]
    before, count = axis.before, axis.size or size
    return {(axis.name, n) for n in (1, 2, 4) if before <= n < before * count}


@dataclass
class Case:
    """A collective of a kind along axes, on values that vary along others."""

    kind: str
    mesh: Mesh
    axes: tuple[Axis, ...]
    varies: tuple[Axis, ...] = ()
    way: str = "plain"
    dtype: str = "i32"
    count: int = 1  # of operands
    lists: bool = False
    columns: int = 16
    special: bool = False  # any bits, zeros of both signs and NaN among them

    @property
    def type(self) -> TensorType:
        bits = self.kind.split()[-1] in ("and", "or", "xor") and "i" not in self.dtype
        return TensorType((ROWS, self.columns), DTYPES["i32" if bits else self.dtype])

    @property
    def groups(self) -> Any:
        found = MeshAxes("mesh", self.axes)
        return found.lists({"mesh": self.mesh}) if self.lists else found

    def collective(self, operands: Sequence[Value]) -> Node:
        """The node, whose results may have another shape."""
        type, count, groups = self.type, total_size(self.axes, self.mesh), self.groups
        kind, _, how = self.kind.partition(" ")
        split = type.with_shape((ROWS // count, self.columns))
        outs, ids = (split,) * len(operands), {"use_global_device_ids": True}
        regions: tuple[Region, ...] = ()
        op: Op
        match kind, how:
            case "all_reduce", _:
                op, regions = AllReduce(groups, CHANNEL, **ids), (combiner(how, type),)
            case "reduce_scatter", _:
                op, regions = ReduceScatter(0, groups, outs, CHANNEL, **ids), (combiner(how, type),)
            case "scatter", _:
                axes = MeshAxes("mesh", self.axes)
                op = VariadicReduceScatter((0,) * len(operands), "add", axes, outs)
            case "all_gather", _:
                gathered = (type.with_shape((ROWS, self.columns * count)),) * len(operands)
                op = AllGather(1, groups, gathered, CHANNEL, **ids)
            case "all_to_all", _:
                op = AllToAll(0, 0 if how else 1, count, groups, CHANNEL)
            case "broadcast", _:
                op = CollectiveBroadcast(groups, CHANNEL)
            case "permute", _:
                sources = [-1, *range(count - 1)] if self.varies else [*range(1, count), 0]
                op = PermuteAlongAxes(MeshAxes("mesh", self.axes), tuple(sources))
                if how:
                    op = CollectivePermute(op.pairs({"mesh": self.mesh}), CHANNEL)
            case "slice", _:
                dims = (DimSharding(self.axes), DimSharding())
                op = AllSlice(Sharding("mesh", dims), split)
            case _:
                op = AxisIndex(MeshAxes("mesh", self.axes))
        return apply(op, *operands, regions=regions, loc=HERE)

    def module(self) -> Module:
        """A program of the collective, and of sums over its results that have the first shape."""
        args = tuple([Value(self.type, None, n) for n in range(self.operands)])
        flag = Value(TensorType((), DTYPES["i1"]), None, len(args))
        nodes = _WAYS[self.way](self, args, flag)
        results = nodes[-1].results
        listed = [self.sharding(2, self.varies)] * len(args) + [self.sharding(0, self.free)]
        attrs = tuple([(("weft.sharding", str(s)),) for s in listed])
        region = Region((*args, flag), nodes, results)
        main = Function("main", region, arg_attrs=attrs, res_attrs=((),) * len(results))
        module = Module({"main": main}, {"mesh": self.mesh})
        verify(module)
        return module

    @property
    def operands(self) -> int:
        return {"index": 0, "slice": 1}.get(self.kind, self.count)

    @property
    def free(self) -> tuple[Axis, ...]:
        """Axes along which devices of no group lie."""
        names = {axis.name for axis in self.axes}
        return tuple([Axis(name) for name, _ in self.mesh.axes if name not in names])

    def sharding(self, rank: int, axes: tuple[Axis, ...]) -> Sharding:
        """Values of which every device has its own, along axes."""
        return Sharding("mesh", (DimSharding(),) * rank, unreduced=axes)

    def pieces(self) -> list[Array]:
        """The arguments of every device, in the order of the mesh."""
        found = []
        for n in range(self.operands):
            rng = np.random.default_rng(n)
            if self.special:
                drawn = special_values(self.type.dtype, (self.mesh.size, *self.type.sizes), rng)
                found.append(drawn[self.places(self.varies)])
                continue
            drawn = rng.choice([-1, 1, 2], (self.mesh.size, *self.type.sizes))
            if self.type.dtype.numpy.kind == "c":
                drawn = drawn * 1j
            found.append(drawn[self.places(self.varies)].astype(self.type.dtype.numpy))
        flags = np.arange(self.mesh.size) % 3 != 1
        return [*found, flags[self.places(self.free)]]

    def places(self, axes: tuple[Axis, ...]) -> Array:
        """For every place the first one that has the same value, which varies along axes."""
        places = dict.fromkeys(range(self.mesh.size), 0)
        known = {d for axis in axes for d in _factors(axis, self.mesh)}
        stride = self.mesh.size
        for name, size in self.mesh.axes:
            stride //= size
            for before in (n for n in (1, 2, 4) if n < size):
                step = stride * size // (2 * before)
                if (name, before) in known:
                    for n in places:
                        places[n] += n // step % 2 * step
        return np.array([*places.values()])


def special_values(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Any bits that a type has; of two in three numbers a zero, an infinity or NaN."""
    if dtype.is_complex:
        half = DTYPES["f32" if dtype.bits == 64 else "f64"]
        return special_values(half, (*shape, 2), rng).view(dtype.numpy)[..., 0]
    raw = rng.integers(0, 256, (*shape, dtype.numpy.itemsize), np.uint8)
    if dtype.bits < 8:  # the rest of the byte is not part of the number
        raw &= np.uint8((1 << dtype.bits) - 1)
    if not dtype.is_float:
        low, high = (0, 2) if dtype.bits == 1 else dtype.limits
        drawn = raw.view(dtype.numpy)[..., 0]
        return drawn if dtype.bits >= 8 else rng.integers(low, high, shape).astype(dtype.numpy)
    found = raw.view(dtype.numpy)[..., 0]
    chosen = rng.integers(0, 9, shape)
    for n, value in enumerate((0.0, -0.0, -0.0, np.inf, -np.inf, np.nan)):
        with np.errstate(all="ignore"):
            found[chosen == n] = np.asarray(value, np.float32).astype(dtype.numpy)
    return found


def _plain(case: Case, args: tuple[Value, ...], flag: Value) -> list[Node]:
    return [case.collective(args)]


def _asynchronous(case: Case, args: tuple[Value, ...], flag: Value) -> list[Node]:
    """Work between the start and the done, the last that reads what is sent."""
    sums = [apply(Add(), v, v) for v in args]
    node = case.collective([n.results[0] for n in sums])
    if not node.op.collective:
        return [*sums, node]
    start, done = pair(node)
    attrs = ((STREAM, STRING.write("communication.0")),)
    start = Node(start.op, start.operands, start.types, start.regions, attrs, HERE)
    done = Node(done.op, start.results, done.types, (), (), HERE)
    work = [apply(Multiply(), n.results[0], n.results[0]) for n in sums]
    nodes, total = [*sums, start, *work, done], done.results[0]
    if total.type == args[0].type:
        for other in (*done.results[1:], *[n.results[0] for n in work]):
            nodes.append(apply(Add(), total, other))
            (total,) = nodes[-1].results
    return nodes


def _outstanding(case: Case, args: tuple[Value, ...], flag: Value) -> list[Node]:
    """A hundred collectives that have begun before the first is done; the last of them is first."""
    (total,), nodes, ends = args, list[Node](), list[Node]()
    for _ in range(100):
        nodes.append(apply(Add(), total, args[0]))
        (total,) = nodes[-1].results
        start, done = pair(case.collective([total]))
        attrs = ((STREAM, STRING.write("communication.0")),)
        nodes.append(Node(start.op, start.operands, start.types, start.regions, attrs, HERE))
        ends.insert(0, Node(done.op, nodes[-1].results, done.types, (), (), HERE))
    (total,) = ends[0].results
    sums = list[Node]()
    for done in ends[1:]:
        sums.append(apply(Add(), total, done.results[0]))
        (total,) = sums[-1].results
    return [*nodes, *ends, *sums]


def _loop(case: Case, args: tuple[Value, ...], flag: Value) -> list[Node]:
    """Two rounds of what keeps its shape."""
    scalar = TensorType((), DTYPES["i32"])

    def number(n: int) -> Node:
        return apply(Constant(Dense(np.asarray(n, np.int32), scalar)))

    def inner() -> tuple[Value, ...]:
        return tuple([Value(type, None, n) for n, type in enumerate(types)])

    two, zero, minus = number(2), number(0), number(-1)
    types = (scalar, *[v.type for v in args])
    before, now = inner(), inner()
    test = apply(Compare("GT", "SIGNED"), before[0], zero.results[0])
    less = apply(Add(), now[0], minus.results[0])
    node = case.collective(now[1:])
    made = node.results if [v.type for v in node.results] == [*types[1:]] else now[1:]
    body = Region(now, [less, node], (less.results[0], *made))
    condition = Region(before, [test], test.results)
    loop = apply(While(), two.results[0], *args, regions=(condition, body))
    return [two, zero, minus, loop]


def _branch(case: Case, args: tuple[Value, ...], flag: Value) -> list[Node]:
    """A branch that some groups take, and others do not."""
    node = case.collective(args)
    other = case.collective(args)
    if node.op.collective:
        doubled = [apply(Add(), v, v) for v in node.results]
        first = Region((), [node, *doubled], tuple([n.results[0] for n in doubled]))
    else:
        first = Region((), [node], node.results)
    return [apply(If(), flag, regions=(first, Region((), [other], other.results)))]


_WAYS = {
    "plain": _plain,
    "asynchronous": _asynchronous,
    "outstanding": _outstanding,
    "loop": _loop,
    "branch": _branch,
}


def lockstep(module: Module, pieces: Sequence[Array]) -> list[Array]:
    program = local_program(module)
    stacks = [shared(program, n, array) for n, array in enumerate(pieces)]
    return [made.pieces() for made in program(*stacks)]


def bits(array: Array) -> Array:
    """The bytes of each element: a NaN is equal to itself."""
    return np.ascontiguousarray(array).view(np.uint8)


def check(
    case: Case,
    stacked: Sequence[Axis],
    made: Callable[[Module, Sequence[Axis]], Processes] = Processes,
) -> Processes:
    """Processes give the bits of lockstep, also when they run again."""
    module, pieces = case.module(), case.pieces()
    expected, processes = lockstep(module, pieces), made(module, stacked)
    for _ in range(2):
        for ours, theirs in zip(processes.run(pieces), expected, strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(bits(ours), bits(theirs))
    assert not processes.boxes.posted, "everything that was sent is received"
    return processes
