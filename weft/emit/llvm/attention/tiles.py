"""The forward kernel of attention in bf16 on AMX tiles.

    scores[key][query] = keys[key][d] * queries[d][query]
    out[d][query]     += values[d][key] * probabilities[key][query]

Queries are along the lanes as in the vector kernel. Keys are read in place if they form whole
tiles; queries and values are transposed. A probability is a sum of two bf16 numbers, with twice the
bits of one. Sums are divided and transposed back at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from weft.emit.llvm.attention.forward import SCORES, write_lse, write_scores
from weft.emit.llvm.attention.online import ForwardKernel
from weft.emit.llvm.attention.pack import moved
from weft.emit.llvm.attention.tile_pack import STEP, pack_keys, turn_queries, turn_values
from weft.emit.llvm.attention.tile_parts import (
    TileScores,
    write_multiply,
    write_rows,
    write_split_softmax,
    write_sums,
)
from weft.emit.llvm.attention.tiling import Tiling
from weft.emit.llvm.jit.processor import Processor
from weft.emit.llvm.product.microkernel.tiles import LINES, Registers, begin_tiles, end_tiles
from weft.emit.llvm.writer.code import OpenLoop, Writer
from weft.ir.types import DTYPES
from weft.kernels.attention import Access, Attention

_KEYS = 128  # keys of a tile
# queries, and elements of keys and values, below which tiles do not pay off
_FEW, _LITTLE = 16, 4096
_MANY = 512  # queries from which wide tiles pay off: narrow ones skip more masked keys


def fits_tiles(kernel: Attention, processor: Processor) -> bool:
    """Whether a forward kernel runs on AMX tiles: in bf16, with contiguous rows."""
    sides = (kernel.q, kernel.k, kernel.v)
    return (
        processor.has("avx512f")
        and processor.has("amx-bf16")
        and kernel.queries > _FEW
        and kernel.keys * (kernel.depth + kernel.value_depth) >= _LITTLE
        and min(kernel.depth, kernel.keys) > 0
        and all(kernel.dtype(a) is DTYPES["bf16"] and a.column == 1 for a in sides)
    )


class TiledForward(ForwardKernel):
    """The functions of a forward kernel on AMX tiles."""

    always_online = True

    def __init__(self, kernel: Attention, tiling: Tiling) -> None:
        wide = kernel.queries >= _MANY and kernel.window.left is None
        keys = dict(kernel.options).get("keys", min(_KEYS, kernel.keys))
        vectors = dict(kernel.options).get("vectors", 4 if wide else 2)
        chosen = replace(tiling, keys=-(-keys // STEP) * STEP, vectors=min(vectors, 4))
        self.depth = -(-kernel.depth // STEP) * STEP  # padded to whole tiles
        super().__init__(kernel, chosen)

    @property
    def height(self) -> int:
        """The granularity of skipped keys: a tile, two keys in a cell."""
        return STEP

    @property
    def _keys_in_place(self) -> bool:
        return self.kernel.depth == self.depth and self.kernel.keys % LINES == 0

    def _add_parts(self) -> None:
        k, t = self.kernel, self.tiling
        packed = -(-k.keys // STEP) * STEP
        self.ahead = packed * (self.depth + self.width) * 2 <= t.room
        self.held = packed if self.ahead else t.keys  # keys packed at a time
        if not self._keys_in_place:
            self.pieces.add("keys", self.held * self.depth // 2)  # [keys, depth] of bf16
            self.parts.append(pack_keys(self.part("pack_keys", ["ptr %from", "i64 %count"]), k))
        self.pieces.add("values", self.held * self.width // 2)  # [depth, keys] of bf16
        # bf16 alone has 8 bits, and rounding probabilities to it would be seen in the result.
        for name in ("high", "low"):  # probabilities
            self.pieces.add(name, t.queries * t.keys // 2)  # [keys / 2, queries] of pairs
        self.add_pairs()
        values = self.part("pack_values", ["ptr %from", "i64 %count"])
        queries = self.part("turn", ["ptr %from", "i64 %rows"])
        scores = self.part("scores", SCORES)
        key_row = k.k.row if self._keys_in_place else self.depth
        self.parts += [
            turn_values(values, k, self.held),
            turn_queries(queries, k),
            write_multiply(self.part("multiply", ["ptr %keys", "i64 %count"]), self.depth, key_row),
            write_scores(scores, k, TileScores(scores, k, key_row)),
            write_split_softmax(self.part("softmax", ["i64 %count"]), k.keys),
            write_sums(self.part("values", ["ptr %values", "i64 %count"]), self.width, self.held),
            write_rows(self.part("finish", ["ptr %to", "i64 %rows"]), k),
        ]
        if k.lse is not None:
            self.parts.append(write_lse(self.name("lse"), t, self.pieces, k))

    @contextmanager
    def _tasks(self, code: Writer) -> Iterator[OpenLoop]:
        # A row and vectors of a block, and one step at a time: all tiles are whole.
        begin_tiles(code, Registers(LINES, self.tiling.vectors))
        with code.loop("%begin", "%end") as task:
            yield task
        # Without it every context switch saves 8 KiB of tile state.
        end_tiles(code)

    def _bring(self, code: Writer, at: str, rows: str) -> None:
        self.call(code, "turn", ("ptr", at), ("i64", rows))

    def tile(self, code: Writer, label: str, access: Access, at: str, count: str) -> str:
        """A tile's rows: in place, or packed into scratch."""
        if label == "keys" and self._keys_in_place:
            return at
        self.call(code, f"pack_{label}", ("ptr", at), ("i64", count))
        return self.place(code, label)

    def _rows(
        self, code: Writer, label: str, access: Access, base: str, key: str, count: str
    ) -> str:
        if self.ahead and not (label == "keys" and self._keys_in_place):
            step = self.depth if label == "keys" else 1
            return moved(code, self.place(code, label), key, step, "i16")
        return self.tile(code, label, access, self.row(code, access, base, key), count)

    def _scores(self, code: Writer, keys: str, count: str, here: str) -> None:
        self.call(code, "multiply", ("ptr", keys), ("i64", count))
        super()._scores(code, keys, count, here)

    def _values(self, code: Writer, values: str, count: str, out: str, rows: str) -> None:
        self.call(code, "values", ("ptr", values), ("i64", count))
