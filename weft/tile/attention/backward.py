"""The backward pass of matched attention: the contractions of its gradients.

    dv = p dout,  dp = dout v,  ds = p * (dp - sum of p * dp),  dq = ds k,  dk = ds q

The row-wise part between dp and ds may be spelled in any way: it is recognized by evaluating it on
a few rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from weft.ir.module import Node, Value
from weft.ir.types import Array
from weft.ops.contract import Dot, DotGeneral
from weft.ops.elementwise.convert import Convert
from weft.records import dataclass
from weft.tile.attention.forward import Forward, ends, same_numbers
from weft.tile.attention.probe import Probe, rows, softmax
from weft.tile.attention.reading import Place, Reader, RegionNodes
from weft.tile.attention.scores import source, unscaled
from weft.tile.drafts.index import Expr, Split, factors_of

Strides = Mapping[int, int]  # by the factors of the forward's reader


@dataclass(frozen=True, slots=True)
class GradientStore:
    """A gradient: the value, its strides by factor, its column stride, and a scale."""

    value: Value
    strides: Strides
    column: int
    scale: float
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class RowOperand:
    """A row operand: the value, an offset, its strides by factor, and its column stride."""

    value: Value
    offset: int
    strides: Strides
    column: int


@dataclass(frozen=True, slots=True)
class Backward:
    """All gradients of one attention."""

    dout: RowOperand
    dq: GradientStore
    dk: GradientStore
    dv: GradientStore

    @property
    def nodes(self) -> set[Node]:
        """Every node that the kernel replaces."""
        return {*self.dq.nodes, *self.dk.nodes, *self.dv.nodes}


def find_backward(program: RegionNodes, forward: Forward) -> Backward | None:
    """The gradients of an attention, if all are present."""
    search = _Search(program, forward)
    writes: dict[str, GradientStore] = {}
    douts: list[RowOperand] = []
    for node in _products_after(program, forward):
        for label, written, dout in search.classify(node):
            if label in writes:
                return None
            writes[label] = written
            douts.append(dout)
    if {*writes} != {"dq", "dk", "dv"} or any(d != douts[0] for d in douts):
        return None
    return Backward(douts[0], **writes)


def recomputed(program: RegionNodes, forward: Forward) -> Forward | None:
    """The same attention with scores recomputed for the gradients alone (rematerialization)."""
    first = forward.scores.product
    assert first.node is not None
    wanted = _sources(program, first.node)
    for node in program.products[first.node.op]:
        if node is not first.node and _sources(program, node) == wanted:
            place = Place(node.results[0], first.at)
            return replace(forward, scores=replace(forward.scores, product=place))
    return None


def _sources(program: RegionNodes, node: Node) -> tuple[Place, Place]:
    """The sides of a contraction, through views."""
    reader = Reader(program)
    left, right, _ = reader.product(reader.all_of(node.results[0]))
    return reader.through(left), reader.through(right)


def _products_after(program: RegionNodes, forward: Forward) -> Iterator[Node]:
    """The contractions that read row-wise functions of the scores, in order."""
    todo = [forward.scores.product.value]
    seen: set[Value] = set()
    nodes: set[Node] = set()
    while todo:
        value = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        for node in program.readers.get(value, ()):
            if isinstance(node.op, DotGeneral | Dot):
                nodes.add(node)
            else:
                todo += node.results
    # The forward's own products read the scores, too.
    last = {n for n in forward.nodes if isinstance(n.op, DotGeneral | Dot)}
    yield from sorted(nodes - last, key=program.order.__getitem__)


class _Search:
    """Classifies one contraction after another."""

    def __init__(self, program: RegionNodes, forward: Forward) -> None:
        self.program, self.forward = program, forward
        reader = forward.reader
        self.scores = forward.scores.product.value
        _, self.strides = reader.strides(forward.scores.product)
        self.sizes = {f: reader.draft.size(f) for f in self.strides}
        self.known = _fixed(forward)

    def classify(self, node: Node) -> Iterator[tuple[str, GradientStore, RowOperand]]:
        """The gradient that a contraction computes, its output, and the dout it derives from."""
        for turned in (False, True):
            reader = Reader(self.program)
            out = reader.all_of(ends(self.program, node))
            sides = _sides(reader, out, turned)
            if sides is None:
                continue
            pairs, other, summed = sides
            found = _Pairs(self, reader, pairs).look()
            if found is None:
                continue
            made = self._named(found, reader, out, other, summed)
            if made is not None:
                yield made
                return

    def _named(
        self, pairs: _Found, reader: Reader, out: Place, other: Place, summed: list[Expr]
    ) -> tuple[str, GradientStore, RowOperand] | None:
        nodes = tuple(reader.seen)
        forward, names = self.forward, pairs.names
        over = {names.get(f) for f in factors_of([reader.draft.fresh(e) for e in summed])}
        if pairs.dp is None:
            # dv and dk sum over the queries, dq over the keys.
            if forward.query not in over or forward.key in over:
                return None
            dout = self._rows(reader, names, source(reader, other))
            dv = self._written(reader, names, out, 1.0, nodes)
            return None if dout is None or dv is None else ("dv", dv, dout)
        rows_of, by = unscaled(reader, other)
        factor_rows = self._rows(reader, names, rows_of)
        dout = self._through_values(reader, names, pairs.dp)
        nodes = (*nodes, *(n for n in (pairs.dp.node,) if n is not None))
        if factor_rows is None or dout is None:
            return None
        label, same = ("dq", forward.k) if forward.key in over else ("dk", forward.q)
        key = forward.depth
        if factor_rows != self._own(same, key) or (label == "dk" and forward.query not in over):
            return None
        written = self._written(reader, names, out, pairs.scale * by, nodes)
        return None if written is None else (label, written, dout)

    def _through_values(
        self, reader: Reader, names: dict[int, int], dp: Place
    ) -> RowOperand | None:
        """The gradient of out, given dp as an element of its contraction with the values."""
        left, right, _ = reader.product(dp)
        wanted = self._own(self.forward.v, self.forward.column)
        for values, dout in ((left, right), (right, left)):
            if self._rows(reader, names, source(reader, values)) == wanted:
                return self._rows(reader, names, source(reader, dout))
        return None

    def _own(self, place: Place, column: int) -> RowOperand:
        """A row operand of the forward."""
        offset, strides = self.forward.reader.strides(place)
        return RowOperand(place.value, offset, _without(strides, column), strides.get(column, 0))

    def _rows(self, reader: Reader, names: dict[int, int], place: Place) -> RowOperand | None:
        offset, strides = reader.strides(place)
        named = {names[f]: s for f, s in strides.items() if f in names}
        rest = [s for f, s in strides.items() if f not in names]
        return RowOperand(place.value, offset, named, rest[0]) if len(rest) == 1 else None

    def _written(
        self,
        reader: Reader,
        names: dict[int, int],
        out: Place,
        scale: float,
        nodes: tuple[Node, ...],
    ) -> GradientStore | None:
        found = self._rows(reader, names, reader.fresh(out))
        if found is None:
            return None
        return GradientStore(found.value, found.strides, found.column, scale, nodes)


@dataclass(frozen=True, slots=True)
class _Found:
    """One side of a contraction: probabilities, or (with dp) gradients of scores."""

    names: dict[int, int]  # factors of its reader -> factors of the forward
    dp: Place | None
    scale: float


class _Pairs:
    """Matches one side of a contraction: an element for each (query, key) pair."""

    def __init__(self, search: _Search, reader: Reader, place: Place) -> None:
        self.search, self.reader, self.place = search, reader, place

    def look(self) -> _Found | None:
        """The score gradient that the value is, if it belongs to this attention."""
        leaves: list[Place] = []
        self._leaves(self.place, leaves, set())
        scores = [p for p in leaves if p.value is self.search.scores]
        others = [p for p in leaves if p.value is not self.search.scores]
        # Probabilities depend on the scores alone, their gradients on the scores and on dp.
        if len(scores) != 1 or len(others) > 1:
            return None
        names = self._names(scores[0])
        if names is None:
            return None
        place, dp = self.reader.fresh(scores[0]), self.reader.fresh(others[0]) if others else None
        key = next((f for f, name in names.items() if name == self.search.forward.key), None)
        if key is None:
            return None
        scale = self._try(place, dp, key)
        return None if scale is None else _Found(names, dp, scale)

    def _leaves(self, place: Place, places: list[Place], seen: set[Place]) -> None:
        """The contractions that an elementwise expression depends on."""
        place = self.reader.through(place)
        node = place.node
        if place in seen or node is None or node not in self.reader.program.placed:
            return
        seen.add(place)
        if self.reader.is_product(place):
            places.append(place)
        elif node.op.elementwise and node.operands:
            for operand in self.reader.operands(place):
                self._leaves(operand, places, seen)

    def _names(self, scores: Place) -> dict[int, int] | None:
        """Factors matched to the forward's by equal strides in the scores."""
        draft = self.reader.draft
        # The scores are one value, read by both: a factor is known by its stride and size in it.
        known = {(s, self.search.sizes[f]): f for f, s in self.search.strides.items()}
        while True:
            _, strides = self.reader.strides(scores)
            names = {f: known.get((s, draft.size(f))) for f, s in strides.items()}
            missing = [f for f, name in names.items() if name is None]
            if not missing:
                break
            finer = [n for s, n in known if s == strides[missing[0]]]
            if not finer or draft.size(missing[0]) % finer[0] or finer[0] >= draft.size(missing[0]):
                return None
            draft.split(Split(missing[0], finer[0]))
        found = {f: name for f, name in names.items() if name is not None}
        return found if len(found) == len(known) else None

    def _try(self, scores: Place, dp: Place | None, key: int) -> float | None:
        """The scale, if synthetic rows evaluate to the expected values."""
        s, g = rows(4), rows(5)
        values = self._probe(scores, dp, key, s, g)
        if values is None:
            return None
        p = softmax(self.search.forward.scores.scale * s)
        wanted = p if dp is None else p * (g - (p * g).sum(axis=-1, keepdims=True))
        # The least-squares factor between both: the program may scale ds, but not p.
        ratio = float(np.float32(np.sum(values * wanted) / np.sum(wanted * wanted)))
        if not same_numbers(values, ratio * wanted) or (dp is None and abs(ratio - 1) > 1e-5):
            return None
        return ratio

    def _probe(self, scores: Place, dp: Place | None, key: int, s: Array, g: Array) -> Array | None:
        given = {scores: s} if dp is None else {scores: s, dp: g}
        probe = Probe(self.reader, [(0, ((key, 1),))], given, self.search.known)
        made = probe(self.place)
        return None if made is None else np.broadcast_to(made, s.shape)


def _fixed(forward: Forward) -> dict[Value, float | bool]:
    """Values fixed for the probe: all keys visible, and no bias."""
    fixed: dict[Value, float | bool] = {}
    for hidden in forward.scores.hidden:
        fixed[forward.reader.through(hidden.where).value] = not hidden.when
    if forward.bias is not None:
        fixed[forward.reader.through(forward.bias).value] = 0.0
    return fixed


def _sides(reader: Reader, out: Place, turned: bool) -> tuple[Place, Place, list[Expr]] | None:
    place = reader.through(out)
    while (node := reader.node(place)) is not None and isinstance(node.op, Convert):
        place = reader.through(reader.operands(place)[0])
    if not reader.is_product(place):
        return None
    left, right, summed = reader.product(place)
    return (right, left, summed) if turned else (left, right, summed)


def _without(strides: Mapping[int, int], factor: int) -> Strides:
    return {f: s for f, s in strides.items() if f != factor}
