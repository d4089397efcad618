"""Dims of a program's values that belong together: where one is cut, so are the others.

Dims that a factor of an op runs over are linked, and so is an argument with its new value. Slices
and concatenations of a linked dim say where it has parts, such as those of queries, keys and
values. Places are fractions of a dim: a reshape links a dim with the major one of those that it
becomes, of another size.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction
from itertools import pairwise
from typing import TypeAlias

from weft.ir.module import Node, Region, Value
from weft.ir.op import rule
from weft.ir.rule import Rule, RuleFactor
from weft.ir.types import TensorType
from weft.ir.uses import free_variables
from weft.ops.combiners import identity
from weft.ops.contract import DotGeneral
from weft.ops.control import While
from weft.ops.reduce import Reduce
from weft.ops.shape import Constant
from weft.ops.slicing import Concatenate, Pad, Slice

LinkedDim: TypeAlias = tuple[Value, int]
PartBounds: TypeAlias = tuple[Fraction, ...]  # from 0 to 1


class LinkedDims:
    """The linked dims of a program, the places of their parts, and those that have to stay whole.

    The first results of the program are the new values of `updated` arguments.
    """

    def __init__(self, body: Region, updated: Sequence[int]) -> None:
        self.parents: dict[LinkedDim, LinkedDim] = {}
        self.whole: list[LinkedDim] = []
        self.places: list[tuple[LinkedDim, Fraction]] = []
        self.slices: list[tuple[LinkedDim, Fraction, Fraction]] = []
        self._region(body)
        for place, result in zip(updated, body.results, strict=False):
            self._alike(body.args[place], result)
        self._keep(body.results[len(updated) :])

    def root(self, key: LinkedDim) -> LinkedDim:
        """The representative of a dim's group."""
        parents = self.parents
        while (parent := parents.setdefault(key, key)) != key:
            parents[key] = key = parents[parent]  # halves the path
        return key

    def cuts(self, wanted: Collection[LinkedDim]) -> dict[LinkedDim, PartBounds]:
        """The places of the parts of groups, by their roots: of those that consist of parts."""
        cuts: dict[LinkedDim, set[Fraction]] = {root: {Fraction(0), Fraction(1)} for root in wanted}
        for key, place in self.places:
            if (root := self.root(key)) in cuts:
                cuts[root].add(place)
        for key in self.whole:
            cuts.pop(self.root(key), None)
        ordered = {root: tuple(sorted(places)) for root, places in cuts.items() if len(places) > 2}
        for key, start, end in self.slices:
            # A slice of two parts would have to join them.
            root = self.root(key)
            if root in ordered and (start, end) not in pairwise(ordered[root]):
                del ordered[root]
        return ordered

    def members(self, roots: Collection[LinkedDim]) -> dict[LinkedDim, list[LinkedDim]]:
        """The dims of each group."""
        members: dict[LinkedDim, list[LinkedDim]] = {root: [] for root in roots}
        for key in [*self.parents]:
            if (root := self.root(key)) in members:
                members[root].append(key)
        return members

    def _link(self, keys: Iterable[LinkedDim]) -> None:
        # Of a constant every part can be made: it links nothing.
        roots = [self.root(key) for key in keys if not _is_splat(key[0])]
        for root in roots[1:]:
            self.parents[self.root(root)] = self.root(roots[0])

    def _alike(self, *values: Value) -> None:
        """Link values of one type."""
        for dim in range(_rank(values[0])):
            self._link([(value, dim) for value in values])

    def _keep(self, values: Iterable[Value]) -> None:
        """Leave values whole."""
        self.whole += [(value, dim) for value in values for dim in range(_rank(value))]

    def _region(self, region: Region) -> None:
        for node in region.nodes:
            self._node(node)

    def _node(self, node: Node) -> None:
        op, operands, results = node.op, node.operands, node.results
        if isinstance(op, While):
            condition, body = node.regions
            for group in zip(
                operands, condition.args, body.args, body.results, results, strict=True
            ):
                self._alike(*group)
            self._region(condition)
            self._region(body)
        elif op.control or not op.pure:
            self._keep([*operands, *results, *free_variables(node)])
        elif isinstance(op, Slice | Pad | Concatenate):
            for dim in range(_rank(results[0])):
                self._moved(node, dim)
        elif not (isinstance(op, Constant) and op.value.is_splat):
            found = rule(op, node.operand_types, node.bodies)
            for number, factor in enumerate(found.factors):
                self._factor(node, found, number, factor)

    def _factor(self, node: Node, found: Rule, number: int, factor: RuleFactor) -> None:
        """Link the dims that a factor runs over alone, or as the major one."""
        tensors = zip((*node.operands, *node.results), (*found.operands, *found.results),
                      strict=True)  # fmt: skip
        dims = [
            (value, dim, factors)
            for value, held in tensors
            for dim, factors in enumerate(held)
            if number in factors
        ]
        keys = [(value, dim) for value, dim, factors in dims if factors[0] == number]
        is_major = len(keys) == len(dims)
        if is_major and not factor.needs_offset and _is_divisible(node, factor):
            self._link(keys)
        else:
            self.whole += keys

    def _moved(self, node: Node, dim: int) -> None:
        """Link a dim that an op leaves as it is, or note where the op cuts or joins it."""
        op, result = node.op, (node.results[0], dim)
        source = (node.operands[0], dim)
        size = _size(source)
        if isinstance(op, Slice):
            start, end = op.start_indices[dim], op.limit_indices[dim]
            if op.strides[dim] != 1 or start == end:
                self.whole += [source, result]
            elif end - start < size:
                ends = Fraction(start, size), Fraction(end, size)
                self.slices.append((source, *ends))
                self.places += [(source, place) for place in ends]
                self.whole.append(result)
            else:
                self._link([source, result])
        elif isinstance(op, Concatenate) and dim == op.dimension:
            begin, total = 0, _size(result)
            for value in node.operands:
                self.places.append((result, Fraction(begin, total or 1)))
                begin += _size((value, dim))
            self.whole += [(value, dim) for value in node.operands]
        elif isinstance(op, Concatenate):
            self._link([(value, dim) for value in (*node.operands, node.results[0])])
        elif isinstance(op, Pad):
            low, high = op.edge_padding_low[dim], op.edge_padding_high[dim]
            if not low and not high and not op.interior_padding[dim]:
                self._link([source, result])
                return
            self.whole.append(source)
            if low < 0 or high < 0 or op.interior_padding[dim]:
                self.whole.append(result)
            else:
                total = size + low + high
                self.places += [
                    (result, Fraction(low, total)),
                    (result, Fraction(low + size, total)),
                ]


def _is_divisible(node: Node, factor: RuleFactor) -> bool:
    """Whether an op can be computed part by part along a factor."""
    if factor.role == "pass":
        return True
    if factor.role != "reduction" or factor.combine is None:
        return False
    if isinstance(node.op, DotGeneral):
        return True
    # Every part begins with the initial value: it must count for nothing.
    (init,) = (
        node.operands[1:] if isinstance(node.op, Reduce) and len(node.operands) == 2 else [None]
    )
    if init is None or not _is_splat(init) or init.node is None:
        return False
    constant = init.node.op
    assert isinstance(constant, Constant)
    return bool(constant.value.array.item() == identity(factor.combine, constant.value.type.dtype))


def _is_splat(value: Value) -> bool:
    """Whether a value is a constant of equal elements."""
    op = None if value.node is None else value.node.op
    return isinstance(op, Constant) and op.value.is_splat


def _rank(value: Value) -> int:
    return value.type.rank if isinstance(value.type, TensorType) else 0


def _size(key: LinkedDim) -> int:
    value, dim = key
    assert isinstance(value.type, TensorType)
    return value.type.bounds[dim]
