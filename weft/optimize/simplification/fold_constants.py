"""Constant folding within limits; splats stay splats."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.errors import WeftError
from weft.ir.dense import Dense
from weft.ir.gc_pause import without_gc
from weft.ir.module import Module, Node, apply
from weft.ir.op import Op
from weft.ir.rebuild import Rebuild, Rewritten
from weft.ir.types import Array, TensorType
from weft.ops.control import OptimizationBarrier
from weft.ops.distributed.local import AllSlice
from weft.ops.distributed.sharding import Annotation, ShardyConstant
from weft.ops.random import RngBitGenerator
from weft.ops.shape import (
    Broadcast,
    BroadcastInDim,
    Constant,
    Iota,
    Reshape,
    Reverse,
    Transpose,
)
from weft.ops.slicing import Concatenate, DynamicSlice, DynamicUpdateSlice, Pad, Slice
from weft.optimize.drop_dead import drop_dead

MOST_ELEMENTS = 1024  # the most elements of a result that is not a splat
MOST_WORK = 1 << 20  # the most flops and bytes of one node
_KNOWN = (Constant, Iota)
_NEVER = (Constant, Iota, OptimizationBarrier, RngBitGenerator, Annotation, ShardyConstant)
# Data movement ops, with the operands that must be one splat for the result to be that splat.
_MOVES: Mapping[type[Op], slice] = {
    Reshape: slice(None),
    Transpose: slice(None),
    BroadcastInDim: slice(None),
    Broadcast: slice(None),
    Reverse: slice(None),
    Slice: slice(None),
    Concatenate: slice(None),
    Pad: slice(None),
    DynamicSlice: slice(1),
    DynamicUpdateSlice: slice(2),
    AllSlice: slice(None),
}


def fold_constants(
    module: Module, *, most_elements: int = MOST_ELEMENTS, most_work: int = MOST_WORK
) -> Module:
    """Replace every node on constants by its result, unless it is large or expensive.

    Device ids, collectives and random numbers are never folded.
    """

    def rule(node: Node) -> Rewritten:
        return folded(node, most_elements, most_work)

    with without_gc():
        after = _Folding(module, (rule,)).module()
        return module if after is module else drop_dead(after)


class _Folding(Rebuild):
    """A rebuild that offers only nodes whose first operand is constant."""

    def is_offered(self, node: Node) -> bool:
        return begins_known(node)


def begins_known(node: Node) -> bool:
    """Whether the first operand is constant, without which nothing can be folded."""
    first = node.operands[0].node if node.operands else None
    return first is not None and isinstance(first.op, _KNOWN)


def folded(node: Node, most_elements: int = MOST_ELEMENTS, most_work: int = MOST_WORK) -> Rewritten:
    """f(constants) -> a constant, when f is pure and small enough."""
    op = node.op
    if not begins_known(node) or node.attrs or node.regions or isinstance(op, _NEVER):
        return None
    moves = _MOVES.get(type(op))
    # References of control ops are generators that need an interpreter: of these, only those that
    # move data are folded.
    if not op.pure or op.collective or (op.control and moves is None):
        return None
    if moves is not None and (same := _common(node, moves)) is not None:
        return _constant(same, node)
    values = [_constant_of(v.node, most_elements) for v in node.operands]
    known = [v for v in values if v is not None]
    if len(known) < len(values) or op.control or not all(map(_is_static, node.types)):
        return None
    if op.elementwise and all(v.is_splat for v in known) and len(node.results) == 1:
        arrays = [v.elements.reshape(()) for v in known]
        return _constant(_result(op, arrays), node)
    if any(t.size > most_elements for t in node.types if isinstance(t, TensorType)):
        return None
    work = op.work(node.operand_types, node.types)
    if work.flops + work.transcendentals + work.bytes > most_work:
        return None
    return _computed(node, [v.array for v in known])


def _is_static(type: object) -> bool:
    return isinstance(type, TensorType) and type.is_static


def _constant_of(node: Node | None, most_elements: int) -> Dense | None:
    """The value of a constant, or of a short iota."""
    match node:
        case Node(op=Constant(value=value)):
            return value
        # A longer one costs nothing in the kernel that reads it, but its constant would be memory.
        case Node(op=Iota(out=out) as op) if out.is_static and out.size <= min(most_elements, 64):
            return Dense(op.reference())
    return None


def _common(node: Node, which: slice) -> Array | None:
    """The common splat element of these operands, compared bitwise."""
    bits: bytes | None = None
    element: Array | None = None
    for value in node.operands[which]:
        constant = value.node
        if (
            constant is None
            or not isinstance(constant.op, Constant)
            or not constant.op.value.is_splat
        ):
            return None
        element = constant.op.value.elements
        if bits is not None and element.tobytes() != bits:
            return None
        bits = element.tobytes()
    return element


def _constant(element: Array | None, node: Node) -> Rewritten:
    """A splat in place of a node."""
    (out,) = node.types
    if element is None or not isinstance(out, TensorType) or not out.is_static:
        return None
    return apply(Constant(Dense(np.asarray(element).reshape(-1), out)), loc=node.loc)


def _result(op: Op, arrays: list[Array]) -> Array | None:
    """The reference's result; None where it raises, so that the error comes at run time."""
    try:
        with np.errstate(all="ignore"):
            return np.asarray(op.reference(*arrays))
    except WeftError:
        return None


def _computed(node: Node, arrays: list[Array]) -> Rewritten:
    """The results of a node, as constants."""
    try:
        with np.errstate(all="ignore"):
            made = node.op.reference(*arrays)
    except WeftError:
        return None
    results = made if isinstance(made, tuple) else (made,)
    nodes = [
        apply(Constant(Dense(np.asarray(array), type)), loc=node.loc)
        for array, type in zip(results, node.types, strict=True)
        if isinstance(type, TensorType)
    ]
    return nodes[0] if len(nodes) == 1 else tuple([n.results[0] for n in nodes])
