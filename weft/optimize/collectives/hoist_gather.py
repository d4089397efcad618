"""Loop-invariant code motion of collectives and other expensive nodes."""

from __future__ import annotations

from weft.ir.gc_pause import without_gc
from weft.ir.module import Module, Node, Value
from weft.ir.purity import is_pure, pure_functions
from weft.ir.rebuild import Rebuild
from weft.ir.types import TensorType
from weft.ir.uses import free_variables
from weft.ir.work import moved
from weft.ops.control import While
from weft.optimize.drop_dead import drop_dead
from weft.varying.facts import Varying, varying

MOST_BYTES = 256 * 1024 * 1024
_ROUNDS = 8  # nested loops: each run hoists out of one more level


def hoist_gather(module: Module, *, most_bytes: int = MOST_BYTES) -> Module:
    """Hoist loop-invariant nodes, within a memory limit.

    Hoisted values stay live for the whole loop: they take at most `most_bytes`, those that save the
    most communication per byte first.
    """
    for _ in range(_ROUNDS):
        if not any(isinstance(node.op, While) for node in module.nodes()):
            return module
        with without_gc():
            after = _Hoisting(module, most_bytes).module()
            if after is module:
                return module
            module = drop_dead(after)
    return module


class _Hoisting(Rebuild):
    """One rebuild, with loop-invariant nodes moved before loops."""

    def __init__(self, module: Module, most_bytes: int) -> None:
        self.gone: set[Node] = set()
        super().__init__(module, (), self.gone)
        self.most_bytes = most_bytes
        self.pure = pure_functions(module, collectives=True)
        self._varying: Varying | None = None

    def node(self, node: Node, out: list[Node]) -> None:
        if isinstance(node.op, While):
            self.hoist(node, out)
        super().node(node, out)

    def hoist(self, loop: Node, out: list[Node]) -> None:
        """Emit the invariant nodes of a loop before it; the body reads their results."""
        same = self.repeated(loop)
        # Values that earlier rounds moved out are live during this loop, too.
        kept = moved(*[value.type for value in free_variables(loop)])  # bytes already hoisted
        gathers = self.fitting([node for node in same if is_worth(node)], self.most_bytes - kept)
        if not gathers:
            return
        outside = {
            arg: self.became.get(given, given)
            for arg, given, result in zip(
                loop.regions[1].args, loop.operands, loop.regions[1].results, strict=True
            )
            if arg is result
        }
        for node in _needed(same, gathers):
            operands = tuple([outside.get(v) or self.became.get(v, v) for v in node.operands])
            result = node.rebuilt(operands, node.regions)
            out.append(result)
            outside.update(zip(node.results, result.results, strict=True))
            if node in gathers:
                # Only chosen nodes leave the loop. Those that they need are computed twice, outside
                # and inside, unless nothing in the loop reads them: drop_dead removes the inner
                # ones then.
                self.became.update(zip(node.results, result.results, strict=True))
                self.gone.add(node)

    def repeated(self, loop: Node) -> list[Node]:
        """The loop-invariant nodes of a loop's body, in order."""
        body = loop.regions[1]
        # A carried value that the body returns as it is, is invariant.
        changing = {a for a, made in zip(body.args, body.results, strict=True) if a is not made}
        same: list[Node] = []
        for node in body.nodes:
            # A region that reads values of the loop's body cannot be moved with its operands alone.
            closed = not node.regions or not (node.op.control or free_variables(node))
            alike = closed and changing.isdisjoint(node.operands)
            alike = alike and is_pure(node, self.pure, collectives=True)
            # A loop may run zero times on some devices: hoisted, the collective would wait for
            # devices that never come. Inside it, only devices that iterate take part.
            alike = alike and (not node.op.collective or self.meets(node, loop))
            if alike and all(isinstance(t, TensorType) for t in node.types):
                same.append(node)
            else:
                changing.update(node.results)
        return same

    def meets(self, node: Node, loop: Node) -> bool:
        """Whether the whole group of a collective enters the loop together."""
        if self._varying is None:
            self._varying = varying(self.old)
        return self._varying.come_together(loop, node.op)

    def fitting(self, worth: list[Node], left: int) -> set[Node]:
        """The nodes that fit into the bytes left, by bytes sent per byte kept."""
        nodes: set[Node] = set()
        for node in sorted(worth, key=_saved, reverse=True):
            size = moved(*node.types)
            if size <= left:
                nodes.add(node)
                left -= size
        return nodes


def is_worth(node: Node) -> bool:
    """Whether a node is worth hoisting: it communicates, is expensive, or has a small result."""
    if node.op.collective:
        return True
    if node.regions or node.op.control:
        return False
    work = node.op.work(node.operand_types, node.types)
    # Little to keep for much that is read again in every iteration.
    small = 8 * moved(*node.types) <= moved(*node.operand_types)
    # Or bound by arithmetic rather than by memory; a transcendental counts as ten flops.
    return small or work.flops + 10 * work.transcendentals > 2 * work.bytes


def _saved(node: Node) -> float:
    """The bytes saved per iteration and byte kept; 0 without communication."""
    if not node.op.collective:
        return 0.0
    return max(moved(*node.operand_types), moved(*node.types)) / max(1, moved(*node.types))


def _needed(same: list[Node], nodes: set[Node]) -> list[Node]:
    """The chosen nodes and the invariant nodes that they depend on, in order."""
    wanted: set[Value] = set()
    needed: list[Node] = []
    for node in reversed(same):
        if node in nodes or not wanted.isdisjoint(node.results):
            needed.append(node)
            wanted.update(node.operands)
    return needed[::-1]
