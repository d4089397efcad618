"""Attention as Triton kernels: windows, masks, biases, caps, shared heads, and the logsumexp.

A program has a block of queries at one outer point, and visits the keys in blocks with an online
softmax. Where queries are few, the keys are split in parts, whose results a second launch combines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.emit.triton import dtypes
from weft.emit.triton.emitted import EmittedParts, GridLaunch
from weft.emit.triton.parts.sizes import power_of_two
from weft.ir.types import F32
from weft.kernels.attention import Access, Attention
from weft.kernels.kernel import Operand
from weft.records import dataclass

PROGRAMS = 264  # programs that keep a GPU busy
PART = 128  # keys of a part, at least
DEPTH = 256  # the largest depth whose tile fits


def refuses_kernel(kernel: Attention) -> str | None:
    """Why no Triton kernel computes attention, or None if one does."""
    if kernel.gradients is not None:
        return "gradients are the library's"
    if kernel.dtype(kernel.q).name not in ("f32", "bf16", "f16"):
        return f"of {kernel.dtype(kernel.q)}"
    if max(kernel.depth, kernel.value_depth) > DEPTH:
        return f"of depth {max(kernel.depth, kernel.value_depth)}"
    return None


@dataclass(frozen=True, slots=True)
class AttentionBlocks:
    """Queries and keys of a tile, parts of the keys, and warps."""

    queries: int
    keys: int
    parts: int
    warps: int


def attention_blocks(kernel: Attention) -> AttentionBlocks:
    """The tile of a kernel, by its sizes."""
    narrow = kernel.dtype(kernel.q).bits < 32
    depth = power_of_two(max(kernel.depth, kernel.value_depth))
    most = (128 if depth <= 128 else 64) if narrow else 32
    # 16 rows at least: `tl.dot` takes no smaller tile.
    queries = min(most, max(16, power_of_two(kernel.queries)))
    keys = min(64 if narrow and depth <= 128 else 32, max(16, power_of_two(kernel.keys)))
    programs = -(-kernel.queries // queries) * math.prod(kernel.outer)
    parts = 1
    # With a window the parts would have unequal numbers of visible keys, and some of them none.
    if programs < PROGRAMS // 2 and kernel.window.is_open:
        parts = max(1, min(kernel.keys // PART, -(-PROGRAMS // programs), 64))
    return AttentionBlocks(queries, keys, parts, 8 if queries >= 128 else 4)


def emit_attention(kernel: Attention) -> EmittedParts:
    """The launches of a forward kernel."""
    blocks = attention_blocks(kernel)
    if blocks.parts == 1:
        return EmittedParts((_Forward(kernel, blocks).launch(),))
    launches = (_Forward(kernel, blocks).launch(), _combining(kernel, blocks))
    return EmittedParts(launches, _scratch(kernel, blocks, output=True))


def _scratch(
    kernel: Attention, blocks: AttentionBlocks, *, output: bool
) -> tuple[Operand, Operand]:
    """The partial results of parts: weighted sums of values; maxima, and then totals."""
    rows = math.prod(kernel.outer) * kernel.queries
    return (
        Operand(F32, (blocks.parts, rows, kernel.value_depth), output),
        Operand(F32, (2, blocks.parts, rows), output),
    )


class _Lines:
    """The text of a function on a kernel's operands and scratch."""

    def __init__(
        self, kernel: Attention, operands: Sequence[int], scratch: Sequence[Operand]
    ) -> None:
        self.kernel, self.operands = kernel, tuple(dict.fromkeys(operands))
        self.scratch = scratch
        self.lines: list[str] = []
        self.depth = 1
        wide = any(o.size >= 1 << 31 for o in (*kernel.operands, *scratch))
        self.wide = ".to(tl.int64)" if wide else ""

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def outer(self, point: str) -> None:
        """The indices of the outer dims, from the number of an outer point."""
        self.line(f"rest = {point}.to(tl.int64)")
        for n, size in reversed([*enumerate(self.kernel.outer)]):
            self.line(f"o{n} = rest % {size}")
            self.line(f"rest = rest // {size}")

    def at(self, access: Access, row: str, column: str) -> str:
        """A pointer expression of an operand."""
        terms = [f"in{access.operand}"]
        terms += [f"o{n} * {s}" for n, s in enumerate(access.outer) if s]
        terms += [str(access.offset)] if access.offset else []
        terms += [f"{row} * {access.row}", f"{column} * {access.column}"]
        return " + ".join(terms)

    def launch(self, name: str, grid: tuple[int, int, int], warps: int) -> GridLaunch:
        kernel, count = self.kernel, len(self.kernel.operands)
        numbers = (*self.operands, *[count + n for n in range(len(self.scratch))])
        names = [f"in{n}" for n in self.operands] + [f"part{n}" for n in range(len(self.scratch))]
        every = (*kernel.operands, *self.scratch)
        head = f"@triton.jit\ndef {name}({', '.join(names)}):"
        text = "\n".join([head, *self.lines]) + "\n"
        signature = tuple([dtypes.pointer(every[n].dtype) for n in numbers])
        return GridLaunch(name, text, signature, numbers, grid, warps, stages=2)


class _Forward:
    """The first launch: outputs, or partial results of parts of the keys."""

    def __init__(self, kernel: Attention, blocks: AttentionBlocks) -> None:
        self.kernel, self.blocks = kernel, blocks
        self.is_split = blocks.parts > 1
        scratch = _scratch(kernel, blocks, output=True) if self.is_split else ()
        read = [kernel.q, kernel.k, kernel.v, *kernel.pairs.values()]
        written = [] if self.is_split else [kernel.out, *([kernel.lse] if kernel.lse else [])]
        operands = [a.operand for a in (*read, *written)]
        self.text = _Lines(kernel, operands, scratch)
        self.d = max(16, power_of_two(kernel.depth))
        self.e = max(16, power_of_two(kernel.value_depth))
        self.stored = dtypes.stored(kernel.dtype(kernel.q))
        # The fast exponential is off by a few ulps of f32, which narrow inputs do not resolve.
        self.exp = "p.fast_exp" if kernel.dtype(kernel.q).bits < 32 else "p.exp"

    def launch(self) -> GridLaunch:
        """The launch."""
        kernel, blocks, line = self.kernel, self.blocks, self.text.line
        wide = self.text.wide
        line("point = tl.program_id(1)")
        self.text.outer("point")
        line(f"m = (tl.program_id(0) * {blocks.queries} + tl.arange(0, {blocks.queries})){wide}")
        line(f"d = tl.arange(0, {self.d}){wide}")
        line(f"e = tl.arange(0, {self.e}){wide}")
        line(f"inside = m[:, None] < {kernel.queries}")
        at = self.text.at(kernel.q, "m[:, None]", "d[None, :]")
        # Zeros beyond the depth add nothing to the scores; rows beyond the queries are computed and
        # not stored.
        line(f"q = tl.load({at}, mask=inside & (d[None, :] < {kernel.depth}), other=0)")
        line(f"top = tl.full([{blocks.queries}, 1], float('-inf'), tl.float32)")
        line(f"total = tl.full([{blocks.queries}, 1], 0.0, tl.float32)")
        line(f"out = tl.full([{blocks.queries}, {self.e}], 0.0, tl.float32)")
        self._range()
        line(f"for start in range(p.bound(first), p.bound(last), {blocks.keys}):")
        self.text.depth += 1
        self._block()
        self.text.depth -= 1
        self._finish()
        grid = (-(-kernel.queries // blocks.queries), math.prod(kernel.outer), blocks.parts)
        return self.text.launch(
            kernel.name + ("_parts" if self.is_split else ""), grid, blocks.warps
        )

    def _range(self) -> None:
        """The keys that any query of the block sees, in this part."""
        kernel, blocks, line = self.kernel, self.blocks, self.text.line
        window, keys = kernel.window, kernel.keys
        if self.is_split:
            each = -(-keys // blocks.parts)
            line(f"first = tl.program_id(2) * {each}")
            line(f"last = tl.minimum(first + {each}, {keys})")
            return
        line(f"begin = tl.program_id(0) * {blocks.queries}")
        first, last = "0", str(keys)
        if window.left is not None:
            first = f"tl.maximum(begin + {window.shift - window.left}, 0) // {blocks.keys}"
            # Rounded down to a block, so that loads stay aligned; the window masks the rest.
            first += f" * {blocks.keys}"
        if window.right is not None:
            after = window.shift + window.right + blocks.queries
            last = f"tl.minimum(begin + {after}, {keys})"
        line(f"first = {first}")
        line(f"last = {last}")

    def _block(self) -> None:
        """One block of keys."""
        kernel, line, at = self.kernel, self.text.line, self.text.at
        limit = "last" if self.is_split else str(kernel.keys)
        line(f"s = (start + tl.arange(0, {self.blocks.keys})){self.text.wide}")
        line(f"here = s < {limit}")
        mask = f"mask=here[None, :] & (d[:, None] < {kernel.depth}), other=0"
        line(f"k = tl.load({at(kernel.k, 's[None, :]', 'd[:, None]')}, {mask})")
        zero = f"tl.full([{self.blocks.queries}, {self.blocks.keys}], 0.0, tl.float32)"
        line(f"x = p.dot(q, k, {zero}) * {kernel.scale!r}")
        if kernel.softcap:
            line(f"x = {kernel.softcap!r} * lib.tanh(x / {kernel.softcap!r})")
        both = "mask=inside & here[None, :], other=0"
        if kernel.bias is not None:
            bias = f"tl.load({at(kernel.bias, 'm[:, None]', 's[None, :]')}, {both})"
            line(f"x += {bias}.to(tl.float32) * {kernel.bias_scale!r}")
        if kernel.mask is not None:
            hidden = f"tl.load({at(kernel.mask.access, 'm[:, None]', 's[None, :]')}, {both})"
            test = "!= 0" if kernel.mask.hides else "== 0"
            line(f"x = tl.where({hidden} {test}, {_number(kernel.mask.fill)}, x)")
        # After bias, mask and cap: what is outside must not come back as a finite score.
        line(f"x = tl.where({' & '.join(self._visible())}, x, float('-inf'))")
        line("larger = tl.maximum(top, p.max_row(x))")
        # A row that has seen no key yet: -inf - -inf would be NaN.
        line("base = tl.where(larger == float('-inf'), 0.0, larger)")
        line(f"w = {self.exp}(x - base)")
        # 0 before the first visible key, where `top` is -inf: sums and outputs so far are zeros
        # then.
        line(f"scale = {self.exp}(top - base)")
        line("total = total * scale + p.sum_row(w)")
        mask = f"mask=here[:, None] & (e[None, :] < {kernel.value_depth}), other=0"
        line(f"v = tl.load({at(kernel.v, 's[:, None]', 'e[None, :]')}, {mask})")
        line(f"out = p.dot(w.to({self.stored}), v, out * scale)")
        line("top = larger")

    def _visible(self) -> list[str]:
        window = self.kernel.window
        tests = ["here[None, :]"]
        if window.left is not None:
            tests.append(f"(s[None, :] >= m[:, None] + {window.shift - window.left})")
        if window.right is not None:
            tests.append(f"(s[None, :] <= m[:, None] + {window.shift + window.right})")
        return tests

    def _finish(self) -> None:
        kernel, line, blocks = self.kernel, self.text.line, self.blocks
        if self.is_split:
            rows = math.prod(kernel.outer) * kernel.queries
            line(f"row = point * {kernel.queries} + m[:, None] + tl.program_id(2) * {rows}")
            place = f"part0 + row * {kernel.value_depth} + e[None, :]"
            line(f"tl.store({place}, out, mask=inside & (e[None, :] < {kernel.value_depth}))")
            line("tl.store(part1 + row, top, mask=inside)")
            line(f"tl.store(part1 + row + {rows * blocks.parts}, total, mask=inside)")
            return
        _store(self.text, "m[:, None]", "e[None, :]", "inside")


def _store(text: _Lines, row: str, column: str, inside: str) -> None:
    """The results, from running maxima, totals and sums."""
    kernel, line = text.kernel, text.line
    empty = "float('nan')" if kernel.empty == "nan" else "0.0"
    # Rows without any visible key; the inner where avoids a division by 0 in lanes that are not
    # taken.
    line(f"made = tl.where(total == 0.0, {empty}, out / tl.where(total == 0.0, 1.0, total))")
    dtype = kernel.dtype(kernel.out)
    held = dtypes.to_memory("made", dtype)
    at = text.at(kernel.out, row, column)
    line(f"tl.store({at}, {held}, mask={inside} & ({column} < {kernel.value_depth}))")
    if kernel.lse is not None:
        line("logs = tl.where(total == 0.0, float('-inf'), top + lib.log(total))")
        at = text.at(kernel.lse, row, "0")
        line(f"tl.store({at}, logs, mask={inside})")


def _combining(kernel: Attention, blocks: AttentionBlocks) -> GridLaunch:
    """The second launch: parts combined, a program for each query."""
    rows = math.prod(kernel.outer) * kernel.queries
    scratch = _scratch(kernel, blocks, output=False)
    written = [kernel.out, *([kernel.lse] if kernel.lse else [])]
    text = _Lines(kernel, [a.operand for a in written], scratch)
    line, count = text.line, power_of_two(blocks.parts)
    width = max(16, power_of_two(kernel.value_depth))
    line("row = tl.program_id(0)")
    line(f"m = (row % {kernel.queries} + tl.arange(0, 1)[:, None]){text.wide}")
    text.outer(f"(row // {kernel.queries})")
    line(f"n = tl.arange(0, {count})[None, :]")
    line(f"e = tl.arange(0, {width})[:, None]{text.wide}")
    line(f"known = n < {blocks.parts}")
    line(f"tops = tl.load(part1 + n * {rows} + row, mask=known, other=float('-inf'))")
    totals = f"part1 + n * {rows} + row + {rows * blocks.parts}"
    line(f"totals = tl.load({totals}, mask=known, other=0)")
    line("top = p.max_row(tops)")
    line("top = tl.where(top == float('-inf'), 0.0, top)")
    # Parts without visible keys have a top of -inf, hence a weight of 0.
    line("w = p.exp(tops - top)")
    line("total = p.sum_row(totals * w)")
    place = f"part0 + (n * {rows} + row).to(tl.int64) * {kernel.value_depth} + e"
    line(f"sums = tl.load({place}, mask=known & (e < {kernel.value_depth}), other=0)")
    line("out = p.sum_row(sums * w)")
    _store(text, "m", "e", "(m >= 0)")
    return text.launch(kernel.name, (rows, 1, 1), warps=4)


def _number(value: float) -> str:
    return f"float('{value}')" if math.isinf(value) or math.isnan(value) else repr(value)
