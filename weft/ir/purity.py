"""Side effects: the nodes and functions that have none."""

from __future__ import annotations

from collections.abc import Collection

from weft.ir.module import Module, Node, Region, walk
from weft.ir.op import Op


def is_pure(node: Node, functions: Collection[str] = (), *, collectives: bool = False) -> bool:
    """Whether a node and its regions have no side effect; calls count as pure for these functions.

    A collective counts as an effect unless `collectives` is set: where every device runs the same
    program, all of them can drop the collective together.
    """
    if not node.op.pure or (node.op.collective and not collectives):
        return False
    callee = callee_of(node.op)
    if callee is not None and callee not in functions:
        return False
    return all(
        is_pure(inner, functions, collectives=collectives)
        for region in node.regions
        for inner in region.nodes
    )


def callee_of(op: Op) -> str | None:
    """The function that an op runs, if it is a call or a composite."""
    for field in ("callee", "decomposition"):
        name = getattr(op, field, None)
        if isinstance(name, str):
            return name
    return None


def pure_functions(module: Module, *, collectives: bool = False) -> set[str]:
    """The functions that have no effect and that others may call; their calls are looked into."""
    if len(module.functions) == 1:
        return set()
    calls = {name: _calls(f.body, collectives, {}) for name, f in module.functions.items()}
    pure = {name for name, found in calls.items() if found is not None}
    while True:
        # From above: functions that only call each other stay pure.
        kept = {name for name in pure if pure.issuperset(calls[name] or ())}
        if kept == pure:
            return pure
        pure = kept


def _calls(region: Region, collectives: bool, known: dict[Op, str | None]) -> set[str] | None:
    """The functions that a region runs; None if a node of it has an effect of its own."""
    names: set[str] = set()
    for node in walk(region):
        op = node.op
        if op not in known:
            if not op.pure or (op.collective and not collectives):
                return None
            known[op] = callee_of(op)
        name = known[op]
        if name is not None:
            names.add(name)
    return names
