"""Fusion decisions: profitable by bytes saved, legal if the loops can be shared.

Nodes are visited from last to first, so that the readers of a value are already in groups. A node
joins the groups that read it if it can be computed in their loops without much recomputation; if it
has other readers, too, one group also stores it, or it starts its own group.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import field

from weft.ir.module import Node, Value, tensor_of
from weft.ir.types import TensorType
from weft.ir.uses import reads
from weft.kernels.group import Group
from weft.kernels.stacked_node import StackedNode
from weft.ops.distributed.local import AxisIndex
from weft.ops.shape import Constant, Iota
from weft.records import dataclass
from weft.target import Target
from weft.tile.drafts.draft import Draft
from weft.tile.drafts.index import At, Bound, Split, covers, factors_of, limits
from weft.tile.drafts.lookup import same_as
from weft.tile.drafts.products import PRODUCTS, outer
from weft.tile.drafts.pulls import MAPS, PLACED_MAPS, REDUCTIONS, Pull, elementwise
from weft.tile.drafts.views import is_alias, read_through
from weft.tile.fusion.epilogues import finishes_product
from weft.tile.fusion.flights import flights_of
from weft.tile.fusion.kinds import COPIED, FusionKind, kind_of
from weft.tile.fusion.nodes import (
    is_simple,
    widens,
)
from weft.tile.fusion.rows import rows_fit


@dataclass
class Grouping:
    """The groups of one region, while they are built."""

    placed: Sequence[StackedNode]
    sizes: tuple[int, ...]  # sizes of the leading dims
    results: Sequence[Value]
    target: Target
    given: Sequence[Group] = ()  # groups with a finished kernel
    drafts: list[Draft] = field(default_factory=list)
    alone: list[Node] = field(default_factory=list)  # unfused nodes

    def __post_init__(self) -> None:
        self.limits = self.target.limits
        self.positions = {p.node: n for n, p in enumerate(self.placed)}
        self.makers: dict[Value, StackedNode] = {v: p for p in self.placed for v in p.node.results}
        self.shapes: dict[Value, tuple[int, ...]] = {}  # of stacks
        self.masks: dict[Value, int] = {}  # mask of every value
        for p in self.placed:
            self.masks.update(zip(p.node.operands, p.given, strict=True))
            self.masks.update(zip(p.node.results, p.made, strict=True))
        self.outside: set[Value] = set(self.results)  # values that must be materialized
        # Finished kernels (attention) read memory: their inputs cannot vanish into other groups.
        self.outside.update(v for g in self.given for v in g.inputs)
        self.makes = {v: g for g in self.given for v in g.outputs}
        self.stuck: set[Value] = set()  # views that must be materialized
        self.readers: dict[Value, dict[Draft, None]] = {}
        self.homes: dict[Value, Draft] = {}  # the group that stores a value
        self.kinds = {p.node: kind_of(p, self.makers, self.target) for p in self.placed}
        self.light = self._light_values()
        self.flights = flights_of(self.placed)

    def run(self) -> None:
        """Visit all nodes."""
        taken = {node for group in self.given for node in group.nodes}
        # Backwards: every reader of a value has its group before the value is met.
        for stacked in reversed(self.placed):
            if stacked.node in taken:
                continue
            kind = self.kinds[stacked.node]
            if kind == "other":
                self._by_itself(stacked.node)
            elif kind == "view":
                self._view(stacked)
            else:
                for value in stacked.node.results:
                    self._place(stacked, kind, value)

    def _light_values(self) -> set[Value]:
        """Values that are free to recompute: iotas, constants, masks of them."""
        values: set[Value] = set()
        for placed in self.placed:
            node = placed.node
            kind = self.kinds[node]
            if kind not in ("map", "view"):
                continue
            match node.op:
                case Constant() | Iota() | AxisIndex():
                    is_light = True
                case op if op.elementwise or kind == "view":
                    is_light = all(v in values for v in node.operands) and is_simple(node)
                case _:
                    is_light = False
            if is_light:
                values.update(node.results)
        return values

    # Nodes that join a group

    def _by_itself(self, node: Node) -> None:
        self.alone.append(node)
        self.outside.update(v for v in reads(node) if isinstance(v.type, TensorType))

    def _view(self, stacked: StackedNode) -> None:
        """A view is materialized only where it is needed in memory."""
        node = stacked.node
        needed = [v for v in node.results if v in self.outside or self.waiting(v)]
        if not needed:
            return
        is_free = is_alias(node) and not self._is_cheap(node)
        # An alias costs the host nothing; any other view is a copy, which a kernel makes faster.
        if is_free or len(node.results) > 1 or any(v in self.stuck for v in needed):
            self._by_itself(node)
            return
        (value,) = needed
        draft = self._begin(value, stacked)
        number = draft.pending[value][0]
        read = self._read(draft, stacked, 0, draft.at(number))
        if read is None:
            # Begun to find out whether the view can be read through: it cannot.
            self.drafts.remove(draft)
            self._by_itself(node)
            return
        draft.nodes[node] = None
        draft.define(number, same_as(self.want(draft, *read, ())))

    def _is_cheap(self, node: Node) -> bool:
        """Whether to copy rather than to alias: the host's step would end a native call."""
        (source,) = node.operands[:1]
        by = source.node
        made = by is not None and self.kinds.get(by) == "other" and not isinstance(by.op, Constant)
        type = node.results[0].type
        is_small = isinstance(type, TensorType) and type.is_static and type.nbytes <= COPIED
        return made and is_small and len(node.results) == 1

    def waiting(self, value: Value) -> list[Draft]:
        """The groups that read a value."""
        return [d for d in self.readers.get(value, ()) if value in d.pending]

    def _place(self, stacked: StackedNode, kind: FusionKind, value: Value) -> None:
        waiting = self.waiting(value)
        stored = value in self.outside
        if not waiting and not stored:
            return
        # Legality and profit are decided per reader: a value may be recomputed in some groups and
        # stored for others.
        fitting = [d for d in waiting if self.fits(stacked, kind, value, d)]
        if self.limits.narrow and finishes_product(self, stacked.node):
            fitting = [d for d in fitting if self._product_fits(value, [*d.pending[value]], d)]
        twice = len(waiting) > 1 or stored
        is_kept = stored or len(fitting) < len(waiting)
        if value in self.light or (
            twice and kind == "map" and self._again(stacked, len(waiting) + stored, stored=is_kept)
        ):
            for draft in fitting:
                self.take(stacked, value, draft)
            # Readers that cannot compute it read it from memory.
            if is_kept:
                self._own(stacked, value)
            return
        if fitting and not twice:
            self.take(stacked, value, fitting[0])
            return
        # Several readers, and too costly to compute in each: one of them stores it for the others.
        host = self._host(value, fitting, waiting)
        if host is None:
            self._own(stacked, value)
        else:
            self._store(value, host)
            self.take(stacked, value, host)

    def _again(self, stacked: StackedNode, readers: int, *, stored: bool) -> bool:
        """Whether recomputing a node in each reader costs no more than reading its result.

        It does not if a single value of at most that size is read instead; even a costly function
        is cheaper computed twice than stored and loaded. A value that is `stored` in memory anyway
        is read, unless that one is, too.
        """
        if stored and self.limits.narrow and not widens(stacked.node):
            sources = self._sources(stacked.node)
            if not all(map(self._is_kept, sources)):
                return False
        cheap = is_simple(stacked.node) or readers <= 2
        # A node that widens (converts to a larger type) is smaller to read before it than behind
        # it.
        return widens(stacked.node) or (cheap and len(self._sources(stacked.node)) <= 1)

    def _is_kept(self, value: Value) -> bool:
        """Whether a value is in memory, or some group needs it there."""
        is_read = value in self.outside or bool(self.waiting(value))
        return is_read or value not in self.makers

    def _sources(self, node: Node) -> set[Value]:
        """Large values that suffice to compute a node: its operands, or their inputs."""
        sources = self._large(node, node)
        # Bounded: the search is run for every node with several readers.
        for _ in range(self.limits.chain):
            makers = [self.makers[v] for v in sources if v in self.makers]
            last = max(makers, key=lambda p: self.positions[p.node], default=None)
            if len(sources) < 2 or last is None or not self.is_short(last.node):
                break
            sources -= {*last.node.results}
            sources |= self._large(last.node, node)
        return sources

    def _large(self, node: Node, reader: Node) -> set[Value]:
        """The operands' view sources, without those much smaller than another result."""
        elements = self.elements(reader.results[0])
        return {self.viewed(v) for v in node.operands if not self.is_small(v, elements)}

    def is_short(self, node: Node) -> bool:
        """Whether a node is cheap and elementwise, and its result need not be materialized."""
        is_map = self.kinds[node] == "map" and node.op.elementwise and is_simple(node)
        return is_map and self.outside.isdisjoint(node.results)

    def is_small(self, value: Value, elements: int) -> bool:
        """Whether a value's view source has far fewer elements than this."""
        value = self.viewed(value)
        # A quarter or less of the traffic of the result itself: rows of biases and scales.
        return value in self.light or 4 * self.elements(value) <= elements

    def is_product(self, value: Value) -> bool:
        """Whether a value's view source is a contraction."""
        maker = self.makers.get(self.viewed(value))
        return maker is not None and self.kinds[maker.node] == "product"

    def viewed(self, value: Value) -> Value:
        """The source of a view."""
        while (placed := self.makers.get(value)) is not None:
            if self.kinds[placed.node] != "view" or value in self.stuck:
                break
            value = placed.node.operands[min(value.index, len(placed.node.operands) - 1)]
        return value

    def _own(self, placed: StackedNode, value: Value) -> None:
        """Start a new group for a node."""
        self.take(placed, value, self._begin(value, placed))

    def _begin(self, value: Value, placed: StackedNode) -> Draft:
        draft = Draft(self.positions[placed.node])
        at = draft.along(self.shape(value), len(self.sizes))
        draft.root = tuple([n for expr in at for n, _ in expr[1]])
        draft.outputs.append((value, draft.instance(value, at)))
        self.homes[value] = draft
        self.drafts.append(draft)
        return draft

    def _store(self, value: Value, draft: Draft) -> None:
        """Make a group store a value that it computes."""
        number = self._covering(value, draft)
        assert number is not None, "every element is computed"
        draft.outputs.append((value, number))
        self.homes[value] = draft

    def _covering(self, value: Value, draft: Draft) -> int | None:
        """An instance that covers all elements of the value."""
        shape = self.shape(value)
        for number in draft.pending.get(value, ()):
            at = draft.at(number)
            if (
                # Computed only while a contraction packs, or at some points, or at a dynamic index.
                number in draft.upstream
                or draft.bounds(number)
                or factors_of(at) & draft.later.keys()
            ):
                continue
            if covers(at, shape, draft.size):
                return number
        return None

    def _host(self, value: Value, fitting: list[Draft], waiting: list[Draft]) -> Draft | None:
        """The group that may store a value for all readers: none of them precedes it."""
        # A group that depends on another reader could not store the value before that one runs.
        for draft in sorted(fitting, key=lambda d: d.position):
            others = {d for d in waiting if d is not draft}
            # Of a long row a GPU keeps nothing: what it stores is computed again in each pass.
            is_long = math.prod([draft.sizes[f] for f in draft.rows]) > self.limits.row
            if self.limits.narrow and is_long:
                continue
            if self._covering(value, draft) is not None and not self._after(draft, others, value):
                return draft
        return None

    def _after(self, draft: Draft, others: set[Draft], value: Value) -> bool:
        """Whether a group depends on one of the others, or on an unfused reader of a value."""
        maker = self.makers[value].node
        begin = self.positions[maker]
        seen: set[int] = set()
        todo: list[Value] = list(draft.pending)
        while todo:
            wanted = todo.pop()
            producer = self.makers.get(wanted)
            # Nodes up to the value itself cannot depend on it.
            if producer is None or self.positions[producer.node] <= begin or id(wanted) in seen:
                continue
            seen.add(id(wanted))
            home = self.homes.get(wanted)
            if home in others:
                return True
            if home is not None:
                todo += home.pending
            elif wanted in self.makes:
                inputs = self.makes[wanted].inputs
                if value in inputs:
                    return True
                todo += inputs
            elif value in (found := [*reads(producer.node)]):
                return True
            else:
                todo += found
        return False

    # Joining

    def take(self, stacked: StackedNode, value: Value, draft: Draft) -> None:
        """Compute a node inside of a group, wherever it is requested."""
        op = type(stacked.node.op)
        is_product = self.kinds[stacked.node] == "product"
        products = PRODUCTS.get(op) if is_product else outer if op in PRODUCTS else None
        pull_of = MAPS.get(op) or REDUCTIONS.get(op) or products or elementwise
        draft.nodes[stacked.node] = None
        for number in list(draft.pending.get(value, ())):
            if is_product:
                # One contraction for each kernel: its blocks and packing are the kernel's whole
                # schedule.
                draft.contract = number
            at, bounds = draft.at(number), draft.bounds(number)

            def want(v: Value, a: At, b: tuple[Bound, ...]) -> int:
                return self.want(draft, v, a, b)

            pull = Pull(draft, stacked, at, bounds, want, self.sizes, value.index)
            draft.define(number, pull_of(pull))
            if is_product and draft.summed is not None:
                # It sums over the devices itself: the sum that read it is an alias of it now.
                draft.definitions[draft.summed[0]] = same_as(number)
        self.readers.get(value, {}).pop(draft, None)

    def want(self, draft: Draft, value: Value, at: At, bounds: tuple[Bound, ...]) -> int:
        """An instance of a value, or of its view source."""
        at = tuple([draft.fresh(e) for e in at])
        while (placed := self.makers.get(value)) is not None:
            if value in self.stuck or value in self.makes or self.kinds[placed.node] != "view":
                break
            source = self._read(draft, placed, value.index, at)
            if source is None:
                self.stuck.add(value)
                break
            value, at = source
        bounds = draft.needed([(draft.fresh(e), low, high) for e, low, high in bounds])
        self.readers.setdefault(value, {})[draft] = None
        return draft.instance(value, at, bounds)

    def _read(
        self, draft: Draft, stacked: StackedNode, result: int, at: At
    ) -> tuple[Value, At] | None:
        """The value that a view reads, after splitting factors as necessary."""
        trial, splits = draft, list[Split]()
        while True:
            source = read_through(stacked, result, at, trial, self.sizes)
            if not isinstance(source, Split):
                break
            # An index read from memory cannot be split into two loops.
            if source.factor in draft.later:
                return None
            if trial is draft:
                trial = draft.same_factors()
            trial.split(source)
            splits.append(source)
            at = tuple([trial.fresh(e) for e in at])
        # Only for a view that is read through: the others' readers keep their loops.
        if source is not None:
            for split in splits:
                draft.split(split)
        return source

    # Profitability and legality

    def fits(self, stacked: StackedNode, kind: FusionKind, value: Value, draft: Draft) -> bool:
        """Whether a node may be computed inside of a group."""
        numbers = draft.pending[value]
        if not numbers or len(draft.keys) > self.limits.steps:
            return False
        position = self.positions[stacked.node]
        # Fusing downwards across a done would move work out of the time in which it hides a
        # transfer.
        if self.flights.land(position, draft.position) and value not in self.light:
            return False
        by_loops = kind != "map" or type(stacked.node.op) in PLACED_MAPS
        # A `later` factor has no loop: it is an index read from memory, known only where it is
        # used.
        if by_loops and any(factors_of(draft.at(n)) & draft.later.keys() for n in numbers):
            return False
        match kind:
            case "product":
                return self._product_fits(value, numbers, draft)
            case "reduce":
                return len(numbers) == 1 and rows_fit(stacked, numbers[0], draft, self.limits)
        if any(n in draft.upstream for n in numbers):
            return self._prologue_fits(stacked, value, numbers, draft)
        return self._map_fits(stacked, value, numbers, draft)

    def _product_fits(self, value: Value, numbers: list[int], draft: Draft) -> bool:
        """A contraction accepts an elementwise epilogue, and a sum over devices."""
        if len(numbers) != 1 or draft.contract is not None or draft.bounds(numbers[0]):
            return False
        at = draft.at(numbers[0])
        # Rows are the devices of a sum: the contraction of each is added up inside of the kernel.
        if draft.rows:
            is_summed = draft.summed is not None and draft.summed[1] == numbers[0]
            is_read_once = value not in self.outside and len(self.waiting(value)) == 1
            # The per-device products are never stored then, so nothing else may read them.
            if not (is_summed and is_read_once and self.target.options.fold_sums):
                return False
        # Each element of the product meets its epilogue once: the group has no other loops.
        wanted = {*draft.root, *draft.rows}
        return factors_of(at) == wanted and covers(at, self.shape(value), draft.size)

    def _prologue_fits(
        self, stacked: StackedNode, value: Value, numbers: list[int], draft: Draft
    ) -> bool:
        """A prologue: an elementwise op on a contraction's operand, applied once during packing."""
        if len(numbers) != 1 or not is_simple(stacked.node):
            return value in self.light
        if value in self.light:
            return True
        if not self.limits.prologues:
            return False
        points = draft.points(draft.at(numbers[0]))
        large = [v for v in stacked.node.operands if v not in self.light and tensor_of(v).rank]
        # Packing visits each element of an operand once per panel pass; with more points than
        # elements the prologue would be recomputed, and two large operands double what packing
        # reads.
        if points > self.elements(value) or len(large) > 1:
            return False
        return not any(self.is_product(v) for v in large)  # cheaper as that one's epilogue

    def _map_fits(
        self, stacked: StackedNode, value: Value, numbers: list[int], draft: Draft
    ) -> bool:
        if value in self.light:
            return True
        order = [n for n in draft.root if n not in draft.rows] + [*draft.rows]
        points = sum(_points(draft, order, n) for n in numbers)
        if points <= self.elements(value):
            return True
        size = self.elements(value) * tensor_of(value).dtype.numpy.itemsize
        # Recomputed, but from operands that stay in a near cache, and by few instructions.
        return is_simple(stacked.node) and size <= self.limits.near

    # Shapes

    def shape(self, value: Value) -> tuple[int, ...]:
        """The shape of a value's stack."""
        found = self.shapes.get(value)
        if found is None:
            mask = self.masks[value]
            head = [n if mask >> d & 1 else 1 for d, n in enumerate(self.sizes)]
            found = self.shapes[value] = (*head, *tensor_of(value).sizes)
        return found

    def elements(self, value: Value) -> int:
        """The number of elements of a value's stack."""
        return math.prod(self.shape(value))


def _points(draft: Draft, order: Sequence[int], number: int) -> float:
    """How often an instance is computed: at each point of its loops, within its bounds."""
    used = factors_of(draft.at(number))
    # A step runs in the body of its innermost loop: the loops outside of that one repeat it,
    # whether it depends on them or not.
    deepest = max((n for n, f in enumerate(order) if f in used), default=-1)
    points = float(math.prod(draft.sizes[f] for f in order[: deepest + 1]))
    for expr, low, high in draft.bounds(number):
        least, most = limits(expr, draft.size)
        points *= min(1.0, (high - low) / (most - least + 1))
    return points
