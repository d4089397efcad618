"""Classes of corresponding dims across a program, such as the batch dim of all activations.

Two dims are equivalent if a factor of some op runs along both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

from weft.ir.module import Module, Node, Value
from weft.ir.op import rule as rule_of
from weft.ir.rule import Dims, Rule
from weft.ir.types import TensorType
from weft.ops.control import Call, Case, If, While
from weft.ops.distributed.sharding import ManualComputation, NamedComputation
from weft.records import dataclass

ValueDim = tuple[Value, int]


@dataclass
class DimClasses:
    """A union-find structure over dims."""

    parents: dict[ValueDim, ValueDim] = field(default_factory=dict)

    def find(self, dim: ValueDim) -> ValueDim:
        """The representative of a dim's class."""
        parents = self.parents
        root = dim
        while (above := parents.get(root, root)) != root:
            root = above
        while (above := parents.get(dim, dim)) != root:
            parents[dim], dim = root, above
        return root

    def join(self, dims: Sequence[ValueDim]) -> None:
        """Merge the classes of dims."""
        if len(dims) > 1:
            first = self.find(dims[0])
            for other in dims[1:]:
                self.parents[self.find(other)] = first

    def same(self, *values: Value) -> None:
        """Merge the classes of values dim by dim."""
        tensors = [v for v in values if isinstance(v.type, TensorType)]
        for dim in range(min((rank_of(v) for v in tensors), default=0)):
            self.join([(v, dim) for v in tensors])


def rank_of(value: Value) -> int:
    """The rank of a tensor, 0 for other values."""
    return value.type.rank if isinstance(value.type, TensorType) else 0


def dim_classes(module: Module) -> DimClasses:
    """The classes of dims of all values of a module."""
    classes = DimClasses()
    for node in module.nodes():
        _join(classes, module, node)
    return classes


def _join(classes: DimClasses, module: Module, node: Node) -> None:
    match node.op:
        case Call(callee=callee):
            body = module.function(callee).body
            _pairwise(classes, node.operands, body.args)
            _pairwise(classes, node.results, body.results)
        case While():
            _pairwise(classes, node.operands, node.results)
            for region in node.regions:
                _pairwise(classes, node.operands, region.args)
            _pairwise(classes, node.results, node.regions[1].results)
        case If() | Case():
            for region in node.regions:
                _pairwise(classes, node.results, region.results)
        case NamedComputation():
            (region,) = node.regions
            _pairwise(classes, node.operands, region.args)
            _pairwise(classes, node.results, region.results)
        case ManualComputation():
            pass  # its body has separate dims
        case _:
            for dims in _met(node):
                classes.join(dims)


def _pairwise(classes: DimClasses, some: Sequence[Value], others: Sequence[Value]) -> None:
    for a, b in zip(some, others, strict=False):
        classes.same(a, b)


def _met(node: Node) -> Iterator[list[ValueDim]]:
    """For each factor of an op the dims whose major factor it is."""
    if not all(isinstance(t, TensorType) for t in (*node.operand_types, *node.types)):
        return
    if any(not t.is_static for t in (*node.operand_types, *node.types)):  # type: ignore[union-attr]
        return
    rule = rule_of(node.op, node.operand_types, node.bodies)
    by_factor: dict[int, list[ValueDim]] = {}
    sides = [*zip(node.operands, rule.operands, strict=True)]
    sides += zip(node.results, rule.results, strict=True)
    for value, dims in sides:
        for number, factor in enumerate(_majors(dims, rule)):
            by_factor.setdefault(factor, []).append((value, number))
    yield from by_factor.values()


def _majors(dims: Dims, rule: Rule) -> Iterator[int]:
    for factors in dims:
        yield next((f for f in factors if rule.factors[f].size > 1), factors[0])
