"""Matching of forward attention: two contractions with a softmax between them."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Literal

import numpy as np

from weft.ir.module import Node, Value, tensor_of
from weft.ir.types import Array
from weft.kernels.attention import Window
from weft.ops.contract import Dot, DotGeneral
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Select, Subtract
from weft.ops.elementwise.transcendental import Exponential
from weft.ops.shape import Constant, Reshape, Transpose
from weft.records import dataclass
from weft.tile.attention.probe import Probe, rows, softmax
from weft.tile.attention.reading import Place, Reader, RegionNodes
from weft.tile.attention.scores import ScoreMask, Scores, number, scores_of, source, unscaled
from weft.tile.attention.window import Band, Bands, is_masking_fill
from weft.tile.drafts.index import Expr, factors_of

FLOATS = {"f32", "f64", "bf16", "f16"}


@dataclass(frozen=True, slots=True)
class Forward:
    """A matched attention, in terms of the factors of one reader."""

    reader: Reader
    out: Place
    q: Place
    k: Place
    v: Place
    scores: Scores  # the contraction of queries and keys, scaled, biased and masked
    given: Place  # the softmax's input
    scale: float
    window: Window
    mask: ScoreMask | None
    empty: Literal["zero", "nan"]
    query: int | None  # factors
    key: int
    depth: int
    column: int
    nodes: tuple[Node, ...]  # from the contraction of queries and keys to the last one
    lse: Place | None = None  # the logsumexp, if the program uses it
    softcap: float = 0.0  # 0: none

    @property
    def bias(self) -> Place | None:
        """The additive bias of the scores."""
        return self.scores.bias


def find_forward(program: RegionNodes, node: Node) -> Forward | None:
    """The attention that ends with a contraction, if there is one."""
    if not isinstance(node.op, DotGeneral | Dot):
        return None
    for turned, value in enumerate(node.operands):
        if value in program.powers:
            found = _Search(program, node).run(bool(turned))
            if found is not None:
                return found
    return None


def ends(program: RegionNodes, node: Node) -> Value:
    """The value after a node's single-reader chain of transposes, reshapes and one cast."""
    value, casts = node.results[0], 0
    while (reader := program.only_reader(value)) is not None:
        if isinstance(reader.op, Convert):
            casts += 1  # a second cast would read rounded values
            if casts > 1 or tensor_of(reader.results[0]).dtype.name not in FLOATS:
                break
        elif not isinstance(reader.op, Transpose | Reshape):
            break
        value = reader.results[0]
    return value


class _Search:
    """One attempt to match."""

    def __init__(self, program: RegionNodes, node: Node) -> None:
        self.program = program
        self.reader = Reader(program)
        self.out = self.reader.all_of(ends(program, node))

    def run(self, turned: bool) -> Forward | None:
        reader = self.reader
        sides = self._last_product()
        if sides is None:
            return None
        left, right, summed = sides
        weights, values = (right, left) if turned else (left, right)
        softmax, empty = self._softmax(weights, summed)
        if softmax is None or empty is None:
            return None
        scores = scores_of(reader, softmax)
        if scores is None:
            return None
        q, k, over = reader.product(scores.product)
        # The side that varies along the keys is k; a program may have written it first.
        if not factors_of(self._along(summed)) <= factors_of(reader.fresh(k).at):
            q, k = k, q
        inner = dict(reader.seen)
        forward = self._sides(scores, q, k, values, self._along(summed), self._along(over))
        reader.seen = inner
        if forward is None:
            return None
        nodes = tuple(sorted(inner, key=self.program.order.__getitem__))
        return replace(forward, given=softmax, empty=empty, nodes=nodes)

    def _along(self, listed: list[Expr]) -> list[Expr]:
        return [self.reader.draft.fresh(e) for e in listed if e[1]]

    def _last_product(self) -> tuple[Place, Place, list[Expr]] | None:
        reader, place = self.reader, self.reader.through(self.out)
        while (node := reader.node(place)) is not None and isinstance(node.op, Convert):
            place = reader.through(reader.operands(place)[0])
        if not reader.is_product(place):
            return None
        return reader.product(place)

    # Softmax

    def _softmax(
        self, weights: Place, summed: list[Expr]
    ) -> tuple[Place | None, Literal["zero", "nan"] | None]:
        """The softmax's input along the keys, and the result of an empty row."""
        power = self._power(weights, summed, set())
        if power is None:
            return None, None
        # Softmax is recognized by what it computes, not by its nodes: programs write it in many
        # ways (safe softmax, masked rows, another order of divisions), and all of them give these
        # numbers.
        numbers = _tries()
        probe = Probe(self.reader, self._along(summed), {power: numbers})
        found = probe(weights)
        if found is None:
            return None, None
        *made, nothing = np.broadcast_to(found, numbers.shape)
        if not same_numbers(np.asarray(made), softmax(numbers[:-1])):
            return None, None
        if np.isnan(nothing).all():
            return power, "nan"
        return (power, "zero") if not nothing.any() else (None, None)

    def _power(self, place: Place, summed: list[Expr], tried: set[Value]) -> Place | None:
        """The minuend of the exponential's argument: the softmax's input."""
        reader, place = self.reader, self.reader.through(place)
        node = place.node
        if node is None or place.value in tried or place.value not in self.program.powers:
            return None
        tried.add(place.value)
        if isinstance(node.op, Exponential):
            inner = reader.through(reader.operands(place)[0])
            minus = reader.node(inner)
            if minus is None or not isinstance(minus.op, Subtract):
                return None
            return reader.through(reader.operands(inner)[0])
        if not node.op.elementwise:
            return None
        along = factors_of(self._along(summed))
        for operand in reader.operands(place):
            if along <= factors_of(reader.fresh(operand).at):
                found = self._power(operand, summed, tried)
                if found is not None:
                    return found
        return None

    # Queries, keys and values

    def _sides(
        self,
        scores: Scores,
        q: Place,
        k: Place,
        v: Place,
        summed: list[Expr],
        over: list[Expr],
    ) -> Forward | None:
        reader = self.reader
        (q, by), (k, more) = unscaled(reader, q), unscaled(reader, k)
        v = source(reader, v)
        q, k, v = (reader.fresh(p) for p in (q, k, v))
        key, depth = _single(self._again(summed)), _single(self._again(over))
        if key is None or depth is None or not self._dtypes(q, k, v):
            return None
        columns = factors_of(v.at) - factors_of(reader.fresh(scores.product).at) - {key}
        if len(columns) != 1 or key not in factors_of(k.at) or key not in factors_of(v.at):
            return None
        free = factors_of(q.at) - factors_of(k.at) - factors_of(v.at) - {depth}
        seen = self._visibility(scores, free, key)
        if seen is None:
            return None
        window, mask, scores, query = seen
        return Forward(
            reader,
            reader.fresh(self.out),
            q,
            k,
            v,
            scores,
            scores.product,
            scores.scale * by * more,
            window,
            mask,
            "zero",
            query,
            key,
            depth,
            columns.pop(),
            (),
        )

    def _again(self, listed: list[Expr]) -> list[Expr]:
        return [self.reader.draft.fresh(e) for e in listed]

    def _dtypes(self, *places: Place) -> bool:
        names = {tensor_of(p.value).dtype.name for p in places}
        # Scores are accumulated in f32, or in f64 if everything is f64.
        return names <= FLOATS and (len(names) == 1 or "f64" not in names)

    def _visibility(
        self, scores: Scores, free: set[int], key: int
    ) -> tuple[Window, ScoreMask | None, Scores, int | None] | None:
        """The window, a mask, the rest, and the factor that counts queries."""
        reader = self.reader
        sizes = {f: reader.draft.size(f) for f in free}
        keys = reader.draft.size(key)
        bands = Bands(reader, sizes, key, keys)
        bits = tensor_of(scores.product.value).dtype.bits
        band, left, bias = Band(), list[ScoreMask](), scores.bias
        hidden = list(scores.hidden)
        if bias is not None and (as_mask := _bias_as_mask(reader, scores)) is not None:
            boolean = tensor_of(as_mask.where.value).dtype.kind == "bool"
            if boolean or bands.find(as_mask.where, not as_mask.when) is not None:
                hidden, bias = [*hidden, as_mask], None
        for one in hidden:
            one_band = (
                bands.find(one.where, not one.when) if is_masking_fill(one.fill, bits) else None
            )
            if one_band is None or not self._all_see(band & one_band, one.fill, sizes, bands, keys):
                left.append(one)
            else:
                band &= one_band
        query = bands.query
        # Without a window any free factor may count the queries: the longest one blocks best.
        if query is None and free:
            query = max(sorted(free), key=lambda f: sizes[f])
        if len(left) > 1:
            return None
        high = band.high
        window = Window(None if band.low is None else -band.low, high)
        scores = replace(scores, bias=bias, hidden=tuple(hidden))
        return window, left[0] if left else None, scores, query

    def _all_see(
        self, band: Band, fill: float, sizes: dict[int, int], bands: Bands, keys: int
    ) -> bool:
        """Whether skipping hidden keys is valid: not if a fully hidden row matters."""
        # exp(-inf) is 0, so hidden keys contribute nothing. With a finite fill a fully hidden row
        # is a softmax of equal scores, the mean of all values, and skipping its keys would change
        # it.
        if fill == -math.inf:
            return True
        window = Window(None if band.low is None else -band.low, band.high)
        count = 1 if bands.query is None else sizes[bands.query]
        return all(window.visible_keys(i, keys) for i in range(count))


@cache
def _tries() -> Array:
    """Probe rows that identify a softmax: all magnitudes, some -inf, the last row all -inf."""
    found = np.concatenate([rows(0), rows(1) * 100, rows(2), rows(3)[:1]])
    found[6, 1:4] = found[-1] = -math.inf
    return found


def _bias_as_mask(reader: Reader, scores: Scores) -> ScoreMask | None:
    """A bias of 0 for visible keys and a very negative number for hidden ones."""
    assert scores.bias is not None
    place, by = reader.through(scores.bias), scores.bias_scale
    if place.node is None:
        return None
    if isinstance(place.node.op, Constant):
        numbers = {by * n for n in np.unique(place.node.op.value.elements).tolist()}
        fill = min(numbers)
        return (
            # True: the bias is nonzero, and so true as a boolean, where a key is hidden.
            ScoreMask(place, True, fill)
            if numbers == {0.0, fill} and is_masking_fill(fill, 32)
            else None
        )
    if place.node not in reader.program.placed or not isinstance(place.node.op, Select):
        return None
    where, yes, no = reader.operands(place)
    a, b = (None if n is None else by * n for n in (number(reader, yes), number(reader, no)))
    if a == 0.0 and b is not None and is_masking_fill(b, 32):
        return ScoreMask(where, False, b)
    if b == 0.0 and a is not None and is_masking_fill(a, 32):
        return ScoreMask(where, True, a)
    return None


def _single(listed: list[Expr]) -> int | None:
    """The factor of an index, if it is a single one."""
    if len(listed) != 1 or listed[0][0] != 0 or len(listed[0][1]) != 1:
        return None
    ((number, step),) = listed[0][1]
    return number if step == 1 else None


def same_numbers(found: Array | None, expected: Array) -> bool:
    """Whether numbers agree up to rounding."""
    return found is not None and np.allclose(found, expected, rtol=1e-5, atol=1e-7, equal_nan=True)
