"""Convolutions with channels last, in a layout that is kept through the ops between them.

Matrix units read channels, which cuDNN therefore wants next to each other. A value computed in
another order of its dims is known by that order, and ops that can run in it do; others get it
transposed back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from weft.ir.module import Module, Node, Region, Value, apply
from weft.ir.op import Op
from weft.ir.rebuild import Rebuild
from weft.ir.types import TensorType
from weft.ir.uses import reads
from weft.ops.convolution import ConvDims, Convolution
from weft.ops.index import Gather, gather_windows
from weft.ops.reduce import Reduce
from weft.ops.shape import BroadcastInDim, Constant, Reshape, Transpose, shared_factors
from weft.ops.slicing import Concatenate, Pad, Slice
from weft.ops.window import ReduceWindow
from weft.optimize.drop_dead import drop_dead
from weft.records import dataclass

LEAST = 1 << 26  # multiplications of a convolution that is worth another layout
TAPS = 16  # of a spatial dim: the library has no kernels for larger windows
_TYPES = {"bf16", "f16"}
Permutation = tuple[int, ...]


def channels_last(module: Module) -> Module:
    """The module with large convolutions of 16-bit floats in the layout that the library wants."""
    if not any(_is_wanted(node) for node in module.nodes()):
        return module
    return drop_dead(_Layouts(module, ()).module())


def _is_wanted(node: Node) -> bool:
    """Whether a convolution is better with channels last."""
    op = node.op
    if not isinstance(op, Convolution) or op.feature_group_count * op.batch_group_count > 1:
        return False
    types = [t for t in (*node.operand_types, *node.types) if isinstance(t, TensorType)]
    lhs, rhs, out = types
    if not all(t.is_static and t.dtype is lhs.dtype for t in types) or lhs.rank not in (4, 5):
        return False
    if lhs.dtype.name not in _TYPES or any(n > 1 for n in op.lhs_dilation or ()):
        return False
    if any(op.window_reversal or ()):
        return False
    dims = op.dimension_numbers
    taps = [rhs.sizes[d] for d in dims.kernel_spatial_dimensions]
    depth = rhs.sizes[dims.kernel_input_feature_dimension]
    return max(taps) <= TAPS and out.size * depth * math.prod(taps) >= LEAST


@dataclass(frozen=True, slots=True)
class _Ordered:
    """A value transposed: dim d of `value` is dim order[d] of the original."""

    value: Value
    order: Permutation


class _Layouts(Rebuild):
    """One rebuild, with values in other orders of their dims."""

    def __init__(self, module: Module, rules: tuple[()]) -> None:
        super().__init__(module, rules)
        self.ordered: dict[Value, _Ordered] = {}
        self.depth = 0

    def region(self, region: Region) -> Region:
        """The rebuilt region; layouts are those of the outermost one."""
        self.depth += 1
        out: list[Node] = []
        for node in region.nodes:
            self.node(node, out)
        # Regions of control flow read values of the outer one in the order that the program has:
        # only the outermost region has other orders.
        if self.depth == 1:
            self.restore(region.results, out)
        self.depth -= 1
        results = tuple([self.became.get(v, v) for v in region.results])
        if results == region.results and out == region.nodes:
            return region
        return Region(region.args, out, results, region.loc, region.arg_locs)

    def node(self, node: Node, out: list[Node]) -> None:
        """Rebuild one node, in another order of dims if it can be."""
        if self.depth == 1:
            made = self._in_order(node, out)
            if made is not None:
                self._know(node.results[0], made)
                return
            self.restore(reads(node), out)
        super().node(node, out)

    def _know(self, before: Value, ordered: _Ordered) -> None:
        """Keep the value of an order; the original's own replaces it."""
        if before.type is ordered.value.type and ordered.order == tuple(range(len(ordered.order))):
            self.became[before] = ordered.value
        else:
            self.ordered[before] = ordered

    def restore(self, values: Iterable[Value], out: list[Node]) -> None:
        """Transpose values back that are known in another order only."""
        for value in values:
            found = self.ordered.get(value)
            if found is not None and value not in self.became:
                self.became[value] = self._add(
                    Transpose(inverse(found.order)), out, value.node, found.value
                )

    def _add(self, op: Op, out: list[Node], like: Node | None, *operands: Value) -> Value:
        """Append a node of one result, at the place of another."""
        regions = like.regions if like is not None and op.regions else ()
        loc = {} if like is None else {"loc": like.loc}
        made = apply(op, *operands, regions=regions, **loc)  # type: ignore[arg-type]
        self.emitted.add(made)
        out.append(made)
        return made.results[0]

    def _in_order(self, node: Node, out: list[Node]) -> _Ordered | None:
        """The node's result in another order of dims; None if it is computed as it is."""
        if isinstance(node.op, Convolution) and _is_wanted(node):
            return self._convolution(node, out)
        if len(node.results) != 1 or not any(v in self.ordered for v in node.operands):
            return None
        rule = RULES.get(type(node.op))
        if rule is None and node.op.elementwise and not node.regions:
            rule = _Layouts._elementwise
        return None if rule is None else rule(self, node, out)

    def _convolution(self, node: Node, out: list[Node]) -> _Ordered:
        op = node.op
        assert isinstance(op, Convolution)
        dims, count = op.dimension_numbers, len(op.dimension_numbers.input) - 2
        # NHWC for input and output, and OHWI for the kernel: cuDNN's layout with channels last.
        inputs = (dims.input[0], *dims.input[2:], dims.input[1])
        weights = (dims.kernel[1], *dims.kernel[2:], dims.kernel[0])
        outputs = (dims.output[0], *dims.output[2:], dims.output[1])
        spatial = tuple(range(1, count + 1))
        last = count + 1
        order = ConvDims(0, last, spatial, last, 0, spatial, 0, last, spatial)
        (type,) = node.types
        assert isinstance(type, TensorType)
        changed = op.replace(dimension_numbers=order, out=_reordered(type, outputs))
        lhs = self.value(node.operands[0], inputs, out)
        rhs = self.value(node.operands[1], weights, out)
        return _Ordered(self._add(changed, out, node, lhs, rhs), outputs)

    def value(self, value: Value, order: Permutation, out: list[Node]) -> Value:
        """A value in an order of its dims."""
        ordered = self.ordered.get(value)
        if ordered is not None:
            if ordered.order == order:
                return ordered.value
            back = inverse(ordered.order)
            rest = tuple([back[d] for d in order])
            return self._add(Transpose(rest), out, value.node, ordered.value)
        current = self.became.get(value, value)
        type = current.type
        if order == tuple(range(len(order))):
            return current
        maker = current.node
        # Broadcasts and splats are made in the order at once, instead of being transposed.
        if maker is not None and isinstance(maker.op, BroadcastInDim):
            back = inverse(order)
            assert isinstance(type, TensorType)
            places = tuple([back[d] for d in maker.op.broadcast_dimensions])
            moved = BroadcastInDim(places, _reordered(type, order))
            return self._add(moved, out, maker, *maker.operands)
        if maker is not None and isinstance(maker.op, Constant) and maker.op.value.is_splat:
            assert isinstance(type, TensorType)
            held = maker.op.local((), (_reordered(type, order),))
            return self._add(held, out, maker)
        return self._add(Transpose(order), out, maker, current)

    def _order_of(self, node: Node) -> Permutation:
        """The order of a node's largest operand that has one."""
        found = [v for v in node.operands if v in self.ordered]
        largest = max(found, key=lambda v: v.type.size if isinstance(v.type, TensorType) else 0)
        return self.ordered[largest].order

    # Ops that run in the order of their operands

    def _elementwise(self, node: Node, out: list[Node]) -> _Ordered | None:
        order = self._order_of(node)
        (type,) = node.types
        types = [v.type for v in (*node.operands, *node.results)]
        if not all(isinstance(t, TensorType) and t.rank in (0, len(order)) for t in types):
            return None
        assert isinstance(type, TensorType)
        operands = [
            self.value(v, order, out)
            if isinstance(v.type, TensorType) and v.type.rank
            else self.became.get(v, v)
            for v in node.operands
        ]
        op = node.op.local(tuple([v.type for v in operands]), (_reordered(type, order),))
        return _Ordered(self._add(op, out, node, *operands), order)

    def _moved(
        self, node: Node, out: list[Node], change: Callable[[Permutation, TensorType], Op]
    ) -> _Ordered:
        """An op of one array, and of scalars, whose fields are by dim."""
        order = self._order_of(node)
        (type,) = node.types
        assert isinstance(type, TensorType)
        operands = [
            self.value(v, order, out) if v in self.ordered else self.became.get(v, v)
            for v in node.operands
        ]
        op = change(order, _reordered(type, order))
        return _Ordered(self._add(op, out, node, *operands), order)

    def _pad(self, node: Node, out: list[Node]) -> _Ordered | None:
        op = node.op
        assert isinstance(op, Pad)
        low, high, inside = op.edge_padding_low, op.edge_padding_high, op.interior_padding
        return self._moved(
            node, out, lambda order, _: Pad(by(low, order), by(high, order), by(inside, order))
        )

    def _slice(self, node: Node, out: list[Node]) -> _Ordered | None:
        op = node.op
        assert isinstance(op, Slice)
        fields = (op.start_indices, op.limit_indices, op.strides)
        return self._moved(node, out, lambda order, _: Slice(*[by(f, order) for f in fields]))

    def _window(self, node: Node, out: list[Node]) -> _Ordered | None:
        op = node.op
        assert isinstance(op, ReduceWindow)
        if len(node.operands) != 2:
            return None
        window = op.window

        def change(order: Permutation, type: TensorType) -> Op:
            sizes, steps = by(window.sizes, order), by(window.strides, order)
            spread = by(window.base_dilations, order), by(window.window_dilations, order)
            pads = tuple([window.padding[d] for d in order])
            return ReduceWindow(sizes, (type,), steps, *spread, pads)

        return self._moved(node, out, change)

    def _concatenate(self, node: Node, out: list[Node]) -> _Ordered | None:
        op, order = node.op, self._order_of(node)
        assert isinstance(op, Concatenate)
        given = [self.value(v, order, out) for v in node.operands]
        made = self._add(Concatenate(order.index(op.dimension)), out, node, *given)
        return _Ordered(made, order)

    def _reduce(self, node: Node, out: list[Node]) -> _Ordered | None:
        op = node.op
        assert isinstance(op, Reduce)
        (type,) = node.types
        if len(node.operands) != 2 or not isinstance(type, TensorType):
            return None
        source = self.ordered[node.operands[0]]
        dims = tuple([d for d, before in enumerate(source.order) if before in op.dimensions])
        kept = [d for d in source.order if d not in op.dimensions]
        # The result's own numbers of the dims that are left.
        ranks = {d: n for n, d in enumerate(sorted(kept))}
        order = tuple([ranks[d] for d in kept])
        init = self.became.get(node.operands[1], node.operands[1])
        changed = Reduce(dims, (_reordered(type, order),))
        return _Ordered(self._add(changed, out, node, source.value, init), order)

    def _reshape(self, node: Node, out: list[Node]) -> _Ordered | None:
        """A reshape of dims, each of which stays together."""
        source = self.ordered[node.operands[0]]
        operand, (type,) = node.operands[0].type, node.types
        assert isinstance(operand, TensorType) and isinstance(type, TensorType)
        if not operand.is_static or not type.is_static or not operand.size:
            return None
        groups = _groups(operand.sizes, type.sizes)
        order: list[int] = []
        dims = [*source.order]
        while dims:
            # Dims that the reshape joins or cuts must lie together, in order, in this layout, too:
            # otherwise it would mix their elements.
            group = next((g for g in groups if dims[0] in g[0]), None)
            if group is None or tuple(dims[: len(group[0])]) != group[0]:
                return None
            order += group[1]
            del dims[: len(group[0])]
        missing = [d for d in range(type.rank) if d not in order]
        full = (*missing, *order)  # dims of size 1
        changed = Reshape(_reordered(type, full))
        return _Ordered(self._add(changed, out, node, source.value), full)

    def _gather(self, node: Node, out: list[Node]) -> _Ordered | None:
        """Windows of whole channels at indices of the spatial dims."""
        op, source = node.op, self.ordered.get(node.operands[0])
        (type,) = node.types
        assert isinstance(op, Gather) and isinstance(type, TensorType)
        if source is None or node.operands[1] in self.ordered:
            return None
        windows = gather_windows(op.dimension_numbers)
        kept = windows.operand_dims(len(source.order))
        if windows.operand_batching or [*windows.window] != kept or type.rank != len(source.order):
            return None
        # Batch dims of the result are dims of the indices, in their order: another order would need
        # these transposed.
        batch = [d for d in source.order if d not in kept]
        if batch != sorted(batch):
            return None
        back = inverse(source.order)
        numbers = op.dimension_numbers.__class__(
            offset_dims=tuple(sorted([back[d] for d in windows.window])),
            collapsed_slice_dims=tuple(sorted([back[d] for d in windows.inserted])),
            start_index_map=tuple([back[d] for d in windows.start_map]),
            index_vector_dim=windows.vector,
        )
        changed = op.replace(
            dimension_numbers=numbers, slice_sizes=by(op.slice_sizes, source.order)
        )
        indices = self.became.get(node.operands[1], node.operands[1])
        return _Ordered(self._add(changed, out, node, source.value, indices), source.order)


RULES: dict[type[Op], Callable[[_Layouts, Node, list[Node]], _Ordered | None]] = {
    Pad: _Layouts._pad,
    Slice: _Layouts._slice,
    ReduceWindow: _Layouts._window,
    Concatenate: _Layouts._concatenate,
    Reduce: _Layouts._reduce,
    Reshape: _Layouts._reshape,
    Gather: _Layouts._gather,
}


def inverse(order: Permutation) -> Permutation:
    """The order that undoes another."""
    return tuple(sorted(range(len(order)), key=order.__getitem__))


def by(values: Sequence[int], order: Permutation) -> tuple[int, ...]:
    """The values of dims, in another order of them."""
    return tuple([values[d] for d in order])


def _reordered(type: TensorType, order: Permutation) -> TensorType:
    return type.with_shape(tuple([type.shape[d] for d in order]))


def _groups(source: Sequence[int], target: Sequence[int]) -> list[tuple[Permutation, Permutation]]:
    """The dims of both sides of a reshape that are made of one another."""
    groups: list[tuple[set[int], set[int]]] = []
    for a, b, _ in shared_factors(tuple(source), tuple(target)):
        one, other = {a} - {None}, {b} - {None}
        joined = [g for g in groups if g[0] & one or g[1] & other]
        for group in joined:
            one, other = one | group[0], other | group[1]
            groups.remove(group)
        groups.append((one, other))  # type: ignore[arg-type]
    return [(tuple(sorted(a)), tuple(sorted(b))) for a, b in groups]
