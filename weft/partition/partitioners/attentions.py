"""Attention along a split sequence: rings of keys and values, and windows at their offsets.

Where keys are split as queries are, every device attends to its own keys, passes them to its
neighbour along the ring, and combines the partial results by their logsumexps (online softmax).
Under a causal window keys go to later devices only, as far as the window reaches back, and a device
without keys in a step computes nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from weft.ir.module import Node, Region, Value, apply
from weft.ir.op import rule as rule_of
from weft.ir.rule import Rule
from weft.ir.types import BOOL, I32, TensorType
from weft.mesh import Mesh
from weft.mesh.algebra import DimAxes, total_size
from weft.ops.attention import Attention
from weft.ops.control import If
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import (
    Add,
    And,
    Compare,
    Divide,
    Maximum,
    Multiply,
    Remainder,
    Select,
    Subtract,
)
from weft.ops.elementwise.transcendental import Exponential, Log
from weft.ops.shape import BroadcastInDim
from weft.ops.slicing import DynamicSlice, Pad
from weft.partition.piece import Piece, local_type
from weft.partition.site import NodeSite, tensor
from weft.partition.strategy.factors import FactorAxes, compact, split_by_factors
from weft.records import dataclass


def attention_rules(node: Node, splits: tuple[DimAxes, ...]) -> tuple[Rule, ...]:
    """Keys are split with the queries, or whole; then queries may be split alone."""
    rule = rule_of(node.op, node.operand_types)
    q, k = (tensor(type) for type in node.operand_types[:2])
    rows = q.rank - 2
    (queries,) = rule.operands[0][rows]
    factors = list(rule.factors)
    factors[queries] = replace(factors[queries], role="pass")
    alone = Rule(tuple(factors), rule.operands, rule.results)
    if q.sizes[rows] != k.sizes[rows] or q.sizes[rows] < 2:
        return (alone,)
    ring = [(*dims[:rows], (queries,), *dims[rows + 1 :]) for dims in alone.operands[1:3]]
    sides = (alone.operands[0], *ring, *alone.operands[3:])
    return (compact(Rule(alone.factors, sides, alone.results)), alone)


def attention_sent(node: Node, rule: Rule, by_factor: FactorAxes, mesh: Mesh) -> float:
    """The bytes of the keys and values that a device passes on along a ring."""
    total = 0.0
    for type, dims in zip(node.operand_types[1:3], rule.operands[1:3], strict=True):
        split, global_type = split_by_factors(by_factor, dims, rule, mesh), tensor(type)
        if split is not None and split[global_type.rank - 2]:
            local = local_type(global_type, split, mesh)
            assert isinstance(node.op, Attention)
            count = total_size(split[global_type.rank - 2], mesh)
            steps, _ = ring_steps(node.op, local.sizes[global_type.rank - 2], count)
            total += (steps - 1) * local.nbytes
    return total


def ring_steps(op: Attention, rows: int, count: int) -> tuple[int, bool]:
    """The steps of a ring of devices with so many rows each, and whether keys go around it.

    They do not if no query attends to keys of later devices.
    """
    # distance * rows - (rows - 1) is the least distance of a query to keys so many devices on.
    if op.right < 0 or any(
        distance * rows - (rows - 1) <= op.right for distance in range(1, count)
    ):
        return count, True
    behind = [op.left < 0 or step * rows - (rows - 1) <= op.left for step in range(1, count)]
    return 1 + sum(behind), False


def attention(site: NodeSite) -> tuple[Piece, ...]:
    """Attention of a shard's queries, by a ring where keys are split, too."""
    op = site.node.op
    assert isinstance(op, Attention)
    q, k = site.operands[:2]
    rows = q.type.rank - 2
    if not q.split[rows] or not (k.split[rows] or op.left >= 0 or op.right >= 0):
        return site.plain()
    return site.result_pieces(*_Ring(site, op).results())


@dataclass(frozen=True, slots=True)
class _Ring:
    """One attention on a device: its queries, and the keys of all devices in turn."""

    site: NodeSite
    op: Attention

    def results(self) -> tuple[Value, ...]:
        site, builder, op = self.site, self.site.builder, self.op
        q, k, v = site.operands[:3]
        rows = q.type.rank - 2
        axes, is_ring = q.split[rows], bool(k.split[rows])
        count = total_size(axes, site.mesh)
        device = builder.index(axes)
        keys, values = k.value, v.value
        following = tuple((n + 1) % count for n in range(count))
        steps, is_round = ring_steps(op, tensor(keys.type).sizes[rows], count)
        state = self._part(device, device if is_ring else None, keys, values)
        for step in range(1, steps if is_ring else 1):
            if is_round:
                # All devices pass on at once, so that after n steps device d has the keys of device
                # d + n.
                keys, values = (builder.permute_along(x, axes, following) for x in (keys, values))
                owner = self._owner(device, step, count)
                state = self._merged(state, self._part(device, owner, keys, values))
            else:
                keys, values = (builder.shift(x, axes, -1) for x in (keys, values))
                state = self._joined_behind(state, device, step, keys, values)
        out = self._as(state[0], tensor(site.local_types()[0]))
        return (out, state[1]) if op.logsumexp else (out,)

    def _joined_behind(
        self, state: tuple[Value, Value], device: Value, step: int, keys: Value, values: Value
    ) -> tuple[Value, Value]:
        """The attention to the keys of an earlier device, too, if there is one so far behind."""
        builder = self.site.builder
        number = builder.constant(np.asarray(step, np.int32))
        has_keys = builder.emit(Compare("GE", "SIGNED"), device, number)
        outer, builder.nodes = builder.nodes, []
        owner = builder.emit(Subtract(), device, number)
        joined = self._merged(state, self._part(device, owner, keys, values))
        # A branch, not a mask of all keys: the collective has been done by all devices before it,
        # and what is inside differs by device.
        regions = (Region((), builder.nodes, joined), Region((), [], state))
        builder.nodes = outer
        node = apply(If(), has_keys, regions=regions, loc=builder.loc)
        out, lse = builder.add(node)
        return out, lse

    def _owner(self, device: Value, step: int, count: int) -> Value:
        """The device whose keys are here after some steps."""
        builder = self.site.builder
        moved = builder.emit(Add(), device, builder.constant(np.asarray(step, np.int32)))
        return builder.emit(Remainder(), moved, builder.constant(np.asarray(count, np.int32)))

    def _part(
        self, device: Value, owner: Value | None, keys: Value, values: Value
    ) -> tuple[Value, Value]:
        """Attention to some of the keys, and its logsumexp; in the type of scores."""
        site, builder, op = self.site, self.site.builder, self.op
        query = site.operands[0]
        held = op.held(query.type.dtype)
        q, k, v = (
            self._as(x, tensor(x.type).with_dtype(held)) for x in (query.value, keys, values)
        )
        rows = query.type.rank - 2
        start = builder.scaled(device, tensor(q.type).sizes[rows])
        first = None if owner is None else builder.scaled(owner, tensor(k.type).sizes[rows])
        seen = self._window_mask(tensor(q.type), tensor(k.type), start, first)
        pairs = [self._of_keys(n, tensor(k.type), first) for n in range(3, len(site.operands))]
        if op.masked:
            given = pairs.pop(0)
            seen = given if seen is None else self._both(seen, given)
        bias = [self._as(x, tensor(x.type).with_dtype(held)) for x in pairs]
        # The window is in the mask by now, with offsets: the op itself would count positions from 0
        # on each device. Its scale and soft cap stay.
        whole = op.replace(
            left=-1, right=-1, bottom_right=False, masked=seen is not None, logsumexp=True
        )
        out, lse = site.add(whole, (q, k, v, *([] if seen is None else [seen]), *bias))
        return out, lse

    def _window_mask(
        self, q: TensorType, k: TensorType, start: Value, first: Value | None
    ) -> Value | None:
        """The mask of a window at the offsets of queries and keys, and of padding."""
        site, builder, op = self.site, self.site.builder, self.op
        rows = q.rank - 2
        queries, keys = (site.operands[n].type.sizes[rows] for n in (0, 1))
        count = TensorType((*[1] * rows, q.sizes[rows], k.sizes[rows]), I32)
        place = builder.counted(count, rows + 1, first)
        apart = builder.emit(Subtract(), place, builder.counted(count, rows, start))
        shift = op.shift(queries, keys)
        limits = [
            (way, apart, sign * side + shift)
            for side, way, sign in ((op.left, "GE", -1), (op.right, "LE", 1))
            if side >= 0
        ]
        # The last shard of an uneven sequence has keys that do not exist.
        if first is not None and keys % k.sizes[rows]:
            limits.append(("LT", place, keys))
        mask: Value | None = None
        for way, value, limit in limits:
            one = builder.emit(Compare(way, "SIGNED"), value, builder.splat(limit, count))
            mask = one if mask is None else builder.emit(And(), mask, one)
        return mask

    def _of_keys(self, n: int, k: TensorType, first: Value | None) -> Value:
        """The part of a mask or bias that is about some keys."""
        builder, piece = self.site.builder, self.site.operands[n]
        value, held = piece.value, tensor(piece.value.type)
        size, rank = k.sizes[-2], held.rank
        if first is None or held.sizes[-1] == 1:
            return value
        # dynamic_slice would clamp the start of the last, shorter piece.
        if short := -held.sizes[-1] % size:
            none = (0,) * rank
            zero = builder.splat(0, held.with_shape(()))
            value = builder.emit(Pad(none, (*none[:-1], short), none), value, zero)
        zero = builder.constant(np.asarray(0, np.int32))
        sizes = (*held.sizes[:-1], size)
        return builder.emit(DynamicSlice(sizes), value, *[zero] * (rank - 1), first)

    def _both(self, left: Value, right: Value) -> Value:
        """Two masks, broadcast to one shape."""
        builder = self.site.builder
        shape = np.broadcast_shapes(tensor(left.type).sizes, tensor(right.type).sizes)
        wide = TensorType(tuple(shape), BOOL)
        spread = [x if tensor(x.type) == wide else self._spread(x, wide) for x in (left, right)]
        return builder.emit(And(), *spread)

    def _spread(self, value: Value, wide: TensorType) -> Value:
        return self.site.builder.emit(BroadcastInDim(tuple(range(wide.rank)), wide), value)

    def _merged(self, one: tuple[Value, Value], other: tuple[Value, Value]) -> tuple[Value, Value]:
        """The attention to both sets of keys; one without keys counts as nothing."""
        emit, splat = self.site.builder.emit, self.site.builder.splat
        # Online softmax: both parts are weighted relative to the larger logsumexp, so no
        # exponential overflows.
        row, out = tensor(one[1].type), tensor(one[0].type)
        top = emit(Maximum(), one[1], other[1])
        # A part without keys has the logsumexp -inf: -inf - -inf would be NaN.
        is_empty = emit(Compare("EQ", "FLOAT"), top, splat(-np.inf, row))
        top = emit(Select(), is_empty, splat(0, row), top)
        weights = [emit(Exponential(), emit(Subtract(), lse, top)) for _, lse in (one, other)]
        total = emit(Add(), *weights)
        is_none = emit(Compare("EQ", "FLOAT"), total, splat(0, row))
        divisor = emit(Select(), is_none, splat(1, row), total)
        dims = tuple(range(row.rank))
        shares = [
            emit(BroadcastInDim(dims, out), emit(Divide(), weight, divisor)) for weight in weights
        ]
        parts = [
            emit(Multiply(), value, x) for (value, _), x in zip((one, other), shares, strict=True)
        ]
        return emit(Add(), *parts), emit(Add(), top, emit(Log(), total))

    def _as(self, value: Value, type: TensorType) -> Value:
        return value if value.type is type else self.site.builder.emit(Convert(type), value)
