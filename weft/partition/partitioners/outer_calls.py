"""Custom calls and matrices: which factors are truly independent, whatever Shardy's rules say."""

from __future__ import annotations

from weft.ir.module import Node
from weft.ir.rule import Rule
from weft.ops.custom_calls.custom import CustomCall
from weft.partition.site import tensor
from weft.partition.strategy.factors import plain_factors

# Shardy lets shardings pass through the matrices of these, but what they compute needs all of them.
_MATRICES = """
    Cholesky CompactWyHelper Eigh InvertDiagBlocksLowerTriangular InvertDiagBlocksUpperTriangular
""".split()


def call_factors(node: Node, rule: Rule) -> frozenset[int]:
    """What the rule of the call lets pass; of calls on matrices, batches only."""
    found = plain_factors(node, rule)
    op = node.op
    assert isinstance(op, CustomCall)
    if op.known is not None or op.call_target_name not in _MATRICES:
        return found
    batches = range(tensor(node.operands[0].type).rank - 2)
    return found & {rule.operands[0][dim][0] for dim in batches}


def solve_factors(node: Node, rule: Rule) -> frozenset[int]:
    """Batches, and the right-hand sides of a triangular system, each of which is solved alone."""
    matrix = {f for factors in rule.operands[0] for f in factors}
    alone = {f for factors in rule.operands[1] for f in factors} - matrix
    return plain_factors(node, rule) | alone
