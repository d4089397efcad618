"""Algebraic cleanup: what computes nothing goes, and chains of moves become one move."""

from __future__ import annotations

from collections.abc import Mapping

from weft.ir.memory import without_gc
from weft.ir.module import Module, Node
from weft.ir.op import Op
from weft.ir.rebuild import NodeRule, Rewritten, rewrite
from weft.optimize import arithmetic_rules, shape_rules
from weft.optimize.drop_dead import drop_dead

TABLE: Mapping[type[Op], tuple[NodeRule, ...]] = {
    **arithmetic_rules.RULES,
    **shape_rules.RULES,
}


def simplify(module: Module) -> Module:
    """Apply every exact rule, operands first, and drop what nothing reads then."""
    with without_gc():
        after = rewrite(module, simplified, kinds=TABLE)
        return module if after is module else drop_dead(after)


def simplified(node: Node) -> Rewritten:
    """What the first rule that wants the node makes of it; what is annotated stays."""
    rules = TABLE.get(type(node.op))
    if rules is None or node.attrs:
        return None
    for rule in rules:
        changed = rule(node)
        if changed is not None:
            return changed
    return None
