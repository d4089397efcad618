"""Fused layers, such as one matrix for queries, keys and values: split part by part.

A plan that splits the rows of such a matrix would cut across its parts, whose results are slices:
the pieces of queries, keys and values would have to be exchanged. Instead every part of the matrix
is an argument of its own, a view of the parameter's memory, and has a product of its own, so that
the plan's sharding splits each of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from weft.capture.captured import Leaf
from weft.capture.shardings import Spelled
from weft.ir.dense import Dense
from weft.ir.module import Function, Module, Node, Region, Value, apply, tensor_of
from weft.ir.op import Op
from weft.ir.types import TensorType
from weft.ir.uses import free_variables
from weft.mesh import Mesh, Sharding
from weft.ops.contract import DotGeneral
from weft.ops.distributed.sharding import ShardingConstraint
from weft.ops.elementwise.convert import Convert
from weft.ops.shape import BroadcastInDim, Constant, Reshape, Transpose
from weft.ops.slicing import Slice
from weft.records import dataclass

DimRange: TypeAlias = tuple[int, int]  # start and end along a dim
FusedDim: TypeAlias = tuple[Value, int]  # an argument, and its dim of several parts


@dataclass(frozen=True, slots=True)
class SplitArguments:
    """A program whose fused arguments are several; `places` are the caller's for each of them."""

    module: Module
    arguments: tuple[Leaf, ...]
    shardings: list[Spelled]
    places: tuple[int, ...]


def split_fused(
    module: Module,
    arguments: Sequence[Leaf],
    spelled: Sequence[Spelled],
    shardings: Sequence[Sharding | None],
    mesh: Mesh | None,
) -> SplitArguments | None:
    """The program with an argument for each part of its fused parameters; None if it has none."""
    if mesh is None or mesh.size == 1:
        return None
    body = module.function("main").body
    sizes = mesh.axis_sizes
    split: dict[FusedDim, int] = {}  # with the number of its shards
    for value, leaf, sharding in zip(body.args, arguments, shardings, strict=True):
        # A donated parameter stays whole: its new value is one result.
        for dim, held in enumerate(() if sharding is None or leaf.donated else sharding.dims):
            count = math.prod([sizes[a.name] if a.size is None else a.size for a in held.axes])
            if count > 1:
                split[value, dim] = count
    parts = _parts(body, split) if split else {}
    if not parts:
        return None
    rebuilt = _Rebuilt(body, parts)
    region = rebuilt.region()
    names: list[Leaf] = []
    inside: list[Spelled] = []
    places: list[int] = []
    for n, (value, leaf) in enumerate(zip(body.args, arguments, strict=True)):
        cut = next(((dim, ranges) for (v, dim), ranges in parts.items() if v is value), None)
        dim, ranges = cut or (0, (None,))
        for each in ranges:
            names.append(leaf if each is None else _leaf_part(leaf, dim, each))
            inside.append(spelled[n])
            places.append(n)
    function = Function("main", region, "public")
    return SplitArguments(
        replace(module, functions={"main": function}), tuple(names), inside, tuple(places)
    )


def _leaf_part(leaf: Leaf, dim: int, part: DimRange) -> Leaf:
    """One part of an argument, with its place in the whole."""
    start, end = part
    shape = (*leaf.shape[:dim], end - start, *leaf.shape[dim + 1 :])
    where = ", ".join([*[":"] * dim, f"{start}:{end}"])
    return replace(leaf, name=f"{leaf.name}[{where}]", shape=shape, part=(dim, start, end))


def _parts(body: Region, split: Mapping[FusedDim, int]) -> dict[FusedDim, tuple[DimRange, ...]]:
    """The parts of the arguments that are only read through slices of what is computed of them."""
    cuts: dict[FusedDim, dict[DimRange, None]] = {}
    fused = _Fused(split)
    for node in body.nodes:
        cut = _cut_of(node)
        if cut is not None:
            for key in fused.reached(node.operands[0], cut[0]):
                cuts.setdefault(key, {})[cut[1:]] = None
    parts: dict[FusedDim, tuple[DimRange, ...]] = {}
    for key, ranges in cuts.items():
        ordered = tuple(sorted(ranges))
        bounds = [0, *[end for _, end in ordered]]
        # Every part ends where the next begins, from 0 to the end of the dim.
        covers = [start for start, _ in ordered] == bounds[:-1]
        whole = covers and bounds[-1] == tensor_of(key[0]).sizes[key[1]]
        even = all((end - start) % split[key] == 0 for start, end in ordered)
        # Of an argument with parts along two dims, those along one.
        is_first = all(value is not key[0] for value, _ in parts)
        if whole and even and len(ordered) > 1 and is_first:
            parts[key] = ordered
    while parts:
        live, _ = _needed(body, _Fused(parts))
        kept = {key: ranges for key, ranges in parts.items() if key[0] not in live}
        if len(kept) == len(parts):
            break
        parts = kept  # without the slices of an argument that stays whole, others may be read, too
    return parts


def _needed(body: Region, fused: _Fused) -> tuple[set[Value], list[Node]]:
    """The whole values that results are computed of by parts of arguments, and their nodes."""
    live: set[Value] = set(body.results)
    nodes: list[Node] = []
    for node in reversed(body.nodes):
        if any(value in live for value in node.results):
            nodes.append(node)
            cut = _cut_of(node)
            if cut is not None and fused.reached(node.operands[0], cut[0]):
                _need(fused, node.operands[0], cut[0], live)
            else:
                live.update(node.operands, free_variables(node))
    return live, nodes[::-1]


def _need(fused: _Fused, value: Value, dim: int, live: set[Value]) -> None:
    """Mark the values of which a part of another is computed."""
    if (value, dim) in fused.split:
        return
    sources = fused.sources(value, dim)
    if not sources:
        live.add(value)
    for operand, inner in sources:
        if inner is None:
            live.add(operand)
        else:
            _need(fused, operand, inner, live)


def _cut_of(node: Node) -> tuple[int, int, int] | None:
    """The dim, start and end of a slice along one dim; None for other nodes."""
    if not isinstance(node.op, Slice) or any(stride != 1 for stride in node.op.strides):
        return None
    sizes = tensor_of(node.operands[0]).sizes
    ranges = zip(node.op.start_indices, node.op.limit_indices, sizes, strict=True)
    cut = [(d, start, end) for d, (start, end, size) in enumerate(ranges) if end - start != size]
    return cut[0] if len(cut) == 1 else None


class _Fused:
    """The split arguments that a part of a value is computed of."""

    def __init__(self, split: Collection[FusedDim]) -> None:
        self.split = split
        self.known: dict[tuple[Value, int, bool], frozenset[FusedDim]] = {}

    def reached(self, value: Value, dim: int, behind: bool = False) -> frozenset[FusedDim]:
        """The split arguments of which a slice along a dim takes a part.

        `behind` a product, whose operand must be an argument but for its type and dims.
        """
        if (value, dim) in self.split:
            return frozenset({(value, dim)})
        key = (value, dim, behind)
        if key not in self.known:
            self.known[key] = frozenset()
            is_product = value.node is not None and isinstance(value.node.op, DotGeneral)
            # At most one product: a part of an operand of the second one is a part of an
            # activation.
            if not (behind and is_product):
                inner = [(v, d) for v, d in _sources(value, dim) if d is not None]
                found = [self.reached(v, d, behind or is_product) for v, d in inner]
                self.known[key] = frozenset().union(*found)
        return self.known[key]

    def sources(self, value: Value, dim: int) -> list[tuple[Value, int | None]]:
        """The operands that a part of a value is computed of; none if that reaches no argument."""
        return _sources(value, dim) if self.reached(value, dim) else []


def _sources(value: Value, dim: int) -> list[tuple[Value, int | None]]:
    """The operands that a part of a value is computed of, with their dim; None for the whole.

    Nothing if a part takes the whole of the op.
    """
    node = value.node
    if node is None or node.regions:
        return []
    op, operands = node.op, node.operands
    if isinstance(op, Transpose):
        return [(operands[0], op.permutation[dim])]
    if isinstance(op, Convert | ShardingConstraint):
        return [(operands[0], dim)]
    if isinstance(op, BroadcastInDim):
        places, in_sizes = op.broadcast_dimensions, tensor_of(operands[0]).sizes
        inner = places.index(dim) if dim in places else None
        is_kept = inner is not None and in_sizes[inner] == tensor_of(value).sizes[dim]
        return [(operands[0], inner if is_kept else None)]
    if isinstance(op, Reshape):
        in_sizes, out_sizes = tensor_of(operands[0]).sizes, tensor_of(value).sizes
        after = math.prod(out_sizes[dim + 1 :])
        for inner, size in enumerate(in_sizes):
            # The same dim before and after: of equal size, with equally many elements behind it.
            if size == out_sizes[dim] != 1 and math.prod(in_sizes[inner + 1 :]) == after:
                return [(operands[0], inner)]
        return []
    if isinstance(op, DotGeneral):
        return _dot_sources(op, operands, dim)
    shape = tensor_of(value).sizes
    if op.elementwise and operands and all(tensor_of(v).sizes == shape for v in operands):
        return [(operand, dim) for operand in operands]
    return []


def _dot_sources(
    op: DotGeneral, operands: Sequence[Value], dim: int
) -> list[tuple[Value, int | None]]:
    dims = op.dot_dimension_numbers
    sides = (
        (dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions),
        (dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions),
    )
    batch = len(sides[0][0])
    if dim < batch:
        return [(v, held[dim]) for v, (held, _) in zip(operands, sides, strict=True)]
    dim -= batch
    sources: list[tuple[Value, int | None]] = [(operand, None) for operand in operands]
    for n, (operand, (held, summed)) in enumerate(zip(operands, sides, strict=True)):
        free = [d for d in range(tensor_of(operand).rank) if d not in (*held, *summed)]
        if 0 <= dim < len(free):
            sources[n] = (operand, free[dim])
        dim -= len(free)
    return sources


class _Rebuilt:
    """The body of a program with slices taken of its arguments, not of what is computed of them."""

    def __init__(self, body: Region, parts: Mapping[FusedDim, Sequence[DimRange]]) -> None:
        self.body, self.fused = body, _Fused(parts)
        self.nodes: list[Node] = []
        self.values: dict[Value, Value] = {}
        self.sliced: dict[tuple[Value, int, int, int], Value] = {}
        self.args: list[Value] = []
        for value in body.args:
            cut = next(((d, ranges) for (v, d), ranges in parts.items() if v is value), None)
            if cut is None:
                self.args.append(self.values.setdefault(value, Value(value.type)))
                continue
            for start, end in cut[1]:
                type = _with_size(value, cut[0], end - start)
                self.args.append(self.sliced.setdefault((value, cut[0], start, end), Value(type)))
        for n, value in enumerate(self.args):
            value.index = n

    def region(self) -> Region:
        """The body; nodes without a use are left out."""
        for node in _needed(self.body, self.fused)[1]:
            self._node(node)
        results = tuple([self.values[value] for value in self.body.results])
        return Region(tuple(self.args), self.nodes, results, self.body.loc)

    def _node(self, node: Node) -> None:
        cut = _cut_of(node)
        if cut is not None and self.fused.reached(node.operands[0], cut[0]):
            self.values[node.results[0]] = self._part(node.operands[0], *cut)
            return
        copy = node.rebuilt(
            tuple([self.values[value] for value in node.operands]),
            tuple([self._region(region) for region in node.regions]),
        )
        self.nodes.append(copy)
        self.values.update(zip(node.results, copy.results, strict=True))

    def _region(self, region: Region) -> Region:
        nodes = []
        for node in region.nodes:
            operands = tuple([self.values.get(value, value) for value in node.operands])
            made = node.rebuilt(operands, tuple([self._region(each) for each in node.regions]))
            self.values.update(zip(node.results, made.results, strict=True))
            nodes.append(made)
        results = tuple([self.values.get(value, value) for value in region.results])
        return Region(region.args, nodes, results, region.loc, region.arg_locs)

    def _part(self, value: Value, dim: int, start: int, end: int) -> Value:
        """A part of a value along a dim, computed of parts of the arguments."""
        key = (value, dim, start, end)
        if key not in self.sliced:
            sources = self.fused.sources(value, dim)
            if sources:
                operands = [
                    self.values[operand]
                    if inner is None
                    else self._part(operand, inner, start, end)
                    for operand, inner in sources
                ]
                assert value.node is not None
                op = _op_of_part(value, dim, end - start)
                self.sliced[key] = self._add(op, operands, value.node)
            else:
                type = tensor_of(value)
                begins, ends = [0] * type.rank, [*type.sizes]
                begins[dim], ends[dim] = start, end
                cut = Slice(tuple(begins), tuple(ends), (1,) * type.rank)
                self.sliced[key] = self._add(cut, [self.values[value]], value.node)
        return self.sliced[key]

    def _add(self, op: Op, operands: Sequence[Value], node: Node | None) -> Value:
        made = apply(op, *operands, loc=self.body.loc if node is None else node.loc)
        self.nodes.append(made)
        return made.results[0]


def _with_size(value: Value, dim: int, size: int) -> TensorType:
    type = tensor_of(value)
    return type.with_shape((*type.sizes[:dim], size, *type.sizes[dim + 1 :]))


def _op_of_part(value: Value, dim: int, size: int) -> Op:
    """The op that computes a part of a value: of the smaller type."""
    assert value.node is not None
    op, type = value.node.op, _with_size(value, dim, size)
    if isinstance(op, Constant):
        return Constant(Dense(op.value.elements, type))
    return op.replace(out=type) if "out" in op.fields() else op
