"""Matching of scores: from the softmax's input down to the contraction of queries and keys."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from weft.ir.module import tensor_of
from weft.ops.elementwise.convert import Convert
from weft.ops.elementwise.pointwise import Add, Divide, Multiply, Negate, Select, Subtract
from weft.ops.shape import Constant
from weft.records import dataclass
from weft.tile.attention.reading import Place, Reader


@dataclass(frozen=True, slots=True)
class ScoreMask:
    """Masking: where a boolean has a value, the score is replaced by a number."""

    where: Place
    when: bool
    fill: float


@dataclass(frozen=True, slots=True)
class Scores:
    """scale * product + bias_scale * bias, partly masked."""

    product: Place
    scale: float = 1.0
    bias: Place | None = None
    bias_scale: float = 1.0
    hidden: tuple[ScoreMask, ...] = ()


def scores_of(reader: Reader, place: Place) -> Scores | None:
    """The score form of a place, if it is based on a contraction."""
    place = reader.through(place)
    if reader.is_product(place):
        return Scores(place)
    node = place.node
    if node is None or node not in reader.program.placed or not node.op.elementwise:
        return None
    readings = _TAKEN.get(type(node.op))
    if readings is None:
        return None
    # A reading that fails has visited nodes that are no part of the match.
    seen = dict(reader.seen)
    for scores in readings(reader, place):
        if scores is not None:
            return scores
        reader.seen = dict(seen)
    return None


def _convert(reader: Reader, place: Place) -> Iterator[Scores | None]:
    (inner,) = reader.operands(place)
    if tensor_of(inner.value).dtype.is_float and tensor_of(place.value).dtype.is_float:
        yield scores_of(reader, inner)


def _negate(reader: Reader, place: Place) -> Iterator[Scores | None]:
    (inner,) = reader.operands(place)
    yield _scaled(scores_of(reader, inner), -1.0)


def _multiply(reader: Reader, place: Place) -> Iterator[Scores | None]:
    for one, other in _both_ways(reader, place):
        if (by := number(reader, other)) is not None:
            yield _scaled(scores_of(reader, one), by)


def _divide(reader: Reader, place: Place) -> Iterator[Scores | None]:
    one, other = reader.operands(place)
    if by := number(reader, other):
        yield _scaled(scores_of(reader, one), 1.0 / by)


def _add(reader: Reader, place: Place) -> Iterator[Scores | None]:
    for one, other in _both_ways(reader, place):
        found = scores_of(reader, one)
        if found is not None and found.bias is None and not found.hidden:
            yield replace(found, bias=other, bias_scale=1.0)


def _subtract(reader: Reader, place: Place) -> Iterator[Scores | None]:
    """scores - bias, a common form of ALiBi, or bias - scores."""
    one, other = reader.operands(place)
    for inner, bias, sign in ((one, other, 1.0), (other, one, -1.0)):
        found = _scaled(scores_of(reader, inner), sign)
        plain = found is not None and found.bias is None and not found.hidden
        yield replace(found, bias=bias, bias_scale=-sign) if found and plain else None


def _select(reader: Reader, place: Place) -> Iterator[Scores | None]:
    where, yes, no = reader.operands(place)
    for inner, other, when in ((yes, no, False), (no, yes, True)):
        fill = number(reader, other)
        found = None if fill is None else scores_of(reader, inner)
        if found is not None and fill is not None:
            yield replace(found, hidden=(*found.hidden, ScoreMask(where, when, fill)))


_TAKEN = {
    Convert: _convert,
    Negate: _negate,
    Multiply: _multiply,
    Divide: _divide,
    Add: _add,
    Subtract: _subtract,
    Select: _select,
}


def _both_ways(reader: Reader, place: Place) -> Iterator[tuple[Place, Place]]:
    one, other = reader.operands(place)
    yield one, other
    yield other, one


def _scaled(scores: Scores | None, by: float) -> Scores | None:
    """The scores times a number."""
    if scores is None or by == 0.0 or not math.isfinite(by):
        return None
    hidden = tuple([replace(h, fill=h.fill * by) for h in scores.hidden])
    # A fill times a negative number would no longer hide.
    if any(h.fill > 0 for h in hidden):
        return None
    scales = (scores.scale * by, scores.bias_scale * by)
    return replace(scores, scale=scales[0], bias_scale=scales[1], hidden=hidden)


def number(reader: Reader, place: Place) -> float | None:
    """The number at a place, if it is constant."""
    place = reader.through(place)
    node = place.node
    if node is None or not isinstance(node.op, Constant) or not node.op.value.is_splat:
        return None
    element = np.asarray(node.op.value.elements).reshape(-1)[:1]
    return None if element.dtype.kind == "c" or not element.size else float(element[0])


def source(reader: Reader, place: Place) -> Place:
    """A place before widening casts, which change no number."""
    place = reader.through(place)
    while (node := reader.node(place)) is not None and isinstance(node.op, Convert):
        given = tensor_of(node.operands[0]).dtype
        made = tensor_of(place.value).dtype
        if not (given.is_float and given.bits >= 16 and made.bits > given.bits):
            break
        place = reader.through(reader.operands(place)[0])
    return place


def unscaled(reader: Reader, place: Place) -> tuple[Place, float]:
    """The source of a place without its constant factors, and these."""
    place = source(reader, place)
    node, op = place.node, place.node and place.node.op
    if node is None or node not in reader.program.placed or type(op) not in (Multiply, Divide):
        return place, 1.0
    # Rounded in the program: scaling the scores instead would skip that rounding.
    if reader.program.is_rounded(place.value):
        return place, 1.0
    for one, other in _both_ways(reader, place):
        by = number(reader, other)
        if by is not None and math.isfinite(by) and by != 0.0:
            inner, more = unscaled(reader, one)
            return inner, more * (by if type(op) is Multiply else 1.0 / by)
        if type(op) is Divide:
            break
    return place, 1.0
