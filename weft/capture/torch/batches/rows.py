"""Whether a program computes the rows of a batch apart from each other.

The program is captured for two sizes of the batch, and both are walked in step: a dim of the batch
passes through an op along one `pass` factor of the op's rule, and nothing else may differ between
the two. What depends on no argument is computed, and compared. Then more rows at the end of a batch
change no other row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from weft.errors import Unsupported
from weft.ir.location import UNKNOWN, Location
from weft.ir.module import Function, Module, Node, Region, Value, tensor_of
from weft.ir.op import rule as rule_of
from weft.ir.rule import Rule
from weft.ir.types import Array, TensorType
from weft.ops.shape import BroadcastInDim
from weft.records import dataclass


class RowsDepend(Unsupported):
    """An op whose result for one row depends on other rows, or on how many there are."""


Evaluate: TypeAlias = Callable[[Module], Sequence[object]]  # the results of a module


def result_rows(
    one: Module,
    other: Module,
    sizes: tuple[int, int],
    batch: Mapping[int, int],
    evaluate: Evaluate,
) -> tuple[int | None, ...]:
    """The dim of each result that has the rows of a batch; None for results without.

    The modules are of these two batch sizes; `batch` has the dim of the batch for each argument
    that has one.
    """
    first, second = one.function("main"), other.function("main")
    if len(first.body.nodes) != len(second.body.nodes):
        raise _depends("the program has other ops for another batch size", first.body.loc)
    known, twins = _constants(one, evaluate), _constants(other, evaluate)
    if len(known.arrays) != len(twins.arrays):
        raise _depends("the program has other constants for another batch size", first.body.loc)
    walk = _Walk(sizes)
    for place, dim in batch.items():
        walk.held[first.body.args[place]] = (dim, 1)
    for (value, array), twin in zip(known.arrays.items(), twins.arrays.values(), strict=True):
        walk.constant(value, array, twin)
    for node, twin_node in zip(first.body.nodes, second.body.nodes, strict=True):
        if node.results[:1] and node.results[0] in known.values:
            continue
        walk.node(node, twin_node)
    made: list[int | None] = []
    for value in first.body.results:
        found = walk.held.get(value)
        if found is not None and found[1] != 1:
            raise _depends("a result merges the batch with another dim", first.body.loc)
        made.append(None if found is None else found[0])
    return tuple(made)


class _Walk:
    """The batch's dim of every value: its number, and the size of what is merged into it."""

    def __init__(self, sizes: tuple[int, int]) -> None:
        self.sizes = sizes
        self.held: dict[Value, tuple[int, int]] = {}

    def node(self, node: Node, twin: Node) -> None:
        """Follow the batch through one op."""
        if type(node.op) is not type(twin.op):
            raise _of_node("is another op for another batch size", node)
        if any(value in self.held for value in node.operands):
            self._along(node, twin)
        elif node.types != twin.types:
            self._made(node, twin)
        elif not _same(node, twin):
            raise _of_node("depends on the batch size", node)

    def constant(self, value: Value, array: Array, twin: Array) -> None:
        """A value that depends on no argument: its rows are those of a smaller batch."""
        if array.shape == twin.shape:
            if array.tobytes() != twin.tobytes():
                raise _of_node("depends on the batch size", value.node)
            return
        type = tensor_of(value)
        dim, inner = self._dim(value.node, type, type.with_shape(twin.shape))
        rows = range(min(self.sizes) * inner)
        if np.take(array, rows, dim).tobytes() != np.take(twin, rows, dim).tobytes():
            raise _of_node("depends on the batch size", value.node)
        self.held[value] = (dim, inner)

    def _made(self, node: Node, twin: Node) -> None:
        """A value that is repeated for all rows."""
        dim, inner = self._dim(node, node.types[0], twin.types[0])
        if not isinstance(node.op, BroadcastInDim) or self._differs(node, twin, dim):
            raise _of_node("depends on the batch size", node)
        self.held[node.results[0]] = (dim, inner)

    def _dim(self, node: Node | None, type: object, twin: object) -> tuple[int, int]:
        """The dim that differs between two types, as the batch's size does."""
        assert isinstance(type, TensorType) and isinstance(twin, TensorType)
        pairs = zip(type.sizes, twin.sizes, strict=False)
        apart = [n for n, (a, b) in enumerate(pairs) if a != b]
        if type.rank != twin.rank or len(apart) != 1:
            raise _of_node("has several sizes that depend on the batch's", node)
        size, other = type.sizes[apart[0]], twin.sizes[apart[0]]
        inner = size // self.sizes[0]
        if (size, other) != (inner * self.sizes[0], inner * self.sizes[1]):
            raise _of_node("has a size that is no multiple of the batch's", node)
        return apart[0], inner

    def _along(self, node: Node, twin: Node) -> None:
        """An op on values with the batch."""
        if node.op.control:
            raise _of_node("carries the batch through control flow", node)
        rule = rule_of(node.op, node.operand_types, node.bodies)
        factor = self._factor(node, rule)
        for operand, dims in zip(node.operands, rule.operands, strict=True):
            where = next((d for d, fs in enumerate(dims) if factor in fs), None)
            if where is not None and operand not in self.held:
                raise _of_node("has an operand of fixed size along the batch", node)
        at = 0
        for value, dims in zip(node.results, rule.results, strict=True):
            found = [d for d, fs in enumerate(dims) if fs and fs[0] == factor]
            if len(found) != 1:
                raise _of_node("combines rows of the batch", node)
            at = found[0]
            assert isinstance(value.type, TensorType)
            self.held[value] = (at, value.type.sizes[at] // self.sizes[0])
        places = {self.held[v][0] for v in node.operands if v in self.held}
        if self._differs(node, twin, at, *places) or not _same_regions(node.regions, twin.regions):
            raise _of_node("depends on the batch size", node)

    def _factor(self, node: Node, rule: Rule) -> int:
        """The factor of the op's rule that is the batch."""
        found = set()
        for operand, dims in zip(node.operands, rule.operands, strict=True):
            if operand in self.held:
                dim, inner = self.held[operand]
                factors = dims[dim]
                whole = self.sizes[0] * inner
                size = rule.factors[factors[0]].size if factors else 0
                if size % self.sizes[0] or whole % max(size, 1):
                    raise _of_node("takes the rows of the batch apart", node)
                found.add(factors[0])
        (factor,) = found if len(found) == 1 else (None,)
        if factor is None:
            raise _of_node("pairs rows of the batch with each other", node)
        known = rule.factors[factor]
        if known.role != "pass" or known.needs_offset:
            raise _of_node("combines rows of the batch", node)
        return factor

    def _differs(self, node: Node, twin: Node, *dims: int) -> bool:
        """Whether attributes differ but in types, and in entries of the batch's dims."""
        for name in node.op.fields():
            one, other = getattr(node.op, name), getattr(twin.op, name)
            if one == other or isinstance(one, TensorType):
                continue
            if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
                apart = {n for n, (a, b) in enumerate(zip(one, other, strict=True)) if a != b}
                if apart <= set(dims) or all(isinstance(one[n], TensorType) for n in apart):
                    continue
            return True
        return self._other_sizes(node.types, twin.types, dims)

    def _other_sizes(
        self, one: Sequence[object], other: Sequence[object], dims: tuple[int, ...]
    ) -> bool:
        """Whether sizes differ outside of the batch's dims."""
        for type, twin in zip(one, other, strict=True):
            assert isinstance(type, TensorType) and isinstance(twin, TensorType)
            if type.rank != twin.rank or type.dtype is not twin.dtype:
                return True
            pairs = enumerate(zip(type.sizes, twin.sizes, strict=True))
            if any(a != b and n not in dims for n, (a, b) in pairs):
                return True
        return False


def _same(node: Node, twin: Node) -> bool:
    """Whether two nodes are the same but for their operands."""
    same = node.op == twin.op and node.types == twin.types
    return same and _same_regions(node.regions, twin.regions)


def _same_regions(one: Sequence[Region], other: Sequence[Region]) -> bool:
    """Whether two nodes have the same regions."""
    for region, twin in zip(one, other, strict=True):
        pairs = [*zip(region.nodes, twin.nodes, strict=False)]
        if len(region.nodes) != len(twin.nodes) or not all(_same(a, b) for a, b in pairs):
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Known:
    """The values of a program that depend on no argument, and the elements of those in use."""

    values: frozenset[Value]
    arrays: Mapping[Value, Array]


def _constants(module: Module, evaluate: Evaluate) -> _Known:
    """The values of a program that depend on no argument."""
    body = module.function("main").body
    known: set[Value] = set()
    nodes: list[Node] = []
    used: dict[Value, None] = {}
    for node in body.nodes:
        if not node.op.control and all(value in known for value in node.operands):
            known.update(node.results)
            nodes.append(node)
        else:
            used.update(dict.fromkeys(value for value in node.operands if value in known))
    used.update(dict.fromkeys(value for value in body.results if value in known))
    if not used:
        return _Known(frozenset(known), {})
    inner = Function("main", Region((), nodes, tuple(used)), "public")
    found = evaluate(Module({"main": inner}, meshes=module.meshes))
    return _Known(frozenset(known), dict(zip(used, map(np.asarray, found), strict=True)))


def _of_node(what: str, node: Node | None) -> RowsDepend:
    """The error of an op."""
    if node is None:
        return _depends(what, UNKNOWN)
    return _depends(f"{node.op.name} {what}", node.loc)


def _depends(what: str, loc: Location) -> RowsDepend:
    return RowsDepend(what, help="give sizes that are compiled one by one, or pad them", loc=loc)
