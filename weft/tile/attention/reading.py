"""Backward traversal of a region from a value: which element is read where, by factors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from weft.ir.module import Node, Value, tensor_of
from weft.ir.op import Op
from weft.ir.uses import reads
from weft.kernels.kernel import is_rounded
from weft.kernels.stacked_node import StackedNode
from weft.ops.contract import Dot, DotGeneral
from weft.ops.elementwise.transcendental import Exponential
from weft.ops.reduce import Reduce
from weft.records import dataclass
from weft.tile.drafts.draft import Draft
from weft.tile.drafts.index import ZERO, At, Expr, Split, factor, linear
from weft.tile.drafts.products import dot_dims
from weft.tile.drafts.views import VIEWS, lead_of, read_through, sees_through


@dataclass(frozen=True, slots=True)
class Place:
    """The element of a value at every point of some factors."""

    value: Value
    at: At

    @property
    def node(self) -> Node | None:
        """The node that defines the value."""
        return self.value.node


class RegionNodes:
    """The nodes of a region, the readers of values, and the required results."""

    def __init__(
        self,
        nodes: Sequence[StackedNode],
        sizes: tuple[int, ...],
        results: Iterable[Value],
        values: Iterable[Value] = (),
        *,
        excess_precision: bool = True,
    ) -> None:
        self.excess_precision = excess_precision
        self.placed = {p.node: p for p in nodes}
        self.order = {p.node: n for n, p in enumerate(nodes)}
        self.sizes = sizes
        self.results = set(results)
        self.kept = set(values)  # materialized values, not looked through
        self.masks: dict[Value, int] = {}
        self.readers: dict[Value, list[Node]] = {}
        for p in nodes:
            self.masks.update(zip(p.node.operands, p.given, strict=True))
            self.masks.update(zip(p.node.results, p.made, strict=True))
            for value in dict.fromkeys(reads(p.node)):
                self.readers.setdefault(value, []).append(p.node)

    @cached_property
    def products(self) -> dict[Op, list[Node]]:
        """Matrix contractions, by op."""
        by_op: dict[Op, list[Node]] = {}
        for node in self.order:
            if isinstance(node.op, DotGeneral | Dot):
                by_op.setdefault(node.op, []).append(node)
        return by_op

    @cached_property
    def powers(self) -> set[Value]:
        """Exponentials, and elementwise functions of them."""
        values: set[Value] = set()
        for node in self.order:
            made = isinstance(node.op, Exponential) or any(v in values for v in node.operands)
            if made and (node.op.elementwise or type(node.op) in VIEWS):
                values.update(node.results)
        return values

    def shape(self, value: Value) -> tuple[int, ...]:
        """The shape of a value's stack."""
        mask = self.masks[value]
        head = [n if mask >> d & 1 else 1 for d, n in enumerate(self.sizes)]
        return (*head, *tensor_of(value).sizes)

    def is_rounded(self, value: Value) -> bool:
        """Whether a value must be rounded to its type before it is read."""
        dtype = tensor_of(value).dtype
        return is_rounded(dtype, excess_precision=self.excess_precision)

    def only_reader(self, value: Value) -> Node | None:
        """The only reader of a value, if it is needed nowhere else."""
        readers = self.readers.get(value, [])
        if value in self.kept:
            return None
        return readers[0] if len(readers) == 1 and value not in self.results else None


class Reader:
    """Traverses from a value to its inputs, and records the nodes on the way."""

    def __init__(self, program: RegionNodes) -> None:
        self.program = program
        self.draft = Draft(0)
        self.seen: dict[Node, None] = {}
        self.root: Value | None = None

    def all_of(self, value: Value) -> Place:
        """Every element of a value: a factor for each of its dims."""
        self.root = value
        return Place(value, self.draft.along(self.program.shape(value), len(self.program.sizes)))

    def fresh(self, place: Place) -> Place:
        """A place in unsplit factors."""
        if not self.draft.parts:
            return place
        return Place(place.value, tuple([self.draft.fresh(e) for e in place.at]))

    def through(self, place: Place) -> Place:
        """The place that is read through transposes, broadcasts and other views."""
        while (stacked := self._stacked_node(place)) is not None and sees_through(stacked):
            # The root is what the kernel computes, materialized or not.
            kept = place.value in self.program.kept and place.value is not self.root
            if kept or stacked.node.op.collective:
                break
            place = self.fresh(place)
            source = read_through(
                stacked, place.value.index, place.at, self.draft, self.program.sizes
            )
            if isinstance(source, Split):
                # A reshape joins or cuts dims: read again through it, in the parts of a factor.
                self.draft.split(source)
                continue
            if source is None:
                break
            self.seen[stacked.node] = None
            place = Place(*source)
        return self.fresh(place)

    def operands(self, place: Place) -> list[Place]:
        """The operands of an elementwise node, at the same element."""
        placed = self.enter(place)
        lead = len(self.program.sizes)
        own = place.at[lead:]
        return [
            Place(value, (*lead_of(place.at, mask, lead), *(own if tensor_of(value).rank else ())))
            for value, mask in zip(placed.node.operands, placed.given, strict=True)
        ]

    def reduced(self, place: Place, over: Sequence[Expr]) -> tuple[Place, Place]:
        """The operand of a reduction, at indices along the reduced dims, and its init."""
        placed = self.enter(place)
        op, lead = placed.node.op, len(self.program.sizes)
        assert isinstance(op, Reduce)
        kept, reduced = iter(place.at[lead:]), iter(over)
        rank = tensor_of(placed.node.operands[0]).rank
        own = [next(reduced) if d in op.dimensions else next(kept) for d in range(rank)]
        heads = [lead_of(place.at, mask, lead) for mask in placed.given]
        first, start = placed.node.operands
        return Place(first, (*heads[0], *own)), Place(start, heads[1])

    def product(self, place: Place) -> tuple[Place, Place, list[Expr]]:
        """The two sides of a contraction, and the indices along the summed dims."""
        stacked = self.enter(place)
        dims, (lhs, rhs) = dot_dims(stacked.node), stacked.node.operands
        lead, own = len(self.program.sizes), place.at[len(self.program.sizes) :]
        left: list[Expr] = [ZERO] * tensor_of(lhs).rank
        right: list[Expr] = [ZERO] * tensor_of(rhs).rank
        result_indices = iter(own)
        for a, b in dims.batch:
            left[a] = right[b] = next(result_indices)
        for a in dims.lhs_free(len(left)):
            left[a] = next(result_indices)
        for b in dims.rhs_free(len(right)):
            right[b] = next(result_indices)
        summed = []
        for a, b in dims.contract:
            size = tensor_of(lhs).sizes[a]
            left[a] = right[b] = factor(self.draft.new(size)) if size > 1 else ZERO
            summed.append(left[a])
        heads = [lead_of(place.at, mask, lead) for mask in stacked.given]
        return Place(lhs, (*heads[0], *left)), Place(rhs, (*heads[1], *right)), summed

    def strides(self, place: Place) -> tuple[int, dict[int, int]]:
        """The memory layout of a place: an offset, and a stride for each factor."""
        place = self.fresh(place)
        offset, terms = linear(place.at, self.program.shape(place.value))
        return offset, dict(terms)

    def is_product(self, place: Place) -> bool:
        """Whether a place is an element of a contraction."""
        placed = self._stacked_node(place)
        return placed is not None and isinstance(placed.node.op, DotGeneral | Dot)

    def enter(self, place: Place) -> StackedNode:
        """Record and return the node of a place in this region."""
        placed = self._stacked_node(place)
        assert placed is not None, "a value of this region"
        self.seen[placed.node] = None
        return placed

    def node(self, place: Place) -> Node | None:
        """The node of a place, if it is of this region and not an operand from outside."""
        return place.node if place.node in self.program.placed else None

    def _stacked_node(self, place: Place) -> StackedNode | None:
        return None if place.node is None else self.program.placed.get(place.node)
