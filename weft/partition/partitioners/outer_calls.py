"""Custom calls and linear algebra: the truly independent factors, fewer than in Shardy's rules."""

from __future__ import annotations

from weft.ir.module import Node
from weft.ir.rule import Rule
from weft.ops.custom_calls.custom import CustomCall
from weft.partition.site import tensor
from weft.partition.strategy.factors import plain_factors

# Shardy propagates through the matrix dims of these, but the computation needs whole matrices.
_MATRICES = """
    Cholesky CompactWyHelper Eigh InvertDiagBlocksLowerTriangular InvertDiagBlocksUpperTriangular
""".split()


def call_factors(node: Node, rule: Rule) -> frozenset[int]:
    """The pass factors of the call's rule; of calls on matrices, batch dims only."""
    factors = plain_factors(node, rule)
    op = node.op
    assert isinstance(op, CustomCall)
    if op.known is not None or op.call_target_name not in _MATRICES:
        return factors
    batches = range(tensor(node.operands[0].type).rank - 2)
    return factors & {rule.operands[0][dim][0] for dim in batches}


def solve_factors(node: Node, rule: Rule) -> frozenset[int]:
    """Batch dims, and the independent right-hand sides of a triangular system."""
    matrix = {f for factors in rule.operands[0] for f in factors}
    alone = {f for factors in rule.operands[1] for f in factors} - matrix
    return plain_factors(node, rule) | alone
