"""Fused layers, such as one matrix for queries, keys and values: split part by part.

A plan that splits the rows of such a matrix would cut across its parts, whose results are slices:
the pieces of queries, keys and values would have to be exchanged. Instead every part of the matrix
is an argument of its own, a view of the parameter's memory, and so are its new value and the state
of the optimizer. All that is computed of it, and its gradient, are in parts, too: the plan's
sharding splits each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

from weft.capture.captured import Leaf
from weft.capture.shardings import Spelled, shardings_of
from weft.capture.torch.graph import Imported
from weft.capture.torch.plans.by_name import PlannedShardings, gathers_of
from weft.capture.torch.plans.linked_dims import LinkedDim, LinkedDims, PartBounds
from weft.ir.dense import Dense
from weft.ir.location import Location
from weft.ir.module import Node, Region, Value, apply
from weft.ir.op import Op, rule
from weft.ir.types import TensorType, Type
from weft.mesh import Axis, Mesh
from weft.ops.combiners import COMBINERS
from weft.ops.control import OptimizationBarrier, While
from weft.ops.shape import BroadcastInDim, Constant
from weft.ops.slicing import Concatenate, Pad, Slice
from weft.records import dataclass

Ranges: TypeAlias = tuple[tuple[int, int], ...]  # start and end of each part along a dim


@dataclass(frozen=True, slots=True)
class SplitDim:
    """How a plan splits a dim of an argument: the number of shards, and the axes."""

    count: int
    axes: frozenset[str]
    gathered: frozenset[str]  # those of FSDP, along which no product is split


@dataclass(frozen=True, slots=True)
class PartedProgram:
    """A program whose fused arguments are several; `places` are the caller's for each of them."""

    program: Imported
    arguments: tuple[Leaf, ...]
    shardings: list[Spelled]
    places: tuple[int, ...]


def split_fused(
    program: Imported, arguments: Sequence[Leaf], plan: PlannedShardings, mesh: Mesh | None
) -> PartedProgram | None:
    """The program with an argument for each part of its fused parameters; None if it has none."""
    if mesh is None or mesh.size == 1:
        return None
    body, spelled = program.module.function("main").body, plan.arguments
    parts = _parts(program, _split_dims(body, arguments, plan, mesh))
    if not parts:
        return None
    main = replace(
        program.module.function("main"), body=_Rebuilt(parts).main(body, program.updated)
    )
    leaves: list[Leaf] = []
    inside: list[Spelled] = []
    places: list[int] = []
    numbers: dict[int, list[int]] = {}  # the new ones of each argument
    for n, (value, leaf) in enumerate(zip(body.args, arguments, strict=False)):
        numbers[n] = []
        for each in [leaf] if value not in parts else _leaf_parts(leaf, *parts[value]):
            numbers[n].append(len(leaves))
            leaves.append(each)
            inside.append(spelled[n])
            places.append(n)
    updated = tuple([number for place in program.updated for number in numbers[place]])
    more = len(updated) - len(program.updated)  # outputs move back by as many results
    outputs = tuple([n + more if isinstance(n, int) else n for n in program.outputs])
    module = replace(program.module, functions={**program.module.functions, "main": main})
    renewed = replace(program, module=module, updated=updated, outputs=outputs)
    return PartedProgram(renewed, tuple(leaves), inside, tuple(places))


def _split_dims(
    body: Region, arguments: Sequence[Leaf], plan: PlannedShardings, mesh: Mesh
) -> dict[LinkedDim, SplitDim]:
    """The dims of arguments that are split."""
    split: dict[LinkedDim, SplitDim] = {}
    shardings = shardings_of("the sharding of", plan.arguments, arguments, mesh)
    gathers = gathers_of(plan, arguments, mesh)
    for n, (value, sharding) in enumerate(zip(body.args, shardings, strict=False)):
        for dim, held in enumerate(() if sharding is None else sharding.dims):
            axes = frozenset([axis.name for axis in held.axes])
            count = math.prod([_axis_size(axis, mesh) for axis in held.axes])
            used = gathers[n].dims[dim].axes if n in gathers else held.axes
            if count > 1:
                split[value, dim] = SplitDim(count, axes, axes - {axis.name for axis in used})
    return split


def _axis_size(axis: Axis, mesh: Mesh) -> int:
    return mesh.axis_sizes[axis.name] if axis.size is None else axis.size


def _leaf_parts(leaf: Leaf, dim: int, ranges: Ranges) -> Iterator[Leaf]:
    """The parts of an argument, with their places in the whole."""
    for start, end in ranges:
        shape = (*leaf.shape[:dim], end - start, *leaf.shape[dim + 1 :])
        where = ", ".join([*[":"] * dim, f"{start}:{end}"])
        yield replace(leaf, name=f"{leaf.name}[{where}]", shape=shape, part=(dim, start, end))


def _parts(
    program: Imported, split: Mapping[LinkedDim, SplitDim]
) -> dict[Value, tuple[int, Ranges]]:
    """The dim and the parts of each value that consists of several, for dims that are split."""
    parts: dict[Value, tuple[int, Ranges]] = {}
    if not split:
        return parts
    linked = LinkedDims(program.module.function("main").body, program.updated)
    groups: dict[LinkedDim, dict[LinkedDim, SplitDim]] = {}
    for key, each in split.items():
        groups.setdefault(linked.root(key), {})[key] = each
    cuts = linked.cuts(groups)
    for root, members in linked.members(cuts).items():
        group = groups[root]
        gathered = frozenset().union(*[each.gathered for each in group.values()])
        axes = frozenset().union(*[each.axes for each in group.values()]) - gathered
        values = dict(members)
        even = all(_ranges(key, cuts[root], group[key].count if key in group else 1)
                   for key in members)  # fmt: skip
        # An argument that the same axes split along another dim cannot be split along this one.
        crossed = any(
            values.get(value, dim) != dim and axes & each.axes
            for (value, dim), each in split.items()
        )
        # Of a value with parts along two dims, those along one.
        is_free = len(values) == len(members) and not parts.keys() & values.keys()
        if axes and even and not crossed and is_free:
            for value, dim in members:
                parts[value] = (dim, _ranges((value, dim), cuts[root], 1))
    return parts


def _ranges(key: LinkedDim, cuts: PartBounds, count: int) -> Ranges:
    """The parts of a dim; none if they are no whole numbers that a count divides."""
    value, dim = key
    assert isinstance(value.type, TensorType)
    places = [cut * value.type.bounds[dim] for cut in cuts]
    if any(place.denominator != 1 for place in places):
        return ()
    ends = [int(place) for place in places]
    ranges = tuple(pairwise(ends))
    return ranges if all((end - start) % count == 0 for start, end in ranges) else ()


class _Rebuilt:
    """A program rebuilt with some of its values in parts."""

    def __init__(self, parts: Mapping[Value, tuple[int, Ranges]]) -> None:
        self.parts = parts
        self.became: dict[Value, list[Value]] = {}
        self.nodes: list[Node] = []

    def main(self, body: Region, updated: Sequence[int]) -> Region:
        """The body of a program, whose first results are new values of its arguments."""
        new = [body.args[place] for place in updated]
        return self.region(body, [*new, *body.results[len(new) :]])

    def region(self, region: Region, like: Sequence[Value]) -> Region:
        """A region with an argument for each part, and results in the parts of other values."""
        args: list[Value] = []
        locs: list[Location] = []
        for value, loc in zip(region.args, region.arg_locs, strict=True):
            types = self.types(value)
            made = [Value(type, None, len(args) + n) for n, type in enumerate(types)]
            self.became[value] = made
            args += made
            locs += [loc] * len(made)
        outer, self.nodes = self.nodes, []
        for node in region.nodes:
            self.node(node)
        results = self.all(region.results, like)
        nodes, self.nodes = self.nodes, outer
        return Region(tuple(args), nodes, results, region.loc, tuple(locs))

    def types(self, value: Value) -> list[Type]:
        """The types of a value's parts."""
        if value not in self.parts:
            return [value.type]
        dim, ranges = self.parts[value]
        return [_resized(value, dim, end - start) for start, end in ranges]

    def all(self, values: Iterable[Value], like: Iterable[Value]) -> tuple[Value, ...]:
        """Values in the parts of others of their types."""
        made: list[Value] = []
        for value, other in zip(values, like, strict=True):
            if value not in self.parts and other in self.parts:
                made += [self.constant(value, type) for type in self.types(other)]
            else:
                made += self.became.get(value, [value])
        return tuple(made)

    def constant(self, value: Value, type: Type) -> Value:
        """A constant of equal elements, of another size."""
        assert value.node is not None and isinstance(value.node.op, Constant)
        assert isinstance(type, TensorType)
        return self.add(value.node, Constant(Dense(value.node.op.value.elements, type)), ())[0]

    def node(self, node: Node) -> None:
        """Add a node, or several that compute the parts of its results."""
        op = node.op
        if isinstance(op, While | OptimizationBarrier):
            self.carried(node)
            return
        if not self.parts.keys() & {*node.operands, *node.results}:
            operands = tuple([self.became.get(value, [value])[0] for value in node.operands])
            made = self.put(node.rebuilt(operands, self.regions(node)))
            self.became.update((old, [new]) for old, new in zip(node.results, made, strict=True))
            return
        source, result = node.operands[:1], node.results[0]
        if isinstance(op, Slice) and result not in self.parts:
            self.became[result] = [self.sliced(node, op)]
        elif isinstance(op, Concatenate) and op.dimension == self.parts[result][0]:
            self.became[result] = self.pieces(node)
        elif isinstance(op, Pad) and source[0] not in self.parts:
            self.became[result] = [*self.padded(node, op)]
        else:
            self.divided(node)

    def carried(self, node: Node) -> None:
        """A loop or a barrier, which has each part for a value."""
        regions: tuple[Region, ...] = ()
        if node.regions:
            condition, body = node.regions
            regions = (
                self.region(condition, condition.results), self.region(body, node.results)
            )  # fmt: skip
        operands = self.all(node.operands, node.results)
        types = tuple([type for value in node.results for type in self.types(value)])
        results = iter(self.put(Node(node.op, operands, types, regions, node.attrs, node.loc)))
        for value in node.results:
            self.became[value] = [next(results) for _ in self.types(value)]

    def regions(self, node: Node) -> tuple[Region, ...]:
        """The regions of a node that works on scalars, which have no parts."""
        return tuple([self.region(region, region.results) for region in node.regions])

    def put(self, node: Node) -> tuple[Value, ...]:
        """Add a node; returns its results."""
        self.nodes.append(node)
        return node.results

    def add(self, node: Node, op: Op, operands: Sequence[Value]) -> tuple[Value, ...]:
        """Add a node in the place of another one; returns its results."""
        made = apply(op, *operands, regions=self.regions(node), attrs=node.attrs, loc=node.loc)
        return self.put(made)

    def divided(self, node: Node) -> None:
        """A node for each part; of a reduction of the parts their combination."""
        values = (*node.operands, *node.results)
        held = next(value for value in values if value in self.parts)
        found = rule(node.op, node.operand_types, node.bodies)
        dims = dict(zip(values, (*found.operands, *found.results), strict=True))
        dim, ranges = self.parts[held]
        number = dims[held][dim][0]
        combine = found.factors[number].combine
        made: list[tuple[Value, ...]] = []
        for n, (start, end) in enumerate(ranges):
            operands: list[Value] = []
            for value, held_dims in zip(node.operands, found.operands, strict=True):
                along = [d for d, factors in enumerate(held_dims) if factors[:1] == (number,)]
                if value in self.parts:
                    operands.append(self.became[value][n])
                elif along:
                    assert isinstance(value.type, TensorType)
                    size = value.type.bounds[along[0]] * (end - start) // ranges[-1][1]
                    operands.append(self.constant(value, _resized(value, along[0], size)))
                else:
                    operands.append(self.became.get(value, [value])[0])
            types = [self.types(v)[n if v in self.parts else 0] for v in node.results]
            op = node.op.local(tuple([value.type for value in operands]), tuple(types))
            made.append(self.add(node, op, operands))
            assert [value.type for value in made[-1]] == types, f"a part of {node!r} is {made[-1]}"
        for value, parts in zip(node.results, zip(*made, strict=True), strict=True):
            if value in self.parts:
                self.became[value] = [*parts]
            else:
                assert combine is not None, f"{node!r} is no reduction of parts"
                whole = parts[0]
                for part in parts[1:]:
                    (whole,) = self.put(apply(COMBINERS[combine], whole, part, loc=node.loc))
                self.became[value] = [whole]

    def sliced(self, node: Node, op: Slice) -> Value:
        """The part that a slice along the parts takes; cut, if it is a slice along others, too."""
        (source,) = node.operands
        dim, ranges = self.parts[source]
        part = self.became[source][ranges.index((op.start_indices[dim], op.limit_indices[dim]))]
        starts, limits = [*op.start_indices], [*op.limit_indices]
        starts[dim], limits[dim] = 0, limits[dim] - starts[dim]
        return self.cut(node, part, starts, limits, op.strides)

    def cut(
        self,
        node: Node,
        value: Value,
        starts: Sequence[int],
        limits: Sequence[int],
        strides: Sequence[int] = (),
    ) -> Value:
        """A slice of a value; the value itself where that is all of it."""
        op = Slice(tuple(starts), tuple(limits), tuple(strides) or (1,) * len(starts))
        if op.infer(value.type) is value.type:
            return value
        return self.put(apply(op, value, loc=node.loc))[0]

    def along(self, node: Node, value: Value, dim: int, start: int, end: int) -> Value:
        """A slice of a value along one dim."""
        assert isinstance(value.type, TensorType)
        starts, limits = [0] * value.type.rank, [*value.type.bounds]
        starts[dim], limits[dim] = start, end
        return self.cut(node, value, starts, limits)

    def pieces(self, node: Node) -> list[Value]:
        """The operands of a concatenation as parts of it."""
        dim, ranges = self.parts[node.results[0]]
        parts: list[Value] = []
        begin = 0
        for value in node.operands:
            assert isinstance(value.type, TensorType)
            end = begin + value.type.bounds[dim]
            (piece,) = self.became.get(value, [value])
            parts += [
                self.along(node, piece, dim, start - begin, limit - begin)
                for start, limit in ranges
                if begin <= start and limit <= end
            ]
            begin = end
        return parts

    def padded(self, node: Node, op: Pad) -> Iterator[Value]:
        """The parts of a padded value: of the value, or of the padding."""
        value = node.operands[0]
        assert isinstance(value.type, TensorType)
        dim, ranges = self.parts[node.results[0]]
        begin = op.edge_padding_low[dim]
        end = begin + value.type.bounds[dim]
        low, high = [*op.edge_padding_low], [*op.edge_padding_high]
        low[dim] = high[dim] = 0
        inner = Pad(tuple(low), tuple(high), op.interior_padding)
        (piece,), (number,) = (self.became.get(each, [each]) for each in node.operands)
        for (start, limit), type in zip(ranges, self.types(node.results[0]), strict=True):
            assert isinstance(type, TensorType)
            if begin <= start and limit <= end:
                part = self.along(node, piece, dim, start - begin, limit - begin)
                yield part if part.type is type else self.add(node, inner, (part, number))[0]
            else:
                yield self.put(apply(BroadcastInDim((), type), number, loc=node.loc))[0]


def _resized(value: Value, dim: int, size: int) -> TensorType:
    type = value.type
    assert isinstance(type, TensorType)
    return type.with_shape((*type.bounds[:dim], size, *type.bounds[dim + 1 :]))
