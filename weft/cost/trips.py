"""Static trip counts of while loops."""

from __future__ import annotations

from weft.ir.dense import Dense
from weft.ir.module import Node, Value
from weft.ir.types import TensorType
from weft.ops.control import While
from weft.ops.distributed.sharding import ShardyConstant
from weft.ops.elementwise.pointwise import Add, Compare
from weft.ops.shape import Constant


def trips(loop: Node) -> int | None:
    """The trip count of `while i < n: ...; i += step` with constants; None for other loops."""
    assert isinstance(loop.op, While), loop.op
    condition, body = loop.regions
    test = condition.results[0].node
    if test is None or not isinstance(test.op, Compare):
        return None
    (counter, limit), how = test.operands, test.op.comparison_direction
    if counter not in condition.args or how not in ("LT", "LE", "NE"):
        return None
    index = condition.args.index(counter)
    first, last = _constant(loop.operands[index]), _outer_constant(limit, condition.args, loop)
    step = _step(body.args[index], body.results[index])
    if first is None or last is None or step is None or step <= 0:
        return None
    if how == "LE":
        last += 1
    # Rounded up: the iteration that steps past the limit still runs.
    count = max(0, -(-(last - first) // step))
    end = first + count * step
    # A counter that steps over an NE limit, or leaves the range of its type, wraps around.
    assert isinstance(counter.type, TensorType), counter.type
    wraps = (how == "NE" and end != last) or end > counter.type.dtype.limits[1]
    return None if wraps else count


def _outer_constant(value: Value, args: tuple[Value, ...], loop: Node) -> int | None:
    """A constant, or a loop-invariant carried value that is a constant on entry."""
    if value not in args:
        return _constant(value)
    index = args.index(value)
    body = loop.regions[1]
    return _constant(loop.operands[index]) if body.results[index] is body.args[index] else None


def _step(counter: Value, after: Value) -> int | None:
    """The constant increment of the counter."""
    node = after.node
    if node is None or not isinstance(node.op, Add) or counter not in node.operands:
        return None
    return _constant(node.operands[1 if node.operands[0] is counter else 0])


def _constant(value: Value) -> int | None:
    node = value.node
    if node is None or not isinstance(node.op, Constant | ShardyConstant):
        return None
    held: Dense = node.op.value
    if held.type.shape or not held.type.dtype.is_integer:
        return None
    return int(held.array)
