"""A program at sizes that it was not captured for: built from captures of a few other sizes.

The captures are walked in step. What differs between them is a function of the sizes: types and
limits of slices, which become those of the bucket; and numbers, which become functions of the sizes
of each call, arguments of the program. Elements behind the end of a dim are arbitrary: ops that
would combine them with others get them masked, and one that cannot be masked is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TypeAlias

from weft.capture.torch.build import Build
from weft.capture.torch.sizes.extents import (
    Extent,
    Extents,
    SizesDepend,
    SymbolSizes,
    depends,
    fit,
    fixed,
    merged,
    of_node,
    over_factors,
    size_of,
    varies,
)
from weft.errors import WeftError
from weft.ir.location import Location, escape
from weft.ir.module import Function, Module, Node, Region, Value, tensor_of
from weft.ir.op import Op
from weft.ir.op import rule as rule_of
from weft.ir.rule import Rule
from weft.ir.types import F32, I32, I64, DType, TensorType
from weft.ops.elementwise.pointwise import Add, And, Divide, Multiply, Subtract
from weft.records import dataclass

ValueExtents: TypeAlias = tuple[Extents, ...]  # of every dim of a value
# A whole number n, 1 / n, or n / (n - 1).
NumberOf: TypeAlias = Literal["plain", "inverse", "unbiased"]


@dataclass(frozen=True, slots=True)
class Capture:
    """A program captured for some sizes of the symbols."""

    sizes: SymbolSizes
    module: Module


@dataclass(frozen=True, slots=True)
class SizedInstance:
    """A program at a bucket's sizes, and the dims of its results by the sizes of a call."""

    module: Module
    results: tuple[ValueExtents, ...]


# Integers of ops that are sizes: they become the bucket's. Others must not depend on the sizes.
_EXTENTS = {
    ("stablehlo.gather", "slice_sizes"),
    ("stablehlo.dynamic_slice", "slice_sizes"),
    ("stablehlo.broadcast", "broadcast_sizes"),
}

SpecialOp: TypeAlias = "Callable[[Instantiation, Node, Sequence[Node]], None]"


class Instantiation:
    """The walk over the captures of a program that builds it at the sizes of a bucket."""

    def __init__(
        self,
        captures: Sequence[Capture],
        names: Sequence[str],
        bucket: SymbolSizes,
        smallest: SymbolSizes,
        special: Mapping[type[Op], SpecialOp],
    ) -> None:
        self.captures, self.names = captures, names
        self.probes = [each.sizes for each in captures]
        self.bucket, self.smallest, self.special = bucket, smallest, special
        self.build = Build()
        self.values: dict[Value, Value] = {}  # by value of the first capture
        self.held: dict[Value, ValueExtents] = {}  # the dims of values of which one varies
        self.twins: list[dict[Value, Value]] = [{} for _ in captures[1:]]  # to the first's values
        self.sizes: list[Value] = []  # the sizes of a call
        self._numbers: dict[Extent, Value] = {}

    def run(self, is_seeded: bool) -> SizedInstance:
        """The program at the bucket's sizes; the sizes of a call are its last arguments."""
        bodies = [each.module.function("main").body for each in self.captures]
        first, others = bodies[0], bodies[1:]
        for other in others:
            if len(other.nodes) != len(first.nodes) or len(other.args) != len(first.args):
                raise depends("the program has other ops for other sizes", first.loc)
        self._arguments(bodies)
        for node, *twins in zip(*[body.nodes for body in bodies], strict=True):
            self._node(node, twins)
        for n, value in enumerate(first.results):
            found = [held[body.results[n]] for held, body in zip(self.twins, others, strict=True)]
            if any(each is not value for each in found):
                raise depends("the program has other results for other sizes", first.loc)
        return self._module(first, is_seeded)

    def _module(self, first: Region, is_seeded: bool) -> SizedInstance:
        args = [self.values[value] for value in first.args]
        locs = [*first.arg_locs]
        # The seed stays last.
        place = len(args) - is_seeded
        args[place:place] = self.sizes
        locs[place:place] = [Location(f'"{escape(size_name(name))}"') for name in self.names]
        for n, value in enumerate(args):
            value.index = n
        results = tuple([self.values[value] for value in first.results])
        region = Region(tuple(args), self.build.nodes, results, first.loc, tuple(locs))
        whole = self.captures[0].module
        module = Module({"main": Function("main", region, "public")}, name=whole.name)
        return SizedInstance(module, tuple([self.dims(value) for value in first.results]))

    def _arguments(self, bodies: Sequence[Region]) -> None:
        self.sizes = [Value(TensorType((), I64)) for _ in self.names]
        for values in zip(*[body.args for body in bodies], strict=True):
            dims = self.fitted([tensor_of(value).sizes for value in values])
            if dims is None:
                raise depends("an argument has other dims for other sizes", bodies[0].loc)
            self.place(values[0], Value(self.type_at(tensor_of(values[0]), dims)), dims)
            for held, value in zip(self.twins, values[1:], strict=True):
                held[value] = values[0]

    # Dims

    def dims(self, value: Value) -> ValueExtents:
        """The dims of a value of the first capture."""
        found = self.held.get(value)
        return found or tuple([(fixed(size),) for size in tensor_of(value).sizes])

    def type_at(self, type: TensorType, dims: ValueExtents) -> TensorType:
        """A type at the bucket's sizes."""
        return type.with_shape(tuple([size_of(dim, self.bucket) for dim in dims]))

    def fitted(self, shapes: Sequence[Sequence[int]]) -> ValueExtents | None:
        """The dims of a value by its sizes in all captures."""
        if len({len(shape) for shape in shapes}) != 1:
            return None
        found = [fit(numbers, self.probes) for numbers in zip(*shapes, strict=True)]
        return None if None in found else tuple([each for each in found if each is not None])

    def created(self, node: Node, twins: Sequence[Node]) -> ValueExtents:
        """The dims of a result by its types alone."""
        types = [tensor_of(each.results[0]) for each in (node, *twins)]
        found = self.fitted([type.sizes for type in types])
        if found is None:
            raise of_node("has a size that is no linear function of the arguments'", node)
        return found

    # Values

    def place(self, value: Value, made: Value, dims: ValueExtents) -> None:
        """Note what a value of the first capture is at the bucket's sizes."""
        self.values[value] = made
        if any(map(varies, dims)):
            self.held[value] = dims

    def number(self, extent: Extent) -> Value:
        """A number of a call, by its sizes, as an i64."""
        if extent not in self._numbers:
            b, scalar = self.build, TensorType((), I64)
            if extent.symbol is None:
                size = b.splat(extent.offset, scalar)
            else:
                size = self.sizes[extent.symbol]
                if extent.scale != 1:
                    size = b.op(Multiply(), size, b.splat(extent.scale, scalar))
                if extent.offset:
                    size = b.op(Add(), size, b.splat(extent.offset, scalar))
            self._numbers[extent] = size
        return self._numbers[extent]

    def scalar(self, extents: Extents, dtype: DType, way: NumberOf) -> Value:
        """A function of the product of numbers of a call, in an element type."""
        b = self.build
        size = self.number(extents[0])
        for extent in extents[1:]:
            size = b.op(Multiply(), size, self.number(extent))
        if way == "plain":
            return b.convert(size, dtype)
        size = b.convert(size, dtype if dtype.bits >= 32 else F32)
        one = b.like(size, 1)
        below = b.op(Subtract(), size, one) if way == "unbiased" else size
        above = size if way == "unbiased" else one
        return b.convert(b.op(Divide(), above, below), dtype)

    def inside(self, dims: Mapping[int, Extents], shape: Sequence[int]) -> Value | None:
        """Whether an element lies before the end of these dims; None if none of them varies."""
        b = self.build
        mask: Value | None = None
        for dim, extents in dims.items():
            # A dim that several are merged in, [batch * length], has an end in every row: each is
            # compared apart, and the mask is merged as they are.
            sizes = [extent.at(self.bucket) for extent in extents]
            for n, extent in enumerate(extents):
                if extent.symbol is None:
                    continue
                end = b.convert(self.number(extent), I32)
                at = b.iota(n, sizes, I32)
                before = b.compare("LT", at, b.spread(end, sizes, ()))
                one = b.spread(b.reshape(before, (math.prod(sizes),)), shape, (dim,))
                mask = one if mask is None else b.op(And(), mask, one)
        return mask

    def masked(
        self, value: Value, dims: ValueExtents, along: Sequence[int], fill: Value | None
    ) -> Value:
        """A value with its elements behind the ends of dims replaced, by default by 0."""
        b, type = self.build, tensor_of(value)
        seen = self.inside({dim: dims[dim] for dim in along}, type.sizes)
        if seen is None:
            return value
        other = b.like(value, 0)
        if fill is not None:
            other = b.spread(b.convert(fill, type.dtype), type.sizes, ())
        return b.select(seen, value, other)

    # Nodes

    def _node(self, node: Node, twins: Sequence[Node]) -> None:
        for held, twin in zip(self.twins, twins, strict=True):
            if type(twin.op) is not type(node.op) or len(twin.operands) != len(node.operands):
                raise of_node("is another op for other sizes", node)
            if any(held[v] is not w for v, w in zip(twin.operands, node.operands, strict=True)):
                raise of_node("has other operands for other sizes", node)
        self.build.loc = node.loc
        try:
            self.special.get(type(node.op), Instantiation.general)(self, node, twins)
        except SizesDepend:
            raise
        except WeftError as error:  # of types: a size of the bucket that the op cannot have
            raise of_node(f"cannot have the padded sizes: {error.message}", node) from error
        for held, twin in zip(self.twins, twins, strict=True):
            held.update(zip(twin.results, node.results, strict=True))
        for n, value in enumerate(node.results):
            self._check(node, [tensor_of(each.results[n]) for each in (node, *twins)], value)

    def _check(self, node: Node, types: Sequence[TensorType], value: Value) -> None:
        """Compare the dims of a result with its types in all captures, and at the bucket."""
        dims, made = self.dims(value), tensor_of(self.values[value])
        for sizes, type in zip([*self.probes, self.bucket], [*types, made], strict=True):
            if type.dtype is not types[0].dtype or type.sizes != tuple(
                [size_of(dim, sizes) for dim in dims]
            ):
                raise of_node("has a size that depends on the arguments' in another way", node)

    def emit(
        self, node: Node, op: Op, operands: Sequence[Value], dims: Sequence[ValueExtents]
    ) -> None:
        """Append a node at the bucket's sizes, whose results have these dims."""
        made = self.build.all(op, *operands, regions=node.regions)
        for value, new, of in zip(node.results, made, dims, strict=True):
            self.place(value, new, of)

    def general(self, node: Node, twins: Sequence[Node]) -> None:
        """An op by its rule: sizes that vary pass through it, or are masked where it sums."""
        if not any(value in self.held for value in node.operands):
            self._same(node, twins)
            return
        if node.op.control or not all(same_regions(node, twin) for twin in twins):
            raise of_node("carries a size that varies through control flow", node)
        rule = rule_of(node.op, node.operand_types, node.bodies)
        factors = self._factors(node, rule)
        self._check_roles(node, rule, factors)
        operands = self._masked_operands(node, rule, factors)
        dims = [
            tuple([merged([e for f in fs for e in factors[f]]) for fs in result])
            for result in rule.results
        ]
        self.emit(node, self.op_at(node, twins, dims), operands, dims)

    def _same(self, node: Node, twins: Sequence[Node]) -> None:
        """An op of fixed sizes, with its regions."""
        for twin in twins:
            if twin.op != node.op or twin.types != node.types or not same_regions(node, twin):
                raise of_node("depends on the size", node)
        made = self._copied(node)
        self.build.nodes.append(made)
        self.values.update(zip(node.results, made.results, strict=True))

    def _copied(self, node: Node) -> Node:
        operands = tuple([self.values.get(value, value) for value in node.operands])
        return node.rebuilt(operands, tuple([self._region(each) for each in node.regions]))

    def _region(self, region: Region) -> Region:
        nodes = []
        for node in region.nodes:
            made = self._copied(node)
            self.values.update(zip(node.results, made.results, strict=True))
            nodes.append(made)
        results = tuple([self.values.get(value, value) for value in region.results])
        return Region(region.args, nodes, results, region.loc, region.arg_locs)

    def _factors(self, node: Node, rule: Rule) -> list[Extents]:
        """The extents of every factor of an op's rule."""
        by_factor: list[Extents | None] = [None] * len(rule.factors)
        for value, dims in zip(node.operands, rule.operands, strict=True):
            for extents, factors in zip(self.dims(value), dims, strict=True):
                sizes = [rule.factors[f].size for f in factors]
                # A window's factor has the size of the result's dim, not of the operand's.
                parts: list[Extents] | None = [(fixed(size),) for size in sizes]
                if varies(extents):
                    # The rule is that of the first capture, whose sizes the factors have.
                    parts = over_factors(extents, sizes, self.probes[0])
                if parts is None:
                    raise of_node("takes a dim apart whose size varies", node)
                for factor, part in zip(factors, parts, strict=True):
                    if by_factor[factor] not in (None, part):
                        raise of_node("has operands of other sizes along a dim that varies", node)
                    by_factor[factor] = part
        pairs = zip(by_factor, rule.factors, strict=True)
        return [(fixed(factor.size),) if part is None else part for part, factor in pairs]

    def _check_roles(self, node: Node, rule: Rule, factors: Sequence[Extents]) -> None:
        for extents, factor in zip(factors, rule.factors, strict=True):
            if varies(extents):
                passes = factor.role == "pass" and not factor.needs_offset
                reads = node.op.name == "stablehlo.gather" and factor.role == "reduction"
                if not (passes or reads or self._fills(node, factor.role)):
                    raise of_node("combines elements along a dim whose size varies", node)

    def _fills(self, node: Node, role: str) -> bool:
        """Whether elements along a reduction's dim can be masked."""
        if role != "reduction":
            return False
        name = node.op.name
        adds = name == "stablehlo.scatter" and node.bodies[0].combiners == ("stablehlo.add",)
        return adds or name in ("stablehlo.reduce", "stablehlo.dot_general")

    def _masked_operands(self, node: Node, rule: Rule, factors: Sequence[Extents]) -> list[Value]:
        """The operands, masked along the factors that the op reduces."""
        summed = {
            f for f, factor in enumerate(rule.factors)
            if varies(factors[f]) and self._fills(node, factor.role)
        }  # fmt: skip
        operands = []
        count, name = len(node.operands), node.op.name
        for n, (value, dims) in enumerate(zip(node.operands, rule.operands, strict=True)):
            operand = self.values[value]
            along = [d for d, fs in enumerate(dims) if summed.intersection(fs)]
            if along and (name != "stablehlo.scatter" or n == count - 1):
                fill = (
                    self.values[node.operands[n + count // 2]] if name.endswith("reduce") else None
                )
                operand = self.masked(operand, self.dims(value), along, fill)
            operands.append(operand)
        return operands

    def op_at(self, node: Node, twins: Sequence[Node], results: Sequence[ValueExtents]) -> Op:
        """The op with its types and sizes at the bucket's; its results have these dims."""
        changed = {}
        types = {
            type: self.type_at(type, dims)
            for type, dims in zip(node.types, results, strict=True)
            if isinstance(type, TensorType)
        }
        for name in node.op.fields():
            found = [getattr(each.op, name) for each in (node, *twins)]
            if any(each != found[0] for each in found):
                may = (node.op.name, name) in _EXTENTS
                changed[name] = self._field(node, found, types, is_extent=may)
        return node.op.replace(**changed) if changed else node.op

    def _field(
        self,
        node: Node,
        by_capture: Sequence[object],
        types: Mapping[TensorType, TensorType],
        *,
        is_extent: bool,
    ) -> object:
        """An attribute at the bucket's sizes."""
        one = by_capture[0]
        if all(each == one for each in by_capture):
            return one
        if isinstance(one, TensorType):
            if one in types:
                return types[one]
        elif isinstance(one, tuple) and all(
            isinstance(each, tuple) and len(each) == len(one) for each in by_capture
        ):
            columns = zip(*[each for each in by_capture if isinstance(each, tuple)], strict=True)
            return tuple([self._field(node, each, types, is_extent=is_extent) for each in columns])
        elif is_extent and isinstance(one, int):
            extents = fit([each for each in by_capture if isinstance(each, int)], self.probes)
            if extents is not None:
                return size_of(extents, self.bucket)
        raise of_node("depends on the size", node)


def size_name(symbol: str) -> str:
    """The name of the argument that a call's size is."""
    return f"size of {symbol}"


def same_regions(node: Node, twin: Node) -> bool:
    """Whether two nodes have the same regions."""
    for one, other in zip(node.regions, twin.regions, strict=True):
        if len(one.nodes) != len(other.nodes):
            return False
        for a, b in zip(one.nodes, other.nodes, strict=True):
            if a.op != b.op or a.types != b.types or not same_regions(a, b):
                return False
    return True
