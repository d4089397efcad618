"""Attention as one kernel: tiles of queries against tiles of keys, nothing of their size kept.

A task is a tile of queries of one head. Its keys and values pass by in tiles that the nearest
caches hold; tiles that no query sees are left out.
"""

from __future__ import annotations

import math

from weft.emit.llvm.attention_forward import Finish, Part, Scores, Softmax, Values
from weft.emit.llvm.attention_pack import Rows, moved, pack_across, pack_rows
from weft.emit.llvm.attention_tiling import Layout, Tiling, in_place, tiling
from weft.emit.llvm.code import Code, module_text
from weft.emit.llvm.machine_code import Processor, host
from weft.emit.llvm.storage import memory_kind
from weft.emit.llvm.vector import Vectors
from weft.kernels.attention import Access, Attention
from weft.kernels.emitted import Emitted, Phase


def emit_attention(kernel: Attention, processor: Processor | None = None) -> Emitted:
    """The text of an attention kernel."""
    return _Forward(kernel, tiling(kernel, processor or host())).emitted()


class _Forward:
    """The functions of one forward kernel."""

    def __init__(self, kernel: Attention, tiling: Tiling) -> None:
        self.kernel, self.tiling = kernel, tiling
        self.layout = Layout(tiling.kind)
        self.width = tiling.padded(kernel.value_depth)
        self.layout.add("queries", tiling.queries * kernel.depth)
        self.layout.add("scores", tiling.queries * tiling.keys)
        self.layout.add("out", tiling.queries * self.width)
        for name in ("top", "was", "sum", "decay"):
            self.layout.add(name, tiling.queries)
        if not in_place(kernel, kernel.k):
            self.layout.add("keys", tiling.keys * tiling.padded(kernel.depth))
        if not in_place(kernel, kernel.v):
            self.layout.add("values", tiling.keys * self.width)

    def emitted(self) -> Emitted:
        """All functions, and the phase that runs them."""
        k = self.kernel
        tasks = math.prod(k.outer) * self.query_tiles
        functions = [*self._parts(), self._main()]
        chunk = max(1, min(self.query_tiles, tasks // 64))
        phase = Phase(k.name, tasks, chunk)
        return Emitted(module_text(*functions), (phase,), self.layout.nbytes)

    @property
    def query_tiles(self) -> int:
        """Tiles of queries of one head."""
        return -(-self.kernel.queries // self.tiling.queries)

    def rows(self, access: Access, depth: int) -> Rows:
        """The rows of an operand of one head."""
        dtype = self.kernel.dtype(access)
        return Rows(dtype, access.row, access.column, depth)

    def _parts(self) -> list[Code]:
        k, t, name = self.kernel, self.tiling, self.kernel.name
        key_row = k.k.row if in_place(k, k.k) else t.padded(k.depth)
        value_row = k.v.row if in_place(k, k.v) else self.width
        out = k.dtype(k.out)
        scores = Scores(f"{name}_scores", t, self.layout, k.depth, key_row, k.window)
        made = [
            self._pack_queries(),
            scores.write(tail=k.keys % t.key_rows),
            Softmax(f"{name}_softmax", t, self.layout).write(online=True),
            Values(f"{name}_values", t, self.layout, k.value_depth, value_row).write(),
            Finish(f"{name}_finish", t, self.layout, k.value_depth, out, k.out.row).write(
                0.0 if k.empty == "zero" else math.nan
            ),
        ]
        for label, access, depth in (("keys", k.k, k.depth), ("values", k.v, k.value_depth)):
            if not in_place(k, access):
                made.append(self._pack(label, access, depth))
        return made

    def _pack_queries(self) -> Code:
        k, t = self.kernel, self.tiling
        part = Part(f"{k.name}_pack_queries", ["ptr %from", "i64 %rows"], t, self.layout)
        last = part.code.let("sub i64 %rows, 1")
        scale = k.scale / math.log(2)
        to = part.place("queries")
        pack_across(part.code, self.rows(k.q, k.depth), to, last, t.lanes, t.vectors, scale)
        return part.code

    def _pack(self, label: str, access: Access, depth: int) -> Code:
        name = f"{self.kernel.name}_pack_{label}"
        part = Part(name, ["ptr %from", "i64 %count"], self.tiling, self.layout)
        padded = self.tiling.padded(depth)
        rows = self.rows(access, depth)
        pack_rows(part.code, rows, part.place(label), "%count", self.tiling.lanes, padded)
        return part.code

    def _main(self) -> Code:
        k, t = self.kernel, self.tiling
        code = Code(k.name, ["ptr %operands", "ptr %scratch", "i64 %begin", "i64 %end"])
        with code.loop("%begin", "%end") as task:
            tile, outer = self._split(code, task.index)
            first = code.let(f"mul i64 {tile}, {t.queries}")
            left = code.let(f"sub i64 {k.queries}, {first}")
            rows = _least(code, left, str(t.queries))
            accesses = {"q": k.q, "k": k.k, "v": k.v, "out": k.out}
            bases = {label: self._base(code, a, outer) for label, a in accesses.items()}
            q = self._row(code, k.q, bases["q"], first)
            code.do(f"call void @{k.name}_pack_queries(ptr %scratch, ptr {q}, i64 {rows})")
            self._clear(code)
            self._key_tiles(code, first, rows, bases)
            out = self._row(code, k.out, bases["out"], first)
            code.do(f"call void @{k.name}_finish(ptr %scratch, ptr {out}, i64 {rows})")
        return code

    def _split(self, code: Code, task: str) -> tuple[str, list[str]]:
        """The tile of a task, and its place in each outer dim."""
        tile = code.let(f"urem i64 {task}, {self.query_tiles}")
        rest = code.let(f"udiv i64 {task}, {self.query_tiles}")
        outer: list[str] = []
        for size in reversed(self.kernel.outer):
            outer.insert(0, code.let(f"urem i64 {rest}, {size}"))
            rest = code.let(f"udiv i64 {rest}, {size}")
        return tile, outer

    def _base(self, code: Code, access: Access, outer: list[str]) -> str:
        place = code.let(f"getelementptr ptr, ptr %operands, i64 {access.operand}")
        base = code.let(f"load ptr, ptr {place}")
        kind = memory_kind(self.kernel.dtype(access))
        if access.offset:
            base = code.let(f"getelementptr {kind}, ptr {base}, i64 {access.offset}")
        for index, stride in zip(outer, access.outer, strict=True):
            if stride:
                base = moved(code, base, index, stride, kind)
        return base

    def _row(self, code: Code, access: Access, base: str, index: str) -> str:
        kind = memory_kind(self.kernel.dtype(access))
        return moved(code, base, index, access.row, kind)

    def _clear(self, code: Code) -> None:
        """Nothing seen yet."""
        t, v = self.tiling, Vectors(code, self.tiling.lanes)
        size = self.layout.places
        for name, value in (("top", -math.inf), ("was", -math.inf), ("sum", 0.0)):
            place = code.let(f"getelementptr i8, ptr %scratch, i64 {size[name]}")
            for n in range(0, t.queries, t.lanes):
                v.store(v.constant(value, t.kind), v.at(place, n, t.kind))
        out = code.let(f"getelementptr i8, ptr %scratch, i64 {size['out']}")
        with code.loop(0, t.queries * self.width, t.lanes) as loop:
            v.store(v.constant(0.0, t.kind), v.at(out, loop.index, t.kind))

    def _key_tiles(self, code: Code, first: str, rows: str, bases: dict[str, str]) -> None:
        k, t = self.kernel, self.tiling
        aligned = code.let(f"add nsw i64 {first}, {k.window.shift}")
        begin, end = self._seen(code, aligned, rows)
        with code.loop(begin, end, t.keys) as loop:
            count = _least(code, code.let(f"sub i64 {end}, {loop.index}"), str(t.keys))
            here = code.let(f"sub nsw i64 {aligned}, {loop.index}")
            keys = self._tile(
                code, "keys", k.k, self._row(code, k.k, bases["k"], loop.index), count
            )
            given = f"ptr %scratch, ptr {keys}, i64 {count}, i64 {here}"
            code.do(f"call void @{k.name}_scores({given})")
            code.do(f"call void @{k.name}_softmax(ptr %scratch, i64 {count})")
            at = self._row(code, k.v, bases["v"], loop.index)
            values = self._tile(code, "values", k.v, at, count)
            given = f"ptr %scratch, ptr {values}, i64 {count}"
            code.do(f"call void @{k.name}_values({given})")

    def _tile(self, code: Code, label: str, access: Access, at: str, count: str) -> str:
        """A tile's rows: where they are, or packed into the scratch."""
        if in_place(self.kernel, access):
            return at
        name = self.kernel.name
        code.do(f"call void @{name}_pack_{label}(ptr %scratch, ptr {at}, i64 {count})")
        return code.let(f"getelementptr i8, ptr %scratch, i64 {self.layout.places[label]}")

    def _seen(self, code: Code, aligned: str, rows: str) -> tuple[str, str]:
        """The keys that some query of a tile sees: begin and end, in whole register blocks."""
        k, height = self.kernel, self.tiling.key_rows
        begin, end = "0", str(k.keys)
        if k.window.left is not None:
            begin = code.let(f"sub nsw i64 {aligned}, {k.window.left}")
            begin = code.let(f"and i64 {_most(code, begin, '0')}, {-height}")
        if k.window.right is not None:
            last = code.let(f"add nsw i64 {aligned}, {rows}")
            last = code.let(f"add nsw i64 {last}, {k.window.right + height - 1}")
            last = code.let(f"and i64 {last}, {-height}")
            end = _least(code, last, end)
        return begin, end


def _least(code: Code, a: str, b: str) -> str:
    return code.call("i64", "llvm.smin.i64", ("i64", a), ("i64", b))


def _most(code: Code, a: str, b: str) -> str:
    return code.call("i64", "llvm.smax.i64", ("i64", a), ("i64", b))
