"""Small windows as elementwise ops of slices, which fuse with their producers and readers."""

from __future__ import annotations

import itertools
import math

from weft.ir.module import Module, Node, Value, apply
from weft.ir.rebuild import Rewritten, rewrite
from weft.ir.rule import Combine
from weft.ir.types import F32, TensorType
from weft.ops.combiners import COMBINERS, combine_of, identity
from weft.ops.elementwise.convert import Convert
from weft.ops.shape import Constant
from weft.ops.slicing import Pad, Slice
from weft.ops.window import ReduceWindow, WindowDims

TAPS = 16  # the most elements of a window: each is a load of its own


def unroll_windows(module: Module) -> Module:
    """The module with small sums and maxima of windows as ops of slices."""
    return rewrite(module, _unrolled, kinds={ReduceWindow})


def _unrolled(node: Node) -> Rewritten:
    """reduce_window(x) -> f(f(pad(slice(x)), pad(slice(x))), ...), for small windows of one f."""
    op = node.op
    assert isinstance(op, ReduceWindow)
    if len(node.operands) != 2 or math.prod(op.window_dimensions) > TAPS:
        return None
    operand, out = node.operands[0].type, node.types[0]
    if not isinstance(operand, TensorType) or not isinstance(out, TensorType):
        return None
    if not operand.is_static or not out.size or operand.dtype is not out.dtype:
        return None
    window, how = op.window, combine_of(node.regions[0].body)
    if how not in ("add", "max", "min") or {*window.base_dilations} != {1}:
        return None
    init = node.operands[1]
    if not _is_identity(init, how):
        return None
    source, start = node.operands[0], init
    is_narrow = out.dtype.is_float and out.dtype.bits < 32
    if how == "add" and is_narrow:  # summed wide, and rounded once
        source = _converted(source, operand.with_dtype(F32), node)
        start = _converted(init, TensorType((), F32), node)
    taps = [_tap(at, window, operand, out) for at in itertools.product(*map(range, window.sizes))]
    reads = [_read(source, start, tap, node) for tap in taps if tap is not None]
    if len(reads) < len(taps):  # of pads alone
        return None
    total = reads[0]
    for one in reads[1:]:
        total = apply(COMBINERS[how], total, one, loc=node.loc).results[0]
    return (total if total.type is out else _converted(total, out, node),)


def _is_identity(value: Value, how: Combine) -> bool:
    """Whether an initial value changes nothing: others count once, and pads once each."""
    found, type = value.node, value.type
    if found is None or not isinstance(found.op, Constant) or not isinstance(type, TensorType):
        return False
    return bool((found.op.value.array == identity(how, type.dtype)).all())


def _converted(value: Value, type: TensorType, node: Node) -> Value:
    return apply(Convert(type), value, loc=node.loc).results[0]


def _tap(
    at: tuple[int, ...], window: WindowDims, operand: TensorType, out: TensorType
) -> tuple[Slice, Pad] | None:
    """The elements that one element of the window meets, and the pads around them."""
    starts, limits, low, high = (list[int]() for _ in range(4))
    for dim, (count, size) in enumerate(zip(out.sizes, operand.sizes, strict=True)):
        stride = window.strides[dim]
        begin = at[dim] * window.window_dilations[dim] - window.padding[dim][0]
        # The first and the last position at which this element of the window is inside of the
        # operand.
        # -(begin // stride) is -begin / stride rounded up: positions before it read padding.
        first, last = max(0, -(begin // stride)), min(count - 1, (size - 1 - begin) // stride)
        if first > last:
            return None
        starts.append(begin + first * stride)
        limits.append(begin + last * stride + 1)
        low.append(first)
        high.append(count - 1 - last)
    inside = (0,) * operand.rank
    return Slice(tuple(starts), tuple(limits), window.strides), Pad(tuple(low), tuple(high), inside)


def _read(source: Value, start: Value, tap: tuple[Slice, Pad], node: Node) -> Value:
    cut, pad = tap
    part = apply(cut, source, loc=node.loc).results[0]
    if not any((*pad.edge_padding_low, *pad.edge_padding_high)):
        return part
    return apply(pad, part, start, loc=node.loc).results[0]
