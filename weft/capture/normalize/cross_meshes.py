"""Arguments and results on meshes whose axes are not parts of the program's mesh.

Such a value is passed as one tensor of all shards, concatenated in device order, which any mesh can
split. Inside, it is assembled or disassembled, at the cost of sending the whole value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from weft.ir.attrs import Attrs
from weft.ir.module import Function, Module, Node, Region, Value, apply
from weft.ir.names import CALLER_SHARDING, SHARDING
from weft.ir.op import Op
from weft.ir.types import TensorType, Type, Types
from weft.mesh import Axis, DimSharding, Mesh, Sharding, parse_sharding
from weft.ops.control import Call
from weft.ops.shape import BroadcastInDim, Reshape, Transpose
from weft.ops.slicing import Slice
from weft.records import dataclass

_WHOLE = "main.whole"


@dataclass(frozen=True, slots=True)
class Pieces:
    """The shards of a tensor that is split by whole axes of a mesh."""

    type: TensorType
    sharding: Sharding
    mesh: Mesh

    @property
    def dims(self) -> list[list[int]]:
        """For each dim the numbers of the axes that split it."""
        numbers = {name: n for n, (name, _) in enumerate(self.mesh.axes)}
        return [[numbers[axis.name] for axis in dim.axes] for dim in self.sharding.dims]

    @property
    def sizes(self) -> list[int]:
        """The sizes of the axes."""
        return [size for _, size in self.mesh.axes]

    @property
    def local_sizes(self) -> list[int]:
        """The local shape."""
        cuts = [math.prod(self.sizes[n] for n in dim) for dim in self.dims]
        return [size // cut for size, cut in zip(self.type.sizes, cuts, strict=True)]

    @property
    def concatenated(self) -> TensorType:
        """The shape of all shards, concatenated along the first dim."""
        first, *others = self.local_sizes
        return self.type.with_shape((self.mesh.size * first, *others))

    @property
    def order(self) -> list[int]:
        """The permutation from (axes, dims of a shard) to the order inside the tensor."""
        count = len(self.sizes)
        return [n for d, dim in enumerate(self.dims) for n in (*dim, count + d)]

    def attribute(self) -> tuple[str, str]:
        """The attribute that reports the sharding to JAX."""
        return CALLER_SHARDING, str(replace(self.sharding, mesh=self.mesh))

    def assemble(self, nodes: list[Node], value: Value) -> Value:
        """Assemble the tensor from all shards; of replicas, the first is read."""
        spread = (*self.sizes, *self.local_sizes)
        value = _add(nodes, Reshape(self.type.with_shape(spread)), value)
        used = set(self.order)
        # Axes that do not split the value hold replicas of it: the first one is enough.
        kept = [size if n in used else 1 for n, size in enumerate(spread)]
        steps = (0,) * len(spread), tuple(kept), (1,) * len(spread)
        value = _add(nodes, Slice(*steps), value)
        unused = [n for n in range(len(spread)) if n not in used]
        value = _add(nodes, Transpose((*unused, *self.order)), value)
        return _add(nodes, Reshape(self.type), value)

    def disassemble(self, nodes: list[Node], value: Value) -> Value:
        """The tensor's shards, concatenated."""
        spread = (*self.sizes, *self.local_sizes)
        cut = tuple([spread[n] for n in self.order])
        value = _add(nodes, Reshape(self.type.with_shape(cut)), value)
        out = self.type.with_shape(spread)
        # The broadcast both permutes the parts into device order and copies them to the replicas.
        value = _add(nodes, BroadcastInDim(tuple(self.order), out), value)
        return _add(nodes, Reshape(self.concatenated), value)


def in_pieces(
    module: Module,
    inside: Mapping[int, Pieces],
    outside: Mapping[int, Pieces],
    mesh: tuple[str, Mesh],
) -> Module:
    """The module with these arguments and results passed as concatenated shards."""
    main = module.function("main")
    loc = main.body.loc
    args = tuple(
        [Value(_type(v.type, inside.get(n)), None, n) for n, v in enumerate(main.body.args)]
    )
    nodes: list[Node] = []
    given = [inside[n].assemble(nodes, v) if n in inside else v for n, v in enumerate(args)]
    types = main.result_types
    called = Node(Call(_WHOLE, types), tuple(given), types, loc=loc)
    nodes.append(called)
    made = [
        outside[n].disassemble(nodes, v) if n in outside else v
        for n, v in enumerate(called.results)
    ]
    body = Region(args, nodes, tuple(made), loc, main.body.arg_locs)
    arg_attrs = _attrs(main.arg_attrs, inside, mesh, main.arg_types)
    res_attrs = _attrs(main.res_attrs, outside, mesh, main.result_types)
    entry = replace(main, body=body, arg_attrs=arg_attrs, res_attrs=res_attrs)
    # The old body stays a function of its own: explanations and locations show the user's program.
    whole = Function(_WHOLE, main.body, "private", loc=main.loc)
    return module.with_functions({**module.functions, "main": entry, _WHOLE: whole})


def _type(type: Type, pieces: Pieces | None) -> Type:
    return type if pieces is None else pieces.concatenated


def _attrs(
    old: tuple[Attrs, ...], cut: Mapping[int, Pieces], mesh: tuple[str, Mesh], types: Types
) -> tuple[Attrs, ...]:
    """Attributes of the signature; values without a sharding are replicated, valid on any mesh."""
    axes = tuple([Axis(name) for name, _ in mesh[1].axes])
    attributes: list[Attrs] = []
    for n, (attrs, type) in enumerate(zip(old or ((),) * len(types), types, strict=True)):
        dims = [DimSharding()] * (type.rank if isinstance(type, TensorType) else 0)
        if n in cut:
            attrs = (*[pair for pair in attrs if pair[0] != SHARDING], cut[n].attribute())
            dims[0] = DimSharding(axes)
        elif SHARDING in dict(attrs) or not isinstance(type, TensorType):
            attributes.append(attrs)
            continue
        attributes.append((*attrs, (SHARDING, str(Sharding(mesh[0], tuple(dims))))))
    return tuple(attributes)


def caller_sharding(attrs: Attrs) -> Sharding | None:
    """The sharding reported to JAX, of an argument or a result passed as concatenated shards."""
    text = dict(attrs).get(CALLER_SHARDING)
    return None if text is None else parse_sharding(text)


def _add(nodes: list[Node], op: Op, value: Value) -> Value:
    nodes.append(apply(op, value))
    return nodes[-1].results[0]
