"""Attention composites as kernels."""

from __future__ import annotations

import math

from weft.ir.module import Node, tensor_of
from weft.kernels.attention import Window
from weft.ops.attention import Attention
from weft.tile.attention.forward import Forward, ends
from weft.tile.attention.reading import Place, Reader, RegionNodes
from weft.tile.attention.scores import ScoreMask, Scores, source
from weft.tile.drafts.index import ZERO, At, Expr, Split, factor
from weft.tile.drafts.views import lead_of


def named_attention(program: RegionNodes, node: Node) -> Forward | None:
    """A composite in terms of factors; None if a size is 0, or 1 where that matters."""
    if not isinstance(node.op, Attention):
        return None
    return _Named(program, node, node.op).match()


class _Named:
    """Reads one composite."""

    def __init__(self, program: RegionNodes, node: Node, op: Attention) -> None:
        self.program, self.node, self.op = program, node, op
        self.reader = Reader(program)
        self.lead = len(program.sizes)

    def match(self) -> Forward | None:
        reader, op = self.reader, self.op
        q, k, v = (tensor_of(x) for x in self.node.operands[:3])
        sizes = (k.sizes[-2], k.sizes[-1], v.sizes[-1])
        if min(sizes) < 2 or not q.size or not k.size or not v.size:
            return None
        value = self.node.results[0] if op.logsumexp else ends(self.program, self.node)
        out = reader.all_of(value)
        key, depth = (factor(reader.draft.new(n)) for n in (k.sizes[-2], k.sizes[-1]))
        while True:
            splits = len(reader.draft.parts)
            at = self._result_index(out, q.sizes[-3] // k.sizes[-3])
            if at is None:
                return None
            out = reader.fresh(out)
            head, *own = at[: self.lead], *at[self.lead :]
            *batch, heads, query, column = own
            shared = self._shared(heads, k.sizes[-3])
            places = {
                "q": self._place(0, (*batch, heads, query, depth), head),
                "k": self._place(1, (*batch, shared, key, depth), head),
                "v": self._place(2, (*batch, shared, key, column), head),
            }
            sources = {name: source(reader, place) for name, place in places.items()}
            pairs = [
                reader.through(self._place(n, (*batch, heads, query, key), head))
                for n in range(3, len(self.node.operands))
            ]
            if splits == len(reader.draft.parts):  # else a read has split the heads: again in parts
                break
        shift = op.shift(q.sizes[-2], k.sizes[-2])
        left, right = (None if side < 0 else side for side in (op.left, op.right))
        return Forward(
            reader,
            out,
            **sources,
            scores=Scores(places["q"], op.scale, pairs[-1] if op.biased else None),
            given=places["q"],
            scale=op.scale,
            window=Window(left, right, shift),
            mask=ScoreMask(pairs[0], False, -math.inf) if op.masked else None,
            empty="zero",
            query=_number(query),
            key=_sure(key),
            depth=_sure(depth),
            column=_sure(column),
            nodes=tuple(reader.seen) if self.node in reader.seen else (*reader.seen, self.node),
            lse=self._place_of_lse(at) if op.logsumexp else None,
            softcap=op.softcap,
        )

    def _result_index(self, out: Place, shared: int) -> At | None:
        """The index of the composite's result, its heads split into kv heads and groups."""
        reader = self.reader
        # Splitting the heads rewrites the index, which is read once more then.
        for _ in range(2):
            place = reader.through(out)
            if place.value is not self.node.results[0]:
                return None
            heads = place.at[-3]
            if shared == 1 or len(heads[1]) != 1:
                return place.at
            ((number, step),) = heads[1]
            if step != 1 or reader.draft.size(number) <= shared:
                return place.at
            reader.draft.split(Split(number, shared))
        return reader.through(out).at

    def _shared(self, heads: Expr, count: int) -> Expr:
        """The kv head of a head: its major part."""
        shared = tensor_of(self.node.operands[0]).sizes[-3] // count
        offset, terms = heads
        return (offset // shared, tuple([(f, s // shared) for f, s in terms if s >= shared]))

    def _place(self, n: int, own: tuple[Expr, ...], head: At) -> Place:
        placed = self.program.placed[self.node]
        value = self.node.operands[n]
        at = [ZERO if size == 1 else e for size, e in zip(tensor_of(value).sizes, own, strict=True)]
        return Place(value, (*lead_of(head, placed.given[n], self.lead), *at))

    def _place_of_lse(self, at: At) -> Place:
        placed = self.program.placed[self.node]
        head = lead_of(at[: self.lead], placed.made[1], self.lead)
        return Place(self.node.results[1], (*head, *at[self.lead : -1]))


def _number(expr: Expr) -> int | None:
    """The factor of an index."""
    return expr[1][0][0] if len(expr[1]) == 1 else None


def _sure(expr: Expr) -> int:
    number = _number(expr)
    assert number is not None, "an index along one factor"
    return number
