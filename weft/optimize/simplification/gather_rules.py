"""Rules on gathers."""

from __future__ import annotations

import numpy as np

from weft.ir.module import Node, apply, tensor_of
from weft.ir.op import Op
from weft.ir.rebuild import NodeRule, Rewritten
from weft.ops.index import Gather
from weft.ops.shape import Constant, Reshape


def gather_all(node: Node) -> Rewritten:
    """gather(x, [0, 1, 2, ..]) -> reshape(x), when x is a vector and every element is taken once.

    PyTorch decomposes group norms into such gathers.
    """
    assert isinstance(node.op, Gather)
    operand, indices = (tensor_of(v) for v in node.operands)
    places, out = node.operands[1].node, tensor_of(node.results[0])
    if operand.rank != 1 or not operand.is_static or not indices.is_static:
        return None
    if out.size != operand.size or places is None or not isinstance(places.op, Constant):
        return None
    if node.op.dimension_numbers.collapsed_slice_dims != (0,) or node.op.slice_sizes != (1,):
        return None
    held = places.op.value
    if held.is_splat or not np.array_equal(held.array.ravel(), np.arange(operand.size)):
        return None
    return apply(Reshape(out), node.operands[0], loc=node.loc)


RULES: dict[type[Op], tuple[NodeRule, ...]] = {Gather: (gather_all,)}
