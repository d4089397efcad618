"""Dead code elimination as in MLIR between Shardy's passes."""

from __future__ import annotations

from weft.ir.module import Module, Node, Region, Value
from weft.ir.purity import is_pure
from weft.ir.rebuild import without
from weft.ir.types import TensorType
from weft.ops.control import AsyncDone, Call, Case, OptimizationBarrier, TokenOp, While
from weft.ops.custom_calls.custom import CustomCall
from weft.ops.distributed.sharding import (
    Annotation,
    Computation,
    PropagationBarrier,
    Reshard,
    ShardingConstraint,
)

_FLOWING = (While, Case, OptimizationBarrier, Computation, Call)


def drop_dead(module: Module, *, flowing: bool = False) -> Module:
    """Remove nodes without effects and uses; calls stay, and control flow if `flowing`."""
    return without(module, dead_nodes(module, flowing=flowing))


def dead_nodes(module: Module, *, flowing: bool = False) -> set[Node]:
    """The nodes that `drop_dead` removes."""
    dead: set[Node] = set()
    for function in module.functions.values():
        _mark(function.body, set(), flowing, dead)
    return dead


def _mark(region: Region, live: set[Value], flowing: bool, dead: set[Node]) -> None:
    live.update(region.results)
    for node in reversed(region.nodes):
        if live.isdisjoint(node.results) and _is_droppable(node, flowing):
            dead.add(node)
            continue
        live.update(node.operands)
        for inner in node.regions:
            _mark(inner, live, flowing, dead)


def _is_droppable(node: Node, flowing: bool) -> bool:
    op = node.op
    if flowing and isinstance(op, _FLOWING) and any(isinstance(t, TensorType) for t in node.types):
        return False
    match op:
        case CustomCall(has_side_effect=has_effect):
            return not has_effect
        case Reshard() | PropagationBarrier() | TokenOp():
            return True
        case ShardingConstraint():
            return not flowing
        case Annotation() | AsyncDone():
            return False
    if not node.regions:
        return is_pure(node)
    if not op.pure or op.collective:
        return False
    return all(_is_droppable(inner, flowing) for r in node.regions for inner in r.nodes)
