"""Algebraic simplification: identities vanish, and chains of data movement become one op."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.gc_pause import without_gc
from weft.ir.module import Module, Node, Region, Value
from weft.ir.op import Op
from weft.ir.rebuild import NodeRule, Rebuild, Rewritten
from weft.ops.control import Case, If
from weft.optimize.drop_dead import drop_dead
from weft.optimize.simplification import (
    arithmetic_rules,
    complex_rules,
    index_rules,
    interleave_rules,
    one_hot_sums,
    ragged_rules,
    shape_rules,
)
from weft.optimize.simplification.empty_rules import makes_nothing, without_elements
from weft.optimize.simplification.fold_constants import begins_known, folded
from weft.optimize.simplification.splats import splat_of

_TABLES = (
    arithmetic_rules.RULES,
    interleave_rules.RULES,
    shape_rules.RULES,
    one_hot_sums.RULES,
    index_rules.RULES,
    ragged_rules.RULES,
    complex_rules.RULES,
)
TABLE: Mapping[type[Op], tuple[NodeRule, ...]] = {
    kind: tuple([rule for table in _TABLES for rule in table.get(kind, ())])
    for kind in dict.fromkeys([kind for table in _TABLES for kind in table])
}


def simplify(module: Module) -> Module:
    """Apply every exact rule, operands first, and remove dead nodes.

    Constants are folded along the way: folding and rules enable each other.
    """
    with without_gc():
        after = _Simplifying(module, (without_elements, simplified, folded), kinds=TABLE).module()
        return module if after is module else drop_dead(after)


def simplified(node: Node) -> Rewritten:
    """The outcome of the first rule that applies; annotated nodes stay."""
    rules = TABLE.get(type(node.op))
    if rules is None or node.attrs:
        return None
    for rule in rules:
        changed = rule(node)
        if changed is not None:
            return changed
    return None


class _Simplifying(Rebuild):
    """A rebuild that replaces control flow with a constant predicate by its branch."""

    def is_offered(self, node: Node) -> bool:
        return type(node.op) in TABLE or begins_known(node) or makes_nothing(node)

    def node(self, node: Node, out: list[Node]) -> None:
        if node.regions and not node.attrs and isinstance(node.op, If | Case):
            first = self.became.get(node.operands[0], node.operands[0])
            branch = taken_branch(node, first)
            if branch is not None:
                for inner in branch.nodes:
                    self.node(inner, out)
                for before, after in zip(node.results, branch.results, strict=True):
                    self.became[before] = self.became.get(after, after)
                return
        super().node(node, out)


def taken_branch(node: Node, choice: Value) -> Region | None:
    """The taken branch, if the predicate is constant or all branches return the same values."""
    first = node.regions[0]
    if all(not r.nodes and r.results == first.results for r in node.regions):
        return first
    predicate = splat_of(choice)
    if predicate is None:
        return None
    if isinstance(node.op, If):
        return node.regions[0 if predicate else 1]
    last = len(node.regions) - 1
    return node.regions[int(predicate) if 0 <= int(predicate) <= last else last]
