"""Ops whose results at other sizes do not follow from their rule: constants, slices, attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

from weft.capture.torch.sizes.extents import (
    Extent,
    Extents,
    fit,
    fixed,
    of_node,
    size_of,
    varies,
)
from weft.capture.torch.sizes.instance import Instantiation, NumberOf, SpecialOp, ValueExtents
from weft.ir.dense import Dense
from weft.ir.module import Node, Value, tensor_of
from weft.ir.op import Op
from weft.ops.attention import Attention
from weft.ops.convolution import Convolution
from weft.ops.elementwise.pointwise import And
from weft.ops.shape import BroadcastInDim, Constant, Iota
from weft.ops.slicing import Concatenate, DynamicSlice, Pad, Slice

OpT = TypeVar("OpT", bound=Op)


def _ops(kind: type[OpT], node: Node, twins: Sequence[Node]) -> list[OpT]:
    """The op in every capture."""
    return [each.op for each in (node, *twins) if isinstance(each.op, kind)]


def _only(extents: Extents, node: Node) -> Extent:
    """The extent of a dim that no other is merged into."""
    if len(extents) != 1:
        raise of_node("takes a dim apart whose size varies", node)
    return extents[0]


# Values that depend on no other


def constant(walk: Instantiation, node: Node, twins: Sequence[Node]) -> None:
    """A constant; a number that depends on the sizes is computed from those of the call."""
    values = [op.value for op in _ops(Constant, node, twins)]
    dims = walk.created(node, twins)
    type = walk.type_at(values[0].type, dims)
    if all(value is values[0] for value in values):
        walk.emit(node, node.op, (), [dims])
        return
    if not all(value.is_splat for value in values):
        raise of_node("has elements that depend on the size", node)
    elements = [value.elements[0] for value in values]
    if len({element.tobytes() for element in elements}) == 1:
        walk.emit(node, Constant(Dense(elements[0].reshape(()), type)), (), [dims])
        return
    made = _number(walk, elements, node)
    walk.place(node.results[0], walk.build.spread(made, type.sizes, ()), dims)


# Numbers by a whole number of the sizes, and the whole number of each.
_WAYS: dict[NumberOf, tuple[Callable[[float], float], Callable[[int], float]]] = {
    "plain": (lambda number: number, lambda whole: whole),
    "inverse": (lambda number: 1 / number, lambda whole: 1 / whole),
    "unbiased": (lambda number: number / (number - 1), lambda whole: whole / (whole - 1)),
}


def _number(walk: Instantiation, elements: Sequence[np.generic], node: Node) -> Value:
    """A number that is a function of the sizes: of a product of linear ones."""
    dtype = tensor_of(node.results[0]).dtype
    if dtype.is_complex or dtype.kind == "bool":
        raise of_node("depends on the size", node)
    numbers = [float(element) for element in elements]
    for way, (whole_of, number_of) in _WAYS.items():
        try:
            # Rounded, as f32 has 1 / n only nearly; `again` shows that n gives the very same
            # element.
            whole = [round(whole_of(number)) for number in numbers]
            again = [number_of(each) for each in whole]
        except (ZeroDivisionError, OverflowError, ValueError):  # 0, infinity and NaN
            continue
        if np.array_equal(np.asarray(again).astype(dtype.numpy), np.asarray(elements)):
            found = fit(whole, walk.probes)
            if found is not None:
                return walk.scalar(found, dtype, way)
    raise of_node("is a number that depends on the size in an unknown way", node)


def iota(walk: Instantiation, node: Node, twins: Sequence[Node]) -> None:
    """Indices: those of a shorter dim are the first ones."""
    if len({op.iota_dimension for op in _ops(Iota, node, twins)}) != 1:
        raise of_node("depends on the size", node)
    dims = [walk.created(node, twins)]
    walk.emit(node, walk.op_at(node, twins, dims), (), dims)


def broadcast(walk: Instantiation, node: Node, twins: Sequence[Node]) -> None:
    """A value repeated along dims whose sizes may vary."""
    ops = _ops(BroadcastInDim, node, twins)
    places = ops[0].broadcast_dimensions
    if any(op.broadcast_dimensions != places for op in ops):
        raise of_node("depends on the size", node)
    (operand,) = node.operands
    out_dims = [*walk.created(node, twins)]
    for source, extents in enumerate(walk.dims(operand)):
        if varies(extents):
            out_dims[places[source]] = extents
    dims = [tuple(out_dims)]
    walk.emit(node, walk.op_at(node, twins, dims), (walk.values[operand],), dims)


# Parts of values


def cut(walk: Instantiation, node: Node, twins: Sequence[Node]) -> None:
    """A slice; one that begins at an index that depends on the size is a dynamic one."""
    ops, (operand,) = _ops(Slice, node, twins), node.operands
    sizes = [tensor_of(each.operands[0]).sizes for each in (node, *twins)]
    starts: list[Extents] = []
    dims: list[Extents] = []
    for dim, extents in enumerate(walk.dims(operand)):
        start = fit([op.start_indices[dim] for op in ops], walk.probes)
        limit = fit([op.limit_indices[dim] for op in ops], walk.probes)
        strides = {op.strides[dim] for op in ops}
        is_whole = all(
            (op.start_indices[dim], op.limit_indices[dim], op.strides[dim]) == (0, size[dim], 1)
            for op, size in zip(ops, sizes, strict=True)
        )
        if is_whole:
            starts.append((fixed(0),))
            dims.append(extents)
            continue
        if start is None or limit is None or len(start) > 1 or len(limit) > 1:
            raise of_node("depends on the size", node)
        starts.append(start)
        if strides == {1}:
            dims.append((_length(walk, node, start[0], limit[0], extents),))
        elif varies(start) or varies(limit) or varies(extents) or len(strides) > 1:
            raise of_node("takes every second element of a dim whose size varies", node)
        else:
            length = -((start[0].offset - limit[0].offset) // ops[0].strides[dim])
            dims.append((fixed(length),))
    _emit_slice(walk, node, starts, dims, ops[0].strides)


def _length(
    walk: Instantiation, node: Node, start: Extent, limit: Extent, extents: Extents
) -> Extent:
    """The length of a slice, which must lie before the end of what it is of."""
    of = _only(extents, node)
    if start.symbol is not None:
        is_fixed = (limit.symbol, limit.scale) == (start.symbol, start.scale)
        if not is_fixed or of.symbol not in (None, start.symbol) or start.at(walk.smallest) < 0:
            raise of_node("begins and ends at other places for other sizes", node)
        return fixed(limit.offset - start.offset)
    ends = of.symbol is None or (
        limit.at(walk.smallest) <= of.at(walk.smallest)
        and (limit.symbol is None or (limit.symbol, limit.scale) == (of.symbol, of.scale))
    )
    if not ends or limit.at(walk.smallest) < start.offset:
        raise of_node("reads behind the end of a dim whose size varies", node)
    return limit.plus(-start.offset)


def _emit_slice(
    walk: Instantiation,
    node: Node,
    starts: Sequence[Extents],
    dims: Sequence[Extents],
    strides: tuple[int, ...],
) -> None:
    source = walk.values[node.operands[0]]
    sizes = [size_of(dim, walk.bucket) for dim in dims]
    begins = [start[0].offset for start in starts]
    if not any(map(varies, starts)):
        # A stride of a fixed dim keeps its own limit.
        pairs = zip(begins, sizes, strides, strict=True)
        ends = tuple([b + max(0, (n - 1) * step + 1) if n else b for b, n, step in pairs])
        walk.emit(node, Slice(tuple(begins), ends, strides), (source,), [tuple(dims)])
        return
    if any(stride != 1 for stride in strides):
        raise of_node("takes every second element, from a place that depends on the size", node)
    places = [walk.number(start[0]) for start in starts]
    walk.emit(node, DynamicSlice(tuple(sizes)), (source, *places), [tuple(dims)])


def pad(walk: Instantiation, node: Node, twins: Sequence[Node]) -> None:
    """Padding, at the end of what is there: elements behind it are the padding value."""
    op = _same_op(Pad, node, twins)
    operand, fill = node.operands
    value, fill_value = walk.values[operand], walk.values[fill]
    dims: list[Extents] = []
    amounts = zip(op.edge_padding_low, op.edge_padding_high, op.interior_padding, strict=True)
    for dim, (extents, (low, high, inner)) in enumerate(
        zip(walk.dims(operand), amounts, strict=True)
    ):
        if not (low or high or inner):
            dims.append(extents)
            continue
        of = _only(extents, node)
        if of.symbol is None:
            dims.append((fixed(low + of.offset + max(of.offset - 1, 0) * inner + high),))
            continue
        if inner or of.at(walk.smallest) + low + high < 0:
            raise of_node("has elements between those of a dim whose size varies", node)
        if high > 0:
            value = walk.masked(value, walk.dims(operand), (dim,), fill_value)
        dims.append((of.plus(low + high),))
    walk.emit(node, op, (value, fill_value), [tuple(dims)])


def concatenate(walk: Instantiation, node: Node, twins: Sequence[Node]) -> None:
    """Values one after another, of which the last alone may have a size that varies."""
    along = _same_op(Concatenate, node, twins).dimension
    pieces = [walk.dims(value) for value in node.operands]
    dims = [*pieces[0]]
    for dim, extents in enumerate(dims):
        if dim != along and any(piece[dim] != extents for piece in pieces):
            raise of_node("has operands of other sizes along a dim that varies", node)
    before = [piece[along] for piece in pieces[:-1]]
    if any(map(varies, before)):
        raise of_node("puts elements behind the end of a dim whose size varies", node)
    last = pieces[-1][along]
    if before and varies(last):
        length = sum([size_of(each, walk.bucket) for each in before])
        dims[along] = (_only(last, node).plus(length),)
    else:
        dims[along] = (fixed(sum([size_of(piece[along], walk.bucket) for piece in pieces])),)
    dims[along] = last if len(pieces) == 1 else dims[along]
    walk.emit(node, node.op, [walk.values[value] for value in node.operands], [tuple(dims)])


def _same_op(kind: type[OpT], node: Node, twins: Sequence[Node]) -> OpT:
    """An op that is the same in every capture."""
    ops = _ops(kind, node, twins)
    if any(op != ops[0] for op in ops):
        raise of_node("depends on the size", node)
    return ops[0]


# Products


def convolution(walk: Instantiation, node: Node, twins: Sequence[Node]) -> None:
    """A convolution: the image is 0 behind its end, as its padding is."""
    ops, (image, kernel) = _ops(Convolution, node, twins), node.operands
    op, numbers = ops[0], ops[0].dimension_numbers
    if not (varies_in(walk, image) or varies_in(walk, kernel)):
        walk.general(node, twins)
        return
    of, ker = walk.dims(image), walk.dims(kernel)
    window = op.window(tensor_of(kernel))
    dims = [*walk.created(node, twins)]
    ours = {numbers.input_feature_dimension}
    theirs = {numbers.kernel_input_feature_dimension}
    if any(varies(e) for d, e in enumerate(ker) if d not in theirs) or op.batch_group_count != 1:
        raise of_node("has a kernel whose size varies", node)
    depth, width = of[numbers.input_feature_dimension], ker[numbers.kernel_input_feature_dimension]
    if (varies(depth) or varies(width)) and (depth != width or op.feature_group_count != 1):
        raise of_node("has operands of other sizes along a dim that varies", node)
    dims[numbers.output_batch_dimension] = of[numbers.input_batch_dimension]
    for n, dim in enumerate(numbers.input_spatial_dimensions):
        if varies(of[dim]):
            ours.add(dim)
            low, high = window.padding[n]
            reach = (window.sizes[n] - 1) * window.window_dilations[n]
            if (window.strides[n], window.base_dilations[n]) != (1, 1):
                raise of_node("strides along a dim whose size varies", node)
            made = _only(of[dim], node).plus(low + high - reach)
            dims[numbers.output_spatial_dimensions[n]] = (made,)
    given = walk.masked(walk.values[image], of, sorted(ours), None)
    other = walk.masked(walk.values[kernel], ker, sorted(theirs), None)
    walk.emit(node, walk.op_at(node, twins, [tuple(dims)]), (given, other), [tuple(dims)])


def varies_in(walk: Instantiation, value: Value) -> bool:
    """Whether a size of a value does."""
    return value in walk.held


def attention(walk: Instantiation, node: Node, twins: Sequence[Node]) -> None:
    """Attention: keys behind the end are masked out, if no window does so."""
    op = _same_op(Attention, node, twins)
    if not any(value in walk.held for value in node.operands):
        walk.general(node, twins)
        return
    q, k, v = (walk.dims(value) for value in node.operands[:3])
    _check_rows(walk, op, node)
    operands = [walk.values[value] for value in node.operands]
    rank, end = len(q), k[-2]
    if varies(end):
        operands[2] = walk.masked(operands[2], v, (rank - 2,), None)
        if not (op.right == 0 and q[-2] == end):
            op = _mask_keys(walk, op, operands, end)
    dims: list[ValueExtents] = [(*q[:-1], v[-1])]
    walk.emit(node, op, operands, [*dims, q[:-1]] if op.logsumexp else dims)


def _check_rows(walk: Instantiation, op: Attention, node: Node) -> None:
    """Refuse sizes that vary along heads, or differ between operands."""
    q, k, v = (walk.dims(value) for value in node.operands[:3])
    if not (q[:-3] == k[:-3] == v[:-3] and k[-2] == v[-2] and len(k[-2]) == len(q[-2]) == 1):
        raise of_node("has operands of other sizes along a dim that varies", node)
    if any(varies(each[d]) for each in (q, k, v) for d in (-3, -1)):
        raise of_node("has heads whose number varies", node)
    window = op.left >= 0 or op.right >= 0
    one, other = q[-2][0], k[-2][0]
    if window and op.bottom_right and (one.symbol, one.scale) != (other.symbol, other.scale):
        raise of_node("has a window whose place depends on the size", node)
    for value in node.operands[3:]:
        for extents, wanted in zip(walk.dims(value), (*q[:-1], k[-2]), strict=True):
            if extents not in ((fixed(1),), wanted):
                raise of_node("has operands of other sizes along a dim that varies", node)


def _mask_keys(
    walk: Instantiation, op: Attention, operands: list[Value], end: Extents
) -> Attention:
    """Add the mask of the keys before the end to the operands."""
    rank = tensor_of(operands[0]).rank
    shape = [*tensor_of(operands[3]).sizes] if op.masked else [1] * rank
    shape[-1] = size_of(end, walk.bucket)
    seen = walk.inside({rank - 1: end}, shape)
    assert seen is not None
    if op.masked:
        operands[3] = walk.build.op(And(), walk.build.broadcast(operands[3], shape), seen)
        return op
    operands.insert(3, seen)
    made = op.replace(masked=True)
    assert isinstance(made, Attention)
    return made


SPECIAL: dict[type[Op], SpecialOp] = {
    Attention: attention,
    BroadcastInDim: broadcast,
    Concatenate: concatenate,
    Constant: constant,
    Convolution: convolution,
    Iota: iota,
    Pad: pad,
    Slice: cut,
}
