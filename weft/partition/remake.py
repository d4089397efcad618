"""Rematerialization in another split: of cheap nodes on replicated operands."""

from __future__ import annotations

from weft.ir.module import Node
from weft.mesh.algebra import DimAxes
from weft.ops.distributed.sharding import ShardyConstant
from weft.ops.shape import Constant, Iota
from weft.partition.context import Context
from weft.partition.node_strategies import own_rules
from weft.partition.partitioners import PARTITIONERS
from weft.partition.piece import Piece
from weft.partition.site import NodeSite
from weft.partition.strategy.choose import ShardingProblem
from weft.partition.strategy.factors import project, split_by_factors

_NULLARY_OPS = (Constant, ShardyConstant, Iota)


def is_remade(node: Node, problem: ShardingProblem) -> bool:
    """Whether a node can be recomputed in any split: it is cheap and its operands replicated."""
    if isinstance(node.op, _NULLARY_OPS):
        return True
    rule = problem.rule
    if node.regions or type(node.op) in PARTITIONERS or len(node.results) != 1:
        return False
    made = {f for factors in rule.results[0] for f in factors}
    if any(
        f not in problem.free or f not in made for f, x in enumerate(rule.factors) if x.size > 1
    ):
        return False
    return all(
        any(not any(s) and not unreduced for s, unreduced in given) for given in problem.given
    )


def recomputed_in_split(context: Context, node: Node, split: DimAxes) -> Piece | None:
    """The result of a node recomputed in that split; None if it cannot be split so."""
    (rule,) = own_rules(node, ())
    axes = project(split, rule.results[0], rule, context.mesh)
    by_factor = tuple([axes.get(n, ()) for n in range(len(rule.factors))])
    splits = [split_by_factors(by_factor, dims, rule, context.mesh) for dims in rule.operands]
    if None in splits or split_by_factors(by_factor, rule.results[0], rule, context.mesh) != split:
        return None
    site = NodeSite(context, node, rule, by_factor, (split,), None)
    site.operands = [
        context.fetch(v, s) for v, s in zip(node.operands, splits, strict=True) if s is not None
    ]
    way = PARTITIONERS.get(type(node.op))
    (piece,) = way.emit(site) if way is not None else site.plain()
    return piece
