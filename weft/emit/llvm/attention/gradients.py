"""Parts of the backward kernel: probabilities, their gradients, and their contractions.

For a tile of keys and a tile of queries, given the logsumexp and the dot product of out and dout of
each query:

    p[key][query]  = 2^(score - lse)
    ds[key][query] = scale * p * (sum over d of dout[query, d] * v[key, d] - dot of out and dout)
    dv += p dout,  dk += ds q,  dq += ds k
"""

from __future__ import annotations

import math

from weft.emit.llvm.attention.main import TaskFunction, least, most
from weft.emit.llvm.attention.pack import moved, stored
from weft.emit.llvm.attention.part import Routine, write_vector
from weft.emit.llvm.attention.product import (
    UNROLL,
    Lhs,
    VectorBlock,
    VectorRows,
    first_lanes,
    product,
    zeros,
)
from weft.emit.llvm.attention.scores import LOG2_E, ScoreBlocks, finite_fill
from weft.emit.llvm.writer.code import Writer
from weft.emit.llvm.writer.storage import load, memory_kind
from weft.emit.llvm.writer.vector import Vector
from weft.kernels.attention import Access, Attention


class Weights:
    """Probabilities of a tile and the gradients of its scores."""

    def __init__(self, main: TaskFunction) -> None:
        self.main, self.kernel, self.tiling = main, main.kernel, main.tiling
        params = ["ptr %keys", "ptr %values", "ptr %queries", "ptr %dout", "ptr %facts"]
        self.part = main.part("weights", [*params, "i64 %count", "i64 %first"])
        self.blocks = ScoreBlocks(
            self.part, self.kernel, main.row_of(self.kernel.k, self.kernel.depth)
        )

    def write(self) -> Writer:
        """Register blocks of keys."""
        code, height = self.part.code, self.tiling.key_rows
        whole = code.let(f"and i64 %count, {-height}")
        with code.loop(0, whole, height) as loop:
            self._block(loop.index, height)
        if tail := self.kernel.keys % height:
            with code.when(code.let(f"icmp slt i64 {whole}, %count")):
                self._block(whole, tail)
        return code

    def _facts(self, which: int) -> list[Vector]:
        """Per-query facts: logsumexp (0), dot of out and dout (1), 1 / visible keys (2)."""
        t, v = self.tiling, self.part.v
        begin = which * t.queries
        return [
            v.load(v.at("%facts", begin + n, t.kind), t.kind) for n in range(0, t.queries, t.lanes)
        ]

    def _block(self, index: str, rows: int) -> None:
        t, v, part, k = self.tiling, self.part.v, self.part, self.kernel
        lse, dots = self._facts(0), self._facts(1)
        block = self.blocks.block(index, rows, "%queries")
        weights = [
            [part.exp2(v.sub(x, top)) for x, top in zip(row, lse, strict=True)] for row in block
        ]
        self._store("weights", index, self._uniform(weights, block, lse))
        value_row = self.main.row_of(k.v, k.value_depth)
        lhs = Lhs(moved(part.code, "%values", index, value_row, t.kind), value_row, 1)
        start = zeros(v, rows, t.vectors, t.kind)
        d_weights = product(v, start, lhs, VectorRows("%dout", t.queries), k.value_depth)
        # Stored and loaded again rather than kept: scores and the second product fill the
        # registers.
        again = self._loaded("weights", index, rows)
        # Softmax backward: P * (dP - sum over keys of P * dP), and that sum is the dot of out and
        # dout.
        d_scores = [
            [v.mul(v.sub(x, dot), w) for x, dot, w in zip(row, dots, ws, strict=True)]
            for row, ws in zip(d_weights, again, strict=True)
        ]
        self._store("d_scores", index, self._visible(d_scores, index))

    def _uniform(self, weights: VectorBlock, scores: VectorBlock, lse: list[Vector]) -> VectorBlock:
        """Fully masked queries with a finite fill attend uniformly."""
        if not self.kernel.may_be_alike:
            return weights
        v, part = self.part.v, self.part
        # fill + log(count) rounds to the fill: 2^(fill - lse) would be 1 for each key, not 1 /
        # count. A logsumexp beyond half of the fill means that nothing but fills was summed.
        limit, nothing = part.constant(finite_fill(self.kernel) / 2), part.constant(-math.inf)
        block: VectorBlock = []
        for row, xs in zip(weights, scores, strict=True):
            block.append([])
            for x, score, top, share in zip(row, xs, lse, self._facts(2), strict=True):
                hidden = v.compare("olt", top, limit)
                seen = v.compare("une", score, nothing)
                block[-1].append(v.select(v.binary("and", hidden, seen), share, x))
        return block

    def _visible(self, d_scores: VectorBlock, index: str) -> VectorBlock:
        """Masked scores have gradient 0."""
        if self.kernel.mask is None:
            return d_scores
        v, zero = self.part.v, self.part.constant(0.0)
        hidden = self._loaded("mask", index, len(d_scores))
        return [
            [v.select(v.compare("une", y, zero), zero, x) for x, y in zip(row, ys, strict=True)]
            for row, ys in zip(d_scores, hidden, strict=True)
        ]

    def _store(self, name: str, index: str, block: VectorBlock) -> None:
        t, v = self.tiling, self.part.v
        target = self.part.place(name, index, t.queries)
        for i, row in enumerate(block):
            for j, x in enumerate(row):
                v.store(x, v.at(target, i * t.queries + j * t.lanes, t.kind))

    def _loaded(self, name: str, index: str, rows: int) -> VectorBlock:
        t, v = self.tiling, self.part.v
        source = self.part.place(name, index, t.queries)
        return [
            [
                v.load(v.at(source, i * t.queries + j * t.lanes, t.kind), t.kind)
                for j in range(t.vectors)
            ]
            for i in range(rows)
        ]


class Products:
    """to[key] += pairs[key][query] * from[query], or the transposed product without `keys`."""

    def __init__(self, main: TaskFunction, label: str, row: int, depth: int) -> None:
        params = ["ptr %pairs", "ptr %from", "ptr %to", "i64 %count", "i64 %steps"]
        self.part = main.part(label, params)
        self.row, self.depth = row, depth  # row: the row stride of %from
        self.kernel = main.kernel
        self.tiling, self.code, self.v = main.tiling, self.part.code, self.part.v

    def write(self, *, keys: bool) -> Writer:
        """Register blocks of rows and columns."""
        t, code, begin = self.tiling, self.code, 0
        for columns in t.columns(self.depth):
            height = min(t.rows(columns), t.queries)
            whole = code.let(f"and i64 %count, {-height}") if keys else str(t.queries)
            with code.loop(0, whole, height) as loop:
                self._block(loop.index, height, begin, columns, keys)
            if keys and self.kernel.keys % height:
                with code.loop(whole, "%count") as loop:
                    self._block(loop.index, 1, begin, columns, keys)
            begin += columns * t.lanes
        return code

    def _block(self, index: str, rows: int, begin: int, columns: int, keys: bool) -> None:
        t, v, width = self.tiling, self.v, self.tiling.padded(self.depth)
        target = v.at(moved(self.code, "%to", index, width, t.kind), begin, t.kind)
        places = [
            [v.at(target, i * width + j * t.lanes, t.kind) for j in range(columns)]
            for i in range(rows)
        ]
        start = [[v.load(place, t.kind) for place in listed] for listed in places]
        # Pairs are [keys, queries]: rows of the block are keys for dk and dv, queries for dq.
        across, along = (t.queries, 1) if keys else (1, t.queries)
        lhs = Lhs(moved(self.code, "%pairs", index, across, t.kind), across, along)
        last = self.depth - begin - (columns - 1) * t.lanes
        base = v.at("%from", begin, t.kind)
        rhs = VectorRows(base, self.row, last if last < t.lanes else None)
        fours = (self.kernel.queries if keys else self.kernel.keys) % UNROLL == 0
        made = product(v, start, lhs, rhs, "%steps", whole=fours)
        for listed, row in zip(places, made, strict=True):
            for place, x in zip(listed, row, strict=True):
                v.store(x, place)


def write_facts(main: TaskFunction) -> Writer:
    """The facts of a tile of queries: logsumexp and the dot of out and dout.

    Queries without visible keys, and padding rows, have weight 0.
    """
    k, t = main.kernel, main.tiling
    assert k.gradients is not None and k.lse is not None
    params = ["ptr %lse", "ptr %out", "ptr %dout", "ptr %to", "i64 %rows", "i64 %query"]
    part = main.part("facts", params)
    code, v, one = part.code, part.v, part.one
    # 2^(score - inf) is 0: padding rows need no mask in the products.
    nothing = v.constant(math.inf, t.kind)
    for n in range(0, t.queries, t.lanes):
        v.store(nothing, v.at("%to", n, t.kind))
        v.store(part.constant(0.0), v.at("%to", t.queries + n, t.kind))
    with code.loop(0, "%rows") as loop:
        total = _dot(main, part, loop.index)
        at = code.let(f"add i64 {loop.index}, {t.queries}")
        one.store(v.total_sum(total), v.at("%to", at, t.kind))
        at = code.let(f"mul nsw i64 {loop.index}, {k.lse.row}")
        lse = main.rows(k.lse).held(one, load(one, "%lse", at, k.dtype(k.lse))[0])
        # Scores are in units of log(2), and the stored logsumexp is natural.
        lse = one.mul(lse, one.constant(LOG2_E, t.kind))
        empty = one.compare("oeq", lse, one.constant(-math.inf, t.kind))
        unseen = one.constant(math.inf if k.empty == "zero" else math.nan, t.kind)
        one.store(one.select(empty, unseen, lse), v.at("%to", loop.index, t.kind))
        if k.may_be_alike:
            at = code.let(f"add i64 {loop.index}, {2 * t.queries}")
            one.store(_share(part, k, loop.index), v.at("%to", at, t.kind))
    return code


def _share(part: Routine, kernel: Attention, row: str) -> Vector:
    """1 / the number of keys in a query's window."""
    code, window, one = part.code, kernel.window, part.one
    at = code.let(f"add nsw i64 {code.let(f'add i64 {row}, %query')}, {window.shift}")
    begin, end = "0", str(kernel.keys)
    if window.left is not None:
        begin = most(code, code.let(f"sub nsw i64 {at}, {window.left}"), begin)
    if window.right is not None:
        end = least(code, code.let(f"add nsw i64 {at}, {window.right + 1}"), end)
    count = Vector(most(code, code.let(f"sub nsw i64 {end}, {begin}"), "1"), "i64")
    return one.div(one.constant(1.0, part.kind), one.cast("sitofp", count, part.kind))


def _dot(main: TaskFunction, part: Routine, row: str) -> Vector:
    """The lanewise product of a row of %out and one of %dout, not yet summed."""
    k, v, code = main.kernel, part.v, part.code
    assert k.gradients is not None
    sides = [
        (rows, rows.place(code, f"%{name}", row))
        for rows, name in ((main.rows(k.out), "out"), (main.rows(k.gradients.out), "dout"))
    ]
    total = part.constant(0.0)
    for begin in range(0, k.value_depth, v.width):
        left = k.value_depth - begin
        mask = first_lanes(v, left) if left < v.width else None
        a, b = (rows.read(v, at, begin, mask) for rows, at in sides)
        total = v.fma(a, b, total)
    return total


def write_rows(main: TaskFunction, label: str, access: Access, depth: int, scale: float) -> Writer:
    """Store accumulated rows, scaled, to an operand."""
    part = main.part(label, ["ptr %from", "ptr %to", "i64 %count"])
    code, v, t, dtype = part.code, part.v, main.tiling, main.kernel.dtype(access)
    with code.loop(0, "%count") as loop:
        source = moved(code, "%from", loop.index, t.padded(depth), t.kind)
        target = moved(code, "%to", loop.index, access.row, memory_kind(dtype))
        for begin in range(0, depth, t.lanes):
            x = v.load(v.at(source, begin, t.kind), t.kind)
            x = x if scale == 1.0 else v.mul(x, part.constant(scale))
            write_vector(part, stored(v, x, dtype), target, begin, depth, access.column)
    return code


def write_bias(main: TaskFunction, access: Access) -> Writer:
    """Store the gradients of a tile's scores as those of a bias: to[query][key]."""
    t, dtype = main.tiling, main.kernel.dtype(access)
    part = main.part("write_bias", ["ptr %to", "i64 %count", "i64 %rows"])
    code, kind = part.code, memory_kind(dtype)
    with code.loop(0, "%count") as key:
        source = part.place("d_scores", key.index, t.queries)
        column = moved(code, "%to", key.index, access.column, kind)
        with code.loop(0, "%rows") as query:
            x = part.one.load(part.v.at(source, query.index, t.kind), t.kind)
            x = part.one.mul(x, part.one.constant(main.kernel.bias_scale, t.kind))
            target = moved(code, column, query.index, access.row, kind)
            part.one.store(stored(part.one, x, dtype), target)
    return code
