"""Lowering of ops into drafts: the operands that each node requests, and its step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import TypeAlias

from weft.ir.module import Node, Value, tensor_of
from weft.ir.op import Op
from weft.ir.rule import Combine
from weft.ir.types import DType, TensorType
from weft.kernels import kernel as k
from weft.kernels.stacked_node import StackedNode
from weft.ops.combiners import BY_OP, in_dtype
from weft.ops.distributed.collective import AllReduce, CollectivePermute, ReduceScatter
from weft.ops.distributed.local import AxisIndex, PermuteAlongAxes
from weft.ops.elementwise.pointwise import Maximum, Minimum
from weft.ops.index import Gather, gather_windows
from weft.ops.reduce import Reduce
from weft.ops.shape import Constant, Iota
from weft.ops.slicing import Concatenate, DynamicSlice, Pad
from weft.records import dataclass
from weft.tile.drafts.draft import Definition, Draft, Terms
from weft.tile.drafts.index import ZERO, At, Bound, Expr, factor, factors_of, plus, times
from weft.tile.drafts.lookup import bounded_select, looked_up, position, same_as
from weft.tile.drafts.picks import pick_of
from weft.tile.drafts.views import index_along, lead_of

Want: TypeAlias = Callable[[Value, At, tuple[Bound, ...]], int]


@dataclass(frozen=True, slots=True)
class Pull:
    """A node added to a draft, for one requested index."""

    draft: Draft
    placed: StackedNode
    at: At
    bounds: tuple[Bound, ...]
    want: Want
    sizes: tuple[int, ...]  # sizes of the leading dims
    result: int = 0  # which of the node's results is requested

    @property
    def node(self) -> Node:
        """The node."""
        return self.placed.node

    @property
    def lead(self) -> int:
        """The number of leading dims."""
        return len(self.sizes)

    @property
    def dtype(self) -> DType:
        """The element type of the result."""
        return tensor_of(self.node.results[self.result]).dtype

    def operand(self, index: int, own: Sequence[Expr], bounds: tuple[Bound, ...] = ()) -> int:
        """An operand at indices of its own dims."""
        head = lead_of(self.at, self.placed.given[index], self.lead)
        return self.operand_at(index, (*head, *own), bounds)

    def operand_at(self, index: int, at: At, bounds: tuple[Bound, ...] = ()) -> int:
        """An operand at indices of its stack."""
        return self.want(self.node.operands[index], at, (*self.bounds, *bounds))


def elementwise(pull: Pull) -> Definition:
    """An elementwise op; scalar operands are broadcast."""
    own, dtype = pull.at[pull.lead :], pull.dtype
    # steps hold no shapes, so that kernels of different shapes share ops
    op = pull.node.op.local((), (TensorType((), dtype),))
    args = [
        pull.operand(n, own if tensor_of(v).rank else ()) for n, v in enumerate(pull.node.operands)
    ]
    return Definition(tuple(args), lambda numbers, terms: k.Apply(op, numbers, dtype))


def constant(pull: Pull) -> Definition:
    """The element of a splat constant."""
    op, dtype = pull.node.op, pull.dtype
    assert isinstance(op, Constant)
    element = op.value.array.reshape(-1)[0].item()
    return Definition((), lambda numbers, terms: k.Fill(element, dtype))


def iota(pull: Pull) -> Definition:
    """An index as a number."""
    op, dtype = pull.node.op, pull.dtype
    assert isinstance(op, Iota)
    where = pull.at[pull.lead + op.iota_dimension]
    return position(where, dtype)


def pad(pull: Pull) -> Definition:
    """The operand inside, the padding value elsewhere."""
    op, dtype, draft = pull.node.op, pull.dtype, pull.draft
    assert isinstance(op, Pad)
    shape = tensor_of(pull.node.operands[0]).sizes
    own = tuple(
        [
            times(e, 1, -low)
            for e, low in zip(pull.at[pull.lead :], op.edge_padding_low, strict=True)
        ]
    )
    bounds = draft.inside(own, shape)
    inside = pull.operand(0, own, bounds)
    if not bounds:
        return same_as(inside)
    outside = pull.operand(1, ())
    return bounded_select(bounds, inside, outside, dtype)


def concatenate(pull: Pull) -> Definition:
    """The operand that the index falls into."""
    op, dtype, draft = pull.node.op, pull.dtype, pull.draft
    assert isinstance(op, Concatenate)
    own = list(pull.at[pull.lead :])
    where = own[op.dimension]
    begin = 0
    parts: list[tuple[tuple[Bound, ...], int]] = []
    for n, value in enumerate(pull.node.operands):
        size = tensor_of(value).sizes[op.dimension]
        if size:
            own[op.dimension] = times(where, 1, -begin)
            bounds = draft.needed(((where, begin, begin + size),))
            parts.append((bounds, pull.operand(n, own, bounds)))
        begin += size
    # The last operand needs no guard: an index that is in none of the others is in it.
    _, found = parts.pop()
    for bounds, inside in reversed(parts[1:]):
        found = draft.anonymous(bounded_select(bounds, inside, found, dtype))
    return bounded_select(*parts[0], found, dtype) if parts else same_as(found)


def dynamic_slice(pull: Pull) -> Definition:
    """The operand at dynamic start indices."""
    op = pull.node.op
    assert isinstance(op, DynamicSlice)
    shape = tensor_of(pull.node.operands[0]).sizes
    own = list(pull.at[pull.lead :])
    for dim, (size, length) in enumerate(zip(shape, op.slice_sizes, strict=True)):
        if size != length:
            start = pull.operand(1 + dim, ())
            own[dim] = plus(own[dim], pull.draft.known_later(start, size - length))
    return same_as(pull.operand(0, own))


def gather(pull: Pull) -> Definition:
    """The operand at an index vector."""
    op, lead = pull.node.op, pull.lead
    assert isinstance(op, Gather)
    value, indices = pull.node.operands
    shape, windows = tensor_of(value).sizes, gather_windows(op.dimension_numbers)
    own = pull.at[lead:]
    rows = [own[d] for d in windows.batch(len(own))]
    where = list(rows)
    where.insert(windows.vector, ZERO)
    at: list[Expr] = [ZERO] * len(shape)
    for dim, window in zip(windows.operand_dims(len(shape)), windows.window, strict=True):
        at[dim] = own[window]
    for dim, row in zip(windows.operand_batching, windows.indices_batching, strict=True):
        at[dim] = rows[row - (row > windows.vector)]
    # Start indices are clamped so that the window stays inside (StableHLO, gather); where the
    # window spans the dim they can only be 0.
    for n, dim in enumerate(windows.start_map):
        if shape[dim] != op.slice_sizes[dim]:
            where[windows.vector] = (n, ())
            start = pull.operand(1, where[: tensor_of(indices).rank])
            later = pull.draft.known_later(start, shape[dim] - op.slice_sizes[dim])
            at[dim] = plus(at[dim], later)
    return same_as(pull.operand(0, at))


def reduce(pull: Pull) -> Definition:
    """A reduction along the draft's row factors."""
    op, node, dtype = pull.node.op, pull.node, pull.dtype
    assert isinstance(op, Reduce)
    shape = tensor_of(node.operands[0]).sizes
    over = row_factors(pull.draft, pull.at, [shape[d] for d in op.folded])
    assert over is not None, "the rows match"
    own, kept, reduced = [], iter(pull.at[pull.lead :]), iter(over)
    for dim in range(len(shape)):
        own.append(next(reduced) if dim in op.dimensions else next(kept))
    # Two inputs, values and indices, are an argmax or argmin: kinds has checked it.
    how = fusible_combine(node) if len(node.operands) == 2 else pick_of(node)
    assert how is not None, "a reduction that can be fused"
    along = factors_of(over)
    if pull.result == 1:
        found = position(own[op.dimensions[0]], dtype)
        if not along:  # the only index
            return found
        index = pull.draft.anonymous(found)
        return picked(how, pull.operand(0, own), index, along, dtype)
    init = pull.operand(len(node.operands) // 2, ())
    if not along:
        # One element and the init: a map, which may follow a contraction in its kernel.
        combines = len(node.operands) == 2
        largest: Op = Maximum() if how == "max" else Minimum()
        body = node.regions[0].nodes[0].op if combines else largest
        args = (init, pull.operand(0, own))
        return Definition(args, lambda numbers, terms: k.Apply(body, numbers, dtype))
    return reduction(pull, how, own, init, along, dtype)


def picked(how: str, key: int, value: int, over: set[int], dtype: DType) -> Definition:
    """The value at the argmax or argmin of a key along factors."""
    listed, most = tuple(sorted(over)), how == "max"

    def make(numbers: tuple[int, ...], terms: Terms) -> k.Step:
        at = terms.factors(listed)
        return k.Pick("max" if most else "min", numbers[0], numbers[1], at, dtype)

    return Definition((key, value), make)


def reduction(
    pull: Pull,
    how: Combine,
    own: Sequence[Expr],
    init: int | None,
    over: set[int],
    dtype: DType,
) -> Definition:
    """A reduction of the first operand along factors."""
    arg = pull.operand(0, own)
    return combined(how, arg, init, over, dtype)


def combined(how: Combine, arg: int, init: int | None, over: set[int], dtype: DType) -> Definition:
    """A reduction of an instance along factors."""
    listed = tuple(sorted(over))

    def make(numbers: tuple[int, ...], terms: Terms) -> k.Step:
        first = numbers[1] if init is not None else None
        return k.Reduce(how, numbers[0], first, terms.factors(listed), dtype)

    return Definition((arg,) if init is None else (arg, init), make)


def fusible_combine(node: Node) -> Combine | None:
    """The combining op of a reduction that a kernel can have: one op, in the result's type."""
    names = node.regions[0].body.combiners
    if len(names) != 1 or len(node.regions[0].nodes) != 1:
        return None
    inner = {v.type.dtype for v in node.regions[0].args if isinstance(v.type, TensorType)}
    types = {
        v.type.dtype for v in (*node.operands, *node.results) if isinstance(v.type, TensorType)
    }
    how = BY_OP.get(names[0])
    (dtype, *others) = inner | types
    # Complex numbers have no order.
    if others or how is None or (dtype.is_complex and how not in ("add", "mul")):
        return None
    return in_dtype(how, dtype)


def row_factors(draft: Draft, at: At, lengths: Sequence[int]) -> At | None:
    """Indices along reduced dims: the draft's row factors, or new ones if it has none.

    An output with dims along the rows is computed in the same loops, so its factors are used.
    """
    used = factors_of(at)
    free = draft.rows or tuple([f for f in draft.root if f not in used])
    if draft.rows and used & set(draft.rows):
        return None
    wanted = [n for n in lengths if n > 1]
    if not free:
        made = iter([draft.new(n) for n in wanted])
        found = tuple([factor(next(made)) if n > 1 else ZERO for n in lengths])
        draft.rows = tuple(sorted(factors_of(found)))
        return found
    found_all: list[Expr] = []
    left = list(free)
    for length in lengths:
        expr, size = ZERO, 1
        # A reduced dim is one loop, or a run of loops in order, major first.
        while size < length and left:
            number = left.pop(0)
            expr = plus(times(expr, draft.sizes[number]), factor(number))
            size *= draft.sizes[number]
        if size != length:
            return None
        found_all.append(expr)
    if left:
        return None
    draft.rows = free
    return tuple(found_all)


def all_reduce(pull: Pull) -> Definition:
    """A reduction along the leading dims of the groups."""
    how = fusible_combine(pull.node)
    assert how is not None and pull.placed.along is not None
    return _summed_up(pull, list(pull.at), how)


def reduce_scatter(pull: Pull) -> Definition:
    """A reduction along the leading dims of the groups, at this device's own piece."""
    op, along = pull.node.op, pull.placed.along
    assert isinstance(op, ReduceScatter) and along is not None
    how = fusible_combine(pull.node)
    assert how is not None
    at = list(pull.at)
    dim = pull.lead + op.scatter_dimension
    length = tensor_of(pull.node.results[pull.result]).sizes[op.scatter_dimension]
    at[dim] = plus(times(index_along(pull.at, along, pull.sizes), length), at[dim])
    return _summed_up(pull, at, how)


def _summed_up(pull: Pull, at: list[Expr], how: Combine) -> Definition:
    """A reduction along devices; a contraction may absorb it."""
    along, index = pull.placed.along, pull.result
    assert along is not None
    # In lockstep all devices are in one memory: summing over them is a loop like any other.
    over = {dim: pull.draft.new(pull.sizes[dim], device=True) for dim in along}
    pull.draft.rows = tuple(over.values())
    for dim, number in over.items():
        at[dim] = factor(number)
    head = lead_of(tuple(at), pull.placed.given[index], pull.lead)
    arg = pull.operand_at(index, (*head, *at[pull.lead :]))
    if not over:  # nothing to reduce along axes of one device
        return same_as(arg)
    if how == "add":
        (number,) = pull.draft.pending[pull.node.results[index]]
        pull.draft.summed = (number, arg)
    return combined(how, arg, None, {*over.values()}, pull.dtype)


def permute(pull: Pull) -> Definition:
    """The operand of the source device, 0 where there is none."""
    along, sources, draft = pull.placed.along, pull.placed.sources, pull.draft
    assert along is not None
    mine, at, stride = index_along(pull.at, along, pull.sizes), list(pull.at), len(sources)
    for dim in along:
        size = pull.sizes[dim]
        stride //= size
        if pull.placed.given[pull.result] >> dim & 1:
            # The source device's sub-axes by table: a permutation is not affine in the device's
            # number.
            table = [max(0, source) // stride % size for source in sources]
            at[dim] = draft.known_later(looked_up(draft, mine, table), size - 1)
    head = lead_of(tuple(at), pull.placed.given[pull.result], pull.lead)
    place = pull.operand_at(pull.result, (*head, *at[pull.lead :]))
    dtype = pull.dtype
    nothing = draft.anonymous(Definition((), lambda numbers, terms: k.Fill(0, dtype)))
    # Devices without a source get zeros (StableHLO, collective_permute); a run of them is one
    # guard.
    for is_hole, run in groupby(range(len(sources)), lambda n: sources[n] < 0):
        if is_hole:
            holes = [*run]
            bounds = draft.needed(((mine, holes[0], holes[-1] + 1),))
            place = (
                draft.anonymous(bounded_select(bounds, nothing, place, dtype))
                if bounds
                else nothing
            )
    return same_as(place)


def axis_index(pull: Pull) -> Definition:
    """The device's position along axes."""
    assert isinstance(pull.node.op, AxisIndex) and pull.placed.along is not None
    return position(index_along(pull.at, pull.placed.along, pull.sizes), pull.dtype)


MAPS: dict[type[Op], Callable[[Pull], Definition]] = {
    Constant: constant,
    Iota: iota,
    Pad: pad,
    Concatenate: concatenate,
    DynamicSlice: dynamic_slice,
    Gather: gather,
    AxisIndex: axis_index,
    CollectivePermute: permute,
    PermuteAlongAxes: permute,
}
# Maps that need static indices.
PLACED_MAPS = frozenset({Iota, AxisIndex, Pad, Concatenate, CollectivePermute, PermuteAlongAxes})
REDUCTIONS: dict[type[Op], Callable[[Pull], Definition]] = {
    Reduce: reduce,
    AllReduce: all_reduce,
    ReduceScatter: reduce_scatter,
}
