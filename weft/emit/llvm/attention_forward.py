"""The parts of the forward kernel: scores, softmax, values, and the end of a tile of queries.

Queries lie along the lanes of scores[key][query], so that maxima and sums of softmax are kept lane
by lane; keys and values are read where they are. Scores are held in units of log(2): 2^score is
the exponential that softmax speaks of.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from weft.emit.llvm.attention_exp import exp2_below
from weft.emit.llvm.attention_pack import moved
from weft.emit.llvm.attention_product import Block, Left, Right, first_lanes, product, zeros
from weft.emit.llvm.attention_tiling import Layout, Tiling
from weft.emit.llvm.code import Code
from weft.emit.llvm.storage import store
from weft.emit.llvm.vector import Vector, Vectors
from weft.ir.types import DType
from weft.kernels.attention import Window


class Part:
    """A function of the kernel that works on a thread's scratch."""

    def __init__(self, name: str, params: list[str], tiling: Tiling, layout: Layout) -> None:
        self.code = Code(name, ["ptr %scratch", *params], internal=True)
        self.tiling = tiling
        self.layout = layout
        self.v = Vectors(self.code, tiling.lanes)
        self.one = Vectors(self.code, 1)

    def place(self, name: str, index: str | int = 0, stride: int = 1) -> str:
        """The address of an element of a piece of the scratch."""
        begin = self.layout.places[name]
        base = self.code.let(f"getelementptr i8, ptr %scratch, i64 {begin}")
        if isinstance(index, int):
            return self.v.at(base, index * stride, self.tiling.kind)
        return moved(self.code, base, index, stride, self.tiling.kind)

    def each(self, name: str) -> list[Vector]:
        """A number for each query of the tile, in vectors."""
        begin = self.place(name)
        steps = range(0, self.tiling.queries, self.tiling.lanes)
        return [self.v.load(self.v.at(begin, n, self.tiling.kind), self.tiling.kind) for n in steps]

    def keep(self, name: str, values: list[Vector]) -> None:
        """Write a number for each query of the tile."""
        begin = self.place(name)
        for n, value in enumerate(values):
            self.v.store(value, self.v.at(begin, n * self.tiling.lanes, self.tiling.kind))

    def larger(self, a: Vector, b: Vector) -> Vector:
        """The larger number; b where a is NaN."""
        return self.v.select(self.v.compare("ogt", a, b), a, b)


class Scores(Part):
    """scores[key][query] of a tile, and the largest of each query."""

    def __init__(
        self, name: str, tiling: Tiling, layout: Layout, depth: int, row: int, window: Window
    ) -> None:
        # %first is the key that the first query is aligned with, counted from the tile's first.
        super().__init__(name, ["ptr %keys", "i64 %count", "i64 %first"], tiling, layout)
        self.depth, self.row, self.window = depth, row, window

    def write(self, tail: int) -> Code:
        """Blocks of keys one after another; `tail` keys may be left over at the end."""
        code, height = self.code, self.tiling.key_rows
        tops = self.each("top")
        whole = code.let(f"and i64 %count, {-height}")
        with code.loop(0, whole, height, [(x.type, x.text) for x in tops]) as loop:
            inner = self._named(loop.carried)
            loop.carry(*[x.text for x in self._block(loop.index, height, inner)])
        tops = self._named(loop.carried)
        self.keep("top", tops)
        if tail:
            with code.when(code.let(f"icmp slt i64 {whole}, %count")):
                self.keep("top", self._block(whole, tail, tops))
        return code

    def _named(self, texts: tuple[str, ...]) -> list[Vector]:
        return [Vector(text, self.tiling.kind, self.tiling.lanes) for text in texts]

    def _block(self, index: str, rows: int, tops: list[Vector]) -> list[Vector]:
        t = self.tiling
        keys = moved(self.code, "%keys", index, self.row, t.kind)
        left, right = Left(keys, self.row, 1), Right(self.place("queries"), t.queries)
        start = zeros(self.v, rows, t.vectors, t.kind)
        block = self._windowed(product(self.v, start, left, right, self.depth), index)
        target = self.place("scores", index, t.queries)
        for i, row in enumerate(block):
            for j, x in enumerate(row):
                self.v.store(x, self.v.at(target, i * t.queries + j * t.lanes, t.kind))
            tops = [self.larger(x, top) for x, top in zip(row, tops, strict=True)]
        return tops

    def _windowed(self, block: Block, index: str) -> Block:
        """The block with -inf where a query does not see a key."""
        if self.window.is_open:
            return block
        code = self.code
        here = code.let(f"sub nsw i64 {index}, %first")
        last = self.tiling.queries - 1
        cut = "false"
        for side in self._sides():
            if side == "right":
                word, at = f"icmp sgt i64 {{}}, {self.window.right}", len(block) - 1
            else:
                assert self.window.left is not None
                word, at = f"icmp slt i64 {{}}, {-self.window.left}", -last
            found = code.let(word.format(code.let(f"add nsw i64 {here}, {at}")))
            cut = found if cut == "false" else code.let(f"or i1 {cut}, {found}")
        partly, after, before = code.fresh("partly"), code.fresh("seen"), code.block
        code.do(f"br i1 {cut}, label %{partly}, label %{after}")
        code.start(partly)
        small = code.let(f"trunc i64 {here} to i32")
        masked = [self._row(row, small, i) for i, row in enumerate(block)]
        code.do(f"br label %{after}")
        code.start(after)
        return [
            [self._either(x, before, y, partly) for x, y in zip(a, b, strict=True)]
            for a, b in zip(block, masked, strict=True)
        ]

    def _sides(self) -> Iterator[str]:
        if self.window.right is not None:
            yield "right"
        if self.window.left is not None:
            yield "left"

    def _either(self, a: Vector, one: str, b: Vector, other: str) -> Vector:
        text = f"phi {a.type} [{a.text}, %{one}], [{b.text}, %{other}]"
        return Vector(self.code.let(text), a.kind, a.width)

    def _row(self, row: list[Vector], here: str, i: int) -> list[Vector]:
        """One key: query n sees it if -left <= here + i - n <= right."""
        code, v, nothing = self.code, self.v, self.v.constant(-math.inf, self.tiling.kind)
        made = []
        for j, x in enumerate(row):
            lanes = ", ".join(f"i32 {j * v.width + n}" for n in range(v.width))
            queries = Vector(f"<{lanes}>", "i32", v.width)
            if self.window.right is not None:
                least = code.let(f"add i32 {here}, {i - self.window.right}")
                x = v.select(v.compare("sge", queries, v.splat(Vector(least, "i32"))), x, nothing)
            if self.window.left is not None:
                most = code.let(f"add i32 {here}, {i + self.window.left}")
                x = v.select(v.compare("sle", queries, v.splat(Vector(most, "i32"))), x, nothing)
            made.append(x)
        return made


class Softmax(Part):
    """Scores become 2^(score - largest), sums are carried on, `decay` is what older ones lose."""

    def __init__(self, name: str, tiling: Tiling, layout: Layout) -> None:
        super().__init__(name, ["i64 %count"], tiling, layout)

    def write(self, *, online: bool) -> Code:
        """With `online` there are tiles before this one."""
        code, v, kind = self.code, self.v, self.tiling.kind
        lowest, zero = v.constant(-math.inf, kind), v.constant(0.0, kind)
        # A query that has seen nothing yet has no largest score: any number will do.
        now = self.each("top")
        tops = [v.select(v.compare("oeq", x, lowest), zero, x) for x in now]
        sums = [zero] * self.tiling.vectors
        if online:
            decay = [
                exp2_below(v, v.sub(x, top)) for x, top in zip(self.each("was"), tops, strict=True)
            ]
            sums = [v.mul(x, y) for x, y in zip(self.each("sum"), decay, strict=True)]
            self.keep("decay", decay)
            self.keep("was", now)
        with code.loop(0, "%count", 1, [(x.type, x.text) for x in sums]) as loop:
            place = self.place("scores", loop.index, self.tiling.queries)
            made = []
            for n, (text, top) in enumerate(zip(loop.carried, tops, strict=True)):
                at = v.at(place, n * self.tiling.lanes, kind)
                x = exp2_below(v, v.sub(v.load(at, kind), top))
                v.store(x, at)
                made.append(v.add(Vector(text, kind, v.width), x).text)
            loop.carry(*made)
        self.keep("sum", [Vector(text, kind, v.width) for text in loop.carried])
        return code


class Values(Part):
    """sums[query][column] += probabilities of a tile times its values."""

    def __init__(self, name: str, tiling: Tiling, layout: Layout, depth: int, row: int) -> None:
        super().__init__(name, ["ptr %values", "i64 %count"], tiling, layout)
        self.depth, self.row = depth, row

    def write(self) -> Code:
        """Blocks of queries and columns one after another."""
        begin = 0
        for columns in self.tiling.columns(self.depth):
            rows = min(self.tiling.rows(columns), self.tiling.queries)
            with self.code.loop(0, self.tiling.queries, rows) as loop:
                self._block(loop.index, rows, begin, columns)
            begin += columns * self.tiling.lanes
        return self.code

    def _block(self, index: str, rows: int, begin: int, columns: int) -> None:
        t, v = self.tiling, self.v
        width = t.padded(self.depth)
        target = v.at(self.place("out", index, width), begin, t.kind)
        decay = self.place("decay", index)
        start: Block = []
        for i in range(rows):
            less = v.splat(self.one.load(v.at(decay, i, t.kind), t.kind))
            places = [v.at(target, i * width + j * t.lanes, t.kind) for j in range(columns)]
            start.append([v.mul(v.load(at, t.kind), less) for at in places])
        left = Left(self.place("scores", index), 1, t.queries)
        end = self.depth - begin - (columns - 1) * t.lanes
        right = Right(v.at("%values", begin, t.kind), self.row, end if end < t.lanes else None)
        for i, row in enumerate(product(v, start, left, right, "%count")):
            for j, x in enumerate(row):
                v.store(x, v.at(target, i * width + j * t.lanes, t.kind))


class Finish(Part):
    """out[query] = sums[query] / sum, and the logsumexp."""

    def __init__(
        self, name: str, tiling: Tiling, layout: Layout, depth: int, dtype: DType, row: int
    ) -> None:
        super().__init__(name, ["ptr %to", "i64 %rows"], tiling, layout)
        self.depth, self.dtype, self.row = depth, dtype, row

    def write(self, empty: float) -> Code:
        """Rows with no sum are `empty`."""
        code, v, t = self.code, self.v, self.tiling
        one, zero = v.constant(1.0, t.kind), v.constant(0.0, t.kind)
        nothing = v.constant(empty, t.kind)
        self.keep(
            "decay",
            [v.select(v.compare("oeq", x, zero), nothing, v.div(one, x)) for x in self.each("sum")],
        )
        width = t.padded(self.depth)
        with code.loop(0, "%rows") as loop:
            scale = v.splat(self.one.load(self.place("decay", loop.index), t.kind))
            source = self.place("out", loop.index, width)
            target = code.let(f"mul nsw i64 {loop.index}, {self.row}")
            for begin in range(0, self.depth, t.lanes):
                x = v.mul(v.load(v.at(source, begin, t.kind), t.kind), scale)
                left = self.depth - begin
                mask = first_lanes(v, left) if left < t.lanes else None
                at = code.let(f"add nsw i64 {target}, {begin}")
                store(v, (x,), "%to", at, self.dtype, mask)
        return code
