"""Dead code elimination: of nodes, and of results of control flow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from weft.ir.gc_pause import without_gc
from weft.ir.module import Module, Node, Region, Value
from weft.ir.op import Op
from weft.ir.purity import is_pure, pure_functions
from weft.ir.rebuild import Rebuild
from weft.ops.control import Case, If, While

T = TypeVar("T")


def drop_dead(module: Module) -> Module:
    """Remove every node without side effect or uses, collectives included.

    Dead carried values of loops and dead results of branches are removed, too: the node is rebuilt
    with the live ones.
    """
    with without_gc():
        marking = _Marking(module)
        if not marking.any_dead(module):
            return module
        return _Sweep(module, marking).module()


class _Marking:
    """Liveness: a backward walk along uses from nodes with effects and returned values."""

    def __init__(self, module: Module) -> None:
        self.pure = pure_functions(module, collectives=True)
        self.nodes: set[Node] = set()
        self.values: set[Value] = set()
        self.loops: dict[Value, Node] = {}  # the arguments of loops' regions
        self._waiting: list[Value] = []
        self._by_op: dict[Op, bool] = {}
        for function in module.functions.values():
            self._find(function.body, ())
        for function in module.functions.values():
            self._waiting.extend(function.body.results)
        self._follow()

    def any_dead(self, module: Module) -> bool:
        """Whether anything is dead."""
        return any(node not in self.nodes or self.partly(node) for node in module.nodes())

    def partly(self, node: Node) -> bool:
        """Whether a node of control flow has dead results."""
        if not node.regions or not isinstance(node.op, While | If | Case):
            return False
        return not self.values.issuperset(node.results)

    def live_results(self, node: Node) -> list[int]:
        """The live results of a node of control flow."""
        return [n for n, value in enumerate(node.results) if value in self.values]

    def _find(self, region: Region, around: tuple[Node, ...]) -> None:
        """Collect the loops, and mark nodes with effects and the nodes around them."""
        known = self._by_op
        for node in region.nodes:
            if not node.regions:
                pure = known.get(node.op)
                if pure is None:
                    pure = known[node.op] = is_pure(node, self.pure, collectives=True)
                if not pure:
                    self._mark((*around, node))
                continue
            if isinstance(node.op, While):
                for inner in node.regions:
                    self.loops.update(dict.fromkeys(inner.args, node))
            if not node.op.pure:
                self._mark((*around, node))
            for inner in node.regions:
                self._find(inner, (*around, node))

    def _mark(self, nodes: Iterable[Node]) -> None:
        for node in nodes:
            if node not in self.nodes:
                self._live(node)

    def _live(self, node: Node) -> None:
        """Mark a node, and the operands that are live whichever results are."""
        self.nodes.add(node)
        waiting = self._waiting
        if not node.regions:
            waiting += node.operands
            return
        match node.op:
            case While():
                # A loop that is live for one result runs as often as its predicate says: all that
                # the predicate needs is live.
                waiting.extend(node.regions[0].results)
            case If() | Case():
                waiting.extend(node.operands)
            case _:
                waiting.extend(node.operands)
                for region in node.regions:
                    waiting.extend(region.results)

    def _follow(self) -> None:
        waiting, values, nodes = self._waiting, self.values, self.nodes
        while waiting:
            value = waiting.pop()
            if value in values:
                continue
            values.add(value)
            node = value.node
            if node is None:
                if (loop := self.loops.get(value)) is not None:
                    self._carried(loop, value.index)
                continue
            if node not in nodes:
                self._live(node)
            if not node.regions:
                continue
            match node.op:
                case While():
                    self._carried(node, value.index)
                case If() | Case():
                    waiting.extend([region.results[value.index] for region in node.regions])

    def _carried(self, loop: Node, index: int) -> None:
        """Mark one carried value: its initial value, and the body's result for it."""
        condition, body = loop.regions
        self._waiting += (
            loop.results[index],
            loop.operands[index],
            condition.args[index],
            body.args[index],
            body.results[index],
        )


class _Sweep(Rebuild):
    """Rebuilds the module without dead nodes and results."""

    def __init__(self, module: Module, marking: _Marking) -> None:
        dead = {node for node in module.nodes() if node not in marking.nodes}
        super().__init__(module, (), dead)
        self.marking = marking

    def node(self, node: Node, out: list[Node]) -> None:
        if not node.regions and not self.became:  # its operands are unchanged
            out.append(node)
            return
        if not self.marking.partly(node):
            super().node(node, out)
            return
        live = self.marking.live_results(node)
        regions = tuple([self.narrowed(node, r, live) for r in node.regions])
        operands = node.operands
        if isinstance(node.op, While):
            operands = tuple(items_at(operands, live))
        operands = tuple([self.became.get(v, v) for v in operands])
        types = tuple(items_at(node.types, live))
        narrow = Node(node.op, operands, types, regions, node.attrs, node.loc)
        for before, after in zip(live, narrow.results, strict=True):
            self.became[node.results[before]] = after
        out.append(narrow)

    def narrowed(self, node: Node, region: Region, live: list[int]) -> Region:
        """A region of control flow with fewer results, and of a loop with fewer arguments."""
        args, locs = region.args, region.arg_locs
        if isinstance(node.op, While):
            args = tuple([Value(region.args[n].type, None, at) for at, n in enumerate(live)])
            self.became.update(zip(items_at(region.args, live), args, strict=True))
            locs = tuple(items_at(region.arg_locs, live))
        results = region.results
        # The condition's only result is the predicate, which no carried value corresponds to.
        if not (isinstance(node.op, While) and region is node.regions[0]):
            results = tuple(items_at(results, live))
        return self.region(Region(args, region.nodes, results, region.loc, locs))


def items_at(items: Sequence[T], indices: list[int]) -> list[T]:
    """The items at these indices."""
    return [items[n] for n in indices]
