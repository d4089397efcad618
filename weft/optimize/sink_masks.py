"""Sinking of masks and other functions of iotas into the loops that read them."""

from __future__ import annotations

from weft.ir.gc_pause import without_gc
from weft.ir.module import Module, Node, Region, Value
from weft.ir.rebuild import Rebuild
from weft.ir.types import TensorType
from weft.ir.uses import free_variables
from weft.ops.control import While
from weft.ops.shape import BroadcastInDim, Constant, Iota, Reshape, Transpose
from weft.optimize.drop_dead import drop_dead

MOST = 16  # the most nodes of a sunk expression


def sink_masks(module: Module) -> Module:
    """Recompute masks inside the loops that read them.

    An expression of constants and iotas costs nothing inside a kernel, and a kernel that sees the
    mask's expression can skip the masked part: in causal attention half of the work.
    """
    if not any(isinstance(node.op, While) for node in module.nodes()):
        return module
    with without_gc():
        after = _Sinking(module, ()).module()
        return module if after is module else drop_dead(after)


class _Sinking(Rebuild):
    """One rebuild, with expressions of constants and iotas sunk into loops."""

    def renewed(self, node: Node) -> Node:
        if not isinstance(node.op, While):
            return super().renewed(node)
        operands = tuple([self.became.get(v, v) for v in node.operands])
        regions = (self.region(node.regions[0]), self.sunk(node, operands))
        if operands == node.operands and regions == node.regions:
            return node
        return node.rebuilt(operands, regions)

    def sunk(self, loop: Node, operands: tuple[Value, ...]) -> Region:
        """The body of a loop with its masks computed inside."""
        body = loop.regions[1]
        outside = {v: self.became.get(v, v) for v in free_variables(loop)}
        for arg, given, made in zip(body.args, operands, body.results, strict=True):
            # A carried value that the body returns as it is, is the initial one in every iteration.
            if arg is made:
                outside[arg] = given
        copies: dict[Value, Value] = {}
        nodes: list[Node] = []
        inside = {v: _copied(s, copies, nodes) for v, s in outside.items() if _is_of_iotas(s)}
        if not inside:
            return self.region(body)
        before = {v: self.became[v] for v in inside if v in self.became}
        self.became.update(inside)
        sunk = self.region(
            Region(body.args, [*nodes, *body.nodes], body.results, body.loc, body.arg_locs)
        )
        # Copies are known inside of this loop only.
        for value in inside:
            self.became.pop(value)
        self.became.update(before)
        return sunk


def _is_of_iotas(value: Value) -> bool:
    """Whether a tensor is a short expression of constants and iotas."""
    if not isinstance(value.type, TensorType) or not value.type.rank:
        return False
    todo, seen = [value], set[Value]()
    while todo:
        inner = todo.pop()
        if inner in seen:
            continue
        seen.add(inner)
        node = inner.node
        if node is None or len(seen) > MOST or not _is_light(node):
            return False
        todo += node.operands
    return True


def _is_light(node: Node) -> bool:
    match node.op:
        case Constant():
            return node.op.value.is_splat
        case Iota() | BroadcastInDim() | Reshape() | Transpose():
            return True
    work = getattr(type(node.op), "each_element", None)
    return node.op.elementwise and not node.regions and not (work and work.transcendentals)


def _copied(value: Value, copies: dict[Value, Value], nodes: list[Node]) -> Value:
    """A copy of a value's whole expression."""
    if value not in copies:
        node = value.node
        assert node is not None, "a node makes it"
        operands = tuple([_copied(v, copies, nodes) for v in node.operands])
        made = node.rebuilt(operands, ())
        nodes.append(made)
        copies.update(zip(node.results, made.results, strict=True))
    return copies[value]
