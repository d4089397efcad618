"""The forward kernel: tiles of queries, each against all tiles of keys (online softmax).

Keys and values that need packing are packed once a task, if all of them fit.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager

from weft.emit.llvm.attention.forward import (
    SCORES,
    ValueProduct,
    write_finish,
    write_lse,
    write_scores,
    write_softmax,
)
from weft.emit.llvm.attention.main import TaskFunction, least
from weft.emit.llvm.attention.pack import moved
from weft.emit.llvm.attention.scores import LOG2_E, ScoreBlocks
from weft.emit.llvm.attention.tiling import Tiling, in_place
from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.writer.code import OpenLoop, Writer, module_text
from weft.emit.llvm.writer.nest import function
from weft.emit.llvm.writer.vector import Vectors
from weft.kernels.attention import Access, Attention

ENOUGH = 64  # tasks that keep all threads busy


class ForwardKernel(TaskFunction):
    """The functions of one forward kernel."""

    always_online = False  # also with a single tile of keys

    def __init__(self, kernel: Attention, tiling: Tiling) -> None:
        super().__init__(kernel, tiling)
        # Windows skip tiles, so several may pay off even where one would hold all keys.
        # With all keys in one tile the maximum is known before the first exponential: no rescaling.
        self.online = self.always_online or kernel.keys > tiling.keys
        self.width = tiling.padded(kernel.value_depth)
        self.tiles = -(-kernel.queries // tiling.queries)
        points = math.prod(kernel.outer)
        # Query tiles of one task share packed keys and values; more of them would leave threads
        # idle.
        self.together = max(1, min(self.tiles, points * self.tiles // ENOUGH))
        self.tasks = -(-self.tiles // self.together)  # query tiles at one outer point
        width = tiling.padded(kernel.depth) + self.width
        # Packed once for all query tiles of a task if the L2 cache holds all keys and
        # values; else a tile of them at a time.
        self.ahead = kernel.keys * width * kernel.held.numpy.itemsize <= tiling.room
        self.pieces.add("queries", tiling.queries * tiling.padded(kernel.depth))  # [depth, queries]
        self.pieces.add("scores", tiling.queries * tiling.keys)  # [keys, queries]
        if self.online:
            # [queries, depth]; [depth, queries] on AMX tiles.
            self.pieces.add("out", tiling.queries * self.width)
        for name in ("top", "was", "sum", "decay"):
            self.pieces.add(name, tiling.queries)
        self._add_parts()

    def emitted(self) -> Emitted:
        """All functions and phases."""
        k = self.kernel
        tasks = math.prod(k.outer) * self.tasks
        if not tasks or not k.value_depth:
            return Emitted("", ())
        functions = [*self.parts, self._main()]
        return Emitted(module_text(*functions), (Phase(k.name, tasks),), self.pieces.nbytes)

    def _add_parts(self) -> None:
        k, t = self.kernel, self.tiling
        packed = k.keys if self.ahead else t.keys
        self.add_packed("keys", k.k, packed, k.depth)
        self.add_packed("values", k.v, packed, k.value_depth)
        self.add_turn(k.q)
        self.add_pairs()
        key_row, value_row = self.row_of(k.k, k.depth), self.row_of(k.v, k.value_depth)
        scores = self.part("scores", SCORES)
        self.parts += [
            write_scores(scores, k, ScoreBlocks(scores, k, key_row)),
            write_softmax(self.name("softmax"), t, self.pieces, online=self.online),
            ValueProduct(self.name("values"), t, self.pieces, k, value_row).write(
                online=self.online
            ),
        ]
        if self.online:
            self.parts.append(write_finish(self.name("finish"), t, self.pieces, k))
        if k.lse is not None:
            self.parts.append(write_lse(self.name("lse"), t, self.pieces, k))

    def _main(self) -> Writer:
        k, t = self.kernel, self.tiling
        code = function(k.name)
        with self._tasks(code) as task:
            *outer, part = self.split(code, task.index, (*k.outer, self.tasks))
            accesses = {"q": k.q, "k": k.k, "v": k.v, "out": k.out, **k.pairs}
            bases = {name: self.base(code, a, outer) for name, a in accesses.items()}
            if k.lse is not None:
                bases["lse"] = self.base(code, k.lse, outer)
            if self.ahead:
                for label, access in (("keys", k.k), ("values", k.v)):
                    self.tile(code, label, access, bases[label[0]], str(k.keys))
            begin = code.let(f"mul i64 {part}, {self.together}")
            end = least(code, code.let(f"add i64 {begin}, {self.together}"), str(self.tiles))
            with code.loop(begin, end) as tile:
                self._queries(code, code.let(f"mul i64 {tile.index}, {t.queries}"), bases)
        return code

    def _tasks(self, code: Writer) -> AbstractContextManager[OpenLoop]:
        """The loop over tasks."""
        return code.loop("%begin", "%end")

    def _queries(self, code: Writer, first: str, bases: dict[str, str]) -> None:
        """One tile of queries."""
        k, t = self.kernel, self.tiling
        rows = least(code, code.let(f"sub i64 {k.queries}, {first}"), str(t.queries))
        self._bring(code, self.row(code, k.q, bases["q"], first), rows)
        # Scratch has the state of the tile before: it must start from no keys again.
        self._clear(code)
        out = self.row(code, k.out, bases["out"], first)
        self._key_tiles(code, first, rows, bases, out)
        if self.online:
            self.call(code, "finish", ("ptr", out), ("i64", rows))
        if k.lse is not None:
            lse = self.row(code, k.lse, bases["lse"], first)
            self.call(code, "lse", ("ptr", lse), ("i64", rows))

    def _bring(self, code: Writer, at: str, rows: str) -> None:
        """Transpose a tile of queries into scratch."""
        k, to = self.kernel, self.place(code, "queries")
        # Scale and log2(e) once for each query, not for each score: softmax then is 2^x.
        self.turn(code, k.q, at, to, rows, k.depth, k.scale * LOG2_E)

    def _clear(self, code: Writer) -> None:
        """Initialize the softmax state."""
        t, v = self.tiling, Vectors(code, self.tiling.lanes)
        # -inf and 0: the state of no keys, which the first tile's maximum replaces.
        for name, value in (("top", -math.inf), ("was", -math.inf), ("sum", 0.0)):
            place = self.place(code, name)
            for n in range(0, t.queries, t.lanes):
                v.store(v.constant(value, t.kind), v.at(place, n, t.kind))
        if self.online:
            out = self.place(code, "out")
            with code.loop(0, t.queries * self.width, t.lanes) as loop:
                v.store(v.constant(0.0, t.kind), v.at(out, loop.index, t.kind))

    def _key_tiles(
        self, code: Writer, first: str, rows: str, bases: dict[str, str], out: str
    ) -> None:
        k, t = self.kernel, self.tiling
        aligned = code.let(f"add nsw i64 {first}, {k.window.shift}")
        begin, end = self.keys_seen(code, aligned, rows)
        if not self.online:
            count = code.let(f"sub i64 {end}, {begin}")
            # Results are stored even without visible keys.
            # A window may lie beyond all keys: the range is empty then, and may even be negative.
            count = code.call("i64", "llvm.smax.i64", ("i64", count), ("i64", "0"))
            self._tile(code, begin, count, first, aligned, rows, bases, out)
            return
        with code.loop(begin, end, t.keys) as loop:
            count = least(code, code.let(f"sub i64 {end}, {loop.index}"), str(t.keys))
            self._tile(code, loop.index, count, first, aligned, rows, bases, out)

    def _tile(
        self,
        code: Writer,
        key: str,
        count: str,
        first: str,
        aligned: str,
        rows: str,
        bases: dict[str, str],
        out: str,
    ) -> None:
        k = self.kernel
        here = code.let(f"sub nsw i64 {aligned}, {key}")
        self.pairs(code, bases, first, key, rows, count)
        keys = self._rows(code, "keys", k.k, bases["k"], key, count)
        self._scores(code, keys, count, here)
        self.call(code, "softmax", ("i64", count))
        values = self._rows(code, "values", k.v, bases["v"], key, count)
        self._values(code, values, count, out, rows)

    def _scores(self, code: Writer, keys: str, count: str, here: str) -> None:
        self.call(code, "scores", ("ptr", keys), ("i64", count), ("i64", here))

    def _values(self, code: Writer, values: str, count: str, out: str, rows: str) -> None:
        given = (("ptr", values), ("i64", count), ("ptr", out), ("i64", rows))
        self.call(code, "values", *given)

    def _rows(
        self, code: Writer, label: str, access: Access, base: str, key: str, count: str
    ) -> str:
        """The rows of a tile of keys: in place, packed before, or packed now."""
        if self.ahead and not in_place(self.kernel, access):
            depth = self.kernel.depth if label == "keys" else self.kernel.value_depth
            padded = self.tiling.padded(depth)
            # Packed rows are padded to whole vectors, so that loads need no mask.
            return moved(code, self.place(code, label), key, padded, self.tiling.kind)
        return self.tile(code, label, access, self.row(code, access, base, key), count)
