"""Programs whose every value is seen: what each device computes, against what the facts say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from weft.evaluate import evaluate
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.op import Op
from weft.ir.types import F32, I32, Array, TensorType, Type
from weft.mesh import Axis, DimSharding, Mesh, MeshAxes, Sharding
from weft.ops.combiners import combiner
from weft.ops.distributed.collective import AllGather, AllReduce
from weft.ops.distributed.local import CHANNEL
from weft.varying.axis_bits import Frame
from weft.varying.facts import Varying, varying
from weft.varying.masks import Mask, union

MESH = Mesh(a=2, b=3)
ROW = TensorType((12,), F32)
INDEX = TensorType((), I32)
Names = tuple[str, ...]


class Lines:
    """A function that is being written; its arguments vary along axes of the mesh."""

    def __init__(self, varies: Sequence[Names | None] = (), type: Type = ROW) -> None:
        self.args = tuple(Value(type, None, n) for n in range(len(varies)))
        self.attrs = tuple(() if v is None else (("weft.sharding", split(v)),) for v in varies)
        self.nodes: list[Node] = []

    def add(self, op: Op, *operands: Value, regions: tuple[Region, ...] = ()) -> Value:
        self.nodes.append(apply(op, *operands, regions=regions))
        return self.nodes[-1].results[0] if self.nodes[-1].results else operands[0]

    def all(self, op: Op, *operands: Value, regions: tuple[Region, ...] = ()) -> Sequence[Value]:
        self.add(op, *operands, regions=regions)
        return self.nodes[-1].results

    def sum(self, x: Value, groups: object) -> Value:
        op = AllReduce(groups, CHANNEL, use_global_device_ids=True)  # type: ignore[arg-type]
        return self.add(op, x, regions=(combiner("add", ROW),))

    def gather(self, x: Value, groups: object, count: int) -> Value:
        outs = (TensorType((12 * count,), F32),)
        op = AllGather(0, groups, outs, CHANNEL, use_global_device_ids=True)  # type: ignore[arg-type]
        return self.add(op, x)

    def region(self, *results: Value) -> Region:
        return Region(self.args, self.nodes, results)

    def function(self, *results: Value, name: str = "main") -> Function:
        shown = None if name == "main" else "private"
        return Function(name, self.region(*results), shown, self.attrs if name == "main" else ())

    def module(self, *others: Function, meshes: dict[str, Mesh] | None = None) -> Module:
        results = [v for n in self.nodes for v in n.results]
        functions = {f.name: f for f in (self.function(*results), *others)}
        return Module(functions, meshes or {"mesh": MESH})


def split(names: Sequence[str]) -> str:
    """The sharding of a row that devices have parts of a sum of, along these axes."""
    return str(Sharding("mesh", (DimSharding(),), unreduced=tuple(map(axis, names))))


def axis(name: str) -> Axis:
    """`a`, or `c:1:2` for a part of an axis."""
    first, *rest = name.split(":")
    return Axis(first, *map(int, rest))


def over(*names: str, mesh: str | Mesh = "mesh") -> MeshAxes:
    """Axes of a mesh."""
    return MeshAxes(mesh, tuple(map(axis, names)))


def sub_axes(mask: Mask, frame: Frame) -> set[int]:
    """The sub-axes of a frame in a mask."""
    return {n for n in range(len(frame.sub_axes.sizes)) if union(mask) >> frame.first + n & 1}


def along(facts: Varying, value: Value, *, function: str = "main") -> set[int]:
    """The sub-axes of the world along which a value varies in lockstep."""
    return sub_axes(facts.roots[function].masks[value], facts.axis_bits.frames[0])


def observed(module: Module, arrays: Sequence[Array], count: int) -> Iterator[tuple[Value, Array]]:
    """Every tensor that `main` makes, with the pieces of all devices."""
    main = module.function("main")
    values = [v for n in main.body.nodes for v in n.results if isinstance(v.type, TensorType)]
    body = Region(main.body.args, main.body.nodes, tuple(values))
    whole = Function("main", body, None, main.arg_attrs)
    made = evaluate(
        module.with_functions({**module.functions, "main": whole}), *arrays, devices=count
    )
    yield from zip(values, made, strict=True)


def differs_along(stack: Array, places: Sequence[Array]) -> set[int]:
    """The sub-axes along which the pieces of devices differ, if only that one changes."""
    found = set()
    for n in range(len(places)):
        rest = [*places[:n], *places[n + 1 :]]
        firsts: dict[tuple[int, ...], Array] = {}
        for device, array in enumerate(stack):
            first = firsts.setdefault(tuple(int(d[device]) for d in rest), array)
            if array.tobytes() != first.tobytes():
                found.add(n)
    return found


def check(module: Module, arrays: Sequence[Array], count: int) -> None:
    """No value differs along a sub-axis, of any frame, that the facts say it is equal along."""
    facts = varying(module)
    masks = facts.roots["main"].masks
    for value, stack in observed(module, arrays, count):
        for frame in facts.axis_bits.frames:
            if frame.mesh.size == count:
                places = frame.sub_axes.coordinates(np.argsort(frame.mesh.devices().reshape(-1)))
                said = sub_axes(facts.axis_bits.plain(union(masks[value])), frame)
                assert differs_along(stack, places) <= said, repr(value.node)
