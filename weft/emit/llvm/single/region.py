"""Scalar regions, inlined as vector code: combiners, comparators, selections."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.emit.llvm.math.pointwise import apply, refuses, unrounded
from weft.emit.llvm.writer import storage
from weft.emit.llvm.writer.storage import Held
from weft.emit.llvm.writer.vector import Vectors
from weft.ir.module import Region, Value
from weft.ir.types import Array, DType, TensorType
from weft.kernels.single_node import SingleNode
from weft.ops.combiners import BY_OP, IDEMPOTENT
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Add, Multiply
from weft.ops.shape import Constant


def inline(v: Vectors, region: Region, args: Sequence[Held]) -> list[Held]:
    """The results of a region on vectors, lane by lane.

    A region that is a single sum or product may keep excess precision: the fold is rounded at its
    end.
    """
    known = dict(zip(region.args, args, strict=True))
    return [_folded(v, value, region, known) for value in region.results]


def _folded(v: Vectors, value: Value, region: Region, known: dict[Value, Held]) -> Held:
    node = value.node
    if node is None or value in known or not isinstance(node.op, Add | Multiply):
        return evaluated(v, value, known)
    # Another reader would see the unrounded operand: only a fold's own chain may keep the excess
    # bits.
    if any(o not in region.args or _is_read_twice(o, region) for o in node.operands):
        return evaluated(v, value, known)
    given = [known[operand] for operand in node.operands]
    return unrounded(v, node.op, given, [dtype_of(o) for o in node.operands], dtype_of(value))


def _is_read_twice(value: Value, region: Region) -> bool:
    reads = [operand for node in region.nodes for operand in node.operands]
    return (*reads, *region.results).count(value) > 1


def evaluated(v: Vectors, value: Value, known: dict[Value, Held]) -> Held:
    """Evaluate a value of a region, memoized in `known`."""
    if value in known:
        return known[value]
    node = value.node
    assert node is not None, "a region reads its arguments, its nodes, and constants"
    dtype = dtype_of(value)
    if isinstance(node.op, Constant):
        result = storage.fill(v, node.op.value.array.reshape(-1)[0], dtype)
    else:
        args = [evaluated(v, operand, known) for operand in node.operands]
        result = apply(v, node.op, args, [dtype_of(o) for o in node.operands], dtype)
    known[value] = result
    return result


def refuses_region(region: Region) -> str | None:
    """Why a region cannot be vectorized, or None if it can."""
    seen, todo = {*region.args}, [*region.results]
    while todo:
        value = todo.pop()
        node = value.node
        if value in seen or node is None:
            continue
        seen.add(value)
        if isinstance(node.op, Constant):
            continue
        given = tuple([dtype_of(operand) for operand in node.operands])
        if reason := refuses(node.op, given, dtype_of(value)):
            return f"{node.op.name} in its region: {reason}"
        todo += node.operands
    return None


def is_neutral(kernel: SingleNode) -> bool:
    """Whether folding the initial values with themselves leaves them unchanged.

    They follow the inputs, one for each result. If they are dynamic, the fold must be idempotent.
    """
    count, region = len(kernel.outputs), kernel.regions[0]
    known = kernel.known[count:]
    if all(BY_OP.get(name) in IDEMPOTENT for name in region.body.combiners):
        return True
    if any(value is None for value in known):
        return False
    pairs = zip(known, kernel.outputs, strict=True)
    inits = [np.array(value).astype(out.dtype.numpy) for value, out in pairs]
    args = dict(zip(region.args, [*inits, *inits], strict=True))
    made = [on_arrays(value, args) for value in region.results]
    return all(np.array_equal(a, b) for a, b in zip(made, inits, strict=True))


def on_arrays(value: Value, known: dict[Value, Array]) -> Array:
    """A value of a region on arrays, by the references of its ops."""
    if value not in known:
        node = value.node
        assert node is not None, "a region reads its arguments, its nodes, and constants"
        with np.errstate(all="ignore"):
            made = node.op.reference(*[on_arrays(operand, known) for operand in node.operands])
        known[value] = np.asarray(made)
    return known[value]


def converted(v: Vectors, held: Held, dtype: DType, wanted: DType) -> Held:
    """A converted value."""
    if dtype is wanted:
        return held
    return apply(v, Convert(TensorType((), wanted)), [held], [dtype], wanted)


def dtype_of(value: Value) -> DType:
    """The element type of a value of a region."""
    assert isinstance(value.type, TensorType)
    return value.type.dtype
