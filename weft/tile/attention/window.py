"""Windows: masks that depend on the positions of query and key alone."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from weft.ir.module import tensor_of
from weft.ir.types import Array
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import (
    Add,
    And,
    Compare,
    Multiply,
    Negate,
    Not,
    Select,
    Subtract,
)
from weft.ops.shape import Constant, Iota
from weft.records import dataclass
from weft.tile.attention.reading import Place, Reader
from weft.tile.attention.scores import number
from weft.tile.drafts.index import Expr, plus, times

LIMIT = 1 << 24  # elements of a constant that are compared one by one


@dataclass(frozen=True, slots=True)
class Band:
    """Pairs with low <= key - query <= high; None: unbounded."""

    low: int | None = None
    high: int | None = None

    def __and__(self, other: Band) -> Band:
        lows = [b for b in (self.low, other.low) if b is not None]
        highs = [b for b in (self.high, other.high) if b is not None]
        return Band(max(lows, default=None), min(highs, default=None))

    def outside(self) -> Band | None:
        """The complement, if it is a band."""
        match self.low, self.high:
            case None, int(high):
                return Band(high + 1, None)
            case int(low), None:
                return Band(None, low - 1)
        return None


class Bands:
    """Finds the bands of booleans over queries and keys."""

    def __init__(self, reader: Reader, queries: dict[int, int], key: int, keys: int) -> None:
        self.reader = reader
        self.queries = queries  # candidate query factors and their sizes
        self.key, self.keys = key, keys
        self.query: int | None = None  # the query factor of the bands found so far

    def find(self, place: Place, when: bool) -> Band | None:
        """The band of pairs for which a boolean has a value."""
        place = self.reader.through(place)
        node = place.node
        if node is not None and isinstance(node.op, Constant):  # independent of the place
            return self._constant(place, when)
        if node is None or node not in self.reader.program.placed:
            return None
        finder = self._FINDERS.get(type(node.op))
        return None if finder is None else finder(self, place, when)

    def _compare(self, place: Place, when: bool) -> Band | None:
        assert place.node is not None and isinstance(place.node.op, Compare)
        one, other = (self._index(p) for p in self.reader.operands(place))
        if one is None or other is None:
            return None
        # key - query + offset, compared with 0
        offset, terms = plus(one, times(other, -1))
        coefficients = dict(terms)
        step = coefficients.pop(self.key, 0)
        if step not in (1, -1) or [*coefficients.values()] != [-step]:
            return None
        if not self._about(next(iter(coefficients))):
            return None
        # step * (key - query) + offset: with a negative step both sides change their signs.
        at = -offset * step
        way = place.node.op.comparison_direction
        if step < 0:
            way = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(way, way)
        bands = {
            "LT": Band(None, at - 1),
            "LE": Band(None, at),
            "GT": Band(at + 1, None),
            "GE": Band(at, None),
            "EQ": Band(at, at),
        }
        band = bands.get(way)
        return band if when or band is None else band.outside()

    def _about(self, query: int) -> bool:
        """Whether a factor may be the queries, given the bands so far."""
        if query not in self.queries or self.query not in (None, query):
            return False
        self.query = query
        return True

    def _index(self, place: Place) -> Expr | None:
        """An integer as an affine expression of factors."""
        place = self.reader.through(place)
        node = place.node
        if node is None or node not in self.reader.program.placed:
            return None
        if not tensor_of(place.value).dtype.is_integer:
            return None
        match node.op:
            case Iota(iota_dimension=dim):
                return place.at[len(self.reader.program.sizes) + dim]
            case Constant(value=dense):
                lead = len(self.reader.program.sizes)
                if dense.is_splat:
                    return (int(dense.elements[0]), ())
                if not 0 < dense.type.size <= LIMIT:
                    return None
                return affine_of(dense.array, place.at[lead:])
        if type(node.op) not in (Add, Subtract, Negate, Multiply, Convert):
            return None
        parts = [self._index(p) for p in self.reader.operands(place)]
        if any(p is None for p in parts):
            return None
        return _combined(node.op, [p for p in parts if p is not None])

    def _both(self, place: Place, when: bool) -> Band | None:
        # Where a conjunction fails is the union of two outsides, which is not a band.
        if not when:
            return None
        one, other = (self.find(p, True) for p in self.reader.operands(place))
        return None if one is None or other is None else one & other

    def _not(self, place: Place, when: bool) -> Band | None:
        (inner,) = self.reader.operands(place)
        return self.find(inner, not when)

    def _select(self, place: Place, when: bool) -> Band | None:
        where, *values = self.reader.operands(place)
        yes, no = (number(self.reader, v) for v in values)
        if yes is None or no is None or bool(yes) == bool(no):
            return None
        return self.find(where, when == bool(yes))

    def _constant(self, place: Place, when: bool) -> Band | None:
        assert place.node is not None and isinstance(place.node.op, Constant)
        dense = place.node.op.value
        if dense.is_splat:
            return Band() if bool(dense.elements[0]) == when else None
        used = {f for e in place.at for f, _ in e[1]}
        query = used - {self.key}
        if self.key not in used or len(query) != 1 or not self._about(*query):
            return None
        length = self.queries[next(iter(query))]
        if length * self.keys > LIMIT:
            return None
        lead = len(self.reader.program.sizes)
        values = _pairs(dense.array, place.at[lead:], self.key, length, self.keys)
        return band_of(values.astype(bool) == when)

    _FINDERS: dict[type, Callable[[Bands, Place, bool], Band | None]] = {
        Compare: _compare,
        And: _both,
        Multiply: _both,
        Not: _not,
        Select: _select,
    }


def _combined(op: object, parts: list[Expr]) -> Expr | None:
    match op, parts:
        case Add(), [one, other]:
            return plus(one, other)
        case Subtract(), [one, other]:
            return plus(one, times(other, -1))
        case Negate(), [one]:
            return times(one, -1)
        case Convert(), [one]:
            return one
        case Multiply(), [one, (by, ())] | [(by, ()), one]:
            return times(one, by)
    return None


def affine_of(array: Array, at: tuple[Expr, ...]) -> Expr | None:
    """An integer constant as an affine expression, if it is one of its indices: a folded iota."""
    first = int(array[(0,) * array.ndim])
    found: Expr = (first, ())
    expected = np.full(array.shape, first)
    for dim, size in enumerate(array.shape):
        line = np.moveaxis(array, dim, 0).reshape(size, -1)[:, 0]
        step = int(line[1]) - first if size > 1 else 0
        apart = (size, *(1,) * (array.ndim - 1 - dim))
        expected = expected + step * np.arange(size).reshape(apart)
        found = plus(found, times(at[dim], step))
    return found if np.array_equal(array, expected) else None


def _pairs(array: Array, at: tuple[Expr, ...], key: int, queries: int, keys: int) -> Array:
    """The elements of an array for every query and key."""
    index = []
    for offset, terms in at:
        place = np.full((queries, keys), offset)
        for factor, stride in terms:
            steps = np.arange(keys)[None] if factor == key else np.arange(queries)[:, None]
            place = place + stride * steps
        index.append(place)
    return np.asarray(array[tuple(index)])


def band_of(seen: Array) -> Band | None:
    """The band of a boolean matrix of queries and keys, if it is one."""
    queries, keys = seen.shape
    apart = np.arange(keys)[None] - np.arange(queries)[:, None]
    inside = apart[seen]
    if inside.size == 0:
        return None
    low, high = int(inside.min()), int(inside.max())
    if not np.array_equal(seen, (apart >= low) & (apart <= high)):
        return None
    # A bound that no pair of the matrix reaches is left out.
    return Band(low if low > 1 - queries else None, high if high < keys - 1 else None)


def is_masking_fill(fill: float, bits: int) -> bool:
    """Whether a fill is so low that it vanishes in softmax beside any visible score."""
    # f16 reaches -65504, so that programs in it mask with less.
    return fill == -math.inf or fill <= (-1e4 if bits == 16 else -1e9)
