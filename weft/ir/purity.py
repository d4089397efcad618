"""Which nodes have no effect but their results."""

from __future__ import annotations

from collections.abc import Collection

from weft.ir.module import Module, Node, walk


def is_pure(node: Node, functions: Collection[str] = ()) -> bool:
    """Whether a node has no effect, its regions included; calls only of these functions."""
    if not node.op.pure or node.op.collective:
        return False
    callee = getattr(node.op, "callee", None) or getattr(node.op, "decomposition", None)
    if callee is not None and callee not in functions:
        return False
    return all(is_pure(inner, functions) for region in node.regions for inner in region.nodes)


def pure_functions(module: Module) -> set[str]:
    """The functions that have no effect, calls among them included; collectives count as one."""
    pure = set(module.functions)
    while True:
        kept = {
            name
            for name in pure
            if all(is_pure(node, pure) for node in walk(module.functions[name].body))
        }
        if kept == pure:
            return pure
        pure = kept
