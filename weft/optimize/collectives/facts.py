"""Facts for the rules on collectives during a rewrite: uses, uniformity, meshes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from weft.ir.location import Location
from weft.ir.module import Module, Node, Region, Value, apply, tensor_of
from weft.ir.op import Op
from weft.ir.rebuild import Rebuild, Rewritten
from weft.ir.rule import Combine
from weft.ir.types import TensorType
from weft.mesh import Mesh, MeshAxes
from weft.mesh.axes import named
from weft.ops.combiners import BY_OP
from weft.varying.facts import IncrementalVarying, varying
from weft.varying.world import axes_of

RewriteRule: TypeAlias = "Callable[[Node, Facts], Rewritten]"
RewriteTable: TypeAlias = Mapping[type[Op], tuple[RewriteRule, ...]]
Readers: TypeAlias = dict[Value, list[Op | None]]  # None for a region that returns the value
_ROUNDS = 64  # more rewrites of one node than this are a cycle of rules


class Facts:
    """The facts about one module, updated during its rewrite, and the rules."""

    def __init__(self, module: Module, table: RewriteTable) -> None:
        self.module = module
        self.table = table
        self.varying = IncrementalVarying(varying(module))
        self.readers = readers(module)
        self._dead: set[Node] = set()

    def rewritten(self, node: Node) -> Rewritten:
        """The outcome of the first rule that applies; annotated nodes stay."""
        if node.attrs:
            return None
        for rule in self.table.get(type(node.op), ()):
            changed = rule(node, self)
            if changed is not None:
                return changed
        return None

    def make(
        self, op: Op, *operands: Value, regions: tuple[Region, ...] = (), loc: Location
    ) -> Value:
        """The result of a new op, rewritten to a fixed point of the rules."""
        node = apply(op, *operands, regions=regions, loc=loc)
        for _ in range(_ROUNDS):
            changed = self.rewritten(node)
            if changed is None:
                return node.results[0]
            if isinstance(changed, tuple):
                return changed[0]
            node = changed
        raise AssertionError(f"rules reach no fixed point on {node!r}")

    def mesh(self, groups: MeshAxes) -> Mesh:
        """The mesh of these axes."""
        return named(groups.mesh, self.module.meshes)

    def once(self, value: Value) -> bool:
        """Whether the value has one use, by a node."""
        # Values that rules made have no readers on record: each was made for one use.
        found = self.readers.get(value)
        return not found or (len(found) == 1 and found[0] is not None)

    def dropped(self, node: Node) -> None:
        """Record that a node is dead."""
        if node not in self._dead:
            self._dead.add(node)
            for value in node.operands:
                found = self.readers.get(value, [])
                if node.op in found:
                    found.remove(node.op)

    def moved(self, before: Value, after: Value) -> None:
        """Record that one value replaces another."""
        found = self.readers.get(before)
        if found:
            known = self.readers.setdefault(after, found)  # nothing reads `before` any more
            if known is not found:
                known.extend(found)
        self.varying.same(after, before)


def readers(module: Module) -> Readers:
    """The ops that read each value."""
    found: Readers = {}
    for function in module.functions.values():
        _read(function.body, found)
    return found


def _read(region: Region, readers: Readers) -> None:
    for node in region.nodes:
        op = node.op
        for value in node.operands:
            known = readers.get(value)
            if known is None:
                readers[value] = [op]
            else:
                known.append(op)
        for inner in node.regions:
            _read(inner, readers)
    for value in region.results:
        readers.setdefault(value, []).append(None)


class RebuildWithFacts(Rebuild):
    """A rebuild whose rules take facts."""

    def __init__(self, facts: Facts) -> None:
        super().__init__(facts.module, (facts.rewritten,), kinds=facts.table)
        self.facts = facts

    def node(self, node: Node, out: list[Node]) -> None:
        super().node(node, out)
        if self.became:
            for before in node.results:
                after = self.became.get(before)
                if after is not None:
                    self.facts.moved(before, after)


def defining_node(value: Value, *kinds: type[Op]) -> Node | None:
    """The defining node of a value, if it is of these ops, on one operand and not annotated."""
    node = value.node
    if node is None or node.attrs or len(node.operands) != 1 or not isinstance(node.op, kinds):
        return None
    return node


def collective_axes(node: Node) -> MeshAxes | None:
    """The axes of a collective on one operand of static shape."""
    if len(node.operands) != 1 or not tensor_of(node.operands[0]).is_static:
        return None
    return axes_of(node.op)


def resized(type: TensorType, dim: int, size: int) -> TensorType:
    """The type with another size of one dim."""
    sizes = list(type.sizes)
    sizes[dim] = size
    return type.with_shape(tuple(sizes))


def plain_combiner(node: Node) -> Combine | None:
    """The combining op of a reduction, if it is one plain op."""
    body = node.regions[0]
    return BY_OP.get(body.body.combiners[0]) if len(body.nodes) == 1 else None


def keeps_dtype(node: Node) -> bool:
    """Whether the first result has the element type of the first operand."""
    return tensor_of(node.operands[0]).dtype is tensor_of(node.results[0]).dtype
