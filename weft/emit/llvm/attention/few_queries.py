"""Decode attention (few queries): keys are read once, in order.

The depth is along the lanes, so that a query need not fill a vector: the products of as many keys
as there are lanes are summed lane by lane, then transposed and summed across lanes, which yields
the scores of contiguous keys as one vector. A task is one point of the outer dims.
"""

from __future__ import annotations

import math
from dataclasses import replace

from weft.emit.llvm.attention.main import TaskFunction, least
from weft.emit.llvm.attention.pack import PackedRows, moved, stored, transposing
from weft.emit.llvm.attention.part import Routine, write_vector
from weft.emit.llvm.attention.product import (
    UNROLL,
    Lhs,
    VectorBlock,
    VectorRows,
    first_lanes,
    product,
)
from weft.emit.llvm.attention.scores import LOG2_E, capped, finite_fill
from weft.emit.llvm.attention.tiling import Tiling
from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.math.logarithm import log
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.storage import memory_kind
from weft.emit.llvm.writer.vector import Vector
from weft.kernels.attention import Access, Attention

FEW = 8  # queries
KEYS = 256  # keys of a tile


def are_few(kernel: Attention) -> bool:
    """Whether a kernel has few queries, and contiguous rows of keys and values."""
    in_rows = kernel.k.column == 1 and kernel.v.column == 1
    return kernel.gradients is None and in_rows and kernel.queries <= FEW


def folded(kernel: Attention) -> Attention:
    """The kernel with grouped heads as queries, if it has a single query."""
    # A window counts positions by the row number, which would then be that of a head.
    if kernel.gradients is not None or kernel.queries != 1 or not kernel.window.is_open:
        return kernel
    for n, size in enumerate(kernel.outer):
        if size > 1 and not kernel.k.outer[n] and not kernel.v.outer[n]:
            return _with_rows(kernel, n)
    return kernel


def _with_rows(kernel: Attention, n: int) -> Attention:
    """The kernel with an outer dim as its queries."""

    def moved_in(access: Access) -> Access:
        outer = access.outer[:n] + access.outer[n + 1 :]
        return replace(access, outer=outer, row=access.outer[n])

    def without(access: Access) -> Access:
        return replace(access, outer=access.outer[:n] + access.outer[n + 1 :])

    return replace(
        kernel,
        outer=kernel.outer[:n] + kernel.outer[n + 1 :],
        queries=kernel.outer[n],
        q=moved_in(kernel.q),
        k=without(kernel.k),
        v=without(kernel.v),
        out=moved_in(kernel.out),
        lse=kernel.lse and moved_in(kernel.lse),
        bias=kernel.bias and moved_in(kernel.bias),
        mask=kernel.mask and replace(kernel.mask, access=moved_in(kernel.mask.access)),
    )


class FewQueriesKernel(TaskFunction):
    """The functions of a kernel with few queries."""

    def __init__(self, kernel: Attention, tiling: Tiling) -> None:
        super().__init__(kernel, tiling)
        k, t = kernel, tiling
        self.width = t.padded(k.value_depth)
        self.pieces.add("queries", k.queries * t.padded(k.depth))  # [queries, depth]
        self.pieces.add("scores", k.queries * KEYS)  # [queries, keys]
        self.pieces.add("out", k.queries * self.width)  # [queries, depth]
        for name in ("top", "sum", "decay"):
            self.pieces.add(name, t.padded(k.queries))
        self.parts += [self._pack(), self._scores(), self._values(), self._finish()]

    def emitted(self) -> Emitted:
        """All functions and phases."""
        k = self.kernel
        tasks = math.prod(k.outer)
        if not tasks:
            return Emitted("", ())
        text = module_text(*self.parts, self._main())
        return Emitted(text, (Phase(k.name, tasks),), self.pieces.nbytes)

    # Parts

    def _pack(self) -> Writer:
        """Scale the queries and initialize the softmax state."""
        k, t = self.kernel, self.tiling
        part = self.part("pack", ["ptr %from"])
        code, v, rows = part.code, part.v, self.rows(k.q)
        padded = t.padded(k.depth)
        for i in range(k.queries):
            source = rows.place(code, "%from", str(i))
            for begin in range(0, padded, t.lanes):
                left = k.depth - begin
                mask = first_lanes(v, left) if left < t.lanes else None
                x = v.mul(rows.read(v, source, begin, mask), part.constant(k.scale * LOG2_E))
                v.store(x, part.place("queries", i * padded + begin))
        for name, value in (("top", -math.inf), ("sum", 0.0)):
            for n in range(0, t.padded(k.queries), t.lanes):
                v.store(part.constant(value), part.place(name, n))
        with code.loop(0, k.queries * self.width, t.lanes) as loop:
            v.store(part.constant(0.0), part.place("out", loop.index))
        return code

    def _scores(self) -> Writer:
        """Scores of a tile, 2^(score - max), their sums, and the decay of older sums."""
        k = self.kernel
        params = ["ptr %keys", "i64 %count", "i64 %key"]
        part = self.part("scores", [*params, *(f"ptr %{label}" for label in k.pairs)])
        for i in range(k.queries):
            top = self._score_row(part, i)
            self._softmax_row(part, i, top)
        return part.code

    def _score_row(self, part: Routine, i: int) -> Vector:
        """The scores of one query; the maxima lane by lane."""
        code, v, t = part.code, part.v, self.tiling
        lowest = part.constant(-math.inf)
        target = part.place("scores", i * KEYS)
        with code.loop(0, "%count", t.lanes, [(lowest.type, lowest.text)]) as loop:
            x = self._block(part, i, loop.index)
            x = self._visible_scores(part, i, x, loop.index)
            v.store(x, v.at(target, loop.index, t.kind))
            (top,) = part.named(loop.carried)
            loop.carry(v.select(v.compare("ogt", x, top), x, top).text)
        return part.named(loop.carried)[0]

    def _block(self, part: Routine, i: int, index: str) -> Vector:
        """The scores of one query and as many keys as there are lanes."""
        k, t, v, code = self.kernel, self.tiling, part.v, part.code
        rows, last = self.rows(k.k), code.let("sub i64 %count, 1")
        sums: list[Vector] = []
        for n in range(t.lanes):
            # The last keys again in place of missing ones: their scores are set to -inf, and
            # nothing is read beyond the end.
            at = least(code, code.let(f"add i64 {index}, {n}"), last)
            source = rows.place(code, "%keys", at)
            total = part.constant(0.0)
            for begin in range(0, k.depth, t.lanes):
                q = v.load(part.place("queries", i * t.padded(k.depth) + begin), t.kind)
                left = k.depth - begin
                mask = first_lanes(v, left) if left < t.lanes else None
                total = v.fma(rows.read(v, source, begin, mask), q, total)
            sums.append(total)
        # A tree of pairwise transposes and adds: n vectors to one of their n sums, in n - 1 adds.
        size = 1
        while len(sums) > 1:
            pairs = zip(sums[::2], sums[1::2], strict=True)
            sums = [v.add(*transposing(v, a, b, size)) for a, b in pairs]
            size *= 2
        return sums[0]

    def _visible_scores(self, part: Routine, i: int, x: Vector, index: str) -> Vector:
        """Scores with softcap, bias and mask; -inf past the last key and outside of the window."""
        k, v, code = self.kernel, part.v, part.code
        x = capped(part, k.softcap, x)
        inside = v.first(code.let(f"sub i64 %count, {index}"))
        for label, access in k.pairs.items():
            rows = self.rows(access)
            at = rows.along(code, rows.place(code, f"%{label}", str(i)), index)
            y = _read(part, rows, at, inside)
            if label == "bias":
                x = v.fma(y, part.constant(k.bias_scale * LOG2_E), x)
            else:
                assert k.mask is not None
                hidden = v.compare("une" if k.mask.hides else "oeq", y, part.constant(0.0))
                x = v.select(hidden, part.constant(finite_fill(k)), x)
        nothing = part.constant(-math.inf)
        x = v.select(inside, x, nothing)
        if k.window.is_open:
            return x
        at = code.let(f"add i64 {code.let(f'add i64 {index}, %key')}, {-i - k.window.shift}")
        apart = v.add(v.lanes(), v.splat(Vector(at, "i64")))
        if k.window.right is not None:
            limit = v.constant(k.window.right, "i64")
            x = v.select(v.compare("sle", apart, limit), x, nothing)
        if k.window.left is not None:
            limit = v.constant(-k.window.left, "i64")
            x = v.select(v.compare("sge", apart, limit), x, nothing)
        return x

    def _softmax_row(self, part: Routine, i: int, tops: Vector) -> None:
        code, v, one, t = part.code, part.v, part.one, self.tiling
        was = one.load(part.place("top", i), t.kind)
        found = v.total("fmax", tops)
        top = one.select(one.compare("ogt", found, was), found, was)
        one.store(top, part.place("top", i))
        none = one.compare("oeq", top, one.constant(-math.inf, t.kind))
        # All keys hidden so far: -inf - -inf would be NaN and stay in the sums.
        top = one.select(none, one.constant(0.0, t.kind), top)
        decay = v.splat(one.sub(was, top))
        lost = Vector(code.let(f"extractelement {part.exp2(decay).typed}, i64 0"), t.kind)
        one.store(lost, part.place("decay", i))
        place, less = part.place("scores", i * KEYS), v.splat(top)
        zero = part.constant(0.0)
        with code.loop(0, "%count", t.lanes, [(zero.type, zero.text)]) as loop:
            at = v.at(place, loop.index, t.kind)
            x = part.exp2(v.sub(v.load(at, t.kind), less))
            v.store(x, at)
            loop.carry(v.add(part.named(loop.carried)[0], x).text)
        total = v.total_sum(part.named(loop.carried)[0])
        before = one.load(part.place("sum", i), t.kind)
        one.store(one.fma(before, lost, total), part.place("sum", i))

    def _values(self) -> Writer:
        """out[query] = out[query] * decay + probabilities times values."""
        k, t = self.kernel, self.tiling
        part = self.part("values", ["ptr %values", "i64 %count"])
        begin = 0
        for columns in t.columns(k.value_depth):
            height = t.rows(columns)
            for i in range(0, k.queries, height):
                self._values_block(part, range(i, min(i + height, k.queries)), begin, columns)
            begin += columns * t.lanes
        return part.code

    def _values_block(self, part: Routine, rows: range, begin: int, columns: int) -> None:
        k, t, v = self.kernel, self.tiling, part.v
        starts = range(begin, begin + columns * t.lanes, t.lanes)
        places = [[part.place("out", n * self.width + at) for at in starts] for n in rows]
        start: VectorBlock = []
        for n, listed in zip(rows, places, strict=True):
            less = part.spread("decay", "0", n)
            start.append([v.mul(v.load(p, t.kind), less) for p in listed])
        last = k.value_depth - begin - (columns - 1) * t.lanes
        lhs = Lhs(part.place("scores", rows.start * KEYS), KEYS, 1)
        base = v.at("%values", begin, memory_kind(k.dtype(k.v)))
        rhs = VectorRows(base, k.v.row, last if last < t.lanes else None, k.dtype(k.v))
        first, end = self._range()
        # All tiles but the last have KEYS keys, a multiple of UNROLL.
        whole = (end - first) % UNROLL == 0
        made = product(v, start, lhs, rhs, "%count", whole=whole)
        for listed, row in zip(places, made, strict=True):
            for p, x in zip(listed, row, strict=True):
                v.store(x, p)

    def _finish(self) -> Writer:
        """out[query] / sum, and the logsumexp."""
        k, t = self.kernel, self.tiling
        part = self.part("finish", ["ptr %to", "ptr %lse"])
        v, one, code = part.v, part.one, part.code
        dtype = k.dtype(k.out)
        empty = one.constant(0.0 if k.empty == "zero" else math.nan, t.kind)
        for i in range(k.queries):
            total = one.load(part.place("sum", i), t.kind)
            none = one.compare("oeq", total, one.constant(0.0, t.kind))
            share = v.splat(one.select(none, empty, one.div(one.constant(1.0, t.kind), total)))
            target = moved(code, "%to", str(i), k.out.row, memory_kind(dtype))
            for begin in range(0, k.value_depth, t.lanes):
                x = v.mul(v.load(part.place("out", i * self.width + begin), t.kind), share)
                x = stored(v, x, dtype)
                write_vector(part, x, target, begin, k.value_depth, k.out.column)
            if k.lse is not None:
                top = one.load(part.place("top", i), t.kind)
                lse = one.fma(top, one.constant(math.log(2), t.kind), log(one, total))
                kind = memory_kind(k.dtype(k.lse))
                at = moved(code, "%lse", str(i), k.lse.row, kind)
                one.store(stored(one, lse, k.dtype(k.lse)), at)
        return code

    # The task function

    def _main(self) -> Writer:
        k = self.kernel
        code = Writer(k.name, ["ptr %operands", "ptr %scratch", "i64 %begin", "i64 %end"])
        with code.loop("%begin", "%end") as task:
            outer = self.split(code, task.index, k.outer)
            accesses = {"q": k.q, "k": k.k, "v": k.v, "out": k.out, **k.pairs}
            bases = {name: self.base(code, a, outer) for name, a in accesses.items()}
            self.call(code, "pack", ("ptr", bases["q"]))
            begin, end = self._range()
            with code.loop(begin, end, KEYS) as loop:
                count = least(code, code.let(f"sub i64 {end}, {loop.index}"), str(KEYS))
                keys, values = (
                    ("ptr", self.row(code, a, bases[n], loop.index))
                    for n, a in (("k", k.k), ("v", k.v))
                )
                pairs = [
                    ("ptr", self.rows(a).along(code, bases[label], loop.index))
                    for label, a in k.pairs.items()
                ]
                numbers = (("i64", count), ("i64", loop.index))
                self.call(code, "scores", keys, *numbers, *pairs)
                self.call(code, "values", values, ("i64", count))
            lse = "null" if k.lse is None else self.base(code, k.lse, outer)
            self.call(code, "finish", ("ptr", bases["out"]), ("ptr", lse))
        return code

    def _range(self) -> tuple[int, int]:
        """The keys visible to some query: begin and end."""
        k, window = self.kernel, self.kernel.window
        begin = 0 if window.left is None else max(0, window.shift - window.left)
        end = k.keys
        if window.right is not None:
            end = min(end, window.shift + window.right + k.queries)
        return begin, max(begin, end)


def _read(part: Routine, rows: PackedRows, at: str, mask: Vector) -> Vector:
    """Contiguous keys of a bias or a mask: one broadcast number if it has no columns."""
    if rows.column:
        return rows.read(part.v, at, 0, mask)
    return part.v.splat(replace(rows, column=1).read(part.one, at, 0))
