"""The backward kernel: tiles of keys against all tiles of queries, probabilities recomputed.

A task is one point of the outer dims, or several that share gradients of keys and values. It takes
as many queries as fit into the caches, transposes them and their gradients once, then iterates over
its keys tile by tile: gradients of keys and values accumulate in L1, those of queries in scratch.
With few tasks, the keys of one point are split over several; each accumulates its own gradients of
queries, and a second phase sums them.
"""

from __future__ import annotations

import math

from weft.emit.llvm.attention.gradients import (
    Products,
    Weights,
    write_bias,
    write_facts,
    write_rows,
)
from weft.emit.llvm.attention.main import TaskFunction, least, most
from weft.emit.llvm.attention.pack import moved, stored
from weft.emit.llvm.attention.part import Routine, write_vector
from weft.emit.llvm.attention.scores import LOG2_E
from weft.emit.llvm.attention.tiling import Tiling
from weft.emit.llvm.emitted import Emitted, Phase
from weft.emit.llvm.writer.code import Writer, module_text
from weft.emit.llvm.writer.storage import memory_kind
from weft.emit.llvm.writer.vector import BITS, Vectors
from weft.kernels.attention import Access, Attention, Gradients
from weft.records import dataclass

ENOUGH = 16  # tasks that keep all threads busy
FACTS = 3  # numbers kept for each query
ROOM = 5 / 8  # the share of L2 that queries, gradients and sums of a working set take


@dataclass(frozen=True, slots=True)
class _Span:
    """The queries of one working set: their tiles, and the first of them."""

    begin: str
    end: str
    first: str


class BackwardKernel(TaskFunction):
    """The functions of one backward kernel."""

    def __init__(self, kernel: Attention, tiling: Tiling) -> None:
        super().__init__(kernel, tiling)
        assert kernel.gradients is not None
        self.gradients: Gradients = kernel.gradients
        k, t = kernel, tiling
        strides = zip(self.gradients.k.outer, self.gradients.v.outer, k.outer, strict=True)
        # Outer dims along which the gradients of keys and values do not move: heads that share
        # them. One task has all of these, and needs no atomic sums.
        self.summed = tuple(n for n, (a, b, _) in enumerate(strides) if not a and not b)
        self.own = tuple(n for n in range(len(k.outer)) if n not in self.summed)
        self.tiles = -(-k.queries // t.queries)
        # Of one query: q, q transposed and dq; dout and dout transposed.
        row = 3 * t.padded(k.depth) + 2 * t.padded(k.value_depth)
        fits = int(ROOM * t.room) // (row * t.queries * BITS[t.kind] // 8)
        # Queries outside, keys inside: each working set of queries stays in cache while all keys
        # pass by.
        self.span = max(1, min(self.tiles, fits))  # query tiles of a working set
        self.spans = -(-self.tiles // self.span)
        self.key_tiles = -(-k.keys // t.keys)
        points = math.prod(k.outer[n] for n in self.own)
        self.parts_of_keys = max(1, min(self.key_tiles, ENOUGH // max(1, points)))
        self._lay_out()
        self._add_parts()

    @property
    def groups(self) -> int:
        """Outer points over which gradients of keys and values are summed."""
        return math.prod(self.kernel.outer[n] for n in self.summed)

    @property
    def turns(self) -> int:
        """The number of passes of a task over its keys."""
        return self.groups * self.spans

    @property
    def query_bytes(self) -> int:
        """Bytes of the accumulated query gradients of one point."""
        k, t = self.kernel, self.tiling
        return self.tiles * t.queries * t.padded(k.depth) * BITS[t.kind] // 8

    def _lay_out(self) -> None:
        k, t, rows = self.kernel, self.tiling, self.span * self.tiling.queries
        self.pieces.add("turned_q", rows * t.padded(k.depth))
        self.pieces.add("turned_dout", rows * t.padded(k.value_depth))
        self.pieces.add("facts", FACTS * rows)
        self.pieces.add("weights", t.queries * t.keys)  # [keys, queries]
        self.pieces.add("d_scores", t.queries * t.keys)  # [keys, queries]
        # One pass writes a tile's gradients at once; several passes must keep the sums of all keys
        # between.
        every = self.key_tiles * t.keys if self.turns > 1 else t.keys
        self.pieces.add("dk", every * t.padded(k.depth))  # [keys, depth]
        self.pieces.add("dv", every * t.padded(k.value_depth))
        if self.parts_of_keys == 1:
            self.pieces.add("dq", rows * t.padded(k.depth))  # [queries, depth]

    def _add_parts(self) -> None:
        k, t, g = self.kernel, self.tiling, self.gradients
        self.add_packed("keys", k.k, t.keys, k.depth)
        self.add_packed("values", k.v, t.keys, k.value_depth)
        self.add_packed("queries", k.q, t.queries, k.depth)
        self.add_packed("dout", g.out, t.queries, k.value_depth)
        self.add_turn(k.q)
        self.add_turn(g.out)
        self.add_pairs()
        key_row, query_row = self.row_of(k.k, k.depth), self.row_of(k.q, k.depth)
        dout_row = self.row_of(g.out, k.value_depth)
        self.parts += [
            write_facts(self),
            Weights(self).write(),
            write_rows(self, "write_dk", g.k, k.depth, self._scale(g.k_scale)),
            write_rows(self, "write_dv", g.v, k.value_depth, 1.0),
        ]
        self._add_products(
            {
                "dv": (dout_row, k.value_depth, True),
                "dk": (query_row, k.depth, True),
                "dq": (key_row, k.depth, False),
            }
        )
        if self.parts_of_keys == 1:
            self.parts.append(write_rows(self, "write_dq", g.q, k.depth, self._scale(g.q_scale)))
        if g.bias is not None:
            self.parts.append(write_bias(self, g.bias))

    def _add_products(self, wanted: dict[str, tuple[int, int, bool]]) -> None:
        """A part for each contraction; equal ones are shared."""
        self.products: dict[str, str] = {}
        routines: dict[tuple[int, int, bool], str] = {}
        for label, form in wanted.items():
            if form not in routines:
                routines[form] = f"add_{label}"
                row, depth, keys = form
                self.parts.append(Products(self, routines[form], row, depth).write(keys=keys))
            self.products[label] = routines[form]

    def _scale(self, scale: float | None) -> float:
        return self.kernel.scale if scale is None else scale

    def emitted(self) -> Emitted:
        """All functions and phases."""
        k = self.kernel
        points = math.prod(k.outer)
        if not points:
            return Emitted("", ())
        assert k.queries and k.keys, "some key is visible"
        tasks = math.prod(k.outer[n] for n in self.own) * self.parts_of_keys
        phases = [Phase(k.name, tasks)]
        functions = [*self.parts, self._main()]
        shared = 0
        if self.parts_of_keys > 1:
            functions.append(self._sum())
            phases.append(Phase(self.name("sum"), points * self.tiles, self.tiles))
            # Every part of the keys adds to all queries: private sums and a second phase, in a
            # fixed order, instead of atomic adds, whose rounding would depend on the threads.
            shared = points * self.parts_of_keys * self.query_bytes
        return Emitted(module_text(*functions), tuple(phases), self.pieces.nbytes, shared)

    # The task function

    def _main(self) -> Writer:
        k = self.kernel
        code = Writer(k.name, ["ptr %operands", "ptr %scratch", "i64 %begin", "i64 %end"])
        with code.loop("%begin", "%end") as task:
            sizes = (*(k.outer[n] for n in self.own), self.parts_of_keys)
            *own, part = self.split(code, task.index, sizes)
            with code.loop(0, self.turns) as turn:
                sizes = (*(k.outer[n] for n in self.summed), self.spans)
                *inner, span = self.split(code, turn.index, sizes)
                outer = [""] * len(k.outer)
                for where, index in (
                    *zip(self.own, own, strict=True),
                    *zip(self.summed, inner, strict=True),
                ):
                    outer[where] = index
                self._point(code, outer, part, self._span(code, span), turn.index)
        return code

    def _span(self, code: Writer, number: str) -> _Span:
        begin = code.let(f"mul i64 {number}, {self.span}")
        end = least(code, code.let(f"add i64 {begin}, {self.span}"), str(self.tiles))
        return _Span(begin, end, code.let(f"mul i64 {begin}, {self.tiling.queries}"))

    def _point(self, code: Writer, outer: list[str], part: str, span: _Span, turn: str) -> None:
        k, t = self.kernel, self.tiling
        bases = {name: self.base(code, a, outer) for name, a in self._accesses().items()}
        bases["to_dq"] = self._queries_sum(code, outer, part, span)
        self._turn(code, bases, span)
        first = code.let(f"mul i64 {part}, {self.key_tiles}")
        # Parts differ by one tile of keys at most.
        first = code.let(f"udiv i64 {first}, {self.parts_of_keys}")
        end = code.let(f"mul i64 {code.let(f'add i64 {part}, 1')}, {self.key_tiles}")
        end = code.let(f"udiv i64 {end}, {self.parts_of_keys}")
        with code.loop(first, end) as tile:
            key = code.let(f"mul i64 {tile.index}, {t.keys}")
            count = least(code, code.let(f"sub i64 {k.keys}, {key}"), str(t.keys))
            self._key_tile(code, bases, key, count, span, turn)
        if self.parts_of_keys == 1:
            left = code.let(f"sub i64 {k.queries}, {span.first}")
            rows = least(code, left, str(self.span * t.queries))
            to = self.row(code, self.gradients.q, bases["dq"], span.first)
            self.call(code, "write_dq", ("ptr", bases["to_dq"]), ("ptr", to), ("i64", rows))

    def _accesses(self) -> dict[str, Access]:
        k, g = self.kernel, self.gradients
        assert k.lse is not None
        found = {"q": k.q, "k": k.k, "v": k.v, "out": k.out, "lse": k.lse, **k.pairs}
        found |= {"dout": g.out, "dq": g.q, "dk": g.k, "dv": g.v}
        return found if g.bias is None else found | {"dbias": g.bias}

    def _queries_sum(self, code: Writer, outer: list[str], part: str, span: _Span) -> str:
        """The accumulator of a span's query gradients, zeroed."""
        t, v = self.tiling, Vectors(code, self.tiling.lanes)
        padded = t.padded(self.kernel.depth)
        if self.parts_of_keys == 1:
            to = self.place(code, "dq")
        else:
            to = moved(code, self._shared(code, outer, part), span.first, padded, t.kind)
        tiles = code.let(f"sub i64 {span.end}, {span.begin}")
        with code.loop(0, code.let(f"mul i64 {tiles}, {t.queries * padded}"), t.lanes) as loop:
            v.store(v.constant(0.0, t.kind), v.at(to, loop.index, t.kind))
        return to

    def _shared(self, code: Writer, outer: list[str], part: str) -> str:
        """The partial query gradients of one point from one part of its keys."""
        index = "0"
        for place, size in zip(outer, self.kernel.outer, strict=True):
            index = code.let(f"add i64 {code.let(f'mul i64 {index}, {size}')}, {place}")
        index = code.let(f"mul i64 {index}, {self.parts_of_keys}")
        index = code.let(f"add i64 {index}, {part}")
        index = code.let(f"mul i64 {index}, {self.query_bytes}")
        place = code.let(f"getelementptr ptr, ptr %operands, i64 {len(self.kernel.operands)}")
        base = code.let(f"load ptr, ptr {place}")
        return code.let(f"getelementptr i8, ptr {base}, i64 {index}")

    def _turn(self, code: Writer, bases: dict[str, str], span: _Span) -> None:
        """Transpose a span's queries and gradients, and compute its per-query facts."""
        k, t, g = self.kernel, self.tiling, self.gradients
        assert k.lse is not None
        with code.loop(span.begin, span.end) as tile:
            first = code.let(f"mul i64 {tile.index}, {t.queries}")
            here = code.let(f"sub i64 {first}, {span.first}")
            rows = self._rows(code, first)
            scale = k.scale * LOG2_E
            for label, access, depth, by in (
                ("q", k.q, k.depth, scale),
                ("dout", g.out, k.value_depth, 1.0),
            ):
                at = self.row(code, access, bases[label], first)
                to = moved(code, self.place(code, f"turned_{label}"), here, t.padded(depth), t.kind)
                self.turn(code, access, at, to, rows, depth, by)
            places = [
                ("ptr", self.row(code, access, bases[label], first))
                for label, access in (("lse", k.lse), ("out", k.out), ("dout", g.out))
            ]
            to = moved(code, self.place(code, "facts"), here, FACTS, t.kind)
            self.call(code, "facts", *places, ("ptr", to), ("i64", rows), ("i64", first))

    def _rows(self, code: Writer, first: str) -> str:
        """The number of queries of a tile."""
        left = code.let(f"sub i64 {self.kernel.queries}, {first}")
        return least(code, left, str(self.tiling.queries))

    def _key_tile(
        self, code: Writer, bases: dict[str, str], key: str, count: str, span: _Span, turn: str
    ) -> None:
        k, t, g = self.kernel, self.tiling, self.gradients
        keys = self.tile(code, "keys", k.k, self.row(code, k.k, bases["k"], key), count)
        values = self.tile(code, "values", k.v, self.row(code, k.v, bases["v"], key), count)
        at = key if self.turns > 1 else "0"
        sums = {
            "dk": moved(code, self.place(code, "dk"), at, t.padded(k.depth), t.kind),
            "dv": moved(code, self.place(code, "dv"), at, t.padded(k.value_depth), t.kind),
        }
        # The first pass over the keys clears their sums, and the last one writes them.
        with code.when(code.let(f"icmp eq i64 {turn}, 0")):
            self._clear(code, sums)
        begin, end = self._queries_that_see(code, key, count)
        with code.loop(most(code, begin, span.begin), least(code, end, span.end)) as tile:
            first = code.let(f"mul i64 {tile.index}, {t.queries}")
            here = code.let(f"sub i64 {first}, {span.first}")
            self._pair(code, bases, first, here, key, count, keys, values, sums)
        with code.when(code.let(f"icmp eq i64 {turn}, {self.turns - 1}")):
            for label, access in (("dk", g.k), ("dv", g.v)):
                to = self.row(code, access, bases[label], key)
                given = (("ptr", sums[label]), ("ptr", to), ("i64", count))
                self.call(code, f"write_{label}", *given)

    def _clear(self, code: Writer, sums: dict[str, str]) -> None:
        t, v = self.tiling, Vectors(code, self.tiling.lanes)
        depths = {"dk": self.kernel.depth, "dv": self.kernel.value_depth}
        for label, to in sums.items():
            with code.loop(0, t.keys * t.padded(depths[label]), t.lanes) as loop:
                v.store(v.constant(0.0, t.kind), v.at(to, loop.index, t.kind))

    def _queries_that_see(self, code: Writer, key: str, count: str) -> tuple[str, str]:
        """The tiles of queries to which some key of a tile is visible: begin and end."""
        k, t = self.kernel, self.tiling
        begin, end = "0", str(self.tiles)
        if self.gradients.bias is not None:
            # All pairs are visited, since each element of the bias' gradient must be written.
            return begin, end  # a masked pair has gradient 0
        if k.window.right is not None:  # query + shift + right >= key
            first = code.let(f"sub nsw i64 {key}, {k.window.shift + k.window.right}")
            begin = code.let(f"udiv i64 {most(code, first, '0')}, {t.queries}")
        if k.window.left is not None:  # query + shift - left <= last key
            last = code.let(f"add nsw i64 {key}, {count}")
            last = code.let(f"add nsw i64 {last}, {k.window.left - k.window.shift - 1}")
            # Not below -1, so that the unsigned division below gives no tile at all, and not a huge
            # number.
            last = code.let(f"add nsw i64 {most(code, last, '-1')}, {t.queries}")
            end = least(code, code.let(f"udiv i64 {last}, {t.queries}"), end)
        return begin, end

    def _pair(
        self,
        code: Writer,
        bases: dict[str, str],
        first: str,
        place: str,
        key: str,
        count: str,
        keys: str,
        values: str,
        sums: dict[str, str],
    ) -> None:
        """One tile of queries, at an offset of the scratch, against one of keys."""
        k, t, g = self.kernel, self.tiling, self.gradients
        rows = self._rows(code, first)
        turned = {
            label: moved(code, self.place(code, f"turned_{label}"), place, t.padded(depth), t.kind)
            for label, depth in (("q", k.depth), ("dout", k.value_depth))
        }
        facts = moved(code, self.place(code, "facts"), place, FACTS, t.kind)
        aligned = code.let(f"add nsw i64 {first}, {k.window.shift}")
        here = code.let(f"sub nsw i64 {aligned}, {key}")
        self.pairs(code, bases, first, key, rows, count)
        pointers = (keys, values, turned["q"], turned["dout"], facts)
        numbers = (("i64", count), ("i64", here))
        self.call(code, "weights", *(("ptr", p) for p in pointers), *numbers)
        if g.bias is not None:
            to = self.row(code, g.bias, bases["dbias"], first)
            to = moved(code, to, key, g.bias.column, memory_kind(k.dtype(g.bias)))
            self.call(code, "write_bias", ("ptr", to), ("i64", count), ("i64", rows))
        dout = self.tile(code, "dout", g.out, self.row(code, g.out, bases["dout"], first), rows)
        queries = self.tile(code, "queries", k.q, self.row(code, k.q, bases["q"], first), rows)
        dq = moved(code, bases["to_dq"], place, t.padded(k.depth), t.kind)
        for label, pairs, source, to, steps in (
            ("dv", "weights", dout, sums["dv"], rows),
            ("dk", "d_scores", queries, sums["dk"], rows),
            ("dq", "d_scores", keys, dq, count),
        ):
            given = [("ptr", p) for p in (self.place(code, pairs), source, to)]
            given += [("i64", count), ("i64", steps)]
            self.call(code, self.products[label], *given)

    # The second phase

    def _sum(self) -> Writer:
        """Sum the query gradients over the parts of the keys."""
        k, t = self.kernel, self.tiling
        code = Writer(self.name("sum"), ["ptr %operands", "ptr %scratch", "i64 %begin", "i64 %end"])
        access = self.gradients.q
        dtype, width = k.dtype(access), t.padded(k.depth)
        with code.loop("%begin", "%end") as task:
            *outer, tile = self.split(code, task.index, (*k.outer, self.tiles))
            first = code.let(f"mul i64 {tile}, {t.queries}")
            sources = [
                moved(code, self._shared(code, outer, str(n)), first, width, t.kind)
                for n in range(self.parts_of_keys)
            ]
            target = self.row(code, access, self.base(code, access, outer), first)
            # Not a function of its own: the helpers of a routine, in this one.
            part = Routine("", [], t, self.pieces)
            part.code, part.v, part.one = code, Vectors(code, t.lanes), Vectors(code, 1)
            with code.loop(0, self._rows(code, first)) as row:
                to = moved(code, target, row.index, access.row, memory_kind(dtype))
                for begin in range(0, k.depth, t.lanes):
                    total = part.constant(0.0)
                    for source in sources:
                        at = moved(code, source, row.index, width, t.kind)
                        total = part.v.add(total, part.v.load(part.v.at(at, begin, t.kind), t.kind))
                    x = part.v.mul(total, part.constant(self._scale(self.gradients.q_scale)))
                    write_vector(part, stored(part.v, x, dtype), to, begin, k.depth, access.column)
        return code
