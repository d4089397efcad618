"""A register block of scores[key][query]: the contraction, the bias, and masking.

Queries are along the lanes; keys are read in place. Scores are in units of log(2), because the
queries were multiplied by scale / log(2): softmax's exponential is 2^score, which is cheaper.
"""

from __future__ import annotations

import math

import numpy as np

from weft.emit.llvm.attention.pack import moved
from weft.emit.llvm.attention.part import Routine
from weft.emit.llvm.attention.product import Lhs, VectorBlock, VectorRows, product, zeros
from weft.emit.llvm.writer.vector import Vector
from weft.kernels.attention import Attention

LOG2_E = 1 / math.log(2)


def finite_fill(kernel: Attention) -> float:
    """The score of hidden keys, in units of log(2): a finite fill stays finite."""
    assert kernel.mask is not None
    fill = kernel.mask.fill
    largest = float(np.finfo(kernel.held.numpy).max)
    return fill if math.isinf(fill) else max(-largest, min(largest, fill * LOG2_E))


def capped(part: Routine, softcap: float, x: Vector) -> Vector:
    """softcap * tanh(x / softcap) of scores in units of log(2); x itself without a softcap.

    tanh by 2^y for y <= 0, within some ulps of the softcap.
    """
    if not softcap:
        return x
    v, one = part.v, part.constant(1.0)
    is_negative = v.compare("olt", x, part.constant(0.0))
    below = v.select(is_negative, x, v.neg(x))
    # e^(2 s / softcap) of a score s is 2^(2 x / softcap) of x = s / log(2).
    power = part.exp2(v.mul(below, part.constant(2 / softcap)))
    curve = v.div(v.sub(one, power), v.add(one, power))
    made = v.mul(curve, part.constant(softcap * LOG2_E))
    return v.select(is_negative, v.neg(made), made)


class ScoreBlocks:
    """Emits blocks of scores in a function with %first: the position of query 0 among the keys."""

    def __init__(self, part: Routine, kernel: Attention, key_row: int) -> None:
        self.part, self.kernel, self.row = part, kernel, key_row
        self.code, self.v, self.tiling = part.code, part.v, part.tiling

    def block(self, index: str, rows: int, queries: str, keys: str = "%keys") -> VectorBlock:
        """The scores of some keys of a tile from an index on, and all queries of a tile."""
        t = self.tiling
        lhs = Lhs(moved(self.code, keys, index, self.row, t.kind), self.row, 1)
        start = zeros(self.v, rows, t.vectors, t.kind)
        block = product(self.v, start, lhs, VectorRows(queries, t.queries), self.kernel.depth)
        return self.shown(block, index)

    def shown(self, block: VectorBlock, index: str) -> VectorBlock:
        """Scores with softcap, bias and masking applied."""
        block = [[capped(self.part, self.kernel.softcap, x) for x in row] for row in block]
        return self._windowed(self._masked(self._biased(block, index), index), index)

    def tile_row(self, name: str, index: str, i: int) -> list[Vector]:
        """One key's row in a scratch piece with the layout of scores."""
        t = self.tiling
        at = self.v.at(self.part.place(name, index, t.queries), i * t.queries, t.kind)
        steps = range(0, t.queries, t.lanes)
        return [self.v.load(self.v.at(at, n, t.kind), t.kind) for n in steps]

    def _biased(self, block: VectorBlock, index: str) -> VectorBlock:
        if self.kernel.bias is None:
            return block
        return [
            [self.v.add(x, y) for x, y in zip(row, self.tile_row("bias", index, i), strict=True)]
            for i, row in enumerate(block)
        ]

    def _masked(self, block: VectorBlock, index: str) -> VectorBlock:
        if self.kernel.mask is None:
            return block
        fill, zero = self.part.constant(finite_fill(self.kernel)), self.part.constant(0.0)
        return [
            [
                self.v.select(self.v.compare("une", y, zero), fill, x)
                for x, y in zip(row, self.tile_row("mask", index, i), strict=True)
            ]
            for i, row in enumerate(block)
        ]

    def _windowed(self, block: VectorBlock, index: str) -> VectorBlock:
        """The block with -inf outside of the window."""
        if self.kernel.window.is_open:
            return block
        code, part = self.code, self.part
        here = code.let(f"sub nsw i64 {index}, %first")
        partly, after, before = code.fresh("partly"), code.fresh("seen"), code.block
        # Most blocks are entirely visible; only those that the diagonal crosses pay for the masks.
        code.do(f"br i1 {self._cut(here, len(block))}, label %{partly}, label %{after}")
        code.start(partly)
        small = code.let(f"trunc i64 {here} to i32")
        masked = [self._window_masks(row, small, i) for i, row in enumerate(block)]
        code.do(f"br label %{after}")
        code.start(after)
        return [
            [part.either(x, before, y, partly) for x, y in zip(a, b, strict=True)]
            for a, b in zip(block, masked, strict=True)
        ]

    def _cut(self, here: str, rows: int) -> str:
        """Whether the window cuts through a block."""
        code, window = self.code, self.kernel.window
        crossings: list[str] = []
        if window.right is not None:
            # The largest distance here + i - n is that of the last key and query 0.
            last = code.let(f"add nsw i64 {here}, {rows - 1}")
            crossings.append(code.let(f"icmp sgt i64 {last}, {window.right}"))
        if window.left is not None:
            # The least distance is that of key 0 and the last query.
            first = code.let(f"sub nsw i64 {here}, {self.tiling.queries - 1}")
            crossings.append(code.let(f"icmp slt i64 {first}, {-window.left}"))
        return crossings[0] if len(crossings) == 1 else code.let(f"or i1 {', '.join(crossings)}")

    def _window_masks(self, row: list[Vector], here: str, i: int) -> list[Vector]:
        """One key: visible to query n if -left <= here + i - n <= right."""
        code, v, window = self.code, self.v, self.kernel.window
        nothing = self.part.constant(-math.inf)
        parts = []
        for j, x in enumerate(row):
            lanes = ", ".join(f"i32 {j * v.width + n}" for n in range(v.width))
            # i32 lanes, as many as the f32 scores have: masks of i64 would take two registers.
            queries = Vector(f"<{lanes}>", "i32", v.width)
            if window.right is not None:
                least = code.let(f"add i32 {here}, {i - window.right}")
                x = v.select(v.compare("sge", queries, v.splat(Vector(least, "i32"))), x, nothing)
            if window.left is not None:
                most = code.let(f"add i32 {here}, {i + window.left}")
                x = v.select(v.compare("sle", queries, v.splat(Vector(most, "i32"))), x, nothing)
            parts.append(x)
        return parts
